"""JSON Lines files of questions: read within limits, and split into training and held-out parts.

Every file is bounded, unpacked within the same bound, told by what it is (`formats.py`), and only
then parsed, line by line. Numbers keep the value that they are written with: see `number_text`.
"""

from __future__ import annotations

import hashlib
import json
import re
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from math import isfinite
from pathlib import Path
from typing import Any, Final, Generic, NamedTuple, NoReturn, Protocol, TypeVar

from swarm_node.durable import open_regular
from swarm_node.environments.base import split_held_out
from swarm_node.environments.lists.formats import plain, refused_kind
from swarm_node.environments.registry import HUB, unreadable
from swarm_node.environments.splits.split import canonical
from swarm_node.errors import ConfigError
from swarm_node.rollout import TaskRef

MAX_FILE_BYTES = 256 << 20
MAX_ROWS = 1_000_000
_FAMILY = re.compile(r"[A-Za-z0-9 _.:+@=,-]{1,64}", re.ASCII)
#: Zeros that stand before or after the other digits of a number where people still write them out.
_MOST_ZEROS: Final = 30
#: Digits of a number, and powers of ten: more are a mistake, and slow to compute with.
_MOST_DIGITS: Final = 1000
#: Characters of a key that an error shows.
_SHOWN_CHARS: Final = 40
_NUMBER: Final = re.compile(
    r"[+-]?(?:\d{1,3}(?:,\d{3})+|\d+)?(?:\.\d*)?(?:[eE][+-]?\d{1,3})?", re.ASCII
)


class WithQuestion(Protocol):
    """A row with a question."""

    @property
    def question(self) -> str: ...


_Row = TypeVar("_Row", bound=WithQuestion)
Parse = Callable[[dict[str, Any]], _Row]
#: Rows with the numbers of their lines, the first one 1.
_Numbered = Iterator[tuple[int, _Row]]


class Source(NamedTuple):
    """Rows before they are parsed: the family that they become, the place that errors name, their
    JSON Lines, and what pins them besides their bytes, such as a revision."""

    family: str
    place: str
    data: bytes
    pin: str = ""


#: Fetches the rows that a path beginning with `HUB` names.
Fetch = Callable[[str], Source]


@dataclass(frozen=True, slots=True)
class Family(Generic[_Row]):
    """The rows of one file. No question is in both parts: those below `held_out_bound` are held
    out. `repeat_count` counts the rows whose question stands in another row before. `lines` are the
    numbers of their lines, for training and held out, the first one 1."""

    training: Sequence[_Row]
    held_out: Sequence[_Row]
    held_out_bound: int
    repeat_count: int
    lines: tuple[Sequence[int], Sequence[int]] = ((), ())

    def row(self, ref: TaskRef) -> _Row:
        """The row that a reference names: its seed modulo the number of rows."""
        rows = self.held_out if ref.held_out else self.training
        return rows[ref.seed % len(rows)]

    def line(self, ref: TaskRef) -> int:
        """The number of that row's line."""
        lines = self.lines[ref.held_out]
        return lines[ref.seed % len(lines)]

    @property
    def size(self) -> tuple[int, int]:
        """Numbers of rows for training and held out."""
        return len(self.training), len(self.held_out)

    def note(self, name: str) -> str:
        """A sentence about the rows, for their owner."""
        text = f"{name}: {len(self.training)} rows for training, {len(self.held_out)} held out"
        if self.repeat_count:
            text += f"; {self.repeat_count} rows repeat a question and fall together with it"
        return text


def refuse(option: str, problem: str, *remedies: str) -> ConfigError:
    """The error for a bad option of an environment."""
    return ConfigError(f"environment.options.{option}: {problem}", *remedies)


def read_families(
    path: str | Sequence[str],
    parse: Parse[_Row],
    row_bytes: int,
    share: float,
    *,
    use_decimal: bool = False,
    fetch: Fetch | None = None,
) -> tuple[dict[str, Family[_Row]], dict[str, str]]:
    """The rows of a file or several, each a family named after its file, and the sha256 of each.
    `parse` makes a row of a JSON object, and raises ValueError for a malformed one. It gets numbers
    with a point or an exponent as `Decimal` with `use_decimal`, else as `float`. `fetch` is
    for data sets of a hub, where an environment takes them.

    Raises:
        ConfigError: a file is missing, too large or malformed, is no JSON Lines, or leaves a part
            empty.
    """
    if not isinstance(share, float) or not 0 < share < 1:
        raise refuse("held_out", "a share above 0 and below 1, such as 0.1")
    paths = [path] if isinstance(path, str) else path
    if not isinstance(paths, Sequence) or not all(isinstance(item, str) for item in paths):
        raise refuse("path", "a file, or a list of files")
    families, digests = {}, {}
    for item in paths:
        source = _source(item, fetch)
        if not _FAMILY.fullmatch(source.family):
            raise refuse(
                "path",
                f"{source.place}: its name becomes a family's: rename the file: letters A to Z, "
                "digits, space and _.:+@=,- only, at most 64 of them",
            )
        if source.family in families:
            raise refuse(
                "path",
                f"{source.place}: another file has the same name, {source.family!r}, and each is a "
                "family: rename one",
            )
        digests[source.family] = hashlib.sha256(source.pin.encode() + source.data).hexdigest()
        rows = list(_rows(source, parse, row_bytes, use_decimal=use_decimal))
        families[source.family] = _split(source.place, rows, share)
    if not families:
        raise refuse("path", "name at least one file")
    _check_apart(families)
    return families, digests


def digest_of(options: Sequence[Any]) -> str:
    """A short digest of options and files: nodes with others refuse each other's tasks."""
    canonical_form = json.dumps(options, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical_form.encode()).hexdigest()[:24]


def number_text(value: int | Decimal) -> str:
    """The canonical text of a number of JSON, which is how people write its value: 18 for 18.0,
    0.5 for 5e-1, all digits of a large integer, 10000000000000000000000 for 1e22. Where that would
    take more than thirty zeros in a row at an end it is 1e-40."""
    sign, digits, exponent = Decimal(value).as_tuple()
    assert isinstance(exponent, int), "parsing refuses what is not finite"
    numeral = "".join(map(str, digits)).lstrip("0")
    significant = numeral.rstrip("0")
    if not significant:
        return "0"
    exponent += len(numeral) - len(significant)
    minus, point = "-" * sign, len(significant) + exponent
    if max(exponent, -point) > _MOST_ZEROS:
        fraction = f".{significant[1:]}" if len(significant) > 1 else ""
        return f"{minus}{significant[0]}{fraction}e{point - 1}"
    if exponent >= 0:
        return f"{minus}{significant}{'0' * exponent}"
    if point <= 0:
        return f"{minus}0.{'0' * -point}{significant}"
    return f"{minus}{significant[:point]}.{significant[point:]}"


def number_of(text: str) -> Decimal | None:
    """The number that a text writes in digits, such as 1e22, -18.0 or 1,234; None for any other
    text, and for a number of absurd length. Texts of peers come here."""
    text = text.strip().replace("\N{MINUS SIGN}", "-")
    if len(text) > _MOST_DIGITS or not _NUMBER.fullmatch(text):
        return None
    try:
        return Decimal(text.replace(",", ""))
    except InvalidOperation:  # no digit at all
        return None


def same_number(answer: str, right: str) -> bool:
    """Check that `right` is a number in its canonical text, with or without commas between
    thousands, and that `answer` writes the same number in any way: 1e22, 18.0. A right answer such
    as 007 is a word, and equal to no number."""
    number = number_of(right)
    if number is None or number_text(number) != right.strip().replace(",", ""):
        return False
    return number_of(answer) == number


def _source(item: str, fetch: Fetch | None) -> Source:
    if item.startswith(HUB):
        if fetch is None:
            raise refuse("path", f"{item}: only the environment jsonl takes data sets of a hub")
        return fetch(item)
    path = Path(item).expanduser()
    name = path.with_suffix("") if path.suffix == ".gz" else path
    return Source(name.stem, str(path), _read(path))


def _read(path: Path) -> bytes:
    try:
        with open_regular(path) as file:
            data = file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise unreadable(path, error) from error
    if len(data) > MAX_FILE_BYTES:
        raise refuse("path", f"{path} is larger than {MAX_FILE_BYTES >> 20} MiB: split it")
    try:
        data = plain(data, MAX_FILE_BYTES)
    except OverflowError:
        raise refuse(
            "path", f"{path} is larger than {MAX_FILE_BYTES >> 20} MiB once unpacked: split it"
        ) from None
    except ValueError as error:
        raise refuse("path", f"{path}: {error}") from error
    if kind := refused_kind(data):
        raise refuse("path", f"{path} is {kind.description}: {kind.remedy}")
    return data


def _rows(
    source: Source, parse: Parse[_Row], row_bytes: int, *, use_decimal: bool
) -> _Numbered[_Row]:
    count = 0
    for number, line in enumerate(source.data.split(b"\n"), start=1):
        if not line.strip():
            continue
        count += 1
        if count > MAX_ROWS:
            raise refuse("path", f"{source.place} has more than {MAX_ROWS} rows: split it")
        try:
            row = parse(_object(line, row_bytes, use_decimal=use_decimal))
            check_text(row.question, "question")
        except ValueError as error:
            raise refuse("path", f"{source.place}, line {number}: {error}") from error
        yield number, row


def check_text(text: str, name: str) -> bytes:
    """Return the UTF-8 of a text in a row.

    Raises:
        ValueError: it has half a character, which no scoring worker can be sent.
    """
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"{name!r} has half a character") from error


def check_template(template: object) -> str:
    """Return the prompt's template.

    Raises:
        ConfigError: it is no text with one place for the question.
    """
    if not isinstance(template, str) or template.count("{question}") != 1:
        raise refuse("template", "it must contain {question} once")
    return template


def _object(line: bytes, max_bytes: int, *, use_decimal: bool) -> dict[str, Any]:
    """The JSON object of a line.

    Raises:
        ValueError: the line is none, or too long.
    """
    if len(line) > max_bytes:
        raise ValueError(f"a row may have {max_bytes >> 10} KiB at most")
    try:
        text = line.decode()
    except UnicodeDecodeError as error:
        raise ValueError(
            f"byte {error.start + 1} is not UTF-8: save the file as UTF-8, such as with "
            "`iconv -f LATIN1 -t UTF-8`"
        ) from error
    try:
        value = (_EXACT if use_decimal else _FLOATS).decode(text)
    except json.JSONDecodeError as error:
        raise ValueError(f"not JSON at character {error.pos + 1}: {error.msg}") from error
    except RecursionError as error:
        raise ValueError("too deep") from error
    if not isinstance(value, dict):
        raise ValueError("a row must be a JSON object")
    return value


def _no_number(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number of JSON: give the number, or leave the row out")


def _integer(literal: str) -> int:
    if len(literal) > _MOST_DIGITS:
        raise ValueError(f"a number may have {_MOST_DIGITS} digits at most: write it as a text")
    return int(literal)


def _decimal(literal: str) -> Decimal:
    """A number with a point or an exponent, in the value that it is written with."""
    try:
        value = Decimal(literal)
    except InvalidOperation:  # an exponent that no Decimal has
        value = Decimal("Infinity")
    far = value.is_finite() and value and abs(value.adjusted()) >= _MOST_DIGITS
    if far or not value.is_finite() or len(literal) > _MOST_DIGITS:
        raise ValueError(f"the number {literal[:20]}… is out of range: write it as a text")
    return value


def _float(literal: str) -> float:
    if not isfinite(value := float(literal)):
        raise ValueError(f"the number {literal[:20]} is out of range: write it as a text")
    return value


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object of JSON, in which each key stands once."""
    fields = dict(pairs)
    if len(fields) < len(pairs):
        keys = [key for key, _ in pairs]
        duplicate = next(key for key in keys if keys.count(key) > 1)
        raise ValueError(f"the key {duplicate[:_SHOWN_CHARS]!a} stands twice: leave one out")
    return fields


_EXACT: Final = json.JSONDecoder(
    parse_float=_decimal,
    parse_int=_integer,
    parse_constant=_no_number,
    object_pairs_hook=_once,
)
_FLOATS: Final = json.JSONDecoder(
    parse_float=_float, parse_int=_integer, parse_constant=_no_number, object_pairs_hook=_once
)


def _split(place: str, rows: Sequence[tuple[int, _Row]], share: float) -> Family[_Row]:
    """Split rows with the numbers of their lines by the canonical text of the question, so that all
    copies of a question are in one part."""
    questions = [canonical(row.question) for _, row in rows]
    training, held_out, bound = split_held_out(rows, questions, share)
    if not training or not held_out:
        raise refuse("path", f"{place} needs at least two different questions, one for each part")
    lines = array("L", (n for n, _ in training)), array("L", (n for n, _ in held_out))
    return Family(
        [row for _, row in training],
        [row for _, row in held_out],
        bound,
        len(rows) - len(set(questions)),
        lines,
    )


def _check_apart(families: Mapping[str, Family[_Row]]) -> None:
    """Raise if a question that stands in two files could be in both parts: short files may need
    other bounds."""
    if len({family.held_out_bound for family in families.values()}) == 1:
        return
    index = {canonical(r.question): name for name, f in families.items() for r in f.training}
    for name, family in families.items():
        for row in family.held_out:
            match = index.get(canonical(row.question))
            if match is not None:
                raise refuse(
                    "path",
                    f"the question {row.question[:60]!r} would train in {match} and be held out in "
                    f"{name}: put these files together, or give both more questions",
                )
