"""Who belongs to a swarm, with real nodes and the commands that a person types."""

from __future__ import annotations

import json
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from running import typed

from swarm_node.errors import NOT_ADMITTED
from swarm_node.node.home.home import Home
from swarm_node.storage import Storage

NodeStarter = Callable[..., Any]


def _peer(status: dict[str, Any], name: str) -> dict[str, Any]:
    rows = [*status["peers"], *status["former"]]
    return next((row for row in rows if row["name"] == name), {"standing": "", "accepted": 0})


@pytest.mark.slow(reason="starts real nodes, each of four processes that import torch")
@pytest.mark.timeout(900)
def test_a_member_is_named_blocked_revoked_and_its_owner_restored(
    start_node: NodeStarter, tmp_path: Path
) -> None:
    owner = start_node("owner")
    owner.wait(lambda status: status["state"] == "running")
    assert "swarmjoin1." not in owner.log(), "a founder does not show a ticket"
    assert "swarm-node invite" in owner.log()
    ticket = Path(owner.invite(1, name="alice"))
    assert stat.S_IMODE(ticket.stat().st_mode) == 0o600
    guest = start_node("guest", "--ticket-file", str(ticket))

    def hears(status: dict[str, Any]) -> bool:
        row = _peer(status, "alice")
        return row["standing"] == "member" and row["accepted"] > 0

    owner.wait(hears)
    assert "alice" in typed(owner.home, "peers")
    assert guest.wait(lambda status: status["groups"]["accepted"] > 0)["membership"]["name"] == (
        "alice"
    )
    _no_more_after(owner, "block", "blocked")
    typed(owner.home, "unblock", "alice")
    owner.wait(hears)
    _no_more_after(owner, "revoke", "revoked")
    tickets = json.loads(typed(owner.home, "members", "--json"))["tickets"]
    assert [(row["name"], row["state"]) for row in tickets] == [("alice", "revoked")]
    assert guest.process.wait(120) == NOT_ADMITTED
    assert list(Home(guest.home).checkpoints.iterdir()), "what it learnt is stored"
    guest = start_node("guest", "--alone")
    first = guest.wait(lambda status: status["findings"][0]["level"] == "bad", 120)["findings"][0]
    assert first["kind"] in ("membership", "revoked")
    assert guest.run("status").returncode == 1
    owner.wait(lambda status: "caller" in [found["kind"] for found in status["findings"]])
    _receives_no_more(guest)

    backup = tmp_path / "owner.backup"
    typed(owner.home, "backup", "--out", str(backup))
    published = owner.status()["groups"]["sampled"]
    assert owner.stop() == 0
    restored = Home(tmp_path / "restored")
    typed(restored.path, "restore", str(backup))
    storage, before = Storage(restored.database), Storage(owner.home / "node.db")
    assert 0 < storage.head() <= published
    storage.close()
    before.close()
    assert restored.swarm() == Home(owner.home).swarm()


def _no_more_after(owner: Any, verb: str, standing: str) -> None:
    """`verb` makes alice's standing so, and from then on nothing of alice is taken."""
    typed(owner.home, verb, "alice")
    owner.wait(lambda status: _peer(status, "alice")["standing"] == standing, 60)
    _receives_no_more(owner)


def _receives_no_more(node: Any) -> None:
    """Once what was under way has been judged, no group comes while the node makes updates."""
    before = node.wait(lambda status: True)
    for _ in range(10):
        after = _updated(node, before, 10)
        if after["groups"]["accepted"] == before["groups"]["accepted"]:
            break
        before = after
    assert _updated(node, after, 10)["groups"]["accepted"] == after["groups"]["accepted"]


def _updated(node: Any, before: dict[str, Any], updates: int) -> dict[str, Any]:
    found: dict[str, Any] = node.wait(lambda now: now["steps"] >= before["steps"] + updates)
    return found
