"""Estimates over seeds, and the area under a curve."""

from __future__ import annotations

import math

import msgspec
import pytest

from research.estimates import area, estimate, paired
from swarm_node.simulation.report import RewardCurve, SimulationReport


def test_an_estimate_is_a_mean_within_students_interval() -> None:
    found = estimate([1.0, 2.0, 6.0])
    # t = 4.303 with two degrees of freedom, and a standard deviation of the square root of 7.
    assert found.mean == 3.0
    assert found.half == pytest.approx(4.3027 * math.sqrt(7 / 3), abs=1e-3)
    assert math.isnan(estimate([1.0]).half)
    assert paired([1.0, 2.0, 6.0], [1.0, 1.0, 1.0]).half == found.half
    with pytest.raises(ValueError, match="nothing"):
        estimate([])


def test_the_area_under_a_curve_is_its_mean_over_the_updates(
    stored: SimulationReport,
) -> None:
    curve = [(2, 0.0), (4, 1.0), (8, 1.0)]
    held_out = RewardCurve(0.0, 1.0, curve)
    assert area(msgspec.structs.replace(stored, eval_reward=held_out)) == pytest.approx(5 / 6)
