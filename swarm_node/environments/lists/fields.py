"""The question and the right answer of a row, by the field names of public sets of questions. Pure.

A name may have dots, for a field within a field: `question.stem`. Without a name, the fields are
those that GSM8K, MATH, MMLU, ARC, AQuA, CommonsenseQA, SVAMP, MAWPS, ASDiv and their like have; see
`QUESTIONS` and `ANSWERS`. The letters of their names may be capital or small.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from decimal import Decimal
from functools import lru_cache
from typing import Any, Final, NamedTuple

from swarm_node.environments.lists.rows import check_text, number_text

#: Where questions are found, the first that a row has.
QUESTIONS: Final = (
    *("question", "question.stem", "problem", "squestion", "query"),
    *("prompt", "ctx", "input"),
)
#: Where right answers are found, the first that a row has. An object is none of them.
ANSWERS: Final = (
    *("answer", "answerkey", "final_answer", "expected_answer", "correct", "correct_answer"),
    *("ground_truth", "reward_model.ground_truth", "result", "target", "lsolutions", "label"),
)
#: Those of them that say whether something else was right, where they are true or false.
_OF_ANOTHER: Final = ("correct", "result")
#: Where a worked solution is found that ends in its answer, if a row has no answer by itself.
SOLUTIONS: Final = ("solution", "rationale")
#: Texts that a question is about and that belong before it: SVAMP's, BoolQ's, RACE's, COPA's.
_BEFORE: Final = ("body", "passage", "article", "context", "story", "premise", "paragraph")
#: Fields of questions that are whole prompts already.
_PROMPTS: Final = ("prompt", "ctx", "input")
#: Fields that only ASDiv's rows have, whose answers are such as "9 (apples)".
_WITH_UNIT: Final = ("formula", "solution_type")
_UNIT: Final = re.compile(r"(.+?)\s*\([^()]*\)")
_BOXED: Final = re.compile(r"\\(?:boxed|fbox)(?![A-Za-z])\s*")
_MARK: Final = "####"
#: What stands after it where it begins a heading of Markdown.
_HEADING: Final = re.compile(
    r"\W*(?:(?:the|my)\s+)?(?:final\s+|correct\s+)?"
    r"(?:answer|solution|conclusion|result|explanation|summary|step\W*\d.*)\W*",
    re.IGNORECASE,
)
#: Names of fields in an error, and characters of each.
_SHOWN_FIELDS: Final = 12
_SHOWN_CHARS: Final = 40
#: The value of a field that a row does not have. None is JSON's null.
ABSENT: Final = object()


class Fields(NamedTuple):
    """The names that an owner gave to the fields, each "" if it is to be found."""

    question: str = ""
    answer: str = ""
    choices: str = ""


def look(row: Mapping[str, Any], name: str) -> Any:
    """The value of the field `name`, or `ABSENT`. A name with dots is first looked for as it is. A
    number in it is the place in a list, from 0."""
    value = _member(row, name)
    if value is not ABSENT or "." not in name:
        return value
    value = row
    for part in name.split("."):
        value = _member(value, part)
    return value


def _member(value: Any, part: str) -> Any:
    if isinstance(value, dict):
        if part in value:
            return value[part]
        return value.get(_names_by_casefold(tuple(value)).get(part.casefold()), ABSENT)
    if isinstance(value, list) and re.fullmatch(r"[0-9]{1,4}", part) and int(part) < len(value):
        return value[int(part)]
    return ABSENT


@lru_cache(maxsize=64)
def _names_by_casefold(names: tuple[str, ...]) -> Mapping[str, str]:
    """The first of some names by its small letters. The rows of a file have few sets of names."""
    return {name.casefold(): name for name in reversed(names)}


@lru_cache(maxsize=256)
def present(keys: tuple[str, ...], names: tuple[str, ...]) -> tuple[str, ...]:
    """Those of some `names` of fields whose first part a row with these `keys` may have."""
    folded_keys = _names_by_casefold(keys)
    return tuple(name for name in names if name.partition(".")[0].casefold() in folded_keys)


def first_of(row: Mapping[str, Any], names: Sequence[str]) -> tuple[str, Any]:
    """The first of some fields that a row has and that is no object: its name and value. ("",
    `ABSENT`) if it has none."""
    for name in present(tuple(row), tuple(names)):
        value = look(row, name)
        if value is not ABSENT and not isinstance(value, dict):
            return name, value
    return "", ABSENT


def missing(row: Mapping[str, Any], kind: str, name: str = "") -> ValueError:
    """The error for a row without a field of a kind, such as "answer"."""
    names: list[str] = []
    for key, value in row.items():
        inner = value if isinstance(value, dict) and value else {}
        names += [f"{key}.{part}" for part in inner] or [key]
    listing = ", ".join(
        repr(field_name[:_SHOWN_CHARS])[1:-1] for field_name in names[:_SHOWN_FIELDS]
    )
    hidden_count = len(names) - _SHOWN_FIELDS
    has = (
        listing + (f" and {hidden_count} more" if hidden_count > 0 else "") if names else "no field"
    )
    subject = f"no field {name!r}" if name else f"no {kind}"
    return ValueError(
        f"{subject}: the row has {has}. Name the right one with --{kind}-field, or as "
        f"environment.options.{kind}"
    )


def question_of(row: Mapping[str, Any], name: str) -> str:
    """The question of a row, in the field `name` or, for "", in the one that public sets have.

    Raises:
        ValueError: there is none, or it is no text.
    """
    field, value = (name, look(row, name)) if name else first_of(row, QUESTIONS)
    if value is ABSENT:
        raise missing(row, "question", name)
    if isinstance(value, list):  # messages, of which the user's is the question
        message = value[0] if len(value) == 1 and isinstance(value[0], dict) else {}
        value = message.get("content") if message.get("role") == "user" else value
    if value is None:
        raise null(field)
    if not isinstance(value, str) or not value.strip():
        raise ValueError(f"{field!r} must be a text, or one message of the user")
    return value if name or field in _PROMPTS else " ".join([*_before(row, value), value])


def _before(row: Mapping[str, Any], question: str) -> Iterator[str]:
    """The texts that a row has for its question to be about, without those that it quotes.

    Raises:
        ValueError: such a field has no text.
    """
    for name in present(tuple(row), _BEFORE):
        value = look(row, name)
        if value is None:
            continue
        if not isinstance(value, str):
            raise ValueError(
                f"{name!r} seems to belong before the question and is no text: make it one, or say "
                "that the question is enough: --question-field, environment.options.question"
            )
        text = value.strip()
        if text and text not in question:
            yield text


def answer_of(row: Mapping[str, Any], name: str) -> tuple[str, Any]:
    """The field of a row's right answer, and its value: the field `name` or, for "", the one that
    public sets have. A worked solution is one of them if it marks its answer.

    Raises:
        ValueError: there is none.
    """
    field, value = (name, look(row, name)) if name else first_of(row, _answers_in(row))
    if value is not ABSENT:
        return field, value
    field, value = ("", ABSENT) if name else first_of(row, SOLUTIONS)
    if isinstance(value, str) and value.strip():
        if marked_answer(value) is None:
            raise ValueError(
                f"{field!r} marks no answer, with #### or \\boxed{{}}: if all of it is the "
                f"answer, name it with --answer-field {field}, or as environment.options.answer"
            )
        return field, value
    raise missing(row, "answer", name)


def _answers_in(row: Mapping[str, Any]) -> Sequence[str]:
    names = present(tuple(row), ANSWERS)
    return [
        name for name in names if name not in _OF_ANOTHER or not isinstance(look(row, name), bool)
    ]


def right_text(row: Mapping[str, Any], name: str) -> str:
    """The right answer of a row as a text: see `answer_of`. Of a text, what it marks
    (`marked_answer`). Numbers are written by `number_text`, true and false as Yes and No, and a
    list of one has its one.

    Raises:
        ValueError: there is none, or it is none of these.
    """
    field, value = answer_of(row, name)
    if isinstance(value, list) and len(value) == 1:
        value = value[0]
    if value is None:
        raise null(field)
    if not isinstance(value, str | int | Decimal):
        raise ValueError(f"{field!r} must be a text, a number, true or false")
    text = plain_text(value, field)
    in_text = marked_answer(text)
    right = text.strip() if in_text is None else in_text
    if not name and field == ANSWERS[0] and all(look(row, key) is not ABSENT for key in _WITH_UNIT):
        with_unit = _UNIT.fullmatch(right)
        right = with_unit[1] if with_unit else right
    if not right:
        raise ValueError(f"{field!r} is empty")
    return right


def plain_text(value: str | int | Decimal, name: str) -> str:
    """A value of JSON as people write it.

    Raises:
        ValueError: a text has half a character.
    """
    if isinstance(value, bool):
        return "Yes" if value else "No"
    if not isinstance(value, str):
        return number_text(value)
    check_text(value, name)
    return value


def null(name: str) -> ValueError:
    """The error for a field whose value is JSON's null."""
    return ValueError(f"{name!r} is null: give its value, or leave the row out")


def marked_answer(text: str) -> str | None:
    """The answer that a worked solution marks: the line after its last "####" (GSM8K), else what
    its last \\boxed{} or \\fbox{} holds (MATH). A box after the mark counts before the line, and so
    does any after a heading, which else has the answer in its next line. None if it has neither."""
    _, mark, tail = text.rpartition(_MARK)
    if not mark:
        return last_boxed(text)
    lines = [line.strip() for line in tail.splitlines() if line.strip()] or [""]
    if (box := last_boxed(tail)) is not None:
        return box
    if not _HEADING.fullmatch(lines[0]):
        return lines[0]
    return last_boxed(text) or "".join(lines[1:2])


def last_boxed(text: str) -> str | None:
    r"""What the last \boxed{} or \fbox{} of a text holds, with the braces within it; of "\boxed 5$"
    what stands before the next dollar sign or line. None if there is none, or it has no end."""
    match = None
    for match in _BOXED.finditer(text):  # noqa: B007 - the last one counts
        pass
    if match is None:
        return None
    rest = text[match.end() :]
    if not rest.startswith("{"):
        return re.split(r"[$\n]", rest, maxsplit=1)[0].strip() or None
    depth = 0
    # An escaped brace is one of the answer's own characters.
    for brace in re.finditer(r"\\.|[{}]", rest, re.DOTALL):
        depth += {"{": 1, "}": -1}.get(brace[0], 0)
        if depth == 0 and brace[0] == "}":
            return rest[1 : brace.start()].strip() or None
    return None
