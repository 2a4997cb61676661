"""Real `swarm-node` processes for integration tests."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import pytest

COMMAND = [sys.executable, "-m", "swarm_node"]
FAST = [
    *("--listen", "/ip4/127.0.0.1/tcp/0"),
    *("--set", "network.poll_seconds=0.3"),
    *("--set", "run.eval_seconds=5", "--set", "run.checkpoint_updates=10"),
]


@dataclass
class RunningNode:
    """One `swarm-node join` process in a home of its own."""

    home: Path
    arguments: list[str]
    command: list[str] = field(default_factory=lambda: COMMAND)
    variables: dict[str, str] = field(default_factory=dict)
    process: subprocess.Popen[bytes] = field(init=False)

    def start(self) -> None:
        self.home.mkdir(parents=True, exist_ok=True)
        with (self.home / "log").open("ab") as log:
            self.process = subprocess.Popen(
                [*self.command, "join", "--home", str(self.home), *FAST, *self.arguments],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, "OMP_NUM_THREADS": "1", **self.variables},
            )

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Another `swarm-node` command on this home."""
        verb, *rest = arguments
        return subprocess.run(
            [*COMMAND, verb, "--home", str(self.home), *rest],
            capture_output=True,
            text=True,
            timeout=240,
        )

    def status(self) -> dict[str, Any] | None:
        done = self.run("status", "--json")
        return json.loads(done.stdout) if done.returncode == 0 else None

    def wait(self, what: Callable[[dict[str, Any]], bool], seconds: float = 300) -> dict[str, Any]:
        """Poll the status until `what` holds."""
        deadline = time.monotonic() + seconds
        status = None
        while time.monotonic() < deadline:
            assert self.process.poll() is None, self.log()
            status = self.status()
            if status is not None and what(status):
                return status
            time.sleep(0.5)
        raise AssertionError(f"not within {seconds} s; last status {status}\n{self.log()}")

    def kill(self) -> None:
        """What a power cut does: nothing gets to say goodbye."""
        self.process.kill()
        self.process.wait(60)

    def stop(self) -> int:
        self.process.send_signal(signal.SIGINT)
        return self.process.wait(120)

    def log(self) -> str:
        return (self.home / "log").read_text(errors="replace")[-4000:]


@pytest.fixture
def hears_ctrl_c() -> Iterator[None]:
    """The processes that a test starts obey SIGINT, even where the tests were told to ignore it.

    A shell starts its background jobs so, and every child inherits it. A signal that the parent
    handles is back at its default in the child.
    """
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture
def start_node(tmp_path: Path, hears_ctrl_c: None) -> Iterator[Callable[..., RunningNode]]:
    """Start a node process; all are gone, children too, when the test ends."""
    nodes: list[RunningNode] = []

    def start(name: str, *arguments: str, **changes: Any) -> RunningNode:
        node = RunningNode(tmp_path / name, list(arguments), **changes)
        nodes.append(node)
        node.start()
        return node

    yield start
    for node in nodes:
        if node.process.poll() is None:
            children = psutil.Process(node.process.pid).children(recursive=True)
            node.kill()
            psutil.wait_procs(children, timeout=60)
