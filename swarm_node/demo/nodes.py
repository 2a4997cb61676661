"""One node process of a demo."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field

from swarm_node.demo.tasks import DRILLS, DemoTasks
from swarm_node.errors import HomeError, NotRunningError, SwarmNodeError
from swarm_node.node.control.control import ControlClient
from swarm_node.node.home.home import Home
from swarm_node.node.metrics.snapshot import Snapshot
from swarm_node.p2p.membership.ticket import parse_ticket

_STOP_SECONDS = 40.0
_HOUR = 3600


@dataclass
class DemoNode:
    """One `swarm-node join` process and its last snapshot; `assignments` are further settings."""

    name: str
    home: Home
    families: Sequence[str]
    sampler: str | None = None
    assignments: Sequence[str] = ()
    ground: DemoTasks = DRILLS
    process: asyncio.subprocess.Process | None = None
    snapshot: Snapshot | None = None
    log: list[str] = field(default_factory=list)

    async def start(self) -> None:
        """Start the process; its log goes to `log` in its home."""
        arguments = ["join", "--model", self.ground.model, "--home", str(self.home.path)]
        arguments += ["--families", ",".join(self.families), "--listen", "/ip4/127.0.0.1/tcp/0"]
        arguments += ["--set", "network.poll_seconds=0.5", "--set", "run.eval_seconds=5"]
        if self.sampler is not None:
            arguments += ["--sampler", self.sampler]
        if self.sampler != "vllm":
            # With so small a model, nodes would only wait for kernel launches on the one GPU.
            arguments += ["--set", "run.device=cpu"]
        assignments = (*self.ground.assignments, *self.assignments)
        arguments += [part for text in assignments for part in ("--set", text)]
        with (self.home.path / "log").open("ab") as log:
            self.process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "swarm_node",
                *arguments,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,  # Ctrl-C is for the demo, which stops its nodes in order
                env={**os.environ, "OMP_NUM_THREADS": "1"},
            )

    async def poll(self) -> None:
        """Ask the node for its snapshot; raises when its process has died."""
        if self.process is not None and self.process.returncode is not None:
            raise SwarmNodeError(
                f"{self.name} ended with exit code {self.process.returncode}:\n{self.tail()}"
            )
        try:
            self.snapshot = await ControlClient(self.home.control_file).status()
        except (NotRunningError, HomeError):
            return

    def tail(self) -> str:
        """The end of its log."""
        path = self.home.path / "log"
        return path.read_text(errors="replace")[-2000:] if path.exists() else "(no log)"

    async def stop(self) -> None:
        """Ask the node to leave; kill it if it does not."""
        process = self.process
        if process is None or process.returncode is not None:
            return
        process.send_signal(signal.SIGTERM)
        try:
            async with asyncio.timeout(_STOP_SECONDS):
                await process.wait()
        except TimeoutError:
            process.kill()
            await process.wait()


def make_swarm(name: str, nodes: Sequence[DemoNode], now: float) -> None:
    """Let the first node found a private swarm at the time `now`, and admit the others to it."""
    first, *peers = nodes
    first.home.found_swarm(name, now)
    # The others can have their tickets before the first node runs: its home keeps its port.
    address = f"/ip4/127.0.0.1/tcp/{first.home.port()}/p2p/{first.home.identity().peer_id}"
    for node in peers:
        ticket = first.home.invite(
            [address], now=now, valid_seconds=_HOUR, member_seconds=24 * _HOUR, name=node.name
        )
        node.home.join_swarm(parse_ticket(ticket, now), now)
