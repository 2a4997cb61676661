"""Real nodes that know nobody but a real coordinator."""

from __future__ import annotations

import json
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from running import CoordinatorProcess

from swarm_node.node.home import Home

NodeStarter = Callable[..., Any]


@pytest.mark.slow(reason="starts real nodes, each of four processes that import torch")
@pytest.mark.timeout(900)
def test_two_nodes_that_know_only_the_coordinator_meet_and_do_without_it(
    start_node: NodeStarter,
    start_coordinator: Callable[..., CoordinatorProcess],
    tmp_path: Path,
) -> None:
    """The tickets name no node, and multicast is off for both: they listen on loopback."""
    owner = Home(tmp_path / "owner")
    owner.found_swarm("team", time.time())
    issuer, swarm = tmp_path / "coordinator.issuer", tmp_path / "swarm.toml"
    node = [sys.executable, "-m", "swarm_node"]
    for arguments, out in (
        (
            [
                "issuer",
                "make",
                "--name",
                "web",
                "--tickets",
                "2",
                "--no-steward",
                "--out",
                str(issuer),
            ],
            None,
        ),
        (["id", "--swarm-file"], swarm),
    ):
        done = subprocess.run(
            [*node, *arguments, "--home", str(owner.path)], capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
        if out is not None:
            out.write_text(done.stdout)
    coordinator = start_coordinator("--swarm", str(swarm), "--issuer-file", str(issuer))
    code = coordinator.run("code", "make", "--name", "alice")
    bob_ticket = tmp_path / "bob.ticket"
    flags = ["--name", "bob", "--out", str(bob_ticket), "--coordinator", coordinator.url]
    done = subprocess.run(
        [*node, "invite", "--home", str(owner.path), *flags],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    alice = start_node("alice", "--coordinator", coordinator.url, "--code", code)
    bob = start_node("bob", "--ticket-file", str(bob_ticket))
    for one in (alice, bob):
        one.wait(lambda status: status["groups"]["received"] > 0)
    coordinator.kill()
    before = alice.wait(lambda status: True)["groups"]
    alice.wait(lambda status: status["groups"]["received"] > before["received"] + 5)
    alice.wait_log("the coordinator is not used")
    coordinator.start()
    alice.wait_log("the coordinator answers again")
    deadline = time.monotonic() + 120
    while "swarm_coordinator_reports 2" not in _metrics(coordinator):
        assert time.monotonic() < deadline
        time.sleep(0.5)


def _metrics(coordinator: CoordinatorProcess) -> str:
    place = json.loads((coordinator.data / "admin.json").read_text())
    asked = urllib.request.Request(
        f"http://127.0.0.1:{place['port']}/metrics",
        headers={"Authorization": f"Bearer {(coordinator.data / 'admin.token').read_text()}"},
    )
    with urllib.request.urlopen(asked, timeout=30) as answer:
        return answer.read().decode()
