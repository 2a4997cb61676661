"""Advantages of one group, and what holds for those of any."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from swarm_node.policy.choices import AdvantageName
from swarm_node.policy.experience.advantage import ADVANTAGES, AdvantageFn, grpo

GROUP = st.lists(st.sampled_from([0.0, 0.25, 0.5, 1.0]), min_size=1, max_size=128)


def test_without_the_deviation_and_against_the_others() -> None:
    dr_grpo, rloo = (ADVANTAGES[name]([1.0, 0.0, 0.0, 0.5]) for name in ("dr_grpo", "rloo"))
    np.testing.assert_allclose(dr_grpo, [0.625, -0.375, -0.375, 0.125])
    # Each against the mean of the other three.
    np.testing.assert_allclose(rloo, [1 - 0.5 / 3, -0.5, -0.5, 0.5 - 1 / 3], rtol=1e-6)
    assert dr_grpo.dtype == rloo.dtype == np.float32


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


@given(GROUP)
def test_against_an_independent_reference(group: list[float]) -> None:
    mean = sum(group) / len(group)
    deviation = (sum((r - mean) ** 2 for r in group) / len(group)) ** 0.5
    expected = [(r - mean) / (deviation + 1e-4) if deviation else 0.0 for r in group]
    got = ADVANTAGES["grpo"](group)
    assert got.dtype == np.float32
    np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-6)


@given(GROUP, st.sampled_from(sorted(ADVANTAGES)))
def test_advantages_sum_to_zero(group: list[float], name: AdvantageName) -> None:
    assert abs(float(ADVANTAGES[name](group).sum())) < 1e-3


@given(GROUP)
def test_however_rare_a_success_is_its_pull_is_bounded(group: list[float]) -> None:
    assert float(np.abs(grpo(group)).max()) <= np.sqrt(len(group) - 1) + 1e-6
