"""A real node reads its settings file again: at SIGHUP, and for `config set`."""

from __future__ import annotations

import os
import pty
import signal
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from running import COMMAND, typed


@pytest.mark.slow(reason="starts a real node, of processes that import torch")
@pytest.mark.timeout(600)
def test_a_running_node_takes_over_its_file(start_node: Callable[..., Any], tmp_path: Path) -> None:
    file = tmp_path / "node.toml"
    file.write_text("[run]  # first\nseed = 1\n")
    node = start_node("one", "--config", str(file))
    node.wait(lambda status: status["state"] == "running")

    file.write_text("[run]\nmax_steps = 'many'\n")
    node.process.send_signal(signal.SIGHUP)
    assert "run.max_steps" in node.wait_log("settings were not")

    file.write_text("verbose = true  # all of it\n[run]\nseed = 2\n")
    node.process.send_signal(signal.SIGHUP)
    assert "applied=verbose pending=run.seed" in node.wait_log("read again")

    status = node.wait(lambda status: status["steps"] > 0)
    limit = f"run.max_steps={status['steps'] + 3}"
    assert "run.max_steps" in typed(node.home, "config set", limit, "--config", str(file))
    assert node.process.wait(240) == 0, node.log()
    assert "verbose = true  # all of it\n" in file.read_text()


@pytest.mark.slow(reason="starts a real node, of processes that import torch")
@pytest.mark.timeout(600)
def test_a_node_whose_terminal_goes_away_stores_a_checkpoint_and_stops(tmp_path: Path) -> None:
    arguments = ["--home", str(tmp_path), "--listen", "/ip4/127.0.0.1/tcp/0"]
    child, terminal = pty.fork()
    if child == 0:
        os.environ.update(OMP_NUM_THREADS="1", TERM="xterm-256color")
        os.execv(COMMAND[0], [*COMMAND, "join", *arguments, "--set", "run.device=cpu"])
    try:
        seen = b""
        while b"groups in each" not in seen:  # the live view of updates
            seen = seen[-4096:] + os.read(terminal, 4096)
        os.close(terminal)
        _, ended = os.waitpid(child, 0)
    finally:
        with suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)
    assert os.waitstatus_to_exitcode(ended) == 0
    assert "was closed" in (tmp_path / "node.log").read_text()
    assert [*(tmp_path / "checkpoints").glob("v*")]
