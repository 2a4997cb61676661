"""Real nodes that know nobody but a real coordinator."""

from __future__ import annotations

import json
import os
import random
import time
import urllib.request
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPException
from pathlib import Path
from typing import Any

import msgspec
import pytest
from running import CoordinatorProcess, typed
from swarm_keys import DAY

from swarm_node.durable import create_private
from swarm_node.node.home.home import Home
from swarm_node.node.members.issuers import make
from swarm_node.p2p.coordinator import coordinator_api as api
from swarm_node.p2p.membership.ticket import parse_ticket
from swarm_node.p2p.wire.identity import Identity

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
    making = ("--name", "web", "--tickets", "2", "--tickets-only", "--out", str(issuer))
    typed(owner.path, "delegate create", *making)
    swarm.write_text(typed(owner.path, "id", "--swarm-file"))
    coordinator = start_coordinator("--swarm", str(swarm), "--issuer-file", str(issuer))
    code = coordinator.run("code", "make", "--name", "alice")
    bob_ticket = tmp_path / "bob.ticket"
    flags = ("--name", "bob", "--out", str(bob_ticket), "--coordinator", coordinator.url)
    typed(owner.path, "invite", *flags)
    alice = start_node("alice", "--coordinator", coordinator.url, "--code", code)
    bob = start_node("bob", "--ticket-file", str(bob_ticket))
    for one in (alice, bob):
        one.wait(lambda status: status["groups"]["accepted"] > 0)
    coordinator.kill()
    before = alice.wait(lambda status: True)["groups"]
    alice.wait(lambda status: status["groups"]["accepted"] > before["accepted"] + 5)
    alice.wait_log("the coordinator is unreachable")
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


@pytest.mark.slow(reason="a process that is killed and started again, several times")
@pytest.mark.timeout(600)
def test_a_code_gives_one_ticket_however_often_the_coordinator_is_killed_meanwhile(
    start_coordinator: Callable[..., CoordinatorProcess], tmp_path: Path
) -> None:
    rounds, newcomers = int(os.environ.get("KILLS", "4")), 16
    owner = Home(tmp_path / "owner")
    swarm = owner.found_swarm("team", time.time()).swarm
    file, described = tmp_path / "web.issuer", tmp_path / "swarm.toml"
    made = make(
        owner, "web", rounds + 1, now=time.time(), valid_seconds=DAY, member_seconds=DAY,
        uses=1, delegate=False,
    )  # fmt: skip
    create_private(file, made.content)
    described.write_text(f'name = "{swarm.name}"\nroot_key = "{swarm.root_key.hex()}"\n')
    coordinator = start_coordinator("--swarm", str(described), "--issuer-file", str(file))
    rng, given = random.Random(7), set()
    for _ in range(rounds):
        code = _post(*_admin(coordinator), api.NewCode("alice"))["code"]
        people = [Identity.generate() for _ in range(newcomers)]
        with ThreadPoolExecutor(newcomers) as pool:
            asked = [pool.submit(_redeem, coordinator.url, code, each) for each in people]
            time.sleep(rng.uniform(0, 0.05))
            coordinator.kill()
            answers = [each.result() for each in asked]
        coordinator.start()
        answers += [_redeem(coordinator.url, code, each) for each in people]
        tickets = {parse_ticket(text, time.time()).issuer.issuer_key for text in answers if text}
        assert len(tickets) == 1, "one newcomer has it, and the same each time"
        assert not given & tickets, "no ticket is given twice"
        given |= tickets
    assert f"swarm_coordinator_tickets_left {1.0}" in _metrics(coordinator)


def _admin(coordinator: CoordinatorProcess) -> tuple[str, dict[str, str]]:
    """Where codes are made, and what opens it."""
    place = json.loads((coordinator.data / "admin.json").read_text())
    token = (coordinator.data / "admin.token").read_text()
    url = f"http://{place['host']}:{place['port']}/v1/codes"
    return url, {"Authorization": f"Bearer {token}"}


def _redeem(url: str, code: str, newcomer: Identity) -> str:
    """The text of a ticket, "" if there is no answer or another one."""
    try:
        return str(_post(f"{url}/v1/redemptions", {}, api.redemption(code, newcomer))["ticket"])
    except (OSError, HTTPException):
        return ""


def _post(url: str, headers: dict[str, str], body: object) -> Any:
    sent = urllib.request.Request(url, msgspec.json.encode(body), headers, method="POST")
    with urllib.request.urlopen(sent, timeout=30) as answer:
        return json.load(answer)
