"""Nodes on the real transport among dead addresses."""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from pathlib import Path

import pytest
from light_nodes import Counting, LightNode, heartbeat
from transports import until

from swarm_node.clock import Clock
from swarm_node.node.home.home import Membership
from swarm_node.p2p.transports.hivemind.transport import HivemindTransport
from swarm_node.simulation.seeded import EPOCH, Seeded

LIVE, DEAD = 4, 100
LISTS = 30


class CountingTransport(Counting, HivemindTransport):
    """The real transport."""


def _clock() -> Clock:
    began = time.monotonic()
    return Clock(now=time.monotonic, wall=lambda: EPOCH + time.monotonic() - began)


def _node(place: Path, member: Membership, clock: Clock, bootstrap: list[str]) -> LightNode:
    transport = CountingTransport(
        member.identity,
        swarm_id=member.swarm.swarm_id,
        secret=member.swarm.secret,
        listen=["/ip4/127.0.0.1/tcp/0"],
        state_dir=place / member.identity.peer_id,
        rng=random.Random(0),
        bootstrap=bootstrap,
    )
    return LightNode(place, clock, transport, member, bootstrap)


@pytest.mark.slow(reason="four network daemons for half a minute")
@pytest.mark.nightly(reason="half a minute: tests/p2p has the book of addresses")
def test_three_live_nodes_are_listed_among_a_hundred_dead_addresses(tmp_path: Path) -> None:
    """Half of the dead refuse connections. The other half name one third party, which accepts
    connections and says nothing."""
    connections = 0

    async def third_party(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        with contextlib.suppress(OSError):
            await reader.read()
        writer.close()

    async def main() -> None:
        server = await asyncio.start_server(third_party, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        members, clock = Seeded(0).memberships(LIVE + DEAD), _clock()
        nodes = [_node(tmp_path, members[0], clock, [])]
        try:
            async with asyncio.timeout(200), server:
                nodes[0].start()
                await until(lambda: bool(nodes[0].transport.addresses()))
                bootstrap = nodes[0].transport.addresses()
                nodes += [_node(tmp_path, member, clock, bootstrap) for member in members[1:LIVE]]
                for number, member in enumerate(members[LIVE:]):
                    target = port if number % 2 else 1 + number
                    address = f"/ip4/127.0.0.1/tcp/{target}/p2p/{member.identity.peer_id}"
                    raw = heartbeat(member, clock.wall(), address)
                    for node in nodes:  # each is told of all, by another
                        teller = nodes[number % LIVE].peer_id
                        node.exchange.discovery._add_presence(raw, None, teller)
                began = clock.now()
                for node in nodes[1:]:
                    node.start()
                await until(lambda: min(node.transport.lists for node in nodes) >= LISTS)
                minutes = (clock.now() - began) / 60
                assert connections <= 3 * LIVE * (1 + minutes)
                live = {node.peer_id for node in nodes}
                for node in nodes:
                    known = {peer.peer_id for peer in node.directory.live(clock.now(), 1e9)}
                    assert known == live - {node.peer_id}
        finally:
            for node in nodes:
                await node.stop()

    asyncio.run(main())
