"""Tickets that lead nobody to their maker any more."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from swarm_node.node.home.home import Home
from swarm_node.node.members.admitting import admissions, invite, out_of_date, own_endpoints
from swarm_node.p2p.wire.identity import Identity

ME, OTHER = Identity.from_seed(bytes(32)).peer_id, Identity.from_seed(bytes([1] * 32)).peer_id
HERE, THERE = "/ip4/10.0.0.7/tcp/31330", "/ip4/203.0.113.5/tcp/31330"


@pytest.mark.parametrize(
    ("named", "known"),
    [
        ([f"{HERE}/p2p/{ME}"], (HERE,)),
        # A router in front of this machine forwards the port.
        ([f"{HERE}/p2p/{ME}", f"{THERE}/p2p/{ME}"], (HERE, "/ip4/0.0.0.0/tcp/31330")),
        ([f"/ip4/203.0.113.5/tcp/4000/p2p/{ME}"], ()),
        ([f"{HERE}/p2p/{ME}", f"{THERE}/p2p/{OTHER}"], ()),
        ([f"{HERE}/p2p/{ME}", "/dns/swarm.example/tcp/443/https"], ()),
        ([HERE], ()),
    ],
)
def test_a_ticket_has_this_nodes_endpoints_if_it_names_nobody_else(
    named: list[str], known: tuple[str, ...]
) -> None:
    assert own_endpoints(named, ME, [f"{HERE}/p2p/{ME}"]) == known
    assert own_endpoints(named, ME, []) == ()


def test_tickets_from_before_a_change_of_address_are_found(tmp_path: Path) -> None:
    home, now = Home(tmp_path), time.time()
    home.found_swarm("team", now)
    me = home.identity().peer_id

    def made(name: str, *endpoints: str) -> None:
        addresses = [f"{endpoint}/p2p/{me}" for endpoint in endpoints]
        present = [f"{HERE}/p2p/{me}"]
        invite(
            home,
            name,
            addresses,
            now=now,
            valid_seconds=60,
            member_seconds=60,
            uses=1,
            present=present,
        )

    made("alice", HERE)
    made("bob", THERE)
    made("carol", "/ip4/203.0.113.5/tcp/4000")
    tickets = admissions(home).entries()
    held: dict[str, list[str]] = {}

    def stale(*present: str, later: float = 0) -> list[str]:
        return [entry.name for entry in out_of_date(tickets, held, present, now + later)]

    assert stale(HERE) == []
    assert stale("/ip4/10.0.0.7/tcp/59711") == ["alice", "bob"]
    assert stale("/ip4/10.0.0.8/tcp/31330") == ["alice"]
    assert stale("/ip4/203.0.113.5/tcp/4000", "/ip4/0.0.0.0/tcp/31330") == []
    assert stale("/ip4/10.0.0.7/tcp/59711", later=90) == []
    held[tickets[0].issuer_key] = [OTHER]
    assert stale("/ip4/10.0.0.7/tcp/59711") == ["bob"]
