"""Commands in messages name the home that a person named."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from swarm_node.cli.main import app
from swarm_node.program.commands import with_home


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("look at `swarm-node logs`", "look at `swarm-node logs --home '/a b'`"),
        ("run swarm-node invite --name X", "run swarm-node invite --home '/a b' --name X"),
        ("swarm-node join --home /c", "swarm-node join --home /c"),
        ("swarm-node joins nobody", "swarm-node joins nobody"),
        ("swarm-node restore FILE", "swarm-node restore FILE"),
    ],
)
def test_a_command_on_a_home_names_it_once(text: str, named: str) -> None:
    assert with_home(text, Path("/a b")) == named
    assert with_home(text, None) == text


@pytest.mark.parametrize("command", [["status"], ["invite", "--name", "x"]])
def test_an_error_names_the_home_that_the_command_was_given(
    tmp_path: Path, command: list[str]
) -> None:
    done = CliRunner().invoke(app, [*command, "--home", str(tmp_path)])
    assert done.exit_code == 1
    assert f" --home {tmp_path}" in done.stderr
