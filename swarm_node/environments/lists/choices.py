"""The choices of a row, and the letter of the right one, in the forms of public sets. Pure.

Choices are a list of texts (MMLU), with labels in the texts (AQuA) or beside them (ARC,
CommonsenseQA), an object from labels to texts, fields A, B, C …, fields such as `choice1` and
`choice2` (COPA), or one text with a label before each choice or a choice a line.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from decimal import Decimal
from itertools import takewhile
from typing import Any, Final, NamedTuple

from swarm_node.environments.lists.fields import (
    ABSENT,
    first_of,
    look,
    marked_answer,
    missing,
    null,
    plain_text,
    present,
)

MAX_CHOICES: Final = 26
#: Where lists and texts of choices are found, the first that a row has.
CHOICES: Final = ("choices", "options", "question.choices", "endings")
#: Where lists of choices are found if the row has a `label` too (ReClor). By itself such a list has
#: several right answers.
_BESIDE_LABEL: Final = "answers"
#: Beginnings of the names of fields that have a choice each, and their ends, in order.
_BEFORE: Final = ("choice", "option", "answer", "ending", "sol", "op")
_AFTER: Final = ("012345678", "123456789", "abcdefghi")
_LETTERS: Final = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
#: A label before a choice. A digit needs more than a point, which begins a fraction.
_LABEL: Final = re.compile(r"\s*\(?\s*([A-Za-z]\s*[).:]|[0-9]{1,2}\s*(?:\)|[.:](?=\s)))\s*")
#: The same within a text of several choices, at its beginning or after a space or a comma.
_LABELS: Final = re.compile(r"(?:^|(?<=[\s,;|]))\(?([A-Za-z])\s?([).:])", re.MULTILINE)
#: What begins like a choice with a label, and is a choice by itself.
_RATIO: Final = re.compile(r"\s*[0-9]+\s*:\s*[0-9]+(?:[.,][0-9]+)*\s*")
_WORDS: Final = {True: ("yes", "true"), False: ("no", "false")}
_BETWEEN: Final = " \t\r\n,;|"
#: By the first, the names of such fields, and what a text of digits calls the first one.
_APART: Final[Mapping[str, tuple[Sequence[str], int]]] = {
    f"{before}{joint}{after[0]}": (
        [f"{before}{joint}{each}" for each in after],
        0 if after[0] == "0" else 1,
    )
    for before in _BEFORE
    for joint in ("", "_")
    for after in _AFTER
}
_APART_FIRST: Final = tuple(_APART)


class Choices(NamedTuple):
    """The texts of 2 to 26 choices, and the labels that the row gives them, () for none. `first` is
    what digits in a text call the first one: 1 for the fields `option1` and `option2`."""

    texts: tuple[str, ...]
    labels: tuple[str, ...] = ()
    first: int = 0


def choices_of(row: Mapping[str, Any], name: str) -> Choices:
    """The choices of a row, in the field `name` or, for "", in the one that public sets have.

    Raises:
        ValueError: there are none, or they cannot be told apart.
    """
    field, value, first = (name, look(row, name), 0) if name else _find_choices(row)
    if value is ABSENT:
        raise missing(row, "choices", name)
    choices = _read(value, field)._replace(first=first)
    if field in _APART:
        choices = choices._replace(labels=())
    if not 2 <= len(choices.texts) <= MAX_CHOICES:
        raise ValueError(f"{field!r} must be a list of 2 to {MAX_CHOICES} texts")
    if not all(text.strip() for text in choices.texts):
        raise ValueError(f"every choice of {field!r} must be a text")
    if len({label.casefold() for label in choices.labels}) < len(choices.labels):
        raise ValueError(f"two choices of {field!r} have one label")
    return choices


def unshown_choices(row: Mapping[str, Any], name: str, question: str) -> Choices | None:
    """The choices that a row has and its question does not show; None if there are none."""
    if not name and _find_choices(row)[1] is ABSENT:  # most rows, and no error is made for each
        return None
    try:
        choices = choices_of(row, name)
    except ValueError:
        return None
    return None if all(text in question for text in choices.texts) else choices


def points_at(answer: Any, right: str, choices: Choices) -> bool:
    """Check that a right answer, `answer`, read as `right`, is a letter, a label or an index of a
    choice, and not its text: it says nothing to who does not see the choices."""
    if right.casefold() in (text.casefold() for text in choices.texts):
        return False
    # Digits in a text may count otherwise than a number, so both are looked at.
    number = answer if isinstance(answer, int | Decimal) else right
    return _index(number, choices) is not None or _index(right, choices) is not None


def right_letter(answer: Any, name: str, choices: Choices) -> str:
    """The letter, from A on, of the choice that a row's answer means: by its label, its index from
    0, its text, its letter, or its index written as a text, the first of these that fits.

    Raises:
        ValueError: it means none of them.
    """
    if isinstance(answer, list) and len(answer) == 1:
        answer = answer[0]
    if answer is None:
        raise null(name)
    index = _index(answer, choices) if isinstance(answer, str | int | Decimal) else None
    if index is None:
        digits = f"; digits in quotes count from {choices.first}" if choices.first else ""
        raise ValueError(f"the answer is no letter, index (from 0) or text of a choice{digits}")
    return _LETTERS[index]


def _index(answer: str | int | Decimal, choices: Choices) -> int | None:
    text = " ".join(plain_text(answer, "answer").split())
    labels = [label.casefold() for label in choices.labels]
    count = len(choices.texts)
    key = text.strip(" ().:").casefold()
    if key in labels:
        return labels.index(key)
    # A float is an index too if it is whole: columns of tables are often floats.
    if not isinstance(answer, str | bool) and answer == int(answer) and 0 <= answer < count:
        return int(answer)
    texts = [" ".join(choice.split()) for choice in choices.texts]
    if isinstance(answer, bool):
        indices = (at for at, choice in enumerate(texts) if choice.casefold() in _WORDS[answer])
        return next(indices, None)
    for candidate in (text, _LABEL.sub("", text, count=1), marked_answer(text) or text):
        if candidate in texts:
            return texts.index(candidate)
    letter = _LETTERS.find(key.upper()) if len(key) == 1 else -1
    if 0 <= letter < count:
        return letter
    digits = re.fullmatch(r"[0-9]{1,2}", key)
    index = int(key) - choices.first if digits else -1
    return index if 0 <= index < count else None


def _find_choices(row: Mapping[str, Any]) -> tuple[str, Any, int]:
    """The choices that a row has by the names of public sets: the field, `ABSENT` or its value, and
    what a text of digits calls the first one."""
    field, value = first_of(row, CHOICES)
    if value is not ABSENT:
        return field, value, 0
    for field in CHOICES:  # the only ones that are objects
        if (value := look(row, field)) is not ABSENT:
            return field, value, 0
    value = look(row, _BESIDE_LABEL)
    if isinstance(value, list) and look(row, "label") is not ABSENT:
        return _BESIDE_LABEL, value, 0
    letters = list(takewhile(row.__contains__, _LETTERS))
    if len(letters) > 1:
        return "A", {letter: row[letter] for letter in letters}, 0
    for name in present(tuple(row), _APART_FIRST):
        names, first = _APART[name]
        if len(fields := _in_a_row(row, names)) > 1:
            return name, fields, first
    return "", ABSENT, 0


def _in_a_row(row: Mapping[str, Any], names: Sequence[str]) -> dict[str, Any]:
    """The fields of these names up to the first one that a row does not have."""
    values = ((name, look(row, name)) for name in names)
    return dict(takewhile(lambda pair: pair[1] is not ABSENT, values))


def _read(value: Any, name: str) -> Choices:
    if value is None:
        raise null(name)
    if isinstance(value, str):
        return _split(plain_text(value, name), name)
    if isinstance(value, dict):
        texts, labels = value.get("text"), value.get("label")
        if isinstance(texts, list) and isinstance(labels, list):
            if len(texts) != len(labels):
                raise ValueError(f"{name!r} needs as many labels as texts")
            return Choices(_texts(texts, name), _texts(labels, name))
        return Choices(_texts(list(value.values()), name), _texts(list(value), name))
    if not isinstance(value, list):
        raise ValueError(f"{name!r} must be a list of 2 to {MAX_CHOICES} texts")
    if value and all(isinstance(item, dict) and "text" in item for item in value):
        labels = [item[key] for item in value for key in ("label", "key") if key in item]
        if labels and len(labels) != len(value):
            raise ValueError(f"every choice of {name!r} needs one label")
        return Choices(_texts([item["text"] for item in value], name), _texts(labels, name))
    return _strip_labels(_texts(value, name))


def _texts(values: Sequence[Any], name: str) -> tuple[str, ...]:
    for value in values:
        if value is None:
            raise null(name)
        if not isinstance(value, str | int | Decimal):
            raise ValueError(f"every choice of {name!r} must be a text")
    return tuple(plain_text(value, name).strip() for value in values)


def _strip_labels(texts: tuple[str, ...]) -> Choices:
    """Choices without the labels in their texts, if these count from A or 1 on in every one."""
    matches = [_LABEL.match(text) for text in texts]
    labels = tuple(match[1].strip(" ).:") for match in matches if match)
    if not _in_order(labels, len(texts)) or any(map(_RATIO.fullmatch, texts)):
        return Choices(texts)
    return Choices(
        tuple(t[match.end() :] for t, match in zip(texts, matches, strict=True) if match), labels
    )


def _in_order(labels: Sequence[str], count: int) -> bool:
    numbers = [str(number) for number in range(1, count + 1)]
    orders = (list(_LETTERS[:count]), list(_LETTERS[:count].lower()), numbers)
    return len(labels) == count and list(labels) in orders


def _consecutive_labels(matches: Sequence[re.Match[str]]) -> list[re.Match[str]]:
    """The labels among some that count from the first one's form of A on. None of them if one of
    these letters stands there twice, because a choice may then begin at either."""
    is_lowercase, sign = matches[0][1].islower(), matches[0][2]
    candidates = [
        match for match in matches if match[1].islower() == is_lowercase and match[2] == sign
    ]
    labels: list[re.Match[str]] = []
    for match in candidates:
        if len(labels) < MAX_CHOICES and match[1].upper() == _LETTERS[len(labels)]:
            labels.append(match)
    letters = [match[1] for match in candidates]
    return [] if any(letters.count(match[1]) > 1 for match in labels) else labels


def _split(text: str, name: str) -> Choices:
    """The choices in one text: with labels A, B, C … before them, or one a line."""
    matches = list(_LABELS.finditer(text))
    if matches and not text[: matches[0].start()].strip():
        labels = _consecutive_labels(matches)
        if len(labels) > 1:
            ends = [label.start() for label in labels[1:]] + [len(text)]
            parts = [
                text[label.end() : end].strip(_BETWEEN)
                for label, end in zip(labels, ends, strict=True)
            ]
            return Choices(tuple(parts), tuple(label[1] for label in labels))
    lines = tuple(line.strip() for line in text.splitlines() if line.strip())
    if len(lines) > 1:
        return _strip_labels(lines)
    raise ValueError(
        f"{name!r} is one text whose choices cannot be told apart: make it a list of texts, or "
        'write "A) … B) …" or one choice a line'
    )
