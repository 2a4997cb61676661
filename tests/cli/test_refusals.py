"""What a command says when it cannot do what it is asked."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

from swarm_node.cli.main import app


@pytest.mark.parametrize(
    "command",
    [
        ["plan", "--vram", "much"],
        ["experiment", "sapo", "--regime", "easy"],
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
