"""A real node reads its settings file again: at SIGHUP, and for `config set`."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest


@pytest.mark.slow(reason="starts a real node, of processes that import torch")
@pytest.mark.timeout(600)
def test_a_running_node_takes_over_its_file(start_node: Callable[..., Any], tmp_path: Path) -> None:
    file = tmp_path / "node.toml"
    file.write_text("[run]  # first\nseed = 1\n")
    node = start_node("one", "--config", str(file))
    node.wait(lambda status: status["state"] == "running")

    file.write_text("[run]\nupdates = 'many'\n")
    node.process.send_signal(signal.SIGHUP)
    assert "run.updates" in node.wait_log("the settings stay as they are")

    file.write_text("verbose = true  # all of it\n[run]\nseed = 2\n")
    node.process.send_signal(signal.SIGHUP)
    assert "applied=verbose pending=run.seed" in node.wait_log("settings read again")

    status = node.wait(lambda status: status["updates"] > 0)
    limit = f"run.updates={status['updates'] + 3}"
    command = [*node.command, "config", "set", limit, "--config", str(file)]
    done = subprocess.run(
        [*command, "--home", str(node.home)], capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 0, done.stderr
    assert "in use now: run.updates" in done.stdout
    assert node.process.wait(240) == 0, node.log()
    assert "verbose = true  # all of it\n" in file.read_text()
