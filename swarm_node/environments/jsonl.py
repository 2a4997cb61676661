"""Questions with known answers from JSON Lines files, such as GSM8K, as an environment.

A row is {"question": ..., "answer": ...}. If the answer contains "####", only the text after the
last one counts. With the scoring "choice" a row also has "choices", a list of texts, and its answer
is the letter, index or text of one.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from swarm_node.environments.answers import SCORERS, final_answer, only_answer
from swarm_node.environments.base import Environment, Task, check_ref, split_held_out
from swarm_node.environments.split import canonical
from swarm_node.errors import ConfigError
from swarm_node.rollout import TaskRef

#: Counts changes of how this module turns a seed into a task or a text into a score.
#: 2: with the scoring "math", LaTeX that makes a matrix of any size is wrong.
#: 3: the canonical text of a question decides its part.
SCHEME = 3
MAX_FILE_BYTES = 256 << 20
MAX_ROW_BYTES = 64 << 10
MAX_ROWS = 1_000_000
_MAX_CHOICES = 26
_FAMILY = re.compile(r"[A-Za-z0-9 _.:+@=,-]{1,64}", re.ASCII)


@dataclass(frozen=True, slots=True)
class Example:
    """One question with its right answer, which is a letter if there are `choices`."""

    question: str
    answer: str
    choices: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class _Family:
    """The examples of one file. No question is in both parts: those below `bound` are held out.
    `repeated` counts the rows whose question stands in another row before."""

    training: Sequence[Example]
    held_out: Sequence[Example]
    bound: int
    repeated: int


def create(
    path: str | Sequence[str],
    scoring: str = "exact",
    template: str = "{question}",
    held_out: float = 0.1,
    question: str = "question",
    answer: str = "answer",
    strict: bool = False,
) -> Environment:
    """The factory behind the entry point `jsonl`.

    Args:
        path: a file or several; each becomes a family, named after it.
        scoring: "exact" (word for word), "math" (math-verify) or "choice" (a letter).
        template: the prompt, with {question} in the place of the question. Choices follow it.
        held_out: share of the questions kept for evaluation, by a hash of their canonical text.
        question, answer: the names of the fields.
        strict: text around the <answer></answer> makes an answer wrong.

    Raises:
        ConfigError: a file is missing, too large or malformed, or an option makes no sense.
    """
    if scoring not in SCORERS:
        raise _refusal("scoring", f"{scoring!r} is none of {', '.join(SCORERS)}")
    if template.count("{question}") != 1:
        raise _refusal("template", "it must contain {question} once")
    if not 0 < held_out < 1:
        raise _refusal("held_out", "a share above 0 and below 1, such as 0.1")
    paths = [Path(item).expanduser() for item in ([path] if isinstance(path, str) else path)]
    families, digests = {}, {}
    for file in paths:
        if not _FAMILY.fullmatch(file.stem) or file.stem in families:
            raise _refusal("path", f"{file}: names of families must be plain and different")
        data = _read(file)
        digests[file.stem] = hashlib.sha256(data).hexdigest()
        rows = list(_rows(file, data, (question, answer), scoring == "choice"))
        families[file.stem] = _split(file, rows, held_out)
    if not families:
        raise _refusal("path", "name at least one file")
    _check_apart(families)
    if scoring == "math":
        # Imports and compiles for seconds: now, not within the time limit of the first answer.
        SCORERS[scoring]("1", "1", ())
    options = [digests, scoring, template, held_out, question, answer, *["strict"] * strict]
    return _Jsonl(families, _version(options, scoring), scoring, template, strict=strict)


class _Jsonl:
    """Implements `Environment`. A seed names the row at the seed modulo the number of rows."""

    name = "jsonl"

    def __init__(
        self,
        families: Mapping[str, _Family],
        version: str,
        scoring: str,
        template: str,
        *,
        strict: bool,
    ) -> None:
        self.families = tuple(families)
        self.version = version
        self.held_out_bounds = {name: family.bound for name, family in families.items()}
        self.notes = tuple(_note(name, family) for name, family in families.items())
        self._rows = families
        self._score = SCORERS[scoring]
        self._template = template
        self._strict = strict

    def derive(self, ref: TaskRef) -> Task:
        check_ref(self, ref)
        family = self._rows[ref.family]
        rows = family.held_out if ref.held_out else family.training
        return Task(ref, rows[ref.seed % len(rows)])

    def render(self, task: Task) -> str:
        example: Example = task.payload
        # Not str.format: a question may hold braces.
        prompt = self._template.replace("{question}", example.question)
        lines = [f"{_letter(index)}. {text}" for index, text in enumerate(example.choices)]
        return "\n".join([prompt, *lines])

    def question(self, task: Task) -> str:
        example: Example = task.payload
        return example.question

    def answer(self, task: Task) -> str | None:
        example: Example = task.payload
        return example.answer

    def score(self, task: Task, text: str) -> float:
        example: Example = task.payload
        answer = only_answer(text) if self._strict else final_answer(text)
        return 0.0 if answer is None else self._score(answer, example.answer, example.choices)


def _refusal(option: str, what: str) -> ConfigError:
    return ConfigError(f"environment.options.{option}: {what}")


def _read(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            data = file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise _refusal("path", f"cannot read {path}: {error.strerror}") from error
    if len(data) > MAX_FILE_BYTES:
        raise _refusal("path", f"{path} is larger than {MAX_FILE_BYTES >> 20} MiB: split it")
    return data


def _rows(
    path: Path, data: bytes, fields: tuple[str, str], with_choices: bool
) -> Iterator[Example]:
    count = 0
    for number, line in enumerate(data.split(b"\n"), start=1):
        if not line.strip():
            continue
        count += 1
        if count > MAX_ROWS:
            raise _refusal("path", f"{path} has more than {MAX_ROWS} rows: split it")
        try:
            yield _row(line, fields, with_choices)
        except ValueError as error:
            raise _refusal("path", f"{path}, line {number}: {error}") from error


def _row(line: bytes, fields: tuple[str, str], with_choices: bool) -> Example:
    """The example in one row.

    Raises:
        ValueError: the row is malformed.
    """
    if len(line) > MAX_ROW_BYTES:
        raise ValueError(f"a row may have {MAX_ROW_BYTES >> 10} KiB at most")
    try:
        value = json.loads(line)
    except RecursionError as error:
        raise ValueError("too deep") from error
    if not isinstance(value, dict):
        raise ValueError("a row must be a JSON object")
    missing = [field for field in fields if field not in value]
    if missing:
        raise ValueError(f"no field {missing[0]!r}; name it in the options question and answer")
    question, given = (value[field] for field in fields)
    if not isinstance(question, str) or not question.strip():
        raise ValueError(f"{fields[0]!r} must be a text")
    if with_choices:
        choices = _choices(value.get("choices"))
        return Example(question, _right_letter(given, choices), choices)
    if isinstance(given, bool) or not isinstance(given, str | int | float):
        raise ValueError(f"{fields[1]!r} must be a text or a number")
    right = str(given).rpartition("####")[2].strip()
    if not right:
        raise ValueError(f"{fields[1]!r} is empty")
    return Example(question, right)


def _choices(value: Any) -> tuple[str, ...]:
    if not isinstance(value, list) or not 2 <= len(value) <= _MAX_CHOICES:
        raise ValueError(f"'choices' must be a list of 2 to {_MAX_CHOICES} texts")
    if not all(isinstance(text, str) and text.strip() for text in value):
        raise ValueError("every choice must be a text")
    return tuple(value)


def _right_letter(given: Any, choices: Sequence[str]) -> str:
    letters = [_letter(index) for index in range(len(choices))]
    if isinstance(given, int) and not isinstance(given, bool) and 0 <= given < len(choices):
        return letters[given]
    if given in choices:
        return letters[list(choices).index(given)]
    if given in letters:
        return str(given)
    raise ValueError("the answer is no letter, index (from 0) or text of a choice")


def _letter(index: int) -> str:
    return chr(ord("A") + index)


def _split(path: Path, rows: Sequence[Example], share: float) -> _Family:
    """Split by the canonical text of the question, so that all copies of a question are in one
    part."""
    questions = [canonical(row.question) for row in rows]
    training, held_out, bound = split_held_out(rows, questions, share)
    if not training or not held_out:
        raise _refusal("path", f"{path} needs at least two different questions, one for each part")
    return _Family(training, held_out, bound, len(rows) - len(set(questions)))


def _check_apart(families: Mapping[str, _Family]) -> None:
    """Raise if a question that stands in two files could be in both parts: short files may need
    other bounds."""
    if len({family.bound for family in families.values()}) == 1:
        return
    trained = {canonical(r.question): name for name, f in families.items() for r in f.training}
    for name, family in families.items():
        for row in family.held_out:
            other = trained.get(canonical(row.question))
            if other is not None:
                raise _refusal(
                    "path",
                    f"the question {row.question[:60]!r} would train in {other} and be held out in "
                    f"{name}: put these files together, or give both more questions",
                )


def _note(name: str, family: _Family) -> str:
    text = f"{name}: {len(family.training)} rows for training, {len(family.held_out)} held out"
    if family.repeated:
        text += f"; {family.repeated} rows repeat a question and fall together with it"
    return text


def _version(options: Sequence[Any], scoring: str) -> str:
    """Contains a digest of the files: nodes with different files refuse each other's tasks."""
    canonical = json.dumps(options, sort_keys=True, separators=(",", ":"))
    digest = hashlib.sha256(canonical.encode()).hexdigest()[:24]
    if scoring != "math":
        return f"{SCHEME}-{digest}"
    return f"{importlib.metadata.version('math-verify')}-{SCHEME}-{digest}"
