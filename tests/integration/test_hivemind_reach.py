"""Real daemons on one machine, two of which know no address of each other: they meet at relays."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest
from reach_ends import SIZED, WHO, End
from swarm_keys import Swarm

from swarm_node.errors import RefusedError
from swarm_node.p2p.addresses import circuit
from swarm_node.p2p.reach.relayed import request_to, seal_request
from swarm_node.p2p.transports import forwarding
from swarm_node.p2p.wire.frames import send_request
from swarm_node.p2p.wire.protocols import RELAY
from swarm_node.p2p.wire.transport import MAX_REPLY_BYTES


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
                    end.members.read_presence(swarm.presence(other.membership, 60.0, **relaying))
            one, two = hidden
            for end in hidden:
                while len(end.reaching.relays.relay_addresses()) < 2:
                    await end.reaching.keep()
            assert await one.told_of(two) == 1
            assert not await one.inner.is_connected(two.peer_id)
            yield one, two, servers
    finally:
        for end in ends:
            await end.reaching.stop()


async def circuits(relay: End, count: int) -> None:
    """Wait until so many are under way."""
    while len(relay.reaching._relaying._circuits) != count:  # noqa: ASYNC110
        await asyncio.sleep(0.05)


async def begun(asker: End, relay: End, target: End, number: int) -> forwarding.Stream:
    """A request for a large reply, which nobody reads."""
    body = request_to(
        *(target.peer_id, SIZED, b"8000000", MAX_REPLY_BYTES),
        nonce=number.to_bytes(16, "big"),
        wall=time.time(),
    )
    stream = await asker.inner._running().open_stream(relay.peer_id, RELAY, 5.0)
    await send_request(
        stream[1], seal_request(asker.membership.identity, asker.reaching._swarm_id, body)
    )
    return stream


async def abort(stream: forwarding.Stream) -> None:
    stream[1].transport.abort()
    with contextlib.suppress(OSError):
        await stream[1].wait_closed()


async def test_two_nodes_that_cannot_dial_each_other_exchange_over_a_relay(tmp_path: Path) -> None:
    async with site(tmp_path) as (one, two, relays):
        assert await one.asks(two) == one.peer_id.encode()
        assert await two.asks(one) == two.peer_id.encode()
        with pytest.raises(RefusedError) as refused:
            await one.asks(two, WHO, b"no")
        assert refused.value.code == "", "words of the other's handler: a relay's have a code"
        assert await one.asks(two, SIZED, b"3000000") == bytes(3_000_000)
        replies = await asyncio.gather(*(one.asks(two, SIZED, b"100000") for _ in range(12)))
        assert replies == [bytes(100_000)] * 12
        assert sum(relay.reaching.forwarding_metrics.requests for relay in relays) == 16
        assert sum(relay.reaching.forwarding_metrics.bytes for relay in relays) > 4_200_000
        for relay in relays:
            await circuits(relay, 0)
        assert not await one.inner.is_connected(two.peer_id)


async def test_when_a_relays_daemon_dies_the_other_serves_and_a_third_takes_its_place(
    tmp_path: Path,
) -> None:
    async with site(tmp_path, relays=3) as (one, two, relays):
        kept = two.reaching.relays.relay_addresses()
        via = next(iter(one.reaching._ways[two.peer_id].relays))
        (lost,) = (relay for relay in relays if relay.peer_id == via)
        assert lost.inner.daemon_pid is not None
        os.kill(lost.inner.daemon_pid, signal.SIGKILL)
        assert await one.asks(two) == one.peer_id.encode()
        while (
            set(two.reaching.relays.relay_addresses()) == set(kept)
            or len(two.reaching.relays.relay_addresses()) < 2
        ):
            await two.reaching.keep()
            await asyncio.sleep(0.5)
        assert via not in two.reaching.relays.relay_addresses()
        assert await one.told_of(two) == 1
        assert await one.asks(two) == one.peer_id.encode()


async def test_an_asker_that_does_not_read_holds_little_and_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(forwarding, "STALL_SECONDS", 3.0)

    async with site(tmp_path) as (one, two, relays):
        via = next(iter(one.reaching._ways[two.peer_id].relays))
        (relay,) = (relay for relay in relays if relay.peer_id == via)
        assert await one.asks(two) == one.peer_id.encode()  # now two knows the way back
        stalled = [await begun(one, relay, two, number) for number in range(3)]
        await circuits(relay, 3)
        # Others are served meanwhile, and the relay holds no whole reply.
        assert await two.asks(one) == two.peer_id.encode()
        assert relay.reaching.forwarding_metrics.bytes < 3 * 4_000_000
        await circuits(relay, 0)
        assert relay.reaching.forwarding_metrics.bytes < 3 * 4_000_000
        for stream in stalled:
            await abort(stream)
        for number in range(80):  # more than a link is allowed to end early
            await abort(await begun(one, relay, two, 100 + number))
        await circuits(relay, 0)
        assert one.peer_id not in relay.inner._admission.severed_peers
        assert relay.peer_id not in two.inner._admission.severed_peers
        assert await one.asks(two) == one.peer_id.encode()
