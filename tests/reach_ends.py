"""Transports on real daemons that reach each other through relays, without nodes around them."""

from __future__ import annotations

import random
from pathlib import Path

from swarm_keys import Swarm
from transports import SIZED, dial_stated, sized

from swarm_node.clock import SYSTEM_CLOCK
from swarm_node.errors import TransportError
from swarm_node.p2p.limits.budgets import Wants
from swarm_node.p2p.membership.local_node import LocalNode
from swarm_node.p2p.reach.transport import ReachingTransport
from swarm_node.p2p.transports.hivemind.transport import HivemindTransport

WHO = "/swarm-node/who/1"
#: Nobody listens there.
NOWHERE = "/ip4/127.0.0.1/tcp/1"
WANTS = Wants(groups=200.0, size=400_000, external_ratio=1.0)


class End:
    """A transport of member `number`. A hidden one announces an address at which nobody answers."""

    def __init__(self, place: Path, swarm: Swarm, number: int, *, hidden: bool) -> None:
        self.membership = swarm.member(number)
        self.peer_id = self.membership.identity.peer_id
        self.hidden = hidden
        local = LocalNode.of(self.membership.identity, swarm.info, SYSTEM_CLOCK)
        self.members, self.rejected = local.members, local.rejected
        self.inner = HivemindTransport(
            self.membership.identity,
            swarm_id=swarm.info.swarm_id,
            secret=swarm.info.secret,
            listen=["/ip4/127.0.0.1/tcp/0"],
            announce=[NOWHERE] if hidden else [],
            state_dir=place / str(number),
            rng=random.Random(number),
        )
        self.reaching = ReachingTransport(
            local,
            self.inner,
            mode="auto",
            is_dialable=lambda: not hidden,
            wants=WANTS,
            rng=random.Random(number),
        )
        members = self.members
        self.reaching.screen(members.proves_membership, members.is_member, members.issuer)
        self.reaching.serve(WHO, self._who)
        self.reaching.serve(SIZED, sized)

    async def _who(self, caller: str, payload: bytes) -> bytes:
        if payload == b"no":
            raise TransportError("not for you")
        return caller.encode()

    async def asks(self, other: End, protocol: str = WHO, payload: bytes = b"") -> bytes:
        return await self.reaching.request(other.peer_id, protocol, payload)

    async def told_of(self, other: End) -> int:
        return await dial_stated(self.reaching, other.reaching)
