"""JSON Lines files of questions: read within limits, and split into training and held-out parts."""

from __future__ import annotations

import hashlib
import json
import re
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

from swarm_node.durable import open_regular
from swarm_node.environments.base import split_held_out
from swarm_node.environments.split import canonical
from swarm_node.errors import ConfigError
from swarm_node.rollout import TaskRef

MAX_FILE_BYTES = 256 << 20
MAX_ROWS = 1_000_000
_FAMILY = re.compile(r"[A-Za-z0-9 _.:+@=,-]{1,64}", re.ASCII)


class WithQuestion(Protocol):
    """A row with a question."""

    @property
    def question(self) -> str: ...


_Row = TypeVar("_Row", bound=WithQuestion)
Parse = Callable[[dict[str, Any]], _Row]
#: Rows with the numbers of their lines, the first one 1.
_Numbered = Iterator[tuple[int, _Row]]


@dataclass(frozen=True, slots=True)
class Family(Generic[_Row]):
    """The rows of one file. No question is in both parts: those below `bound` are held out.
    `repeated` counts the rows whose question stands in another row before. `lines` are the numbers
    of their lines, for training and held out, the first one 1."""

    training: Sequence[_Row]
    held_out: Sequence[_Row]
    bound: int
    repeated: int
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
        if self.repeated:
            text += f"; {self.repeated} rows repeat a question and fall together with it"
        return text


def refuse(option: str, what: str) -> ConfigError:
    """The error for a bad option of an environment."""
    return ConfigError(f"environment.options.{option}: {what}")


def read_families(
    path: str | Sequence[str], parse: Parse[_Row], row_bytes: int, share: float
) -> tuple[dict[str, Family[_Row]], dict[str, str]]:
    """The rows of a file or several, each a family named after its file, and the sha256 of each.
    `parse` makes a row of a JSON object, and raises ValueError for a malformed one.

    Raises:
        ConfigError: a file is missing, too large or malformed, or leaves a part empty.
    """
    if not isinstance(share, float) or not 0 < share < 1:
        raise refuse("held_out", "a share above 0 and below 1, such as 0.1")
    listed = [path] if isinstance(path, str) else path
    if not isinstance(listed, Sequence) or not all(isinstance(item, str) for item in listed):
        raise refuse("path", "a file, or a list of files")
    families, digests = {}, {}
    for file in [Path(item).expanduser() for item in listed]:
        if not _FAMILY.fullmatch(file.stem) or file.stem in families:
            raise refuse("path", f"{file}: names of families must be plain and different")
        data = _read(file)
        digests[file.stem] = hashlib.sha256(data).hexdigest()
        families[file.stem] = _split(file, list(_rows(file, data, parse, row_bytes)), share)
    if not families:
        raise refuse("path", "name at least one file")
    _check_apart(families)
    return families, digests


def digest_of(options: Sequence[Any]) -> str:
    """A short digest of options and files: nodes with others refuse each other's tasks."""
    canonical_form = json.dumps(options, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical_form.encode()).hexdigest()[:24]


def _read(path: Path) -> bytes:
    try:
        with open_regular(path) as file:
            data = file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise refuse("path", f"cannot read {path}: {error.strerror}") from error
    if len(data) > MAX_FILE_BYTES:
        raise refuse("path", f"{path} is larger than {MAX_FILE_BYTES >> 20} MiB: split it")
    return data


def _rows(path: Path, data: bytes, parse: Parse[_Row], row_bytes: int) -> _Numbered[_Row]:
    count = 0
    for number, line in enumerate(data.split(b"\n"), start=1):
        if not line.strip():
            continue
        count += 1
        if count > MAX_ROWS:
            raise refuse("path", f"{path} has more than {MAX_ROWS} rows: split it")
        try:
            row = parse(_object(line, row_bytes))
            check_text(row.question, "question")
        except ValueError as error:
            raise refuse("path", f"{path}, line {number}: {error}") from error
        yield number, row


def check_text(text: str, name: str) -> bytes:
    """Return the UTF-8 of a text in a row.

    Raises:
        ValueError: it has half a character, which no judge can be sent.
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


def _object(line: bytes, most: int) -> dict[str, Any]:
    """The JSON object of a line.

    Raises:
        ValueError: the line is none, or too long.
    """
    if len(line) > most:
        raise ValueError(f"a row may have {most >> 10} KiB at most")
    try:
        value = json.loads(line)
    except RecursionError as error:
        raise ValueError("too deep") from error
    if not isinstance(value, dict):
        raise ValueError("a row must be a JSON object")
    return value


def _split(path: Path, rows: Sequence[tuple[int, _Row]], share: float) -> Family[_Row]:
    """Split rows with the numbers of their lines by the canonical text of the question, so that all
    copies of a question are in one part."""
    questions = [canonical(row.question) for _, row in rows]
    training, held_out, bound = split_held_out(rows, questions, share)
    if not training or not held_out:
        raise refuse("path", f"{path} needs at least two different questions, one for each part")
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
    if len({family.bound for family in families.values()}) == 1:
        return
    trained = {canonical(r.question): name for name, f in families.items() for r in f.training}
    for name, family in families.items():
        for row in family.held_out:
            other = trained.get(canonical(row.question))
            if other is not None:
                raise refuse(
                    "path",
                    f"the question {row.question[:60]!r} would train in {other} and be held out in "
                    f"{name}: put these files together, or give both more questions",
                )
