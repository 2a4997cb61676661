"""Pass rates and their intervals."""

from __future__ import annotations

import math
import random
from itertools import combinations
from statistics import fmean

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swarm_node.library.pass_rates import pass_at_k, pass_rate, pass_rates, wilson

REWARDS = st.lists(st.sampled_from([0.0, 0.25, 1.0]), min_size=1, max_size=8)


@given(REWARDS, st.integers(1, 8))
def test_it_is_the_mean_over_all_subsets(rewards: list[float], k: int) -> None:
    if k > len(rewards):
        with pytest.raises(ValueError, match="at least k"):
            pass_at_k(rewards, k)
        return
    subsets = combinations(rewards, k)
    assert pass_at_k(rewards, k) == pytest.approx(fmean(max(each) for each in subsets))


@pytest.mark.parametrize(("n", "c", "k"), [(10, 0, 3), (10, 3, 4), (10, 8, 4), (64, 1, 64)])
def test_for_right_and_wrong_it_is_the_estimator_of_chen(n: int, c: int, k: int) -> None:
    rewards = [1.0] * c + [0.0] * (n - c)
    random.Random(0).shuffle(rewards)
    expected = 1 - math.comb(n - c, k) / math.comb(n, k)
    assert pass_at_k(rewards, k) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("right", "count", "low", "high"),
    # As R's prop.test(right, count, correct = FALSE) has them.
    [(0, 10, 0.0, 0.27753), (5, 10, 0.23659, 0.76341), (10, 10, 0.72247, 1.0)],
)
def test_wilsons_interval_is_that_of_the_tables(
    right: int, count: int, low: float, high: float
) -> None:
    assert wilson(right / count, count) == pytest.approx((low, high), abs=1e-4)
    rate = pass_rate([[1.0] * right + [0.0] * (count - right)])
    assert (rate.rate, rate.interval) == (right / count, "wilson")
    assert (rate.low, rate.high) == pytest.approx((low, high), abs=1e-4)


@pytest.mark.slow(reason="draws hundreds of samples again and again")
def test_a_bootstrap_holds_the_truth_as_often_as_it_says() -> None:
    rng, held = random.Random(7), 0
    for seed in range(200):
        tasks = [fmean(rng.random() < share for _ in range(4)) for share in (0.2, 0.8) * 30]
        rate = pass_rate([tasks], seed)
        assert rate.interval == "bootstrap"
        held += rate.low <= 0.5 <= rate.high
    assert 0.9 <= held / 200 <= 1.0


def test_families_of_any_size_weigh_the_same() -> None:
    found = pass_rates({"a": [[1.0]], "b": [[0.0]] * 9, "none": []}, 1)
    assert (found.tasks, found.pass_1.rate, found.pass_k) == (10, 0.5, None)
    assert found.pass_1.interval == "bootstrap"
    assert pass_rates({"none": []}, 1) is None


def test_a_million_tasks_take_no_longer_than_a_few() -> None:
    found = pass_rates({"a": [[0.0, 1.0], [1.0, 1.0]] * 100_000}, 2)
    assert found.pass_1.rate == 0.75
    assert found.pass_1.high - found.pass_1.low < 0.01
