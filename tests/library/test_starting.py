"""A node in a child process that does not run yet. tests/integration has one that does."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from typer.testing import CliRunner

import swarm_node
from swarm_node.cli.main import app
from swarm_node.config import load_settings, parse_assignments
from swarm_node.errors import ChildError, ConfigError, SlowNodeError
from swarm_node.library.starting import _toml
from swarm_node.process import leader


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"experience.local": -1}, r"experience\.local"),
        ({"experience.locl": 4}, r"locl: .*experience\.local"),
        ({"experience.local": {1, 2}}, r"local: \{1, 2\} "),
        ({"experience.local": None}, r"local: None "),
        ({"ticket": "secret"}, "ticket .*start"),
        ({"home": "/tmp"}, "home .*start"),
    ],
)
def test_a_wrong_setting_is_refused_by_name_before_a_process_starts(
    settings: dict[str, object], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("subprocess.Popen", None)
    with pytest.raises(ConfigError, match=words):
        swarm_node.start(settings=settings)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("experience.local", 6),
        ("training.learning_rate", 6e-05),
        ("verbose", True),
        ("model", 'a "quoted" \\ näme\n'),
        ("environment.families", ["sorting", "reversal"]),
        ("environment.options", {"preset": "short", "weights": {"a": 1}}),
        ("environment.options.path", "5"),
    ],
)
def test_a_setting_reaches_the_command_line_as_it_is(key: str, value: object) -> None:
    assert parse_assignments([f"{key}={_toml(key, value)}"]) == {key: value}
    load_settings({key: value}, environ={})


def test_a_path_is_a_text() -> None:
    assert parse_assignments([f"model={_toml('model', Path('/models/one'))}"]) == {
        "model": "/models/one"
    }


@pytest.mark.slow(reason="a process of its own imports torch")
def test_a_start_that_fails_says_what_the_command_line_says(tmp_path: Path) -> None:
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "node.key").write_bytes(b"damaged")
    home = str(tmp_path / "taken")
    with pytest.raises(ChildError) as caught:
        swarm_node.start(home=home, ticket="no ticket")
    first, *_ = str(caught.value).splitlines()
    assert first.endswith("code 1:")
    # It hands the ticket over on standard input, too.
    done = CliRunner().invoke(
        app, ["join", "--home", home, "--ticket-file", "-"], input="no ticket"
    )
    assert done.exit_code == 1
    told = done.stderr[done.stderr.index("swarm-node: ") :]
    assert str(caught.value).endswith(told.rstrip())
    assert "Traceback" not in str(caught.value)


@pytest.mark.slow(reason="a process of its own imports torch")
@pytest.mark.usefixtures("leaves_no_process")
def test_a_start_that_takes_too_long_ends_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with pytest.raises(SlowNodeError, match=r"0\.1 s"):
        swarm_node.start(timeout=0.1)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow(reason="processes of their own import torch")
def test_a_node_ends_with_the_program_that_started_it(tmp_path: Path) -> None:
    code = (
        "import swarm_node\n"
        "from swarm_node.library.starting import StartedNode\n"
        f"node = StartedNode({str(tmp_path / 'home')!r}, [], None)\n"
        "print(node.pid, flush=True)\n"
        "input()"
    )
    program = subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    node = psutil.Process(int(program.stdout.readline()))
    while leader.__file__ in node.cmdline():  # it has not become the node yet
        time.sleep(0.01)
    os.kill(program.pid, signal.SIGKILL)
    program.communicate()
    node.wait(30)
