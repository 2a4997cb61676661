"""Classes for TRL's trainers as dialogues."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
from builders import ROOT, write_rows
from environments.tasks import task_of

from swarm_node.environments.registry import create_environment
from swarm_node.environments.splits.splitting import SplitEnvironment
from swarm_node.environments.workers.scoring_worker import Transcript, rerun
from swarm_node.errors import ConfigError


def made(cls: str, **options: Any) -> SplitEnvironment:
    return create_environment(f"increment:{cls}", options)


def call(arguments: object, name: str = "increment") -> str:
    return f"I try <tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


def told(*results: object) -> str:
    return "\n".join(f"<tool_response>\n{result}\n</tool_response>" for result in results)


def test_its_tools_are_offered_with_types_and_descriptions() -> None:
    environment = made("IncrementEnv")
    assert (environment.name, environment.turns) == ("IncrementEnv", 8)
    assert environment.families == ("IncrementEnv",)
    prompt = environment.render(task_of(environment))
    offered = json.loads(prompt.split("<tools>\n")[1].split("\n</tools>")[0])["function"]
    assert offered["name"] == "increment"
    assert offered["description"].startswith("Increment ")
    step, times = (offered["parameters"]["properties"][name] for name in ("step", "times"))
    assert (step["type"], times["type"], times["default"]) == ("integer", "integer", 1)
    assert step["description"]
    assert times["description"]
    assert offered["parameters"]["required"] == ["step"]
    assert "get_reward" not in prompt


def test_calls_are_answered_and_counted_from_the_first_turn_on() -> None:
    environment = made("IncrementEnv")
    task = task_of(environment)
    target = int(environment.question(task).split()[-1].rstrip("."))
    first, rest = call({"step": 1}), call({"step": 1, "times": target - 1})
    assert environment.observation(task, [first]) == told(1)
    assert environment.observation(task, [first, rest]) == told(target)
    assert environment.observation(task, [first, rest, "done"]) is None
    assert environment.reward(task, [first, rest, "done"]) == 1.0
    assert environment.reward(task, [first, rest]) == 1.0, "calls of the last turn count"
    assert environment.reward(task, [first + rest]) == 1.0, "a turn may have several calls"
    assert environment.reward(task, ["done"]) == 0.0


@pytest.mark.parametrize(
    ("said", "answer"),
    [
        (call({"step": -1}), "{'error': 'only upwards'}"),
        (call({"step": "1"}), "{'error': 'the arguments of increment are others: see its"),
        (call({"step": 1, "x": 1}), "{'error': 'the arguments of increment are others: see its"),
        (call({}, "get_reward"), "{'error': 'Tool get_reward not found.'}"),
        (call({}, "__init__"), "{'error': 'Tool __init__ not found.'}"),
        ("<tool_call>increment(1)</tool_call>", "{'error': 'a call must be a JSON object such as"),
        (f"<tool_call>{'[' * 9_000}</tool_call>", "{'error': 'a call must be a JSON object such"),
        ('<tool_call>{"name": 1}</tool_call>', "{'error': 'a call must be a JSON object such as"),
    ],
)
def test_a_call_that_fails_is_told_to_the_model(said: str, answer: str) -> None:
    environment = made("IncrementEnv")
    reply = environment.observation(task_of(environment), [said])
    assert reply.startswith(f"<tool_response>\n{answer}")


def test_chance_comes_from_the_task_and_nothing_is_left_of_it() -> None:
    environment = made("IncrementEnv")
    random.seed(1)
    before = random.getstate()
    tasks = [task_of(environment, seed=seed) for seed in range(20)]
    questions = [environment.render(task) for task in tasks]
    assert questions == [environment.render(task) for task in tasks]
    assert len(set(questions)) == 20
    assert random.getstate() == before


def test_rows_reach_reset_and_decide_what_is_held_out(tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = [{"prompt": f"Reach {n}.", "target": n} for n in range(1, 40)]
    rows[0]["prompt"] = [{"role": "user", "content": "Reach 1."}]
    file = write_rows(tmp_path / "steps.jsonl", rows)
    environment = made("Guided", path=str(file), held_out=0.2, turns=2)
    assert (environment.families, environment.turns) == (("steps",), 2)
    seen = set()
    for seed in range(60):
        task = task_of(environment, seed=seed)
        question = environment.question(task)
        number = int(question.split()[1].rstrip("."))
        assert environment.reward(task, [call({"step": number}), ""]) == 1.0
        seen.add(question)
    assert len(seen) > 20
    assert "for training" in environment.notes[0]
    file.write_text('{"prompt": [{"role": "system", "content": "x"}]}\n')
    with pytest.raises(ConfigError, match="line 1: 'prompt'"):
        made("Guided", path=str(file))


def test_no_words_at_all_is_a_fault_of_the_class() -> None:
    environment = made("Silent")
    with pytest.raises(ValueError, match="a prompt"):
        task_of(environment)


@pytest.mark.parametrize(
    ("cls", "options", "why"),
    [
        ("WithoutReward", {}, r"WithoutReward has no get_reward\(\)"),
        ("Asynchronous", {}, r"Asynchronous\.look is async"),
        ("Untyped", {}, r"Untyped\.add have no types"),
        ("Variadic", {}, r"Variadic\.add have no types"),
        ("OfAServer", {}, r"ConnectionError: no server answers\); it must need no arguments"),
        ("IncrementEnv", {"turns": 17}, r"environment\.options\.turns: 17"),
        ("IncrementEnv", {"turns": True}, r"environment\.options\.turns: True"),
        ("IncrementEnv", {"rounds": 2}, r"it takes: turns, path, held_out"),
        ("Nothing", {}, r"cannot be imported"),
    ],
)
def test_what_cannot_be_replayed_is_refused(cls: str, options: dict[str, Any], why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        made(cls, **options)


def test_a_server_is_refused_by_its_url() -> None:
    with pytest.raises(ConfigError, match="can run it again"):
        create_environment("https://my-env.hf.space", {})


def test_another_file_is_another_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = (ROOT / "tests" / "adapted_classes" / "increment.py").read_text()
    (tmp_path / "changed.py").write_text(source.replace("self.counter == ", "self.counter >= "))
    monkeypatch.syspath_prepend(tmp_path)
    versions = [
        made("IncrementEnv").version,
        made("IncrementEnv", turns=4).version,
        create_environment("changed:IncrementEnv", {}).version,
    ]
    assert len(set(versions)) == 3
    assert made("IncrementEnv").version == versions[0]


def test_a_judge_replays_it() -> None:
    environment = made("IncrementEnv", turns=2)
    task = task_of(environment)
    target = int(environment.question(task).split()[-1].rstrip("."))
    line = rerun(environment, task, Transcript([call({"step": target}), "done"]))
    assert (line.observations, line.over) == ([told(target)], True)
    assert line.verdict.reward == 1.0
