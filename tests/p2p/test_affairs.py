"""Whom a node asks for a list, a secret or a renewal, when many say that they have it."""

from __future__ import annotations

import asyncio
import random

from swarm_keys import Swarm

from swarm_node.clock import Clock
from swarm_node.p2p.affairs import Affairs
from swarm_node.p2p.credentials import Credentials, MemoryOffice
from swarm_node.p2p.members import Members
from swarm_node.p2p.peers import Directory, Peer
from swarm_node.p2p.serving import REVOKED
from swarm_node.p2p.stewards import next_list

SWARM = Swarm()
KEY = b"k" * 32


class Asked:
    """In the place of an `Asker`: one peer has the newest list, all others have nothing."""

    def __init__(self, peer_id: str, raw: bytes) -> None:
        self._replies = {(peer_id, REVOKED): raw}

    async def ask(self, peer: Peer, protocol: str, raw: bytes, *, max_reply: int) -> bytes:
        return self._replies.get((peer.peer_id, protocol), b"")


def test_liars_of_one_ticket_do_not_keep_the_newest_list_from_a_node() -> None:
    own, mallory = SWARM.member(1), SWARM.issuer("Mallory")
    members = Members(SWARM.info, lambda: float(SWARM.begin))
    directory = Directory(own.identity.peer_id)
    credentials = Credentials(
        own.identity,
        SWARM.info,
        own.chain,
        members=members,
        office=MemoryOffice(),
        wall=lambda: float(SWARM.begin),
        use_secret=lambda secret: None,
    )
    honest = SWARM.member(2, SWARM.issuer("Anna"), "Anna")
    liars = [SWARM.member(index, mallory, "Mallory") for index in range(3, 103)]
    for member in (honest, *liars):
        peer_id = member.identity.peer_id
        members.admit(member.chain, peer_id)
        members.note(peer_id, 1 if member is honest else 1 << 61, 0)
        directory.meet(peer_id, 0.0)
    made = next_list(SWARM.steward, SWARM.info, None, [KEY], SWARM.begin)
    asker = Asked(honest.identity.peer_id, made.raw)
    clock = Clock(now=lambda: 0.0, wall=lambda: float(SWARM.begin))
    affairs = Affairs(
        asker,  # type: ignore[arg-type]
        credentials,
        members,
        directory,
        directory.forget,
        clock,
        random.Random(0),
    )
    asyncio.run(affairs.tend())
    assert credentials.lists.held == made
