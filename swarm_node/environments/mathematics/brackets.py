"""Brackets of tokens: what stands in them, between them and around the whole."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final

from swarm_node.environments.mathematics.notation import Token

OPENING: Final = ("(", "[", r"\{", "{", r"\langle")
CLOSING: Final = {")": "(", "]": "[", r"\}": r"\{", "}": "{", r"\rangle": r"\langle"}
#: Arguments of what takes some.
_ARGUMENTS: Final = {"^": 1, "_": 1, r"\sqrt": 1, r"\frac": 2, r"\binom": 2}


def key_of(tokens: Sequence[Token]) -> tuple[str, ...]:
    """The texts of tokens, by which equal ones are known."""
    return tuple(token.text for token in tokens)


def strip_marks(tokens: Sequence[Token]) -> tuple[Token, ...]:
    """Remove marks around the whole: quotes, emphasis, a sentence's end, braces, "=" before it."""
    left, right = 0, len(tokens)
    while left < right:
        first, last = tokens[left].text, tokens[right - 1].text
        if last == "'" and first != "'" and tokens[right - 2].kind != "word":
            break  # a prime
        if last in ('"', "'", "*", ".", ",", ";", ":", "?", "_", "#") or (
            last == "!" and tokens[right - 2].kind == "word"
        ):
            right -= 1
        elif first in ('"', "'", "*", "=", ":", "_", "#", r"\approx", r"\therefore", r"\to", ","):
            left += 1
        elif first == "{" and closes(tokens[left:right]):
            left, right = left + 1, right - 1
        else:
            break
    return arguments(tokens[left:right])


def arguments(tokens: Sequence[Token]) -> tuple[Token, ...]:
    """With braces around each argument of a power, an index, a root and a fraction.

    x^10 is meant as a power of ten, sqrt(2) as a root of two, and x^(1/2) as one of a half."""
    partner = partners(tokens)
    open_braces: Counter[int] = Counter()
    close_braces: Counter[int] = Counter()
    dropped_places: set[int] = set()
    for place, token in enumerate(tokens):
        begin = place + 1
        if token.text == r"\sqrt" and key_of(tokens[begin : begin + 1]) == ("[",):
            begin = partner.get(begin, begin) + 1
        for _ in range(_ARGUMENTS.get(token.text, 0)):
            end = begin
            while end < len(tokens) - 1 and tokens[end].text in "+-":
                end += 1
            if end >= len(tokens):
                break
            if tokens[begin].text != "{":
                if tokens[end].text == "(" and end in partner:
                    dropped_places |= {begin, partner[end]} if end == begin else set()
                    end = partner[end]
                open_braces[begin] += 1
                close_braces[end] += 1
            begin = partner.get(begin, end) + 1
    out: list[Token] = []
    for place, token in enumerate(tokens):
        out += [Token("mark", "{")] * open_braces[place]
        out += [token] * (place not in dropped_places)
        out += [Token("mark", "}")] * close_braces[place]
    return tuple(out)


def partners(tokens: Sequence[Token]) -> dict[int, int]:
    """The place of the closing bracket by that of the opening one. [1,2) is a pair."""
    open_places: list[int] = []
    pairs = {}
    for place, token in enumerate(tokens):
        if token.text in OPENING:
            open_places.append(place)
        elif token.text in CLOSING and open_places:
            pairs[open_places.pop()] = place
    return pairs


def closes(tokens: Sequence[Token]) -> bool:
    """True if the last token closes what the first opens."""
    return len(tokens) > 1 and partners(tokens).get(0) == len(tokens) - 1


def outside(tokens: Iterable[Token]) -> Iterator[tuple[Token, bool]]:
    """The tokens, each with whether it is outside of brackets."""
    depth = 0
    for token in tokens:
        if token.text in OPENING or token.text.startswith("b:"):
            depth += 1
        elif token.text in CLOSING or token.text.startswith("e:"):
            depth -= 1
        yield token, depth <= 0


def split(tokens: Sequence[Token], parts_at: Callable[[Token], bool]) -> list[tuple[Token, ...]]:
    """The parts between separators outside of brackets, without the empty ones."""
    parts: list[list[Token]] = [[]]
    for token, is_outside in outside(tokens):
        if is_outside and parts_at(token):
            parts.append([])
        else:
            parts[-1].append(token)
    return [tuple(part) for part in parts if part]
