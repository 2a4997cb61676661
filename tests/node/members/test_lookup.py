"""Whom a name means."""

from __future__ import annotations

import pytest

from swarm_node.errors import HomeError
from swarm_node.node.members.ledger import IssuedTicket
from swarm_node.node.members.lookup import Meant, whom
from swarm_node.node.metrics.snapshot import PeerRow
from swarm_node.p2p.wire.identity import Identity

ALICE, BOB, CAROL = (Identity.from_seed(bytes([n]) * 32).peer_id for n in range(1, 4))
KEYS = {name: digit * 64 for name, digit in (("alice", "a"), ("bob", "b"), ("hq 1", "c"))}


def ticket(name: str, key: str) -> IssuedTicket:
    return IssuedTicket(name, key, 1, 2, 1, 3)


def peer(peer_id: str, name: str, issuer: str = "", key: str = "") -> PeerRow:
    return PeerRow(peer_id, 0, 0.0, 0, 0, 0, [], name=name, issuer=issuer or name, issuer_key=key)


TICKETS = [ticket("alice", KEYS["alice"]), ticket("bob", KEYS["bob"]), ticket("bob", "d" * 64)]
MET = [
    peer(ALICE, "alice", key=KEYS["alice"]),
    peer(BOB, "hq 1", key=KEYS["hq 1"]),
    peer(CAROL, "hq 1", "delegate", key=KEYS["hq 1"]),
]


def test_a_peer_id_is_itself_and_its_end_is_enough() -> None:
    assert whom(ALICE, [], []) == Meant((ALICE,))
    assert whom(ALICE[-8:], TICKETS, MET) == Meant((ALICE,))


def test_a_name_is_all_that_came_by_its_tickets() -> None:
    assert whom("bob", TICKETS, []) == Meant(issuer_keys=(KEYS["bob"], "d" * 64))
    assert whom("alice", TICKETS, MET) == Meant(issuer_keys=(KEYS["alice"],))
    assert whom("hq 1", TICKETS, MET) == Meant(issuer_keys=(KEYS["hq 1"],))


def test_a_name_of_the_ledger_counts_before_one_that_a_member_carries() -> None:
    thief = peer(BOB, "alice", key="e" * 64)
    assert whom("alice", TICKETS, [thief]) == Meant(issuer_keys=(KEYS["alice"],))


@pytest.mark.parametrize("text", ["nobody", "x", BOB[-3:], ""])
def test_nobody_is_refused(text: str) -> None:
    with pytest.raises(HomeError, match="-node members`"):
        whom(text, TICKETS, MET)


def test_more_than_one_is_refused() -> None:
    twins = [peer(start + "12345678", "x") for start in ("a", "b")]
    with pytest.raises(HomeError, match=r"2 peers .*a12345678, b12345678"):
        whom("12345678", [], twins)
