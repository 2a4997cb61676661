"""Tickets that lead nobody to their maker any more."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from swarm_node.config.model import Network
from swarm_node.node.home.home import Home
from swarm_node.node.members.admitting import (
    admissions,
    followed_names,
    invite,
    out_of_date,
    own_endpoints,
    present,
    rename,
)
from swarm_node.p2p.wire.identity import Identity

ME, OTHER = Identity.from_seed(bytes(32)).peer_id, Identity.from_seed(bytes([1] * 32)).peer_id
ANY = ("/ip4/0.0.0.0/tcp/31330",)
HERE, THERE = "/ip4/10.0.0.7/tcp/31330", "/ip4/203.0.113.5/tcp/31330"


@pytest.mark.parametrize(
    ("named", "known"),
    [
        ([f"{HERE}/p2p/{ME}"], ((HERE,), False)),
        # A router in front of this machine forwards the port.
        ([f"{HERE}/p2p/{ME}", f"{THERE}/p2p/{ME}"], ((HERE, "/ip4/0.0.0.0/tcp/31330"), False)),
        ([f"/ip4/203.0.113.5/tcp/4000/p2p/{ME}"], ((), True)),
        ([f"{HERE}/p2p/{ME}", f"{THERE}/p2p/{OTHER}"], ((HERE,), True)),
        ([f"{HERE}/p2p/{ME}", "/dns/swarm.example/tcp/443/https"], ((HERE,), True)),
        ([HERE], ((), True)),
        ([f"/ip4/10.0.0.{n}/tcp/31330/p2p/{ME}" for n in range(5)], (ANY, False)),
    ],
)
def test_a_ledger_has_this_nodes_endpoints_in_a_ticket_also_beside_others(
    named: list[str], known: tuple[tuple[str, ...], bool]
) -> None:
    assert own_endpoints(named, ME, [HERE]) == known


def test_every_port_is_that_of_a_node_which_has_chosen_none() -> None:
    own = (("/ip4/0.0.0.0/tcp/31330",), False)
    assert own_endpoints([f"{THERE}/p2p/{ME}"], ME, ["/ip4/0.0.0.0/tcp/0"]) == own


def test_five_places_of_this_node_are_too_many_to_keep_all() -> None:
    places = [f"/ip4/10.0.0.{n}/tcp/31330" for n in range(5)]
    kept, others = own_endpoints([f"{place}/p2p/{ME}" for place in places], ME, places)
    assert (kept, others) == (tuple(places[:4]), True)


def test_a_node_is_where_it_runs_or_would_start(tmp_path: Path) -> None:
    home, anywhere = Home(tmp_path), "/ip4/0.0.0.0/tcp/0"
    assert present(home, Network(), []) == [anywhere]
    kept = f"/ip4/0.0.0.0/tcp/{home.port()}"
    assert present(home, Network(), []) == [kept]
    assert present(home, Network(), [f"{HERE}/p2p/{ME}"]) == [HERE]
    announced = Network(advertise=[THERE], listen=[HERE])
    assert present(home, announced, []) == [THERE, HERE]
    assert present(home, announced, [f"{THERE}/p2p/{ME}"]) == [THERE, HERE]


def test_a_running_node_has_the_names_of_the_ledger_at_once(tmp_path: Path) -> None:
    home, now = Home(tmp_path), time.time()
    home.found_swarm("team", now)
    names = followed_names(home)
    assert names.now() == {}
    address = f"{HERE}/p2p/{home.identity().peer_id}"
    made = invite(
        home, "web 16", [address], now=now, valid_seconds=60, member_seconds=60, uses=1
    ).admission
    assert names.now() == {made.issuer_key: "web 16"}
    rename(home, "web 16", "carol")
    assert names.now() == {made.issuer_key: "carol"}


def test_tickets_from_before_a_change_of_address_are_found(tmp_path: Path) -> None:
    home, now = Home(tmp_path), int(time.time())  # a ticket's end is a whole second
    home.found_swarm("team", now)
    me = home.identity().peer_id

    def made(name: str, *endpoints: str) -> None:
        addresses = [f"{endpoint}/p2p/{me}" for endpoint in endpoints]
        invite(
            home,
            name,
            addresses,
            now=now,
            valid_seconds=60,
            member_seconds=60,
            uses=1,
            present=[HERE],
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
    assert stale("/ip4/0.0.0.0/tcp/0") == stale("/ip4/127.0.0.1/tcp/0") == []
    assert stale("/ip4/10.0.0.7/tcp/59711", later=59) == ["alice", "bob"]
    assert stale("/ip4/10.0.0.7/tcp/59711", later=60) == [], "their time is over"
    held[tickets[0].issuer_key] = [OTHER]
    assert stale("/ip4/10.0.0.7/tcp/59711") == ["bob"]
