"""Figures over seeds: the declared seeds, means with confidence intervals, tests, and counts per
update. Pure.

Student's distribution function is the regularised incomplete beta function, computed by its
continued fraction (Numerical Recipes, 3rd edition, 6.4). The quantile is found by bisection.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from itertools import pairwise
from typing import NamedTuple, TypeVar

from swarm_node.simulation.report import SimulatedNode, SimulationReport

_Name = TypeVar("_Name")
_TERMS, _CLOSE, _TINY = 10_000, 1e-15, 1e-300


def beyond(t: float, freedom: int) -> float:
    """The probability of a value above `t`.

    Raises:
        ValueError: fewer than 1 degree of freedom.
    """
    if freedom < 1:
        raise ValueError("Student's t needs 1 degree of freedom or more")
    if math.isinf(t):
        return 0.0 if t > 0 else 1.0
    tail = _incomplete_beta(freedom / 2, 0.5, freedom / (freedom + t * t)) / 2
    return tail if t > 0 else 1.0 - tail


@cache
def quantile(share: float, freedom: int) -> float:
    """The value that a `share` of the distribution lies below.

    Raises:
        ValueError: the share is not within 0 and 1, or there is no degree of freedom.
    """
    if not 0.0 < share < 1.0:
        raise ValueError("a quantile is of a share between 0 and 1")
    if share < 0.5:
        return -quantile(1.0 - share, freedom)
    low, high = 0.0, 1.0
    while beyond(high, freedom) > 1.0 - share:
        low, high = high, 2.0 * high
    while low < (middle := (low + high) / 2) < high:
        low, high = (middle, high) if beyond(middle, freedom) > 1.0 - share else (low, middle)
    return high


def p_different(differences: Sequence[float]) -> float:
    """The two-sided p of paired differences whose mean would be 0.

    Raises:
        ValueError: fewer than two differences.
    """
    t, freedom = _t(differences, 0.0)
    return 2.0 * beyond(abs(t), freedom)


def p_not_within(differences: Sequence[float], margin: float) -> float:
    """The p of paired differences whose mean would be `margin` or more away from 0: that of two
    one-sided tests (TOST).

    Raises:
        ValueError: fewer than two differences.
    """
    low, freedom = _t(differences, -margin)
    high, _ = _t(differences, margin)
    return max(beyond(low, freedom), beyond(-high, freedom))


def holm(values: Mapping[_Name, float]) -> dict[_Name, float]:
    """The p values of a family of comparisons, corrected by Holm's method: if those below α count,
    the chance of any false one is at most α."""
    corrected: dict[_Name, float] = {}
    running_maximum = 0.0
    ordered = sorted(values.items(), key=lambda item: item[1])
    for index, (name, value) in enumerate(ordered):
        running_maximum = max(running_maximum, min(1.0, value * (len(ordered) - index)))
        corrected[name] = running_maximum
    return {name: corrected[name] for name in values}


def _t(differences: Sequence[float], null: float) -> tuple[float, int]:
    count = len(differences)
    if count < 2:
        raise ValueError("a test needs two pairs or more")
    mean = sum(differences) / count
    variance = sum((value - mean) ** 2 for value in differences) / (count - 1)
    error, distance = math.sqrt(variance / count), mean - null
    if error == 0.0:
        return (math.copysign(math.inf, distance) if distance else 0.0), count - 1
    return distance / error, count - 1


def _incomplete_beta(a: float, b: float, x: float) -> float:
    if x <= 0.0 or x >= 1.0:
        return min(1.0, max(0.0, x))
    logarithm = math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b)
    front = math.exp(logarithm + a * math.log(x) + b * math.log1p(-x))
    if x < (a + 1.0) / (a + b + 2.0):
        return front * _fraction(a, b, x) / a
    return 1.0 - front * _fraction(b, a, 1.0 - x) / b


def _fraction(a: float, b: float, x: float) -> float:
    """The continued fraction by Lentz's method."""
    c, d = 1.0, 1.0 / _apart(1.0 - (a + b) * x / (a + 1.0))
    value = d
    for m in range(1, _TERMS):
        even = m * (b - m) * x / ((a + 2 * m - 1.0) * (a + 2 * m))
        d = 1.0 / _apart(1.0 + even * d)
        c = _apart(1.0 + even / c)
        value *= d * c
        odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1.0))
        d = 1.0 / _apart(1.0 + odd * d)
        c = _apart(1.0 + odd / c)
        value *= d * c
        if abs(d * c - 1.0) < _CLOSE:
            break
    return value


def _apart(value: float) -> float:
    """The value, kept apart from 0."""
    return value if abs(value) > _TINY else _TINY


#: Pairs of round and held-out reward.
Curve = Sequence[tuple[int, float]]


class Estimate(NamedTuple):
    """A mean over seeds with the half-width of its 95% confidence interval (NaN for one seed)."""

    mean: float
    half: float

    def __format__(self, spec: str) -> str:
        mean = format(self.mean, spec)
        return mean if math.isnan(self.half) else f"{mean} ± {self.half:{spec.lstrip('+')}}"


def declared_seeds(count: int, experiment: str) -> list[int]:
    """The first `count` seeds of an experiment. They are hashes of its name, so that they were
    fixed before any run and nobody picked them."""
    names = (f"swarm-node/experiment/{experiment}/{index}" for index in range(count))
    digests = (hashlib.sha256(name.encode()) for name in names)
    return [int.from_bytes(digest.digest()[:4], "big") for digest in digests]


def estimate(values: Sequence[float]) -> Estimate:
    """Mean and 95% confidence interval by Student's t.

    Raises:
        ValueError: there are no values.
    """
    count = len(values)
    if not count:
        raise ValueError("nothing to estimate from")
    mean = sum(values) / count
    if count == 1:
        return Estimate(mean, math.nan)
    variance = sum((value - mean) ** 2 for value in values) / (count - 1)
    return Estimate(mean, quantile(0.975, count - 1) * math.sqrt(variance / count))


def over_seeds(curves: Sequence[Curve]) -> tuple[list[int], list[Estimate]]:
    """The rounds of the curves, which all have the same, and the estimate at each of them."""
    rounds = [entry for entry, _ in curves[0]]
    return rounds, [
        estimate([reward for _, reward in points]) for points in zip(*curves, strict=True)
    ]


def held_out(reports: Sequence[SimulationReport]) -> tuple[list[int], list[Estimate]]:
    """The rounds at which held-out reward was measured, and the estimate at each of them."""
    return over_seeds([report.eval_reward.curve for report in reports])


def area(report: SimulationReport) -> float:
    """The mean held-out reward over the updates of a run: the area under its curve."""
    curve = report.eval_reward.curve
    pieces = [(b - a) * (x + y) / 2 for (a, x), (b, y) in pairwise(curve)]
    return sum(pieces) / (curve[-1][0] - curve[0][0])


def paired(values: Sequence[float], base: Sequence[float]) -> Estimate:
    """The difference of two arms that ran with the same seeds, in the same order."""
    return estimate([value - other for value, other in zip(values, base, strict=True)])


def all_nodes(reports: Sequence[SimulationReport]) -> list[SimulatedNode]:
    """The nodes of all seeds."""
    return [node for report in reports for node in report.nodes]


def per_update(nodes: Sequence[SimulatedNode], count: Callable[[SimulatedNode], float]) -> float:
    """The sum of `count` over the nodes, divided by the number of their updates."""
    updates = sum(node.steps + node.skipped_batches for node in nodes)
    return sum(map(count, nodes)) / updates
