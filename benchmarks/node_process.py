"""A real `swarm-node join` process for benchmarks, and the cost of a tree of processes."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from swarm_node.errors import SwarmNodeError
from swarm_node.node.control.control import ControlClient
from swarm_node.node.home.home import Home
from swarm_node.node.metrics.snapshot import Snapshot

START_SECONDS = 180.0
STOP_SECONDS = 60.0


def tree(pid: int) -> list[psutil.Process]:
    """The process and all of its living descendants."""
    root = psutil.Process(pid)
    return [root, *root.children(recursive=True)]


def cpu_seconds(pid: int) -> float:
    """User and system time of the tree so far, dead and reaped children included."""
    total = 0.0
    for process in tree(pid):
        with contextlib.suppress(psutil.NoSuchProcess):
            total += sum(process.cpu_times()[:4])
    return total


@dataclass
class Memory:
    """MiB of a tree of processes: `rss` counts what several share once each, `pss` once in all."""

    rss: float = 0.0
    pss: float = 0.0
    processes: int = 0

    @classmethod
    def of(cls, pid: int) -> Memory:
        total = cls()
        for process in tree(pid):
            with contextlib.suppress(FileNotFoundError, ProcessLookupError, psutil.NoSuchProcess):
                lines = Path(f"/proc/{process.pid}/smaps_rollup").read_text().splitlines()
                fields = dict(line.split(":", 1) for line in lines[1:])
                total.rss += int(fields["Rss"].split()[0]) / 1024
                total.pss += int(fields["Pss"].split()[0]) / 1024
                total.processes += 1
        return total

    def raise_to(self, other: Memory) -> None:
        """Raise each figure to that of the other, if that is more."""
        self.rss = max(self.rss, other.rss)
        self.pss = max(self.pss, other.pss)
        self.processes = max(self.processes, other.processes)


@dataclass
class NodeProcess:
    """A node with its home in `directory`. It joins as a user would, and is stopped in the end. It
    founds a swarm, or joins that of a `ticket`. `program` takes the place of swarm-node. Its log is
    `log_file`, or in `directory`."""

    directory: Path
    assignments: Sequence[str]
    program: Sequence[str] = ("-m", "swarm_node")
    ticket: Path | None = None
    log_file: Path | None = None
    home: Home = field(init=False)
    process: subprocess.Popen[bytes] = field(init=False)
    _read: int = field(default=0, init=False)

    def start(self, wait_seconds: float = START_SECONDS) -> Snapshot:
        """Start it and wait until it trains."""
        self.launch()
        deadline = time.monotonic() + wait_seconds
        while time.monotonic() < deadline and self.process.poll() is None:
            with contextlib.suppress(SwarmNodeError):  # not yet, or too busy to answer
                snapshot = self.status()
                if snapshot.state == "running" and snapshot.evals:
                    return snapshot
            time.sleep(0.2)
        raise RuntimeError(f"the node did not start:\n{self.log.read_text()[-2000:]}")

    def launch(self) -> None:
        """Start it."""
        self.home = Home(self.directory / "node")
        home = ["--home", str(self.home.path)]
        if self.ticket is None:
            founding = [sys.executable, *self.program, "init", "bench", *home]
            subprocess.run(founding, check=True, stdout=subprocess.DEVNULL)
        options = [part for text in self.assignments for part in ("--set", text)]
        options += [] if self.ticket is None else ["--ticket-file", str(self.ticket)]
        options += ["--listen", "/ip4/127.0.0.1/tcp/0"]
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, *self.program, "join", *home, *options],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, "OMP_NUM_THREADS": "1"},
            )

    @property
    def log(self) -> Path:
        return self.log_file or self.directory / "node.log"

    def events(self) -> list[dict[str, Any]]:
        """Events logged since the last call, by a node whose `log_format` is "json"."""
        with self.log.open("rb") as file:
            file.seek(self._read)
            chunk = file.read().rpartition(b"\n")[0]
        self._read += len(chunk) + bool(chunk)
        return [json.loads(line) for line in chunk.splitlines() if line.startswith(b"{")]

    def status(self) -> Snapshot:
        return asyncio.run(ControlClient(self.home.control_file).status())

    def stop(self, wait_seconds: float = STOP_SECONDS) -> None:
        """Ask it to leave; kill it when it does not."""
        if not hasattr(self, "process") or self.process.poll() is not None:
            return
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(wait_seconds)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
