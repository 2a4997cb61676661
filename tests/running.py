"""Real `swarm-node` and `swarm-coordinator` processes, for tests and benchmarks."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import psutil

from swarm_node.errors import SwarmNodeError
from swarm_node.node.control.control import ControlClient
from swarm_node.node.home.home import Home

COMMAND = [sys.executable, "-m", "swarm_node"]
COORDINATOR = [sys.executable, "-c", "from coordinator.main import app; app()"]
FAST = [
    *("--set", "network.poll_seconds=0.3"),
    *("--set", "run.eval_seconds=5", "--set", "run.save_steps=10"),
]


def run(
    home: Path, verb: str, *arguments: str, command: list[str] = COMMAND
) -> subprocess.CompletedProcess[str]:
    """A `swarm-node` command on a home. The last `--home` counts."""
    return subprocess.run(
        [*command, *verb.split(), "--home", str(home), *arguments],
        capture_output=True,
        text=True,
        timeout=240,
    )


def typed(home: Path, verb: str, *arguments: str) -> str:
    """What such a command prints. It must end well."""
    done = run(home, verb, *arguments)
    assert done.returncode == 0, done.stderr
    return done.stdout


@dataclass
class RunningNode:
    """One `swarm-node join` process in a home of its own. `command` may run it elsewhere."""

    home: Path
    arguments: list[str]
    command: list[str] = field(default_factory=lambda: COMMAND)
    listen: str = "/ip4/127.0.0.1/tcp/0"
    variables: dict[str, str] = field(default_factory=dict)
    process: subprocess.Popen[bytes] = field(init=False)

    def start(self) -> None:
        self.home.mkdir(parents=True, exist_ok=True)
        with (self.home / "log").open("ab") as log:
            self.process = subprocess.Popen(
                [
                    *(*self.command, "join", "--home", str(self.home), "--listen", self.listen),
                    *(*FAST, *self.arguments),
                ],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, "OMP_NUM_THREADS": "1", **self.variables},
            )

    def run(self, verb: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Another `swarm-node` command on this home."""
        return run(self.home, verb, *arguments, command=self.command)

    def status(self) -> dict[str, Any] | None:
        """What the node says of itself, None while it does not answer."""
        if self.command is COMMAND:
            try:
                snapshot = asyncio.run(ControlClient(Home(self.home).control_file).status())
            except SwarmNodeError:
                return None
            found: dict[str, Any] = json.loads(msgspec.json.encode(snapshot))
            return found
        # Elsewhere, as in a network of its own, only a command there reaches it. It ends with 1
        # where something is wrong, also beside a status.
        done = self.run("status", "--json")
        return json.loads(done.stdout) if done.stdout else None

    def wait(self, what: Callable[[dict[str, Any]], bool], seconds: float = 300) -> dict[str, Any]:
        """Poll the status until `what` holds."""
        deadline = time.monotonic() + seconds
        status = None
        while time.monotonic() < deadline:
            assert self.process.poll() is None, self.log()
            status = self.status()
            if status is not None and what(status):
                return status
            time.sleep(0.1)
        raise AssertionError(f"not within {seconds} s; last status {status}\n{self.log()}")

    def kill(self) -> None:
        """What a power cut does: nothing gets to say goodbye."""
        self.process.kill()
        self.process.wait(60)

    def stop(self) -> int:
        self.process.send_signal(signal.SIGINT)
        return self.process.wait(120)

    def end(self) -> None:
        """Kill it with its children, if it runs. Remove its weights: the next node would."""
        if self.process.poll() is None:
            children = psutil.Process(self.process.pid).children(recursive=True)
            self.kill()
            psutil.wait_procs(children, timeout=60)
            for weights in Path("/dev/shm").glob(f"swarm-node-*-{self.process.pid}-*"):
                shutil.rmtree(weights, ignore_errors=True)  # the next node may be there already

    def invite(self, uses: int, *arguments: str, name: str = "others") -> str:
        """A file with a ticket for `uses` nodes, once this one runs."""
        self.wait(lambda status: status["state"] == "running")
        path = self.home / f"{name}.ticket"
        flags = ("--name", name, "--uses", str(uses), "--out", str(path))
        done = self.run("invite", *flags, *arguments)
        assert done.returncode == 0, done.stderr
        return str(path)

    def wait_log(self, text: str, seconds: float = 300) -> str:
        """The log, once it has `text`."""
        deadline = time.monotonic() + seconds
        while text not in self.log():
            assert time.monotonic() < deadline, f"{text!r} not within {seconds} s\n{self.log()}"
            time.sleep(0.1)
        return self.log()

    def log(self) -> str:
        return (self.home / "log").read_text(errors="replace")[-4000:]


@contextmanager
def started_nodes(place: Path) -> Iterator[Callable[..., RunningNode]]:
    """Start node processes in homes below a directory; all are gone, children too, afterwards."""
    nodes: list[RunningNode] = []

    def start(name: str, *arguments: str, **changes: Any) -> RunningNode:
        node = RunningNode(place / name, list(arguments), **changes)
        nodes.append(node)
        node.start()
        return node

    try:
        yield start
    finally:
        for node in nodes:
            node.end()


class CoordinatorProcess:
    """`swarm-coordinator serve`, with a port that stays the same over restarts."""

    def __init__(self, data: Path, *arguments: str) -> None:
        self.data = data
        self._arguments = arguments
        self._listen = "127.0.0.1:0"
        self.url = ""

    def start(self) -> CoordinatorProcess:
        command = ["serve", "--listen", self._listen, "--admin", "127.0.0.1:0"]
        self.process = subprocess.Popen(
            [*COORDINATOR, *command, "--data", str(self.data), *self._arguments],
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        self.url = self.process.stdout.readline().split()[-1]
        self.process.stdout.readline()  # it wrote where its operator reaches it
        self._listen = self.url.removeprefix("http://")
        return self

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(60)
        assert self.process.stdout is not None
        self.process.stdout.close()

    def run(self, *arguments: str) -> str:
        done = subprocess.run(
            [*COORDINATOR, *arguments, "--data", str(self.data)],
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()
