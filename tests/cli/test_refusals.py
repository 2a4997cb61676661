"""What a command says when it cannot do what it is asked."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from swarm_node.cli.main import app
from swarm_node.config.remembered import recall
from swarm_node.config.sources import set_remembered
from swarm_node.node.home.home import Home


@pytest.mark.parametrize(
    "command",
    [
        ["plan", "--vram", "much"],
        ["plan", "--model", "qwen2.5-05b"],
        ["train-host", "10.0.0.1", "--key", "none"],
        ["train-host", "10.0.0.1:29400", "--key", "none"],
    ],
)
def test_an_error_of_any_command_is_one_line_and_exit_code_1(command: list[str]) -> None:
    done = CliRunner().invoke(app, command)
    assert done.exit_code == 1
    assert done.stdout == ""
    assert done.stderr.startswith("swarm-node: ")
    assert done.stderr.count("\n") == 1


def test_a_plan_that_does_not_fit_exits_with_1() -> None:
    for gigabytes, code in (("80GB", 0), ("1GB", 1)):
        done = CliRunner().invoke(app, ["plan", "--model", "qwen2.5-1.5b", "--vram", gigabytes])
        assert done.exit_code == code, done.output
        assert "qwen2.5-1.5b" in done.stdout


def test_a_refused_join_forgets_nothing(tmp_path: Path) -> None:
    set_remembered(tmp_path, {"run.seed": 3})
    with Home(tmp_path).lock():
        done = CliRunner().invoke(app, ["join", "--home", str(tmp_path), "--forget", "run.seed"])
    assert done.exit_code == 1
    assert "already running" in done.stderr
    assert [*recall(tmp_path)] == ["run.seed"]
