"""Figures over seeds: the declared seeds, means with confidence intervals, and counts per update.
Pure."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import NamedTuple

from research.student import quantile
from swarm_node.simulation.report import SimulatedNode, SimulationReport

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
    return over_seeds([report.held_out.curve for report in reports])


def area(report: SimulationReport) -> float:
    """The mean held-out reward over the updates of a run: the area under its curve."""
    curve = report.held_out.curve
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
    updates = sum(node.updates + node.skipped_updates for node in nodes)
    return sum(map(count, nodes)) / updates
