"""Advantages of one group, and the rewards of other groups of its task."""

from __future__ import annotations

import numpy as np
import pytest
from builders import verified

from swarm_node.policy.choices import ADVANTAGE_CHOICES
from swarm_node.policy.experience.advantage import (
    ADVANTAGES,
    MOST_GROUPS,
    AdvantageFn,
    Baselines,
    dr_grpo,
    grpo,
    rloo,
)
from swarm_node.rollout import PolicyRef, Provenance

WRONG, RIGHT = (0.0, 0.0), (1.0, 1.0)


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


def test_own_and_kin_are_one_class_and_each_foreign_model_another() -> None:
    known = Baselines(8)
    mine, kin = verified("a", rewards=WRONG), verified("b", "kin", rewards=RIGHT)
    foreign = [
        verified(f"f{author}{model}", author, provenance=Provenance.FOREIGN, rewards=(0.5, 0.5),
                 policy=PolicyRef(model * 32, b"t" * 32, 0))
        for author, model in (("x", b"x"), ("y", b"y"), ("z", b"x"))
    ]  # fmt: skip
    for group in (mine, kin, *foreign):
        known.note(group)
    assert known.others(mine, 0, 32) == RIGHT
    assert known.others(kin, 0, 32) == WRONG
    assert [known.others(group, 0, 32) for group in foreign] == [(0.5, 0.5), (), (0.5, 0.5)]
    assert known.others(verified("other", seed=1), 0, 32) == ()


def test_an_author_counts_once_and_nobody_fills_a_task_alone() -> None:
    known = Baselines(8)
    mine = verified("a", rewards=WRONG)
    for number in range(50):
        known.note(verified(f"k{number}", "kin", rewards=(float(number),)))
    assert known.others(mine, 0, 32) == (0.0,)
    for number in range(50):
        known.note(verified(f"s{number}", f"sybil {number}", rewards=(1.0,)))
    assert known.others(mine, 0, 32) == (0.0, *[1.0] * (MOST_GROUPS - 1))


def test_what_came_too_long_ago_no_longer_counts() -> None:
    known = Baselines(8)
    known.note(verified("k", "kin", rewards=RIGHT, arrived=10))
    mine = verified("a")
    assert known.others(mine, 14, 4) == RIGHT
    assert known.others(mine, 15, 4) == ()


def test_only_so_many_tasks_are_remembered() -> None:
    known = Baselines(2)
    for seed in (0, 1, 0, 2):
        known.note(verified(f"{seed}", f"kin {seed}", seed=seed, rewards=RIGHT))
    assert [known.others(verified(seed=seed), 0, 9) for seed in (0, 1, 2)] == [RIGHT, (), RIGHT]
