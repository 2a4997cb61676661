"""Whom one node alone blocks, and what its owner still sees of former members."""

from __future__ import annotations

from swarm_keys import DAY, Swarm

from swarm_node.errors import Rejected
from swarm_node.p2p.membership.members import Member, Members
from swarm_node.p2p.membership.statements import revocations

SWARM = Swarm()
ANNA = SWARM.member(1, SWARM.issuer("Anna"), "Anna")
CARL = SWARM.member(2, SWARM.issuer("Carl"), "Carl")
ANNA_ID, CARL_ID = ANNA.identity.peer_id, CARL.identity.peer_id


def test_a_blocked_peer_is_refused_everywhere_until_it_is_unblocked() -> None:
    blocked: set[str] = set()
    members = Members(SWARM.info, lambda: float(SWARM.begin), None, lambda: frozenset(blocked))
    for member in (ANNA, CARL):
        assert isinstance(members.admit(member.chain, member.identity.peer_id), Member)
    for key in (ANNA_ID, SWARM.issuer("Anna").key.public_key.hex()):
        blocked.add(key)
        for answer in (
            members.check(ANNA_ID),
            members.admit(ANNA.chain, ANNA_ID),
            members.read_presence(SWARM.presence(ANNA)),
        ):
            assert answer.reason == "blocked"
        assert members.is_member(CARL_ID)
        blocked.clear()
        assert members.is_member(ANNA_ID)
    blocked.add(ANNA_ID)
    assert members.dismiss() == [ANNA_ID]
    shown = members.presented_membership(ANNA_ID)
    assert (shown[0].name, shown[1]) == ("Anna", "blocked")
    blocked.clear()
    assert not isinstance(members.read_presence(SWARM.presence(ANNA)), Rejected)
    assert members.is_member(ANNA_ID)


def test_former_members_are_shown_with_the_reason() -> None:
    now = float(SWARM.begin)
    members = Members(SWARM.info, lambda: now)
    for member in (ANNA, CARL):
        members.admit(member.chain, member.identity.peer_id)
    members.obey(revocations(1, now, now + DAY, [ANNA.identity.public_key]))
    members.dismiss()
    now += 40 * DAY
    members.dismiss()
    shown = {peer: members.presented_membership(peer) for peer in (ANNA_ID, CARL_ID, "stranger")}
    assert {peer: told and told[1] for peer, told in shown.items()} == {
        ANNA_ID: "revoked",
        CARL_ID: "expired",
        "stranger": None,
    }
