"""The curve of a node's evaluations, divided by the rule that holds texts out (the split). Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean

from swarm_node.node.metrics.snapshot import EvalPoint

#: Points that show the trend now, and the smallest rise that counts: 0.01, and 0.1 between two
#: points, whose noise is unknown.
NEWEST, _LEAST_RISE, _LEAST_OF_TWO = 24, 0.01, 0.1
#: Standard errors by which two halves of the points must differ.
_ERRORS = 3.0
#: Points that a node keeps, shows and stores: 0.3 MB as JSON with nine families.
MAX_POINTS = 500


def add(evals: list[EvalPoint], point: EvalPoint, limit: int = MAX_POINTS) -> None:
    """Append the newest point. Beyond `limit`, the point of the older half with the closest
    neighbours is dropped: the newer half keeps every point, the older one covers its time evenly.
    Points that a view names stay: the first point of a split, and the first one after a peer's
    group was trained on."""
    evals.append(point)
    if len(evals) <= limit:
        return

    def gap(number: int) -> float:
        return evals[number + 1].seconds - evals[number - 1].seconds

    droppable = [number for number in range(1, limit // 2) if not _begins_section(evals, number)]
    del evals[min(droppable, key=gap) if droppable else 0]


def _begins_section(evals: Sequence[EvalPoint], number: int) -> bool:
    previous_point, point = evals[number - 1], evals[number]
    return (previous_point.split_version, previous_point.isolated) != (
        point.split_version,
        point.isolated,
    )


def partition_by_split(evals: Sequence[EvalPoint]) -> tuple[list[EvalPoint], list[EvalPoint]]:
    """Return the points of earlier splits, and the newest points, which share one split. Rewards of
    different splits cannot be compared."""
    start = len(evals)
    while start > 0 and evals[start - 1].split_version == evals[-1].split_version:
        start -= 1
    return list(evals[:start]), list(evals[start:])


def rises(evals: Sequence[EvalPoint]) -> bool:
    """Check that the newest points rise beyond their noise. The noise is that of the second
    differences, to which a steady rise adds nothing."""
    values = [point.reward for point in partition_by_split(evals)[1]][-NEWEST:]
    half_size = len(values) // 2
    if not half_size:
        return False
    rise = fmean(values[-half_size:]) - fmean(values[:half_size])
    if len(values) == 2:
        return rise > _LEAST_OF_TWO
    bends = [a - 2 * b + c for a, b, c in zip(values, values[1:], values[2:], strict=False)]
    noise = math.sqrt(fmean([bend * bend for bend in bends]) / 6)
    return rise > max(_LEAST_RISE, _ERRORS * noise * math.sqrt(2 / half_size))
