"""Real nodes behind routers with NAT learn from each other's rollouts through relays they found."""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from sites.bed import Bed, Nat

pytestmark = [pytest.mark.sites, pytest.mark.scenario]

COMMAND = [sys.executable, "-m", "swarm_node"]
FAST = [
    *("--listen", "/ip4/0.0.0.0/tcp/31330"),
    *("--set", "network.poll_seconds=1"),
    *("--set", "run.eval_seconds=600", "--set", "run.checkpoint_updates=1000"),
]
HIDDEN = "a1", "b1"


class Node:
    """One `swarm-node join` process on a host of the bed."""

    def __init__(self, bed: Bed, host: str, home: Path, *arguments: str) -> None:
        self.bed, self.host, self.home = bed, host, home
        home.mkdir(parents=True)
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        with (home / "log").open("ab") as log:
            command = [*COMMAND, "join", "--home", str(home), *FAST, *arguments]
            self.process = bed.run(host, command, stdout=log, stderr=log, env=environment)

    def run(self, verb: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        command = [*COMMAND, verb, "--home", str(self.home), *arguments]
        return subprocess.run(self.bed.command(self.host, command), capture_output=True, text=True)

    def wait(self, what: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        """Poll the status until `what` holds; the test's own timeout ends a wait in vain."""
        while True:
            assert self.process.poll() is None, (self.home / "log").read_text()[-4000:]
            done = self.run("status", "--json")
            if done.returncode == 0 and what(status := json.loads(done.stdout)):
                return status
            time.sleep(2.0)


@pytest.mark.slow(reason="starts four real nodes behind routers of their own")
@pytest.mark.timeout(1200)
def test_two_nodes_behind_nat_trade_rollouts_through_a_relay_that_they_found(
    tmp_path: Path,
) -> None:
    with Bed({"a": Nat.RESTRICTED, "b": Nat.SYMMETRIC}, public=2, hosts=1) as bed:
        first, nodes, ids = _started(bed, tmp_path)
        relays = {ids["pub2"], first.wait(_running)["peer_id"]}
        for host, other in (HIDDEN, HIDDEN[::-1]):

            def trades(status: dict[str, Any], other: str = other) -> bool:
                row = _peer(status, ids[other])
                return row is not None and row["received"] >= 20 and row["via"] in relays

            status = nodes[host].wait(trades)
            assert status["relaying"]["kept"]
            assert status["relaying"]["relayed"] >= 20
            shown = nodes[host].run("peers").stdout
            assert "relayed" in shown
            assert "direct" in shown
        assert sum(node.wait(_running)["relaying"]["requests"] for node in (first, nodes["pub2"]))


@pytest.mark.slow(reason="starts four real nodes behind routers of their own")
@pytest.mark.timeout(1200)
def test_two_nodes_behind_home_routers_come_to_have_a_direct_link(tmp_path: Path) -> None:
    with Bed({"a": Nat.RESTRICTED, "b": Nat.RESTRICTED}, public=2, hosts=1) as bed:
        _, nodes, ids = _started(bed, tmp_path)
        for host, other in (HIDDEN, HIDDEN[::-1]):
            peer_id = ids[other]

            def direct(status: dict[str, Any], peer_id: str = peer_id, least: int = 5) -> bool:
                row = _peer(status, peer_id)
                return row is not None and row["received"] >= least and row["via"] == ""

            status = nodes[host].wait(direct)
            relayed, row = status["relaying"]["relayed"], _peer(status, peer_id)
            assert row is not None
            more = functools.partial(direct, least=row["received"] + 20)
            assert nodes[host].wait(more)["relaying"]["relayed"] <= relayed + 5


def _started(bed: Bed, place: Path) -> tuple[Node, dict[str, Node], dict[str, str]]:
    """The founder, the others by host, and their peer ids."""
    first = Node(bed, "pub1", place / "pub1")
    first.wait(_running)
    ticket = str(place / "ticket")
    done = first.run("invite", "--name", "others", "--uses", "3", "--out", ticket)
    assert done.returncode == 0, done.stderr
    nodes = {
        host: Node(bed, host, place / host, "--ticket-file", ticket) for host in ("pub2", *HIDDEN)
    }
    return first, nodes, {host: node.wait(_running)["peer_id"] for host, node in nodes.items()}


def _running(status: dict[str, Any]) -> bool:
    return bool(status["state"] == "running")


def _peer(status: dict[str, Any], peer_id: str) -> dict[str, Any] | None:
    return next((row for row in status["peers"] if row["peer_id"] == peer_id), None)
