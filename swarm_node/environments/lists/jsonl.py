"""Questions with known answers from JSON Lines files, such as GSM8K, as an environment.

A row has a question and a right answer, in fields that are named, or that public sets of questions
have: see `fields.py`. Of an answer that marks a part, with "####" or \\boxed{}, that part counts.
With the scoring "choice" a row also has choices: see `choices.py`.
"""

from __future__ import annotations

import importlib.metadata
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any

from swarm_node.environments.answers.final import final_answer, last_tagged, only_answer
from swarm_node.environments.answers.scoring import SCORERS, UNMARKED
from swarm_node.environments.base import Environment, Task, check_ref
from swarm_node.environments.lists import hub
from swarm_node.environments.lists.answer_forms import format_answer, tag_answer
from swarm_node.environments.lists.choices import (
    choices_of,
    points_at,
    right_letter,
    unshown_choices,
)
from swarm_node.environments.lists.fields import Fields, answer_of, question_of, right_text
from swarm_node.environments.lists.rows import (
    Family,
    Source,
    check_template,
    digest_of,
    read_families,
    refuse,
    same_number,
)
from swarm_node.environments.mathematics.equality import load
from swarm_node.environments.splits.split import canonical
from swarm_node.rollout import TaskRef

#: Counts changes of how this module turns a seed into a task or a text into a score.
#: 2: with the scoring "math", LaTeX that makes a matrix of any size is wrong.
#: 3: the canonical text of a question decides its part.
#: 4: answers are read as people write them: mathematics, letters, phrases and boxes; fields of
#: public sets, and the value of a number.
SCHEME = 4
MAX_ROW_BYTES = 64 << 10
#: Lines that a warning names.
_SHOWN_LINES = 5


@dataclass(frozen=True, slots=True)
class Example:
    """One question with its right answer, which is a letter if there are `choices`. `hides_choices`
    is true for a row whose choices the prompt does not show, and `pointing` if its right answer
    only says which of them it is."""

    question: str
    answer: str
    choices: tuple[str, ...] = ()
    hides_choices: bool = False
    pointing: bool = False


def create(
    path: str | Sequence[str],
    scoring: str = "exact",
    template: str = "{question}",
    held_out: float = 0.1,
    question: str = "",
    answer: str = "",
    strict: bool = False,
    choices: str = "",
    subset: str = "",
    split: str = "train",
    revision: str = "",
) -> Environment:
    """The factory behind the entry point `jsonl`.

    Args:
        path: a file or hub:OWNER/NAME, or several; each becomes a family, named after it.
        scoring: "exact" (words, and numbers by value), "math" or "choice" (a letter).
        template: the prompt, with {question} in the place of the question. Choices follow it.
        held_out: share of the questions kept for evaluation, by a hash of their canonical text.
        question, answer, choices: the names of the fields, with dots for fields within fields;
            "" for those that public sets have.
        strict: text around the <answer></answer> makes an answer wrong.
        subset, split, revision: of data sets of a hub; "" for the only subset, and for main.

    Raises:
        ConfigError: a file is missing, too large or malformed, or an option makes no sense.
    """
    if scoring not in SCORERS:
        raise refuse("scoring", f"{scoring!r} is none of {', '.join(SCORERS)}")
    check_template(template)
    names = _names(question, answer, choices)
    commits: dict[str, str] = {}

    def fetch(item: str) -> Source:
        source, commit = hub.fetch(hub.hub_rows(item, subset, split, revision))
        commits[source.family] = commit
        return source

    families, digests = read_families(
        path,
        lambda row: _example(row, names, with_choices=scoring == "choice"),
        MAX_ROW_BYTES,
        held_out,
        use_decimal=True,
        fetch=fetch,
    )
    if not commits and (subset or revision or split != "train"):
        raise refuse("split", "this, subset and revision are of data sets of a hub: leave them out")
    if scoring == "math":
        # Imports and compiles for seconds: now, not within the time limit of the first answer.
        load()
    options = [digests, scoring, template, held_out, *names, *["strict"] * strict]
    notes = tuple(_note(name, family, commits.get(name)) for name, family in families.items())
    warnings = tuple(warning for item in families.items() for warning in _warnings(*item))
    version = _version(options, scoring)
    return _Jsonl(families, (notes, warnings), version, scoring, template, strict=strict)


class _Jsonl:
    """Implements `Environment`. A seed names the row at the seed modulo the number of rows."""

    name = "jsonl"

    def __init__(
        self,
        families: Mapping[str, Family[Example]],
        messages: tuple[tuple[str, ...], tuple[str, ...]],
        version: str,
        scoring: str,
        template: str,
        *,
        strict: bool,
    ) -> None:
        self.families = tuple(families)
        self.version = version
        self.held_out_bounds = {name: family.held_out_bound for name, family in families.items()}
        self.sizes = {name: family.size for name, family in families.items()}
        self.notes, self.warnings = messages
        self._rows = families
        self._score = _exact if scoring == "exact" else SCORERS[scoring]
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

    def reference_completion(self, task: Task) -> str:
        """The right answer as the template asks for it; in the tag if it names no form."""
        example: Example = task.payload
        return format_answer(example.answer, self._template) or tag_answer(example.answer)

    def place(self, task: Task) -> str:
        return f"line {self._rows[task.ref.family].line(task.ref)}"

    def score(self, task: Task, text: str) -> float:
        example: Example = task.payload
        if self._strict:
            only = only_answer(text)
            return 0.0 if only is None else self._score(only, example.answer, example.choices)
        content = last_tagged(text)
        if (text if content is None else content).split() == example.answer.split():
            return 1.0  # also where the right answer itself holds a mark of answers
        answer, is_marked = final_answer(text)
        parts = [answer] if is_marked or self._unmarked is None else self._unmarked(answer)
        return max(self._score(part, example.answer, example.choices) for part in parts)


def _names(question: object, answer: object, choices: object) -> Fields:
    """The names of fields that the options give.

    Raises:
        ConfigError: one is no text.
    """
    for option, name in (("question", question), ("answer", answer), ("choices", choices)):
        if not isinstance(name, str):
            raise refuse(option, 'the name of a field, such as "question.stem"')
    return Fields(str(question), str(answer), str(choices))


def _example(value: dict[str, Any], names: Fields, *, with_choices: bool) -> Example:
    """The example in one row.

    Raises:
        ValueError: the row is malformed.
    """
    question = question_of(value, names.question)
    if not with_choices:
        right = right_text(value, names.answer)
        hidden_choices = unshown_choices(value, names.choices, question)
        if hidden_choices is None:
            return Example(question, right)
        _, raw_answer = answer_of(value, names.answer)
        return Example(
            question,
            right,
            hides_choices=True,
            pointing=points_at(raw_answer, right, hidden_choices),
        )
    choices = choices_of(value, names.choices)
    field, raw_answer = answer_of(value, names.answer)
    return Example(question, right_letter(raw_answer, field, choices), choices.texts)


def _exact(answer: str, right: str, choices: Sequence[str]) -> float:
    """1 for the same words, and for the same number where the right answer is one: a row's 1e22 is
    10000000000000000000000 as well."""
    return max(SCORERS["exact"](answer, right, choices), float(same_number(answer, right)))


def _note(name: str, family: Family[Example], commit: str | None) -> str:
    text = family.note(name)
    if commit is not None:
        text += f"; all members need environment.options.revision={commit}"
    return text


def _warnings(name: str, family: Family[Example]) -> Iterator[str]:
    """Sentences about rows of a family that are not what they seem.

    Raises:
        ConfigError: most right answers say which choice is right, and no prompt shows choices.
    """
    rows = [*family.training, *family.held_out]
    count, index_count = sum(row.hides_choices for row in rows), sum(row.pointing for row in rows)
    if 2 * index_count > len(rows):
        raise refuse(
            "scoring",
            f"{name}: {index_count:,} right answers are letters or indices of choices, which only "
            "environment.options.scoring=choice shows",
        )
    if count:
        yield (
            f"{name}: {count:,} rows have choices, which only environment.options.scoring=choice "
            f"shows; {index_count:,} right answers are letters or indices of them"
        )
    if family.repeat_count and (lines := _contradicting(family)):
        line_numbers = ", ".join(map(str, lines[:_SHOWN_LINES]))
        yield (
            f"{name}: {len(lines):,} rows repeat a question with another right answer, such as "
            f"line {line_numbers}: mend them, or leave them out"
        )


def _contradicting(family: Family[Example]) -> list[int]:
    """The lines whose question, with its choices, has another right answer in a row before."""
    first: dict[tuple[str, tuple[str, ...]], str] = {}
    line_numbers = []
    lined = zip(
        (*family.lines[0], *family.lines[1]), (*family.training, *family.held_out), strict=True
    )
    for line, row in sorted(lined, key=itemgetter(0)):
        answer = " ".join(row.answer.casefold().split())
        first_answer = first.setdefault((canonical(row.question), row.choices), answer)
        if answer != first_answer and not same_number(answer, first_answer):
            line_numbers.append(line)
    return line_numbers


def _letter(index: int) -> str:
    return chr(ord("A") + index)


def _version(options: Sequence[Any], scoring: str) -> str:
    """Contains a digest of the files: nodes with different files refuse each other's tasks."""
    digest = digest_of(options)
    if scoring != "math":
        return f"{SCHEME}-{digest}"
    return f"{importlib.metadata.version('math-verify')}-{SCHEME}-{digest}"
