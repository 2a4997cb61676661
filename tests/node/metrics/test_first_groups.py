"""The first groups say once what the model can do, and what to do when it can learn nothing."""

from __future__ import annotations

from dataclasses import replace

import pytest
from builders import completion

from swarm_node.node.metrics.first_groups import COUNT, Beginning, FirstGroups
from swarm_node.rollout import Finish, PolicyRef, RolloutGroup, TaskRef


def group(*rewards: float, text: str = "7", environment: str = "e") -> RolloutGroup:
    ref, policy = TaskRef(environment, "1", "f", 3), PolicyRef(b"m" * 32, b"t" * 32, 0)
    return RolloutGroup(ref, policy, tuple(completion([7], text) for _ in rewards), rewards)


def beginning(groups: list[RolloutGroup]) -> Beginning:
    watched = FirstGroups()
    *before, last = [watched.add(each) for each in groups]
    assert before == [None] * (COUNT - 1)
    assert last is not None
    assert all(watched.add(each) is None for each in groups), "told once"
    return last


def test_the_share_of_right_answers_and_of_groups_to_learn_from_is_told() -> None:
    found = beginning([group(1.0, 0.0)] * 4 + [group(0.0, 0.0)] * (COUNT - 4))
    assert (found.pass_at_1, found.mixed_rewards, found.groups) == (4 / 32, 4, COUNT)
    assert not found.advice


def test_where_most_answers_were_cut_no_other_advice_is_given() -> None:
    made = group(0.0, 0.0, environment="drills")
    cut = replace(made, completions=(completion([7], finish=Finish.LENGTH),) * 2)
    mostly = beginning([made] * 4 + [cut] * (COUNT - 4))
    assert mostly.truncated_ratio == 0.75
    assert "sampling.max_new_tokens" in mostly.advice
    assert "preset" not in mostly.advice
    seldom = beginning([made] * (COUNT - 4) + [cut] * 4)
    assert (seldom.truncated_ratio, "preset" in seldom.advice) == (0.25, True)


@pytest.mark.parametrize(
    ("environment", "reward", "advice"),
    [
        ("drills", 0.0, "easier preset"),
        ("drills", 1.0, "harder preset"),
        ("reasoning_gym", 0.0, "easier preset"),
        ("reasoning_gym", 1.0, "harder preset"),
        ("programs", 0.0, "easier ones"),
        ("programs", 1.0, "harder ones"),
    ],
)
def test_where_nothing_can_be_learnt_it_says_what_to_take(
    environment: str, reward: float, advice: str
) -> None:
    made = group(reward, reward, text="x" * 999, environment=environment)
    found = beginning([made] * COUNT)
    assert advice in found.advice
    assert ("drills" in found.advice) == (environment == "drills" and not reward)
    assert found.answers == ("x" * 160,) * 3
