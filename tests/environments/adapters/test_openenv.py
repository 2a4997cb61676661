"""Environment classes of OpenEnv's servers as dialogues."""

from __future__ import annotations

import json
from typing import Any

import pytest
from environments.tasks import task_of

from swarm_node.environments.registry import create_environment
from swarm_node.environments.splits.splitting import SplitEnvironment
from swarm_node.errors import ConfigError


def made(cls: str, **options: Any) -> SplitEnvironment:
    return create_environment(f"catch:{cls}", options)


def test_steps_are_json_until_one_is_done_and_the_last_reward_counts() -> None:
    environment = made("Catch", instruction="Catch the ball.", turns=4)
    task = task_of(environment)
    prompt = environment.render(task).splitlines()
    assert prompt[0].startswith("Catch ")
    fields = json.loads(prompt[2][prompt[2].index("{") :])
    assert fields == {"column": {"title": "Column", "type": "integer"}}
    ball = environment.question(task).split('"ball": ')[1].split(",")[0]
    assert prompt[1] == f'{{"ball": {ball}, "left": 3}}'
    away, there = '{"column": 1000000}', f'{{"column": {ball}}}'
    assert environment.observation(task, [away]) == f'{{"ball": {ball}, "left": 2}}'
    assert environment.observation(task, [away, away, there]) is None
    assert environment.reward(task, [away, away, there]) == 1.0
    assert environment.reward(task, [there, there, away]) == 0.0
    assert environment.reward(task, [there]) == 1.0


@pytest.mark.parametrize("said", ["left", "{}", '{"column": "x"}', '{"column": 1, "done": true}'])
def test_a_text_that_is_no_action_ends_the_episode(said: str) -> None:
    environment = made("Catch")
    task = task_of(environment)
    assert environment.observation(task, [said]) is None
    assert environment.reward(task, [said]) == 0.0


def test_one_field_of_text_is_the_whole_turn() -> None:
    environment = made("Echo")
    task = task_of(environment)
    assert environment.render(task).startswith("ready ")
    assert environment.observation(task, ["hello"]) == "hello"
    assert environment.reward(task, ["hello", "hello you"]) == 0.09
    other = task_of(environment, seed=12)
    assert environment.render(other) != environment.render(task)


@pytest.mark.parametrize(
    ("cls", "options", "why"),
    [
        ("Anything", {}, r"Anything\.step has no action of a type with fields"),
        ("Catch", {"turns": 1}, r"environment\.options\.turns: 1"),
    ],
)
def test_what_cannot_be_replayed_is_refused(cls: str, options: dict[str, Any], why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        made(cls, **options)
