"""Advantages of one group."""

from __future__ import annotations

import numpy as np
import pytest

from swarm_node.policy.choices import ADVANTAGE_CHOICES
from swarm_node.policy.experience.advantage import (
    ADVANTAGES,
    AdvantageFn,
    dr_grpo,
    grpo,
    rloo,
)


def test_binary_rewards_against_hand_computed_values() -> None:
    # mean 1/4, population std sqrt(3)/4
    std = np.sqrt(3) / 4
    expected = np.array([0.75, -0.25, -0.25, -0.25]) / (std + 1e-4)
    got = grpo([1.0, 0.0, 0.0, 0.0])
    assert got.dtype == np.float32
    np.testing.assert_allclose(got, expected, rtol=1e-6)


def test_advantages_sum_to_zero_and_ignore_shift() -> None:
    rewards = np.random.default_rng(1).random(16).astype(np.float32)
    got = grpo(rewards)
    assert abs(float(got.sum())) < 1e-5
    np.testing.assert_allclose(grpo(rewards + 3.0), got, rtol=1e-4, atol=1e-5)


def test_without_the_deviation_and_against_the_others() -> None:
    rewards = [1.0, 0.0, 0.0, 0.5]
    np.testing.assert_allclose(dr_grpo(rewards), [0.625, -0.375, -0.375, 0.125])
    # Each against the mean of the other three.
    np.testing.assert_allclose(rloo(rewards), [1 - 0.5 / 3, -0.5, -0.5, 0.5 - 1 / 3], rtol=1e-6)
    assert dr_grpo(rewards).dtype == rloo(rewards).dtype == np.float32


def test_advantages_are_found_by_name_and_listed() -> None:
    assert dict(ADVANTAGES) == {"grpo": grpo, "dr_grpo": dr_grpo, "rloo": rloo}
    assert set(ADVANTAGES) == set(ADVANTAGE_CHOICES)


@pytest.mark.parametrize("advantages", ADVANTAGES.values())
@pytest.mark.parametrize("rewards", [[0.0] * 8, [0.3] * 8, [1.0], [0.5, 0.5 + 1e-7]])
def test_equal_rewards_teach_nothing(rewards: list[float], advantages: AdvantageFn) -> None:
    assert advantages(rewards).tolist() == [0.0] * len(rewards)


def test_a_small_difference_is_not_blown_up() -> None:
    got = grpo([0.0, 1e-5])
    assert 0 < float(got[1]) < 0.1


@pytest.mark.parametrize("advantages", ADVANTAGES.values())
@pytest.mark.parametrize("rewards", [[], [[0.0, 1.0]], [0.0, float("nan")], [float("inf"), 0.0]])
def test_what_is_no_reward_vector_is_refused(rewards: list[float], advantages: AdvantageFn) -> None:
    with pytest.raises(ValueError, match="rewards"):
        advantages(rewards)
