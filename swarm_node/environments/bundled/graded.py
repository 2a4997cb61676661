"""Tasks in levels, the easiest first, whose answers are integers. Pure.

They are arithmetic and word problems. The family `NAME-N` is level N of NAME. A model begins at the
levels at which it is sometimes right, and goes on from there. All levels are families of one
environment, so nodes verify each other's groups whatever levels they sample.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Final

from swarm_node.environments.bundled.word_problems import LEVELS, word_problem
from swarm_node.environments.splits.hashed_random import Draws, Exercise

#: Counts changes of how this module or the word problems turn a seed into a task, and of how the
#: number of an answer is read.
SCHEME: Final = 1

Level = Callable[[Draws], Exercise]
Bounds = tuple[int, int]


def _sum(draws: Draws, *ranges: Bounds) -> Exercise:
    expression = " + ".join(str(draws.within(*bounds)) for bounds in ranges)
    return Exercise(
        f"What is {expression}?", str(sum(map(int, expression.split(" + ")))), expression
    )


def _difference(draws: Draws, first: Bounds, second: Bounds) -> Exercise:
    """Of two numbers the smaller one is subtracted."""
    low, high = sorted((draws.within(*first), draws.within(*second)))
    return Exercise(f"What is {high} - {low}?", str(high - low), f"{high} - {low}")


def _product(draws: Draws, first: Bounds, second: Bounds) -> Exercise:
    a, b = draws.within(*first), draws.within(*second)
    return Exercise(f"What is {a} times {b}?", str(a * b), f"{a} * {b}")


def _quotient(draws: Draws, quotient: Bounds, divisor: Bounds) -> Exercise:
    a, b = draws.within(*quotient), draws.within(*divisor)
    return Exercise(f"What is {a * b} divided by {b}?", str(a), f"{a * b} / {b}")


_DIGIT: Final = (2, 9)
#: Numbers of two, three … digits.
_TWO, _THREE, _FIVE = (10, 99), (100, 999), (10_000, 99_999)
_ARITHMETIC: Final[Mapping[str, tuple[Callable[..., Exercise], Sequence[Sequence[Bounds]]]]] = {
    "addition": (_sum, [((2, 29), _DIGIT), (_TWO, _TWO), (_THREE, _THREE), (_FIVE, _FIVE, _FIVE)]),
    "subtraction": (
        _difference,
        [((10, 29), _DIGIT), (_TWO, _TWO), (_THREE, _THREE), (_FIVE, _FIVE)],
    ),
    "multiplication": (
        _product,
        [((2, 12), _DIGIT), (_TWO, _DIGIT), (_TWO, _TWO), (_THREE, _THREE)],
    ),
    "division": (_quotient, [((2, 15), _DIGIT), (_TWO, _DIGIT), (_TWO, _TWO)]),
}


def _asking(make: Callable[..., Exercise], bounds: Sequence[Bounds], draws: Draws) -> Exercise:
    return make(draws, *bounds)


#: The levels of each name, the easiest first.
GRADED: Final[Mapping[str, Sequence[Level]]] = {
    **{
        name: [partial(_asking, make, bounds) for bounds in levels]
        for name, (make, levels) in _ARITHMETIC.items()
    },
    "word-problems": [partial(word_problem, level=n) for n in range(1, len(LEVELS) + 1)],
}
#: The generators of all families.
FAMILIES: Final[Mapping[str, Level]] = {
    f"{name}-{number}": level
    for name, levels in GRADED.items()
    for number, level in enumerate(levels, 1)
}
