"""Questions with known answers from JSON Lines files, such as GSM8K, as an environment.

A row is {"question": ..., "answer": ...}. If the answer contains "####", only the text after the
last one counts. With the scoring "choice" a row also has "choices", a list of texts, and its answer
is the letter, index or text of one.
"""

from __future__ import annotations

import importlib.metadata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from swarm_node.environments.answers import SCORERS, UNMARKED, final_answer, only_answer
from swarm_node.environments.asked import tagged, written
from swarm_node.environments.base import Environment, Task, check_ref
from swarm_node.environments.mathematics.equality import equal
from swarm_node.environments.rows import (
    Family,
    check_template,
    check_text,
    digest_of,
    read_families,
    refuse,
)
from swarm_node.rollout import TaskRef

#: Counts changes of how this module turns a seed into a task or a text into a score.
#: 2: with the scoring "math", LaTeX that makes a matrix of any size is wrong.
#: 3: the canonical text of a question decides its part.
#: 4: answers are read as people write them: mathematics, letters, phrases and boxes.
SCHEME = 4
MAX_ROW_BYTES = 64 << 10
_MAX_CHOICES = 26


@dataclass(frozen=True, slots=True)
class Example:
    """One question with its right answer, which is a letter if there are `choices`."""

    question: str
    answer: str
    choices: tuple[str, ...] = ()


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
        raise refuse("scoring", f"{scoring!r} is none of {', '.join(SCORERS)}")
    check_template(template)
    families, digests = read_families(
        path,
        lambda row: _example(row, (question, answer), scoring == "choice"),
        MAX_ROW_BYTES,
        held_out,
    )
    if scoring == "math":
        # Imports and compiles for seconds: now, not within the time limit of the first answer.
        equal("x + 1", "1 + x")
    options = [digests, scoring, template, held_out, question, answer, *["strict"] * strict]
    return _Jsonl(families, _version(options, scoring), scoring, template, strict=strict)


class _Jsonl:
    """Implements `Environment`. A seed names the row at the seed modulo the number of rows."""

    name = "jsonl"

    def __init__(
        self,
        families: Mapping[str, Family[Example]],
        version: str,
        scoring: str,
        template: str,
        *,
        strict: bool,
    ) -> None:
        self.families = tuple(families)
        self.version = version
        self.held_out_bounds = {name: family.bound for name, family in families.items()}
        self.sizes = {name: family.size for name, family in families.items()}
        self.notes = tuple(family.note(name) for name, family in families.items())
        self._rows = families
        self._score = SCORERS[scoring]
        self._unmarked = UNMARKED.get(scoring)
        self._template = template
        self._strict = strict

    def derive(self, ref: TaskRef) -> Task:
        check_ref(self, ref)
        return Task(ref, self._rows[ref.family].row(ref))

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

    def written(self, task: Task) -> str:
        """The right answer as the template asks for it; in the tag if it names no form."""
        example: Example = task.payload
        return written(example.answer, self._template) or tagged(example.answer)

    def place(self, task: Task) -> str:
        return f"line {self._rows[task.ref.family].line(task.ref)}"

    def score(self, task: Task, text: str) -> float:
        example: Example = task.payload
        if self._strict:
            only = only_answer(text)
            return 0.0 if only is None else self._score(only, example.answer, example.choices)
        answer, marked = final_answer(text)
        parts = [answer] if marked or self._unmarked is None else self._unmarked(answer)
        return max(self._score(part, example.answer, example.choices) for part in parts)


def _example(value: dict[str, Any], fields: tuple[str, str], with_choices: bool) -> Example:
    """The example in one row.

    Raises:
        ValueError: the row is malformed.
    """
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
    check_text(right, fields[1])
    return Example(question, right)


def _choices(value: Any) -> tuple[str, ...]:
    if not isinstance(value, list) or not 2 <= len(value) <= _MAX_CHOICES:
        raise ValueError(f"'choices' must be a list of 2 to {_MAX_CHOICES} texts")
    if not all(isinstance(text, str) and text.strip() for text in value):
        raise ValueError("every choice must be a text")
    for text in value:
        check_text(text, "choices")
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


def _version(options: Sequence[Any], scoring: str) -> str:
    """Contains a digest of the files: nodes with different files refuse each other's tasks."""
    digest = digest_of(options)
    if scoring != "math":
        return f"{SCHEME}-{digest}"
    return f"{importlib.metadata.version('math-verify')}-{SCHEME}-{digest}"
