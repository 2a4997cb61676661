"""Claims of one ticket: the order that all nodes agree on, and who can move it."""

from __future__ import annotations

import itertools
import random

import pytest
from swarm_keys import Swarm

from swarm_node.errors import Rejected
from swarm_node.node.home.home import Membership
from swarm_node.p2p.membership import ticket_uses as claims_module
from swarm_node.p2p.membership.credentials import MemoryOffice
from swarm_node.p2p.membership.members import Members
from swarm_node.p2p.membership.ticket_uses import TicketUses
from swarm_node.p2p.wire.wire import Claim

SWARM = Swarm()
TICKET = SWARM.issuer("one", uses=1)
ISSUER = b"i" * 32
A, B, C = (letter * 32 for letter in (b"a", b"b", b"c"))


def test_every_order_of_the_same_claims_leaves_the_same_subjects() -> None:
    told = [(A, 30), (B, 10), (C, 20), (A, 5), (C, 10)]
    for order in itertools.permutations(told):
        claims = TicketUses()
        for subject, met in order:
            claims.meet(ISSUER, 2, subject, met)
        stays = {subject for subject in (A, B, C) if claims.stays(ISSUER, subject)}
        first = min((B, C), key=lambda key: claims_module._tie(ISSUER, key))
        assert stays == {A, first}
        assert claims.late_subjects(ISSUER) == [subject for subject in (B, C) if subject != first]


def test_of_its_own_meetings_a_node_keeps_the_order_whatever_its_clock_says() -> None:
    claims = TicketUses()
    for subject, now in ((A, 100), (B, 100), (C, 0)):
        claims.arrive(ISSUER, 1, subject, now)
    assert [claims.stays(ISSUER, subject) for subject in (A, B, C)] == [True, False, False]
    assert claims.late_subjects(ISSUER) == [B, C]


def test_claims_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(claims_module, "MAX_CLAIMS", 40)
    claims = TicketUses()
    for issuer, number in itertools.product(range(5), range(100)):
        claims.meet(bytes([issuer]) * 32, 2, number.to_bytes(32, "big"), number)
    rows = claims.rows()
    assert [len(subjects) for _, _, subjects in rows] == [18, 18]
    assert claims.stays(bytes([4]) * 32, bytes(32))


def claim(of: Membership, met_ms: int) -> Claim:
    return Claim(of.identity.public_key, of.chain, met_ms)


class Node:
    """A table that admitted the ticket's first key, and a witness of another ticket."""

    def __init__(self) -> None:
        self.now = float(SWARM.begin + 1000)
        self.office = MemoryOffice()
        self.members = Members(SWARM.info, lambda: self.now, self.office)
        self.first, self.late, self.later = (
            SWARM.member(index, TICKET, "one") for index in (1, 2, 3)
        )
        self.witness = SWARM.member(9, SWARM.issuer("other"), "other")
        for each in (self.first, self.witness):
            self.members.admit(each.chain, each.identity.peer_id)

    def stays(self, member: Membership) -> bool:
        return self.members.is_member(member.identity.peer_id)

    def told(self, of: Membership, met: float, by: Membership) -> Rejected | None:
        return self.members.learn(claim(of, int(met * 1000)), by.identity.peer_id)


def test_who_was_met_first_stays_and_the_other_is_dropped_also_after_a_restart() -> None:
    node = Node()
    assert node.told(node.late, node.now - 10, by=node.witness) is None
    assert not node.stays(node.first)
    assert node.members.dismiss() == [node.first.identity.peer_id]
    answer = node.members.admit(node.first.chain, node.first.identity.peer_id)
    assert answer.reason == "used_up"
    assert node.members.late_peer_ids(TICKET.key.public_key) == [node.first.identity.peer_id]
    again = Members(SWARM.info, lambda: node.now, node.office)
    assert isinstance(again.admit(node.first.chain, node.first.identity.peer_id), Rejected)
    late = again.admit(node.late.chain, node.late.identity.peer_id)
    assert not isinstance(late, Rejected)


def test_holders_of_a_ticket_are_no_witnesses_of_it_whatever_begin_they_sign() -> None:
    node = Node()
    backdated = SWARM.chain(node.late.identity, TICKET, "one", begin=-0.0)
    late = Membership(node.late.identity, SWARM.info, backdated)
    for teller in (node.first, node.late, node.later):
        assert node.told(late, SWARM.begin, by=teller) is None
    assert isinstance(node.members.admit(late.chain, late.identity.peer_id), Rejected)
    assert node.stays(node.first)
    assert node.members.late_peer_ids(TICKET.key.public_key) == [late.identity.peer_id]


def test_a_witness_cannot_claim_for_a_key_that_the_ticket_did_not_sign() -> None:
    node = Node()
    stolen = Claim(node.late.identity.public_key, node.first.chain, 0)
    refused = node.members.learn(stolen, node.witness.identity.peer_id)
    assert refused.reason == "wrong_subject"
    assert node.stays(node.first)


def test_claims_are_told_for_a_day_with_their_chains() -> None:
    node = Node()
    rng = random.Random(0)
    assert node.members.told_claims(rng) == (claim(node.first, int(node.now * 1000)),)
    node.now += 86_400 + 1
    assert node.members.told_claims(rng) == ()
