"""Estimates over seeds, Student's t against tables, and Holm's correction by its definition."""

from __future__ import annotations

import math

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from research.estimates import (
    area,
    beyond,
    estimate,
    holm,
    p_different,
    p_not_within,
    paired,
    quantile,
)
from swarm_node.simulation.report import RewardCurve, SimulationReport


# NIST/SEMATECH e-Handbook of Statistical Methods, 1.3.6.7.2, to three decimals.
@pytest.mark.parametrize(
    ("share", "freedom", "value"),
    [
        (0.975, 1, 12.706),
        (0.975, 2, 4.303),
        (0.975, 14, 2.145),
        (0.975, 15, 2.131),
        (0.975, 19, 2.093),
        (0.975, 100, 1.984),
        (0.95, 7, 1.895),
        (0.995, 30, 2.750),
        (0.999, 3, 10.215),
    ],
)
def test_quantiles_are_those_of_the_tables(share: float, freedom: int, value: float) -> None:
    assert quantile(share, freedom) == pytest.approx(value, abs=5e-4)
    assert quantile(1 - share, freedom) == pytest.approx(-value, abs=5e-4)
    assert beyond(quantile(share, freedom), freedom) == pytest.approx(1 - share, abs=1e-12)


def test_one_degree_is_cauchy_s_and_many_are_normal() -> None:
    for t in (-3.0, -0.5, 0.0, 0.1, 2.0, 40.0):
        assert beyond(t, 1) == pytest.approx(0.5 - math.atan(t) / math.pi, abs=1e-12)
    normal = math.erfc(1.5 / math.sqrt(2)) / 2
    assert beyond(1.5, 10**7) == pytest.approx(normal, abs=1e-7)
    assert (beyond(math.inf, 3), beyond(-math.inf, 3)) == (0.0, 1.0)


@pytest.mark.parametrize(("share", "freedom"), [(0.0, 3), (1.0, 3), (0.9, 0)])
def test_impossible_quantiles_are_refused(share: float, freedom: int) -> None:
    with pytest.raises(ValueError, match=r"quantile|freedom"):
        quantile(share, freedom)


def test_a_paired_test_is_student_s() -> None:
    # Student's sleep data (1908): t = 4.0621 with 9 degrees of freedom, p = .00283.
    extra = [1.2, 2.4, 1.3, 1.3, 0.0, 1.0, 1.8, 0.8, 4.6, 1.4]
    assert p_different(extra) == pytest.approx(0.00283, abs=1e-5)
    assert p_different([-value for value in extra]) == pytest.approx(p_different(extra))
    assert p_different([0.5, 0.5]) == 0.0
    assert p_different([0.0, 0.0]) == 1.0
    with pytest.raises(ValueError, match="two pairs"):
        p_different([0.1])


def test_differences_are_within_a_margin_only_if_both_sides_say_so() -> None:
    small = [0.004, -0.003, 0.001, 0.002, -0.001, 0.0]
    assert p_not_within(small, 0.02) < 1e-4
    assert p_not_within(small, 0.001) > 0.3
    assert p_not_within([value + 0.1 for value in small], 0.02) > 0.99
    # 0.02 away on average: neither side decides.
    assert p_not_within([0.01, 0.02, 0.03], 0.02) == pytest.approx(0.5)


def test_holm_is_the_textbook_example() -> None:
    found = holm({"a": 0.01, "b": 0.04, "c": 0.03, "d": 0.005})
    assert found == pytest.approx({"a": 0.03, "b": 0.06, "c": 0.06, "d": 0.02})
    assert holm({}) == {}


@given(st.lists(st.floats(0, 1), min_size=1, max_size=12))
def test_holm_never_lowers_a_p_and_keeps_the_order(values: list[float]) -> None:
    found = holm(dict(enumerate(values)))
    for one, value in enumerate(values):
        assert value <= found[one] <= 1.0
        assert all(found[one] <= found[two] for two, other in enumerate(values) if other > value)


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
