"""Trials of an environment before anything starts for it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from swarm_node.cli.options import task_flags
from swarm_node.config import load_settings
from swarm_node.environments.presets import try_environment
from swarm_node.environments.registry import (
    chosen_environment,
    create_environment,
)
from swarm_node.errors import ConfigError


def test_the_turns_of_what_ships_are_known_and_those_of_others_are_asked() -> None:
    for name in ("drills", "games"):
        assert try_environment(name, {}).turns == create_environment(name, {}).turns
    for name in ("games", "swarm_node.environments.games:create"):
        assert try_environment(name, {"digits": 3}).turns == 2
        with pytest.raises(ConfigError, match=r"^environment\.options\.digits: 1\b"):
            try_environment(name, {"digits": 1})
    with pytest.raises(ConfigError, match="programs"):  # not installed, or without a file
        try_environment("programs", {})


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
