"""Trials of an environment before anything starts for it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from builders import write_rows

from swarm_node.cli.options import task_flags
from swarm_node.config import load_settings
from swarm_node.environments.presets import prompt_bytes, try_environment
from swarm_node.environments.registry import (
    chosen_environment,
    create_environment,
)
from swarm_node.errors import ConfigError

FAILING = """
class Failing:
    name, version, families = "failing", "1", ("one",)
    def derive(self, ref):
        raise RuntimeError("no task")
    def render(self, task):
        return ""
    def score(self, task, text):
        return 0.0

def create():
    return Failing()
"""


def test_the_turns_of_what_ships_are_known_and_those_of_others_are_asked() -> None:
    for name in ("drills", "games"):
        assert try_environment(name, {}).turns == create_environment(name, {}).turns
    for name in ("games", "swarm_node.environments.bundled.games:create"):
        assert try_environment(name, {"digits": 3}).turns == 2
        with pytest.raises(ConfigError, match=r"^environment\.options\.digits: 1\b"):
            try_environment(name, {"digits": 1})
    with pytest.raises(ConfigError, match="programs"):  # not installed, or without a file
        try_environment("programs", {})


@pytest.mark.parametrize("name", ["drills", "games"])
def test_prompts_of_what_ships_are_as_long_as_a_process_of_its_own_says(name: str) -> None:
    """The model chooses the preset after the trial, and a plan has the lengths of that one."""
    for options in ({"preset": "chat"}, {"preset": "long"}) if name == "drills" else ({},):
        known = prompt_bytes(try_environment(name, {}), options)
        module = f"swarm_node.environments.bundled.{name}:create"
        assert known == prompt_bytes(try_environment(module, options), options) > 20


def test_an_environment_whose_prompts_fail_can_be_tried(
    importable: Callable[[str, str], None],
) -> None:
    importable("failing", FAILING)
    tried = try_environment("failing:create", {})
    assert (tried.turns, tried.prompt_bytes) == (1, 0)


def test_a_list_is_asked_for_its_prompts_where_no_start_scores_its_rows(tmp_path: Path) -> None:
    rows = ({"question": f"{'ä' * 50} {n}?", "answer": str(n)} for n in range(200))
    path = write_rows(tmp_path / "rows.jsonl", rows)
    options = {"path": str(path)}
    assert prompt_bytes(try_environment("jsonl", options), options) == 0
    assert prompt_bytes(try_environment("jsonl", options, asks=True), options) >= 105


def test_a_file_of_questions_is_named_as_an_environment_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "plain").touch()
    (tmp_path / "drills").touch()

    def path(text: str) -> str | None:
        chosen = chosen_environment(text)
        assert (chosen["environment.name"] == "jsonl") is ("environment.options.path" in chosen)
        return chosen.get("environment.options.path")

    for text in ("rows.jsonl", "rows.jsonl.gz", "table.csv", "sub/rows", "plain"):
        assert path(text) == str(tmp_path / text)
    assert path("hub:org/set") == "hub:org/set"
    for text in ("drills", "drillz", "my.module:create", "my:Class"):
        assert path(text) is None
    for name in ("rows.jsonl", "hub:org/set"):
        with pytest.raises(ConfigError, match=f"--environment {name}"):
            try_environment(name, {})
        with pytest.raises(ConfigError, match=f"--environment {name}"):
            create_environment(name, {})


def test_options_of_the_command_line_name_fields_of_rows() -> None:
    def options(*given: str | None) -> dict[str, Any]:
        return load_settings(task_flags(*given, None), environ={}).environment.options

    assert options("hub:org/set", None, None, "a.b", "c", "d") == {
        "path": "hub:org/set",
        "question": "a.b",
        "answer": "c",
        "choices": "d",
    }
    assert options(None, None, None, None, None, None) == {}
    with pytest.raises(ConfigError, match=r"experience\.local\.more"):  # it is no table
        load_settings({"experience.local.more": 1}, environ={})
