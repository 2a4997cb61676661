"""Whom a node asks for a list, a secret or a renewal, when many say that they have it."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping
from typing import Any

from structlog.testing import capture_logs
from swarm_keys import DAY, Swarm

from swarm_node.clock import Clock
from swarm_node.errors import Rejected
from swarm_node.node.home.home import Membership
from swarm_node.p2p.exchange.membership_sync import MembershipSync
from swarm_node.p2p.exchange.requests import Asker
from swarm_node.p2p.membership.credentials import Credentials, MemoryOffice
from swarm_node.p2p.membership.delegates import Signer, issue_renewal, next_list
from swarm_node.p2p.membership.local_node import LocalNode
from swarm_node.p2p.membership.membership import Chain
from swarm_node.p2p.peers.causes import Cause, advice
from swarm_node.p2p.peers.peers import Peer
from swarm_node.p2p.wire import wire
from swarm_node.p2p.wire.protocols import RENEW, REVOKED

SWARM = Swarm()
KEY = b"k" * 32


class Asked(Asker):
    """An `Asker` without a network. Peers answer as `replies` say, by peer and protocol; b"" where
    they do not. `asked` lists the peers with the protocols that they were asked by."""

    def __init__(self, replies: Mapping[tuple[str, str], bytes | None]) -> None:
        self._replies = replies
        self.asked: list[tuple[str, str]] = []
        self.rejected: list[tuple[str, str | None]] = []

    async def ask(self, peer: Peer, protocol: str, payload: bytes, **_: Any) -> bytes | None:
        self.asked.append((peer.peer_id, protocol))
        return self._replies.get((peer.peer_id, protocol), b"")

    def reject(self, rejection: Rejected, peer_id: str | None) -> None:
        self.rejected.append((rejection.reason, peer_id))


class Node:
    """A node whose peers answer as `replies` say."""

    def __init__(self, replies: Mapping[tuple[str, str], bytes | None], days: float = 0.0) -> None:
        self.now = SWARM.begin + days * DAY
        self.own = SWARM.member(2, SWARM.issuer("Anna"), "Anna")
        clock = Clock(now=lambda: 0.0, wall=lambda: self.now)
        local = LocalNode.of(self.own.identity, SWARM.info, clock)
        self.members, self.directory = local.members, local.directory
        self.credentials = Credentials(
            local, self.own.chain, office=MemoryOffice(), use_secret=lambda secret: None
        )
        self.asker = Asked(replies)
        self._membership_sync = MembershipSync(
            local,
            self.asker,  # type: ignore[arg-type]
            self.credentials,
            self.directory.forget,
            random.Random(0),
        )

    def knows(self, member: Membership, *, revoked: int = 0, delegate: bool = False) -> str:
        """Note what a member says of itself, and how to reach it."""
        peer_id = member.identity.peer_id
        self.members.admit(member.chain, peer_id)
        self.members.note(peer_id, revoked, 0, delegate=delegate)
        self.directory.meet(peer_id, 0.0)
        return peer_id

    def sync(self) -> None:
        asyncio.run(self._membership_sync.sync())


def test_liars_of_one_ticket_do_not_keep_the_newest_list_from_a_node() -> None:
    honest, mallory = SWARM.member(3, SWARM.issuer("Bob"), "Bob"), SWARM.issuer("Mallory")
    made = next_list(SWARM.delegate, SWARM.info, None, [KEY], SWARM.begin)
    node = Node({(honest.identity.peer_id, REVOKED): made.raw})
    node.knows(honest, revoked=1)
    for index in range(4, 104):
        node.knows(SWARM.member(index, mallory, "Mallory"), revoked=1 << 61)
    node.sync()
    assert node.credentials.lists.statement == made


def test_who_says_that_it_has_a_list_and_cannot_be_reached_is_not_asked() -> None:
    node = Node({})
    node.directory.forget(node.knows(SWARM.member(3), revoked=1))
    node.sync()
    assert not node.asker.asked


def _renewed(node: Node, days: float) -> Chain:
    member = node.members.admit(node.own.chain, node.own.identity.peer_id)
    assert not isinstance(member, Rejected)
    chain = issue_renewal(SWARM.delegate, SWARM.info, member, SWARM.begin + days * DAY)
    assert not isinstance(chain, Rejected)
    return chain


def test_a_membership_is_renewed_in_its_last_third_by_whoever_does() -> None:
    silent, junk, delegate, other = (SWARM.member(3 + n) for n in range(4))
    early, chain = Node({}), _renewed(Node({}, 21.0), 21.0)
    early.knows(delegate, delegate=True)
    early.now = SWARM.begin + 19.0 * DAY
    early.sync()
    assert not early.asker.asked

    node = Node(
        {
            (silent.identity.peer_id, RENEW): None,
            (junk.identity.peer_id, RENEW): b"\xc1",
            (delegate.identity.peer_id, RENEW): wire.pack(wire.RenewReply(*chain)),
        },
        21.0,
    )
    for member in (silent, junk):
        node.knows(member, delegate=True)
    node.knows(other)
    node.sync()
    assert sorted(peer for peer, _ in node.asker.asked) == sorted(
        member.identity.peer_id for member in (silent, junk)
    )
    assert node.asker.rejected == [("schema", junk.identity.peer_id)]
    assert node.credentials.chain != chain
    node.knows(delegate, delegate=True)
    node.sync()
    assert node.credentials.chain == chain
    asked = len(node.asker.asked)
    node.sync()
    assert len(node.asker.asked) == asked, "nobody is asked again"


def test_a_node_whose_membership_has_ended_asks_nobody() -> None:
    node = Node({}, 31.0)
    node.knows(SWARM.member(3), delegate=True)
    with capture_logs() as lines:
        node.sync()
        node.sync()
    assert not node.asker.asked
    (line,) = lines  # a heartbeat that changes nothing logs nothing
    assert (line["reason"], line["remedy"]) == ("expired", advice(Cause("expired")))


def test_the_end_that_comes_is_told_once_for_each_tenth_of_a_day() -> None:
    node = Node({}, 29.0)
    with capture_logs() as lines:
        for days in (29.0, 29.001, 29.2, 29.201):
            node.now = SWARM.begin + days * DAY
            node.sync()
    assert [line["days"] for line in lines] == [1.0, 0.8]


def test_a_delegate_that_is_none_renews_nobody() -> None:
    node = Node({})
    member = node.members.admit(node.own.chain, node.own.identity.peer_id)
    assert not isinstance(member, Rejected)
    stolen = Signer(SWARM.issuer("Mallory").key, SWARM.delegate.certificate)
    for signer, reason in ((Signer(SWARM.root.key, b"junk"), "schema"), (stolen, "wrong_issuer")):
        refused = issue_renewal(signer, SWARM.info, member, SWARM.begin + DAY)
        assert refused.reason == reason
