"""The choices of a row, and the letter of the right one, in the forms of public sets. Pure.

Choices are a list of texts (MMLU), with labels in the texts (AQuA) or beside them (ARC,
CommonsenseQA), an object from labels to texts, fields A, B, C …, or one text with a label before
each choice or a choice a line.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any, Final, NamedTuple

from swarm_node.environments.fields import (
    ABSENT,
    first_of,
    look,
    marked,
    missing,
    null,
    plain_text,
    present,
)

MAX_CHOICES: Final = 26
#: Where lists and texts of choices are found, the first that a row has.
CHOICES: Final = ("choices", "options", "question.choices", "endings")
_LETTERS: Final = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
#: A label before a choice. A digit needs more than a point, which begins a fraction.
_LABEL: Final = re.compile(r"\s*\(?\s*([A-Za-z]\s*[).:]|[0-9]{1,2}\s*(?:\)|[.:](?=\s)))\s*")
#: The same within a text of several choices, at its beginning or after a space or a comma.
_LABELS: Final = re.compile(r"(?:^|(?<=[\s,;|]))\(?([A-Za-z])\s?([).:])", re.MULTILINE)
_WORDS: Final = {True: ("yes", "true"), False: ("no", "false")}
_BETWEEN: Final = " \t\r\n,;|"


class Choices(NamedTuple):
    """The texts of 2 to 26 choices, and the labels that the row gives them, () for none."""

    texts: tuple[str, ...]
    labels: tuple[str, ...] = ()


def choices_of(row: Mapping[str, Any], name: str) -> Choices:
    """The choices of a row, in the field `name` or, for "", in the one that public sets have.

    Raises:
        ValueError: there are none, or they cannot be told apart.
    """
    if name:
        found, value = name, look(row, name)
    else:
        found, value = first_of(row, CHOICES)
        if value is ABSENT:  # the only ones that are objects
            found = next((each for each in CHOICES if look(row, each) is not ABSENT), "")
            value = look(row, found) if found else _lettered(row)
    if value is ABSENT:
        raise missing(row, "choices", name)
    found = found or "A"
    choices = _read(value, found)
    if not 2 <= len(choices.texts) <= MAX_CHOICES:
        raise ValueError(f"{found!r} must be a list of 2 to {MAX_CHOICES} texts")
    if not all(text.strip() for text in choices.texts):
        raise ValueError(f"every choice of {found!r} must be a text")
    if len({label.casefold() for label in choices.labels}) < len(choices.labels):
        raise ValueError(f"two choices of {found!r} have one label")
    return choices


def has_choices(row: Mapping[str, Any], name: str) -> bool:
    """Check that a row has choices at all."""
    names = (name,) if name else present(tuple(row), CHOICES)
    found = [look(row, each) for each in names]
    return any(isinstance(each, list | dict) and len(each) > 1 for each in found)


def right_letter(given: Any, name: str, choices: Choices) -> str:
    """The letter, from A on, of the choice that a row's answer means: by its label, its index from
    0, its text, its letter, or its index written as a text, the first of these that fits.

    Raises:
        ValueError: it means none of them.
    """
    if isinstance(given, list) and len(given) == 1:
        given = given[0]
    if given is None:
        raise null(name)
    index = _index(given, choices) if isinstance(given, str | int | Decimal) else None
    if index is None:
        raise ValueError("the answer is no letter, index (from 0) or text of a choice")
    return _LETTERS[index]


def _index(given: str | int | Decimal, choices: Choices) -> int | None:
    text = " ".join(plain_text(given, "answer").split())
    labels = [label.casefold() for label in choices.labels]
    count = len(choices.texts)
    bare = text.strip(" ().:").casefold()
    if bare in labels:
        return labels.index(bare)
    if isinstance(given, int) and not isinstance(given, bool) and 0 <= given < count:
        return given
    texts = [" ".join(each.split()) for each in choices.texts]
    if isinstance(given, bool):
        fitting = (at for at, each in enumerate(texts) if each.casefold() in _WORDS[given])
        return next(fitting, None)
    for wanted in (text, _LABEL.sub("", text, count=1), marked(text) or text):
        if wanted in texts:
            return texts.index(wanted)
    letter = _LETTERS.find(bare.upper()) if len(bare) == 1 else -1
    if 0 <= letter < count:
        return letter
    digits = re.fullmatch(r"[0-9]{1,2}", bare)
    return int(bare) if digits and int(bare) < count else None


def _lettered(row: Mapping[str, Any]) -> Any:
    """The fields A, B, C … of a row as an object."""
    found: dict[str, Any] = {}
    for letter in _LETTERS:
        if letter not in row:
            break
        found[letter] = row[letter]
    return found if len(found) > 1 else ABSENT


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
    if value and all(isinstance(each, dict) and "text" in each for each in value):
        labels = [each[key] for each in value for key in ("label", "key") if key in each]
        if labels and len(labels) != len(value):
            raise ValueError(f"every choice of {name!r} needs one label")
        return Choices(_texts([each["text"] for each in value], name), _texts(labels, name))
    return _unlabelled(_texts(value, name))


def _texts(values: Sequence[Any], name: str) -> tuple[str, ...]:
    for value in values:
        if value is None:
            raise null(name)
        if not isinstance(value, str | int | Decimal):
            raise ValueError(f"every choice of {name!r} must be a text")
    return tuple(plain_text(value, name).strip() for value in values)


def _unlabelled(texts: tuple[str, ...]) -> Choices:
    """Choices without the labels in their texts, if these count from A or 1 on in every one."""
    found = [_LABEL.match(text) for text in texts]
    labels = tuple(each[1].strip(" ).:") for each in found if each)
    if not _in_order(labels, len(texts)):
        return Choices(texts)
    return Choices(
        tuple(t[each.end() :] for t, each in zip(texts, found, strict=True) if each), labels
    )


def _in_order(labels: Sequence[str], count: int) -> bool:
    numbers = [str(number) for number in range(1, count + 1)]
    orders = (list(_LETTERS[:count]), list(_LETTERS[:count].lower()), numbers)
    return len(labels) == count and list(labels) in orders


def _counted(found: Sequence[re.Match[str]]) -> list[re.Match[str]]:
    """The labels among some that count from the first one's form of A on. None of them if one of
    these letters stands there twice, because a choice may then begin at either."""
    small, sign = found[0][1].islower(), found[0][2]
    alike = [each for each in found if each[1].islower() == small and each[2] == sign]
    taken: list[re.Match[str]] = []
    for each in alike:
        if len(taken) < MAX_CHOICES and each[1].upper() == _LETTERS[len(taken)]:
            taken.append(each)
    letters = [each[1] for each in alike]
    return [] if any(letters.count(each[1]) > 1 for each in taken) else taken


def _split(text: str, name: str) -> Choices:
    """The choices in one text: with labels A, B, C … before them, or one a line."""
    found = list(_LABELS.finditer(text))
    if found and not text[: found[0].start()].strip():
        taken = _counted(found)
        if len(taken) > 1:
            ends = [each.start() for each in taken[1:]] + [len(text)]
            parts = [
                text[each.end() : end].strip(_BETWEEN)
                for each, end in zip(taken, ends, strict=True)
            ]
            return Choices(tuple(parts), tuple(each[1] for each in taken))
    lines = tuple(line.strip() for line in text.splitlines() if line.strip())
    if len(lines) > 1:
        return _unlabelled(lines)
    raise ValueError(
        f"{name!r} is one text whose choices cannot be told apart: make it a list of texts, or "
        'write "A) … B) …" or one choice a line'
    )
