"""Weights of a draw, and how often what they prefer is drawn."""

from __future__ import annotations

import math
import random
from collections import Counter
from typing import Any

import pytest
from builders import verified

from swarm_node.policy.experience.drawing import (
    draw_weight,
    novelty,
    spread,
    staleness_weight,
    weighted_sample,
)
from swarm_node.policy.experience.replay import ReplayBuffer, ReplaySettings
from swarm_node.rollout import VerifiedGroup


def weight(of: VerifiedGroup, **changes: Any) -> float:
    usual: dict[str, Any] = {
        "version": 0,
        "half_life": 4.0,
        "max_age": 32,
        "own_families": {},
        "quality": lambda author: 1.0,
    }
    return draw_weight(of, **{**usual, **changes})


def test_the_first_draw_follows_the_weights() -> None:
    weights = [1.0, 2.0, 5.0]
    rng = random.Random(3)
    counts = Counter(weighted_sample("abc", weights, 1, rng)[0] for _ in range(4000))
    expected = {"a": 500, "b": 1000, "c": 2500}
    statistic = sum((counts[key] - number) ** 2 / number for key, number in expected.items())
    assert statistic < 13.8  # χ² with 2 degrees of freedom, p = 0.001


def test_the_second_draw_follows_what_is_left() -> None:
    rng = random.Random(4)
    pairs = Counter(tuple(weighted_sample("abc", [1.0, 2.0, 5.0], 2, rng)) for _ in range(4000))
    expected = {
        ("a", "b"): 1 / 8 * 2 / 7,
        ("a", "c"): 1 / 8 * 5 / 7,
        ("b", "a"): 2 / 8 * 1 / 6,
        ("b", "c"): 2 / 8 * 5 / 6,
        ("c", "a"): 5 / 8 * 1 / 3,
        ("c", "b"): 5 / 8 * 2 / 3,
    }
    statistic = sum((pairs[key] - 4000 * p) ** 2 / (4000 * p) for key, p in expected.items())
    assert statistic < 20.5  # χ² with 5 degrees of freedom, p = 0.001


@pytest.mark.parametrize("bad", [-1.0, math.nan, math.inf])
def test_a_weight_that_is_none_is_refused(bad: float) -> None:
    with pytest.raises(ValueError, match="finite"):
        weighted_sample("ab", [1.0, bad], 1, random.Random(1))


def test_lengths_must_agree() -> None:
    with pytest.raises(ValueError, match="shorter"):
        weighted_sample("ab", [1.0], 1, random.Random(1))


def test_each_part_of_the_weight_counts() -> None:
    best = weight(verified("g", "peer"))
    assert best == 1.0
    assert weight(verified("g", "peer", rewards=(0.0, 0.0, 0.0, 1.0))) == pytest.approx(
        math.sqrt(3) / 2
    )
    assert weight(verified("g", "peer"), version=4) == 0.5
    assert weight(verified("g", "peer"), version=33) == 0.0
    assert weight(verified("g", "peer"), own_families={"f": 10}) == 0.5
    assert weight(verified("g", "peer"), own_families={"f": 10, "other": 10}) == 0.5
    assert weight(verified("g", "peer"), own_families={"other": 10}) == 1.0
    assert weight(verified("g", "peer"), quality=lambda author: 0.25) == 0.25


def test_partial_credit_hardly_counts_as_a_difference() -> None:
    assert spread((0.0, 0.01)) == pytest.approx(0.01)
    assert spread((0.0, 1.0)) == 1.0


def test_novelty_of_an_average_family_is_a_half() -> None:
    assert novelty("a", {"a": 5, "b": 5, "c": 5}) == 0.5
    assert novelty("a", {}) == novelty("z", {"a": 5}) == 1.0


@pytest.mark.parametrize(("half_life", "max_age"), [(0.0, 1), (-1.0, 1), (math.nan, 1), (1.0, -1)])
def test_impossible_ages_are_refused(half_life: float, max_age: int) -> None:
    with pytest.raises(ValueError, match="must be"):
        staleness_weight(1, half_life, max_age)


def test_a_buffer_that_draws_by_weight_prefers_what_the_node_lacks() -> None:
    counts: Counter[str] = Counter()
    for seed in range(600):
        held = ReplayBuffer(
            ReplaySettings(own=1, external=1, draw="weighted"),
            lambda author: 0.5 if author == "liar" else 1.0,
        )
        for each in (
            verified("own", "me", family="known"),
            verified("known", "peer", family="known"),
            verified("new", "peer", family="new"),
            verified("doubtful", "liar", family="new"),
        ):
            assert held.admit(each, 0) is None
        drawn = held.draw(0, random.Random(seed))
        assert drawn is not None
        counts[drawn.groups[1].id.decode()] += 1
    expected = {"known": 150, "new": 300, "doubtful": 150}
    statistic = sum((counts[key] - number) ** 2 / number for key, number in expected.items())
    assert statistic < 13.8  # χ² with 2 degrees of freedom, p = 0.001
