"""Real daemons on one machine, two of which know no address of each other: they meet at relays."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
import time
from collections import Counter
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest
from swarm_keys import Swarm

from swarm_node.clock import SYSTEM_CLOCK
from swarm_node.errors import RefusedError, TransportError
from swarm_node.p2p import forwarding
from swarm_node.p2p.budgets import Wants
from swarm_node.p2p.frames import send_request
from swarm_node.p2p.hivemind.transport import HivemindTransport
from swarm_node.p2p.members import Members
from swarm_node.p2p.peers import Directory
from swarm_node.p2p.reach import circuit
from swarm_node.p2p.reach.relayed import request_to, seal_request
from swarm_node.p2p.reach.transport import ReachingTransport
from swarm_node.p2p.transport import MAX_REPLY_BYTES, RELAY

WHO = "/swarm-node/who/1"
SIZED = "/swarm-node/sized/1"
#: Nobody listens there.
NOWHERE = "/ip4/127.0.0.1/tcp/1"
WANTS = Wants(groups=200.0, size=400_000, external=1.0)


class End:
    """A transport of member `number`. A hidden one announces an address at which nobody answers."""

    def __init__(self, place: Path, swarm: Swarm, number: int, *, hidden: bool) -> None:
        self.membership = swarm.member(number)
        self.peer_id = self.membership.identity.peer_id
        self.hidden = hidden
        self.members = Members(swarm.info, SYSTEM_CLOCK.wall)
        self.rejected: Counter[str] = Counter()
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
            self.inner,
            self.membership.identity,
            swarm.info.swarm_id,
            mode="auto",
            dialable=lambda: not hidden,
            members=self.members,
            directory=Directory(self.peer_id),
            wants=WANTS,
            rejected=self.rejected,
            clock=SYSTEM_CLOCK,
            rng=random.Random(number),
        )
        self.reaching.screen(self.members.vouches, self.members.is_member)
        self.reaching.serve(WHO, self._who)
        self.reaching.serve(SIZED, self._sized)

    async def _who(self, caller: str, payload: bytes) -> bytes:
        if payload == b"no":
            raise TransportError("not for you")
        return caller.encode()

    async def _sized(self, caller: str, payload: bytes) -> bytes:
        return bytes(int(payload))

    async def asks(self, other: End, protocol: str = WHO, payload: bytes = b"") -> bytes:
        return await self.reaching.request(other.peer_id, protocol, payload)

    async def told_of(self, other: End) -> int:
        stated = circuit.stated(other.reaching.addresses())
        return await self.reaching.dial(circuit.completed(stated, other.peer_id))


@contextlib.asynccontextmanager
async def site(place: Path, relays: int = 2) -> AsyncGenerator[tuple[End, End, list[End]]]:
    """Two hidden ends, each with its relays, and one told of the other."""
    swarm = Swarm(begin=int(time.time()) - 60)
    hidden = [End(place, swarm, number, hidden=True) for number in (1, 2)]
    servers = [End(place, swarm, number, hidden=False) for number in range(3, 3 + relays)]
    ends = [*hidden, *servers]
    try:
        async with asyncio.timeout(120):
            for end in ends:
                await end.reaching.start()
            for end in ends:
                for other in ends:
                    addresses = circuit.fit_heartbeat(other.reaching.addresses())
                    relaying = {"addresses": addresses, "relays": other in servers}
                    end.members.hear(swarm.presence(other.membership, 60.0, **relaying))
            one, two = hidden
            for end in hidden:
                while len(end.reaching.relays.kept()) < 2:
                    await end.reaching.keep()
            assert await one.told_of(two) == 1
            assert not await one.inner.connected(two.peer_id)
            yield one, two, servers
    finally:
        for end in ends:
            await end.reaching.stop()


async def circuits(relay: End, count: int) -> None:
    """Wait until so many are under way."""
    while len(relay.reaching._relaying._circuits) != count:  # noqa: ASYNC110
        await asyncio.sleep(0.05)


def test_two_nodes_that_cannot_dial_each_other_exchange_over_a_relay(tmp_path: Path) -> None:
    async def main() -> None:
        async with site(tmp_path) as (one, two, relays):
            assert await one.asks(two) == one.peer_id.encode()
            assert await two.asks(one) == two.peer_id.encode()
            with pytest.raises(RefusedError, match="not for you"):
                await one.asks(two, WHO, b"no")
            assert await one.asks(two, SIZED, b"3000000") == bytes(3_000_000)
            replies = await asyncio.gather(*(one.asks(two, SIZED, b"100000") for _ in range(12)))
            assert replies == [bytes(100_000)] * 12
            assert sum(relay.reaching.carried.requests for relay in relays) == 16
            assert sum(relay.reaching.carried.bytes for relay in relays) > 4_200_000
            for relay in relays:
                await circuits(relay, 0)
            assert not await one.inner.connected(two.peer_id)

    asyncio.run(main())


def test_when_a_relays_daemon_dies_the_other_serves_and_a_third_takes_its_place(
    tmp_path: Path,
) -> None:
    async def main() -> None:
        async with site(tmp_path, relays=3) as (one, two, relays):
            kept = two.reaching.relays.kept()
            via = next(iter(one.reaching._ways[two.peer_id].relays))
            (lost,) = (relay for relay in relays if relay.peer_id == via)
            assert lost.inner.daemon_pid is not None
            began = time.monotonic()
            os.kill(lost.inner.daemon_pid, signal.SIGKILL)
            assert await one.asks(two) == one.peer_id.encode()
            while (
                set(two.reaching.relays.kept()) == set(kept) or len(two.reaching.relays.kept()) < 2
            ):
                await two.reaching.keep()
                await asyncio.sleep(0.5)
            # Ten seconds on a machine with nothing else to do.
            assert time.monotonic() - began < 60
            assert via not in two.reaching.relays.kept()
            assert await one.told_of(two) == 1
            assert await one.asks(two) == one.peer_id.encode()

    asyncio.run(main())


def test_an_asker_that_does_not_read_holds_little_and_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(forwarding, "STALL_SECONDS", 3.0)

    async def main() -> None:
        async with site(tmp_path) as (one, two, relays):
            via = next(iter(one.reaching._ways[two.peer_id].relays))
            (relay,) = (relay for relay in relays if relay.peer_id == via)
            stalled = []
            for number in range(3):
                body = request_to(
                    *(two.peer_id, SIZED, b"8000000", MAX_REPLY_BYTES),
                    nonce=number.to_bytes(16, "big"),
                    wall=time.time(),
                )
                node = one.inner._running()
                reader, writer = await node.open_stream(relay.peer_id, RELAY, 5.0)
                sealed = seal_request(one.membership.identity, one.reaching._swarm_id, body)
                await send_request(writer, sealed)
                stalled.append((reader, writer))
            await circuits(relay, 3)
            # Others are served meanwhile, and the relay holds no whole reply.
            assert await two.asks(one) == two.peer_id.encode()
            assert relay.reaching.carried.bytes < 3 * 4_000_000
            await circuits(relay, 0)
            assert relay.reaching.carried.bytes < 3 * 4_000_000
            for _, writer in stalled:
                writer.transport.abort()
            assert one.peer_id not in relay.inner._admission.severed
            assert relay.peer_id not in two.inner._admission.severed
            assert await one.asks(two) == one.peer_id.encode()

    asyncio.run(main())
