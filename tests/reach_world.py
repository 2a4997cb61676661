"""Ends behind NAT and relays, in memory and on a virtual clock, without nodes around them."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

from light_nodes import WANTS
from surrounded import surrounded
from swarm_keys import Swarm
from transports import SIZED, dial_stated, sized

from swarm_node.clock import Clock
from swarm_node.errors import TransportError
from swarm_node.node.home.home import Membership
from swarm_node.p2p.addresses import circuit
from swarm_node.p2p.membership.local_node import LocalNode
from swarm_node.p2p.reach.lan import Lan
from swarm_node.p2p.reach.transport import Mode, ReachingTransport
from swarm_node.p2p.transports.memory import MemoryNetwork, MemoryTransport
from swarm_node.p2p.wire.reasons import UNKNOWN_MEMBER
from swarm_node.simulation.virtual_time import VirtualTimeLoop, run_virtual

WHO = "/swarm-node/who/1"


class Stating(MemoryTransport):
    """A transport that states other addresses than its own, if there are any."""

    stated: Sequence[str] = ()

    def addresses(self) -> list[str]:
        return list(self.stated) or super().addresses()


class End:
    """A transport of a member that knows all others, without a node around it."""

    def __init__(
        self,
        network: MemoryNetwork,
        swarm: Swarm,
        membership: Membership,
        loop: VirtualTimeLoop,
        mode: Mode = "auto",
        lan: Lan | None = None,
    ) -> None:
        self.membership = membership
        self.identity, self.peer_id = membership.identity, membership.identity.peer_id
        self.dialable: bool | None = None
        clock = Clock(now=loop.time, wall=lambda: swarm.begin + loop.time())
        local = LocalNode.of(membership.identity, swarm.info, clock)
        self.members, self.directory, self.rejected = local.members, local.directory, local.rejected
        self.inner = Stating(network, membership.identity)
        self.reaching = ReachingTransport(
            local,
            self.inner,
            mode=mode,
            is_dialable=lambda: self.dialable,
            wants=WANTS,
            rng=random.Random(self.peer_id),
            lan=lan,
        )
        self.reaching.serve(WHO, self._who)
        self.reaching.serve(SIZED, sized)

    async def _who(self, caller: str, payload: bytes) -> bytes:
        if payload == b"no":
            raise UNKNOWN_MEMBER.error()
        if payload == b"prose":
            raise TransportError("you need not say hello first")
        return caller.encode()

    async def keep(self, times: int = 1) -> None:
        for _ in range(times):
            await self.reaching.keep()
            await asyncio.sleep(2.0)

    async def asks(self, other: End, payload: bytes = b"") -> str:
        return (await self.reaching.request(other.peer_id, WHO, payload)).decode()

    async def told_of(self, other: End) -> None:
        await dial_stated(self.reaching, other.reaching)


class World:
    """Two ends behind NAT, and relays at which they meet."""

    def __init__(self, loop: VirtualTimeLoop, relays: int = 2) -> None:
        self.loop, self.swarm = loop, Swarm()
        self.network = MemoryNetwork(random.Random(0), patience=1.0)
        other = self.swarm.issuer("other")
        self.relays = [
            End(self.network, self.swarm, member, loop)
            for member in (
                self.swarm.member(n, other, "other") if n % 2 else self.swarm.member(n)
                for n in range(10, 10 + relays)
            )
        ]
        self.one, self.two = (
            End(self.network, self.swarm, self.swarm.member(n), loop) for n in (1, 2)
        )
        self.ends = [self.one, self.two, *self.relays]

    async def start(self) -> None:
        for each in self.ends:
            await each.reaching.start()
            for other in self.ends:
                self.meet(each, other)
        for relay in self.relays:
            relay.dialable = True
        for hidden in (self.one, self.two):
            hidden.dialable = False
        self.network.hide([self.one.peer_id, self.two.peer_id])

    def meet(self, one: End, other: End) -> None:
        """Let one hear the heartbeat of the other."""
        heard = one.members.read_presence(
            self.swarm.presence(
                other.membership,
                self.loop.time(),
                addresses=circuit.fit_heartbeat(other.reaching.addresses()),
                relays=other in self.relays,
            )
        )
        assert not hasattr(heard, "reason"), heard

    async def joined(self) -> None:
        """Let both hidden ends keep their relays, and one be told of the other."""
        for each in (self.one, self.two):
            await each.keep()
        await self.one.told_of(self.two)


def in_world(relays: int = 2) -> Callable[[Callable[..., Awaitable[None]]], Callable[..., None]]:
    """Run a test on the virtual clock with a started world, which is its first parameter; the
    others are fixtures. A fixture `relays` is the number of relays."""

    def decorated(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
        def run(place: Path, **fixtures: Any) -> None:
            async def main(loop: VirtualTimeLoop) -> None:
                world = World(loop, fixtures.get("relays", relays))
                await world.start()
                await test(world, **fixtures)

            run_virtual(main)

        return surrounded(test, run)

    return decorated
