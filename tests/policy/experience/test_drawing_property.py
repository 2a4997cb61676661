"""What holds for the weight of a group by its age, and for draws by weight."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swarm_node.policy.experience.drawing import novelty, spread, staleness_weight, weighted_sample

ages = st.integers(-1000, 1000)
half_lives = st.floats(0.01, 1e6) | st.just(math.inf)
limits = st.integers(0, 500)


@given(ages, ages, half_lives, limits)
def test_an_older_group_never_counts_more(
    age: int, other: int, half_life: float, max_age: int
) -> None:
    young, old = sorted((age, other))
    assert staleness_weight(old, half_life, max_age) <= staleness_weight(young, half_life, max_age)


@given(ages, half_lives, limits)
def test_weights_are_shares_one_when_new_and_nothing_past_the_end(
    age: int, half_life: float, max_age: int
) -> None:
    weight = staleness_weight(age, half_life, max_age)
    assert 0.0 <= weight <= 1.0
    assert (weight == 0.0) or age <= max_age
    if age > max_age:
        assert weight == 0.0
    if age <= 0:
        assert weight == 1.0


@given(st.integers(1, 200), st.integers(0, 500))
def test_one_half_life_halves(half_life: int, age: int) -> None:
    now = staleness_weight(age, half_life, 1000)
    assert staleness_weight(age + half_life, half_life, 1000) == pytest.approx(now / 2)


@given(
    st.lists(st.floats(0, 1) | st.just(0.0) | st.floats(0, 1e-300), max_size=12),
    st.integers(0, 15),
    st.integers(0, 1 << 32),
)
def test_a_weighted_draw_takes_each_item_once_and_none_of_weight_zero(
    weights: list[float], count: int, seed: int
) -> None:
    items = list(range(len(weights)))
    drawn = weighted_sample(items, weights, count, random.Random(seed))
    eligible = {index for index in items if weights[index] > 0}
    assert len(drawn) == len(set(drawn)) == min(count, len(eligible))
    assert set(drawn) <= eligible
    assert drawn == weighted_sample(items, weights, count, random.Random(seed))


@given(
    st.lists(st.floats(0.01, 1), min_size=2, max_size=8),
    st.integers(0, 7),
    st.floats(1, 100),
    st.integers(0, 1 << 32),
)
def test_more_weight_never_costs_an_item_its_place(
    weights: list[float], index: int, factor: float, seed: int
) -> None:
    index %= len(weights)
    items = list(range(len(weights)))
    before = weighted_sample(items, weights, 2, random.Random(seed))
    weights[index] *= factor
    after = weighted_sample(items, weights, 2, random.Random(seed))
    assert index not in before or index in after


@given(st.lists(st.floats(0, 1), min_size=1, max_size=16))
def test_spread_is_a_share_and_zero_only_without_a_difference(rewards: list[float]) -> None:
    assert 0.0 <= spread(rewards) <= 1.0
    if max(rewards) - min(rewards) > 1e-6:
        assert spread(rewards) > 0.0


@given(st.dictionaries(st.sampled_from("abcdef"), st.integers(0, 1000)), st.sampled_from("abcdef"))
def test_a_family_sampled_more_is_less_novel(own: dict[str, int], family: str) -> None:
    before = novelty(family, own)
    assert 0.0 < before <= 1.0
    more = {**own, family: own.get(family, 0) + 10}
    assert novelty(family, more) < 1.0
    if family in own:
        assert novelty(family, more) <= before
