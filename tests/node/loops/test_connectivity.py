"""Nodes among dead, invented and hostile peers: whom they ask, and how much of it they lose."""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any

import pytest
from light_nodes import (
    HostileNode,
    LightNode,
    SilentNetwork,
    SilentTransport,
    address_of,
    heartbeat,
    virtual,
)
from virtual import in_virtual_time

from swarm_node.errors import TransportError
from swarm_node.simulation.seeded import EPOCH, Seeded
from swarm_node.simulation.virtual_time import VirtualTimeLoop

LIVE = 4
#: Three lists every two seconds.
UNDISTURBED = 1.5


class Swarm:
    """Members of one swarm, of which some run; the first four know each other's addresses."""

    def __init__(self, loop: VirtualTimeLoop, place: Path, members: int, seed: int = 0) -> None:
        self.loop = loop
        self.network = SilentNetwork(random.Random(seed))
        self.members = Seeded(seed).memberships(members)
        self.place = place
        self.running: list[LightNode] = []

    def start(
        self, index: int, kind: type[LightNode] = LightNode, know: range = range(LIVE)
    ) -> LightNode:
        addresses = [address_of(self.members[other]) for other in know if other != index]
        transport = SilentTransport(self.network, self.members[index].identity)
        node = kind(self.place, virtual(self.loop), transport, self.members[index], addresses)
        self.running.append(node)
        return node.start()

    def heartbeat(self, index: int, address: str | None = None) -> bytes:
        return heartbeat(self.members[index], EPOCH + self.loop.time(), address)

    def invent(self, indices: range) -> None:
        """Fill the table with heartbeats that nobody stands behind."""
        for index in indices:
            peer_id = self.members[index].identity.peer_id
            self.network.publish(peer_id, self.heartbeat(index), 7200.0)

    async def end(self, node: LightNode) -> None:
        self.running.remove(node)
        await node.stop()

    async def stop(self) -> None:
        for node in list(self.running):
            await self.end(node)


def in_swarm(
    members: int,
) -> Callable[[Callable[..., Coroutine[Any, Any, None]]], Callable[..., None]]:
    """Run a test with a swarm of so many members. A fixture `seed` is its seed."""
    return in_virtual_time(lambda loop, place, seed=0, **_: Swarm(loop, place, members, seed))


async def rate(node: LightNode, seconds: float) -> float:
    before = node.transport.lists
    await asyncio.sleep(seconds)
    return (node.transport.lists - before) / seconds


@pytest.mark.slow(reason="ten nodes for minutes of virtual time")
@in_swarm(LIVE + 100)
async def test_a_hundred_dead_peers_cost_under_a_tenth(swarm: Swarm) -> None:
    swarm.invent(range(LIVE, LIVE + 100))
    nodes = [swarm.start(index) for index in range(LIVE)]
    assert await rate(nodes[-1], 300.0) >= 0.9 * UNDISTURBED
    assert len(nodes[-1].directory) == LIVE - 1
    dialled = nodes[-1].transport.dialled
    dead = [address_of(member) for member in swarm.members[LIVE:]]
    assert max(dialled[address] for address in dead) <= 2  # once before anybody was heard


@pytest.mark.slow(reason="sixteen nodes, and four for ten minutes")
@in_swarm(LIVE + 12)
async def test_peers_that_die_cost_the_others_little(swarm: Swarm) -> None:
    nodes = [swarm.start(index) for index in range(LIVE + 12)]
    await asyncio.sleep(60.0)
    measured = asyncio.create_task(rate(nodes[0], 60.0))
    for node in nodes[LIVE:]:
        await swarm.end(node)
        await asyncio.sleep(1.0)
    assert await measured >= 0.9 * UNDISTURBED
    await asyncio.sleep(600.0)
    assert len(nodes[0].directory) == LIVE - 1


@pytest.mark.slow(reason="four nodes for half an hour")
@in_swarm(LIVE)
async def test_an_outage_of_the_own_network_makes_nobody_leave(swarm: Swarm) -> None:
    nodes = [swarm.start(index) for index in range(LIVE)]
    await asyncio.sleep(60.0)
    swarm.network.partition([[nodes[0].peer_id]])
    await asyncio.sleep(1800.0)
    assert await rate(nodes[0], 10.0) == 0.0
    swarm.network.partition([])
    await asyncio.sleep(15.0)
    for node in nodes:
        assert not node.directory.fewer(LIVE - 1, node.clock.now()), "all are asked"
    assert await rate(nodes[0], 60.0) >= 0.9 * UNDISTURBED


@pytest.mark.parametrize(
    ("outage", "patience"),
    [(60.0, 20.0), pytest.param(240.0, 60.0, marks=pytest.mark.nightly(reason="a longer outage"))],
)
@in_swarm(7)
async def test_two_sites_that_were_cut_apart_find_each_other_again(
    swarm: Swarm, outage: float, patience: float
) -> None:
    nodes = [swarm.start(index) for index in range(7)]
    await asyncio.sleep(60.0)
    swarm.network.partition([[node.peer_id for node in nodes[:2]]])
    await asyncio.sleep(outage)
    assert [_answering(node) for node in nodes] == [1, 1, 4, 4, 4, 4, 4]
    swarm.network.partition([])
    await asyncio.sleep(patience)
    assert [_answering(node) for node in nodes] == [6] * 7


def _answering(node: LightNode) -> int:
    now = node.clock.now()
    return sum(peer.retry_at <= now for peer in node.directory.live(now, math.inf))


@in_swarm(3)
async def test_a_dead_bootstrap_is_left_alone_while_another_peer_answers(swarm: Swarm) -> None:
    nodes = [swarm.start(index, know=range(3)) for index in range(2)]
    await asyncio.sleep(600.0)
    for node in nodes:
        assert _answering(node) == 1
        assert node.transport.dialled[address_of(swarm.members[2])] <= 8


class Moody(SilentTransport):
    """Every second heartbeat and every second repair fails, and its addresses never last."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.beats = self.repairs = 0

    async def publish_heartbeat(self, heartbeat: bytes, ttl: float) -> None:
        self.beats += 1
        if self.beats % 2:
            raise TransportError("the network daemon died: the node starts it again")
        await super().publish_heartbeat(heartbeat, ttl)

    async def heal(self, addresses: Sequence[str]) -> str:
        self.repairs += 1
        if self.repairs % 2:
            raise TransportError("p2pd cannot listen")
        return "moved"

    def addresses(self) -> list[str]:
        return [f"/memory/{self.repairs}/p2p/{self.peer_id}"]


@in_swarm(1)
async def test_a_network_that_fails_ends_no_loop_and_a_move_is_announced_at_once(
    swarm: Swarm,
) -> None:
    transport = Moody(swarm.network, swarm.members[0].identity)
    node = LightNode(swarm.place, virtual(swarm.loop), transport, swarm.members[0]).start()
    await asyncio.sleep(300.0)
    assert not node.task.done()
    assert transport.repairs >= 300 / 4
    assert transport.beats >= 300 / 7, "a heartbeat with every move, not every twenty seconds"
    await node.stop()


@in_swarm(LIVE + 101)
async def test_invented_heartbeats_bring_few_connections_to_a_third_party(swarm: Swarm) -> None:
    third_party = "/memory/p2p/third-party"
    nodes = [swarm.start(index) for index in range(LIVE)]
    hostile = swarm.start(LIVE, HostileNode)
    hostile.named = [swarm.heartbeat(LIVE + 1 + i, third_party) for i in range(100)]
    hostile.victims = [node.peer_id for node in nodes]
    for node in nodes:
        assert await rate(node, 45.0) >= 0.8 * UNDISTURBED
        assert node.transport.dialled[third_party] <= 12


@pytest.mark.slow(reason="a hundred and one nodes for eleven minutes")
@pytest.mark.parametrize(
    "seed",
    [0, *(pytest.param(n, marks=pytest.mark.nightly(reason="another seed")) for n in (1, 2))],
)
@in_swarm(101)
async def test_eight_of_ten_hostile_bootstraps_do_not_eclipse_a_node(
    swarm: Swarm, seed: int
) -> None:
    """Ninety hostile members name each other only, greet the victim again and again, and are eight
    of the ten peers that its ticket names. All certificates are of one issuer."""
    hostile, honest, victim = range(90), range(90, 100), 100
    target = swarm.members[victim].identity.peer_id
    good = {swarm.members[index].identity.peer_id for index in honest}
    for index in honest:
        swarm.start(index, know=range(90, 94))
    named = [swarm.heartbeat(index) for index in hostile]
    for index in hostile:
        node = swarm.start(index, HostileNode)
        node.named, node.victims = named, [target]
    node = swarm.start(victim, know=range(82, 92))
    await asyncio.sleep(60.0)
    assert good & set(node.partners())
    await asyncio.sleep(540.0)
    assert good & set(node.partners())

    await swarm.end(node)  # an attacker makes it restart, and now has all of its bootstraps
    again = swarm.start(victim, know=range(80, 90))
    await asyncio.sleep(60.0)
    assert good & set(again.partners())
