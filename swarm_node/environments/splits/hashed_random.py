"""The random choices of a generated task, from a hash of its name. Pure."""

from __future__ import annotations

import hashlib
import string
from collections.abc import Sequence
from typing import NamedTuple, TypeVar

_LETTERS = string.ascii_lowercase
_Item = TypeVar("_Item")


class Exercise(NamedTuple):
    """A question with its one right answer. `expression` computes it from the numbers of the
    question, such as "(7 + 3) * 2"; "" where a generator has none."""

    question: str
    answer: str
    expression: str = ""


class Draws:
    """The random choices of one task, from the hash of its name: 256 bits, the same everywhere."""

    def __init__(self, family: str, seed: int) -> None:
        seed_bytes = f"swarm-node/drills/{family}/{seed}".encode()
        self._left = int.from_bytes(hashlib.sha256(seed_bytes).digest(), "big")

    def below(self, bound: int) -> int:
        """An integer in [0, bound)."""
        self._left, remainder = divmod(self._left, bound)
        return remainder

    def within(self, low: int, high: int) -> int:
        """An integer in [low, high]."""
        return low + self.below(high - low + 1)

    def one_of(self, items: Sequence[_Item]) -> _Item:
        """One of `items`."""
        return items[self.below(len(items))]

    def some_of(self, items: Sequence[_Item], count: int) -> list[_Item]:
        """`count` different places of `items`, in the order in which they were drawn."""
        left = list(items)
        return [left.pop(self.below(len(left))) for _ in range(count)]

    def word(self, length: int) -> str:
        """Draw a word of `length` letters."""
        return "".join(_LETTERS[self.below(26)] for _ in range(length))

    def digits(self, length: int) -> str:
        """Draw `length` digits; the first may be 0."""
        return "".join(str(self.below(10)) for _ in range(length))
