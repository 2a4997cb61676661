"""The curve of a node that runs for months stays short, and keeps what the views name."""

from __future__ import annotations

from itertools import pairwise

import msgspec

from swarm_node.node.metrics.curve import MAX_POINTS, add, partition_by_split
from swarm_node.node.metrics.snapshot import EvalPoint

FAMILIES = {f"family_{number}": number / 9 + 1e-9 for number in range(9)}


def _point(second: float, *, isolated: bool = False, split: int = 1) -> EvalPoint:
    each = FAMILIES
    return EvalPoint(
        second, 3, 0.1, 0.2, 0.3, each, each, 4, isolated=isolated, train=0.5, split_version=split
    )


def _curve(count: int) -> list[EvalPoint]:
    evals: list[EvalPoint] = []
    for number in range(count):
        add(
            evals,
            _point(5.0 * number, isolated=number < 701, split=1 if number < 1303 else 2),
        )
    return evals


def test_a_long_curve_keeps_its_ends_its_newest_points_and_what_the_views_name() -> None:
    evals = _curve(6_000)
    seconds = [point.seconds for point in evals]
    assert len(evals) == MAX_POINTS
    assert seconds == sorted(set(seconds))
    assert (seconds[0], seconds[-1]) == (0.0, 29_995.0)
    recent = [second for second in seconds if second >= seconds[-1] - 600]
    assert len(recent) == 121, "the last ten minutes are whole"
    gaps = [b - a for a, b in pairwise(seconds)]
    assert max(gaps) < 4 * seconds[-1] / MAX_POINTS, "no hole"
    before, newest = partition_by_split(evals)
    assert newest[0].seconds == 5.0 * 1303, "the first point of a split"
    assert next(point.seconds for point in before if not point.isolated) == 5.0 * 701


def test_a_curve_of_months_is_a_small_answer_and_fits_a_checkpoint() -> None:
    evals = _curve(6_000)
    assert len(msgspec.json.encode(evals)) < 450_000
    assert len(msgspec.msgpack.encode(evals)) < 1 << 19


def test_a_curve_in_which_every_point_begins_a_split_is_bounded_too() -> None:
    evals: list[EvalPoint] = []
    for number in range(4 * MAX_POINTS):
        add(evals, _point(float(number), split=number))
    assert len(evals) == MAX_POINTS
    assert evals[-1].split_version == 4 * MAX_POINTS - 1
