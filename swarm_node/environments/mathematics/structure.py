"""The structure of an answer: what is a value, a list, a tuple, an interval, a matrix, a relation.

Everything here is pure. `readings` gives the few ways in which a text can be meant."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import pairwise
from typing import Final

from swarm_node.environments.mathematics.brackets import (
    CLOSING,
    OPENING,
    closes,
    key_of,
    outside,
    split,
    strip_marks,
)
from swarm_node.environments.mathematics.notation import Token, normalize_notation, tokens_of
from swarm_node.environments.mathematics.numbers import plain_number, times_of
from swarm_node.environments.mathematics.vocabulary import (
    CHANGING,
    COMPUTATIONS,
    LEADS,
    NO_NOUNS,
    NUMBERS,
    SCALES,
    SHORT_WORDS,
    SQUARED,
    UNITS,
)

#: Longer answers are no mathematics: the grammar's time grows with the text.
MAX_MATH_CHARS = 1024
#: Deeper brackets are left to the grammar.
_MAX_DEPTH: Final = 8
#: With one of these a side of an equation is no mere name, but for f^{-1} and f^{\\prime}.
_COMPUTING: Final = frozenset(("+", "-", "*", "/", "!", r"\sqrt", r"\log", r"\ln", r"\exp"))
_INVERSES: Final = (("{", "-", "1"), ("{", r"\prime", "}"))
_RELATIONS: Final = frozenset(
    ("=", "<", ">", r"\le", r"\ge", r"\ne", r"\in", r"\approx", r"\equiv")
)
#: A unit of one letter, which is a unit only after a space, and part of one.
_LETTER_UNIT: Final = re.compile(
    r"(?<=[\d}])\s+(?:[mgslhLWVJNKAFCT]|k?Pa|Hz|k[mg]|cm|mm)"
    r"(?:(?P<more>\s?[/*]\s?(?:[a-z]{1,2}|hr|min|sec)|\s?\^\s?\{?-?[1-3]\}?){1,3})?\s*\.?\s*$"
)


@dataclass(frozen=True, slots=True)
class Words:
    """What is not mathematics, or no more than words."""

    key: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Value:
    """One expression. `number` is its exact value if it is a plain number, and `decimal` says that
    it was written as one. `units` are those beside it that are told apart, `nouns` and
    `leading_nouns` the stems of other words after and before it."""

    tokens: tuple[Token, ...]
    number: Fraction | None = None
    decimal: bool = False
    percent: bool = False
    units: tuple[str, ...] = ()
    nouns: frozenset[str] = frozenset()
    leading_nouns: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Several:
    """Values in brackets, or without: "" for a list, "{}" for a set, "()", "[]", "[)" or "(]"."""

    brackets: str
    parts: tuple[Reading, ...]
    tokens: tuple[Token, ...]


@dataclass(frozen=True, slots=True)
class Matrix:
    """Rows of values."""

    rows: tuple[tuple[Reading, ...], ...]


@dataclass(frozen=True, slots=True)
class Relation:
    """An equation or inequality. `names` is what it says something about, if it is that simple, and
    `value` what it says of it. A chain a = b = c has three sides."""

    tokens: tuple[Token, ...]
    sign: str
    names: tuple[str, ...] | None
    value: Reading
    left: Reading
    sides: int = 2


Reading = Words | Value | Several | Matrix | Relation


def readings(text: str, *, right: bool = False) -> Iterator[Reading]:
    """The ways in which a text can be meant, the likeliest first; four at most.

    `right`: it is the right answer. 3 m in that is not taken for a number with a unit, because a
    letter alone may be a variable, and 3 would stand for the whole."""
    times = times_of(text.strip(' $."*`'), right=right)
    if times:
        yield from map(Words, times)
        return
    spelling = normalize_notation(text)
    if len(spelling) > 2 * MAX_MATH_CHARS:  # one sign may stand for a sentence
        yield Words((text,))
        return
    tokens = strip_marks(tokens_of(spelling))
    ungrouped = strip_marks(tokens_of(spelling, group_digits=False))
    if ungrouped == tokens or not (tokens and tokens[0].text in OPENING):  # (1,234) is a pair
        yield read(tokens)
    if ungrouped != tokens:
        yield read(ungrouped)
    sides = split(tokens, lambda token: token.text == r"\approx")
    if len(sides) == 2:
        yield from (read(strip_marks(side)) for side in sides)
    unit = _LETTER_UNIT.search(spelling[-64:])
    if unit and (unit["more"] or not right):
        value = read(strip_marks(tokens_of(spelling[: len(spelling) - len(unit[0])])))
        yield _with_units(value, [], re.findall(r"[A-Za-z]+|[\^1-3]", unit[0]))


def is_value(text: str) -> bool:
    """True if a text is a value or a list of values, and no prose."""
    if len(text) > MAX_MATH_CHARS:
        return False
    tokens = strip_marks(tokens_of(normalize_notation(text)))
    return bool(tokens) and tokens[0].kind != "word" and not _wordy(read(tokens))


def _wordy(reading: Reading) -> bool:
    if isinstance(reading, Several):
        return any(map(_wordy, reading.parts))
    return isinstance(reading, Words)


def read(tokens: Sequence[Token], depth: int = 0) -> Reading:
    """The structure of tokens without marks around them."""
    tokens = tuple(tokens)
    if depth > _MAX_DEPTH:
        return Value(tokens)
    parts = split(tokens, _is_comma)
    if len(parts) > 1 and len(parts[0]) == 1 and parts[0][0].text in LEADS:
        return read(strip_marks(tokens[1:]), depth + 1)
    if len(parts) > 1:
        return _several("", parts, tokens, depth)
    unions = split(tokens, lambda token: token.text == r"\cup")
    if len(unions) > 1:
        return _several("cup", unions, tokens, depth)
    if closes(tokens):
        return _read_brackets(tokens, depth)
    matrix = _matrix(tokens, depth)
    if matrix is not None:
        return matrix
    return _relation(tokens, depth) or _plus_minus(tokens, depth) or _quantity(tokens, depth)


def _is_comma(token: Token) -> bool:
    return token.text in (",", ";") or (token.kind == "word" and token.text in ("and", "or"))


def _several(
    brackets: str, parts: Sequence[tuple[Token, ...]], tokens: tuple[Token, ...], depth: int
) -> Several:
    """Values side by side. A list in a list or set, such as that of ±2, is a part of it."""
    values: list[Reading] = []
    for part in parts:
        reading = read(strip_marks(part), depth + 1)
        inner = isinstance(reading, Several) and not reading.brackets and brackets in ("", "{}")
        values += reading.parts if inner and isinstance(reading, Several) else [reading]
    first, *rest = values
    if (
        isinstance(first, Relation)
        and first.names
        and not any(isinstance(o, Relation) for o in rest)
    ):
        values[0] = first.value  # x = 1, 2
    return Several(brackets, tuple(values), tokens)


def _read_brackets(tokens: tuple[Token, ...], depth: int) -> Reading:
    """What stands in brackets that enclose the whole."""
    inner = strip_marks(tokens[1:-1])
    opening, closing = tokens[0].text, tokens[-1].text
    if not inner:
        return Value((Token("command", r"\emptyset"),))
    if opening == r"\{":
        condition = split(inner, lambda token: token.text in ("|", ":"))
        if len(condition) == 2 and _names(split(condition[0], lambda t: t.text == r"\in")[0]):
            return read(strip_marks(condition[1]), depth + 1)
    parts = split(inner, _is_comma)
    if len(parts) == 1:
        return read(inner, depth + 1)
    brackets = {"{": "{", r"\{": "{", r"\langle": "("}.get(opening, opening)
    brackets += {"}": "}", r"\}": "}", r"\rangle": ")"}.get(closing, closing)
    sequence = _several(brackets, parts, tokens, depth)
    rows = [
        part.parts for part in sequence.parts if isinstance(part, Several) and part.brackets == "[]"
    ]
    return Matrix(tuple(rows)) if brackets == "[]" and len(rows) == len(parts) else sequence


def _matrix(tokens: tuple[Token, ...], depth: int) -> Matrix | None:
    if len(tokens) < 3 or tokens[0].text != "b:matrix" or tokens[-1].text != "e:matrix":
        return None
    rows = split(tokens[1:-1], lambda token: token.text == r"\cr")
    cells = [[strip_marks(cell) for cell in split(row, lambda t: t.text == "&")] for row in rows]
    return Matrix(tuple(tuple(read(cell, depth + 1) for cell in row) for row in cells))


def _relation(tokens: tuple[Token, ...], depth: int) -> Reading | None:
    signs = [
        token.text
        for token, is_outside in outside(tokens)
        if is_outside and token.text in _RELATIONS
    ]
    if not signs:
        return None
    sides = split(tokens, lambda token: token.text in _RELATIONS)
    if len(sides) != len(signs) + 1:
        return Words(key_of(tokens))
    names = _names(sides[0])
    value = strip_marks(sides[-1])
    if signs == [r"\in"] and names:
        return read(value, depth + 1)
    if not set(signs) <= {"=", r"\approx"}:
        return Relation(tokens, "order", None, Words(()), Words(()))
    words = [place for place, token in enumerate(sides[0]) if token.kind == "word"]
    tail = sides[0][words[-1] + 1 :] if words else sides[0]  # the total is 5 + 7 = 12
    if not any(token.kind == "name" for token in tail):
        names = names or ()
    left = Words(()) if names else read(strip_marks(sides[0]), depth + 1)
    return Relation(tokens, "=", names, read(value, depth + 1), left, len(sides))


def _names(tokens: Sequence[Token]) -> tuple[str, ...] | None:
    """The key of what only names something: x, x_1, f(x), P(X > 2), the area. Else None."""
    depth = 0
    if not tokens or tokens[0].kind == "number":
        return None
    for place, token in enumerate(tokens):
        depth += (token.text in OPENING) - (token.text in CLOSING)
        lookahead = key_of(tokens[place + 1 : place + 4])
        if depth == 0 and (
            token.text in _COMPUTING or (token.text == "^" and lookahead not in _INVERSES)
        ):
            return None
        if token.text == r"\frac" and lookahead[:2] not in (("{", "d"), ("{", r"\partial")):
            return None
    return key_of(tokens) if any(token.kind in ("name", "word") for token in tokens) else None


def _plus_minus(tokens: tuple[Token, ...], depth: int) -> Several | None:
    """The two values of an expression with ±."""
    if not any(token.text == r"\pm" for token in tokens):
        return None
    signs = [{r"\pm": "+", r"\mp": "-"}, {r"\pm": "-", r"\mp": "+"}]
    variants = [
        tuple(Token("mark", new.get(t.text, t.text)) if t.text in new else t for t in tokens)
        for new in signs
    ]
    return Several("", tuple(read(variant, depth + 1) for variant in variants), tokens)


def _quantity(tokens: tuple[Token, ...], depth: int) -> Reading:
    """A value with the words beside it, or words alone."""
    if not any(token.kind == "word" for token in tokens):
        return _value(tokens)
    words = _word_mask(tokens)
    segments = [part for part in _runs(tokens, words) if part[0] is False]
    word_texts = {token.text for token, word in zip(tokens, words, strict=True) if word}
    if len(segments) != 1 or CHANGING & word_texts:
        return Words(tuple(text for text in key_of(tokens) if text not in ("a", "an", "the")))
    _, begin, end = segments[0]
    while end > begin + 1 and tokens[end - 1].text in OPENING:  # 9 (balloons)
        end -= 1
    suffix = [token.text for token in tokens[end:] if token.text not in "{}^" or token.text == "^"]
    prefix = key_of(tokens[:begin])
    core = key_of(tokens[begin:end])
    is_computed = prefix[-1:] == ("of",) and prefix[-2:-1] and prefix[-2] in COMPUTATIONS
    is_counted = prefix and prefix[-1] in NUMBERS  # two 5
    if is_computed or is_counted or core.count("{") != core.count("}"):
        return Words(key_of(tokens))
    value = read(strip_marks(tokens[begin:end]), depth + 1)
    if isinstance(value, Relation):
        inner = value.value
        return replace(value, value=_with_units(inner, prefix, suffix))
    return _with_units(value, prefix, suffix)


def _with_units(value: Reading, prefix: Sequence[str], suffix: list[str]) -> Reading:
    if not isinstance(value, Value):
        return value
    if suffix and suffix[0] in SCALES:
        if value.number is None:
            return Words((*key_of(value.tokens), *suffix))
        value, suffix = replace(value, number=value.number * SCALES[suffix[0]]), suffix[1:]
    units = _units((*(word for word in prefix if word in "$€£¥₹"), *suffix))
    return replace(value, units=units, nouns=_nouns(suffix), leading_nouns=_nouns(prefix))


def _nouns(words: Sequence[str]) -> frozenset[str]:
    """Stems of words that name a thing: an apple is one of the apples."""
    return frozenset(
        re.sub(r"(?:(?<=[sxzh])e)?s$", "", word)
        for word in words
        if word.isalpha() and word not in NO_NOUNS and word not in SHORT_WORDS - UNITS.keys()
    )


def _units(words: Sequence[str]) -> tuple[str, ...]:
    """The known units among words, with their powers."""
    symbols: list[str] = []
    power = ""
    for place, word in enumerate(words):
        if word in SQUARED:
            power = SQUARED[word]
        elif word in UNITS:
            power_tokens = words[place + 1 : place + 3]
            exponent = (
                f"^{power_tokens[1]}"
                if power_tokens[:1] == ("^",) and len(power_tokens) == 2
                else power
            )
            symbols += [unit + exponent for unit in UNITS[word].split()]
            power = ""
    return tuple(symbols)


def _word_mask(tokens: Sequence[Token]) -> list[bool]:
    """For each token, whether it belongs to words: a letter between words does, and what follows
    a word in a unit such as cm^2 or km/h."""
    words = [token.kind == "word" for token in tokens]
    for place, token in enumerate(tokens):
        follows_word = place > 0 and words[place - 1]
        if token.kind == "name":
            leads = place == len(tokens) - 1 or tokens[place + 1].kind == "word"
            stands_alone = (follows_word or place == 0) and leads
            words[place] = stands_alone or (follows_word and tokens[place - 1].text == "/")
        elif token.text == "(" and follows_word:
            words[place] = place + 1 < len(tokens) and tokens[place + 1].kind == "word"
        elif token.text in ("/", ".", ":", "?", ")") and follows_word:
            words[place] = True
        elif token.text == "^" and follows_word:
            exponent = tokens[place + 1 : place + 5]  # {2} or {-1}
            ends = next((n for n, part in enumerate(exponent) if part.text == "}"), None)
            if ends is not None and exponent[ends - 1].kind == "number":
                words[place : place + ends + 2] = [True] * (ends + 2)
    return words


def _runs(tokens: Sequence[Token], words: Sequence[bool]) -> list[tuple[bool, int, int]]:
    """Runs of words and of other tokens: which, from where, to where. Marks alone are words."""
    runs: list[tuple[bool, int, int]] = []
    begin = 0
    for end in range(1, len(tokens) + 1):
        if end < len(tokens) and words[end] == words[begin]:
            continue
        marks = all(token.kind == "mark" for token in tokens[begin:end])
        runs.append((words[begin] or marks, begin, end))
        begin = end
    return runs


def _value(tokens: tuple[Token, ...]) -> Reading:
    """An expression without words. Numbers side by side, and ratios, are compared by their text."""
    units: tuple[str, ...] = ()
    scale = 1 if key_of(tokens)[-1:] in (("C",), ("F",)) else 0
    if key_of(tokens[: len(tokens) - scale])[-4:] == ("^", "{", r"\circ", "}"):
        tokens, units = tokens[: -4 - scale], ("degree",)
    percent = bool(tokens) and tokens[-1].text == "%"
    tokens = tokens[:-1] if percent else tokens
    number = plain_number(tokens)
    if number is None and (
        not tokens
        or any(token.text == ":" for token in tokens)
        or any(a.kind == "number" and b.text == "_" for a, b in pairwise(tokens))
        or any(a.kind == b.kind == "number" for a, b in pairwise(tokens))
    ):
        return Words(key_of(tokens))
    decimal = any(token.kind == "number" and set(".E") & set(token.text) for token in tokens)
    return Value(tokens, number, decimal, percent, units)
