"""Requests through relays in a network where some peers cannot be dialled."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import pytest
from light_nodes import LightNode, SilentNetwork, SilentTransport, address_of, virtual
from reach_world import SIZED, End, World, in_world
from swarm_keys import Swarm
from virtual import in_virtual_time, virtual_time

from swarm_node.clock import SYSTEM_CLOCK
from swarm_node.errors import OversizeError, RefusedError, TransportError
from swarm_node.p2p.addresses import circuit
from swarm_node.p2p.reach.lan import Lan
from swarm_node.p2p.reach.transport import Mode
from swarm_node.p2p.transports.memory import MemoryNetwork
from swarm_node.p2p.wire import wire
from swarm_node.p2p.wire.identity import Identity
from swarm_node.p2p.wire.protocols import PEERS, RELAY, RELAYED
from swarm_node.p2p.wire.transport import Onward
from swarm_node.simulation.seeded import Seeded
from swarm_node.simulation.virtual_time import VirtualTimeLoop


@in_world()
async def test_two_ends_behind_nat_ask_each_other_through_a_relay(world: World) -> None:
    one, two = world.one, world.two
    with pytest.raises(TransportError):
        await one.asks(two)
    await world.joined()
    assert len(two.reaching.relays.relay_addresses()) == 2
    assert await one.asks(two) == one.peer_id
    # The target knows the way back, and the relay sees neither as a caller of its own.
    assert await two.asks(one) == two.peer_id
    via = one.reaching.usage.relay_ids[two.peer_id]
    assert via in two.reaching.relays.relay_addresses()
    assert one.reaching.usage.relayed_requests == two.reaching.usage.relayed_requests == 1
    for end, other in ((one, two), (two, one)):  # of the payload alone, and both ends the same
        traffic = end.reaching.usage.traffic(other.peer_id)
        assert traffic is not None
        assert traffic.round_trip(world.loop.time()) is not None
        assert (traffic.bytes_in, traffic.bytes_out) == (len(one.peer_id), len(one.peer_id))
    assert sum(relay.reaching.forwarding_metrics.requests for relay in world.relays) == 2
    assert await one.asks(world.relays[0]) == one.peer_id
    assert one.reaching.usage.relay_ids[world.relays[0].peer_id] == ""
    assert one.reaching.usage.total_requests == 3  # with the one that nobody could answer


@in_world()
async def test_what_the_target_refuses_or_cannot_send_is_its_own_word(world: World) -> None:
    await world.joined()
    one, two = world.one, world.two
    with pytest.raises(RefusedError, match="say hello"):
        await one.asks(two, b"no")
    with pytest.raises(RefusedError, match="not serve"):
        await one.reaching.request(two.peer_id, "/swarm-node/other/1", b"")
    with pytest.raises(OversizeError):
        await one.reaching.request(two.peer_id, SIZED, b"1001", max_reply=1000)
    reply = await one.reaching.request(two.peer_id, SIZED, b"1000000")
    assert reply == bytes(1_000_000)
    assert sum(relay.reaching.forwarding_metrics.requests for relay in world.relays) == 4


@pytest.mark.parametrize(
    ("mode", "served"),
    [("off", [False] * 3), ("serve", [True] * 3), ("auto", [True, False, False])],
)
@virtual_time
async def test_a_node_relays_as_its_setting_says(
    loop: VirtualTimeLoop, mode: Mode, served: Sequence[bool]
) -> None:
    swarm = Swarm()
    end = End(MemoryNetwork(random.Random(0)), swarm, swarm.member(1), loop, mode)
    states = []
    for end.dialable in (True, False, None):
        states.append(end.reaching.serves)
    assert states == list(served)


@in_world()
async def test_who_is_not_proven_dialable_is_nobodys_relay(world: World) -> None:
    for each in world.relays:
        each.dialable = None
    await world.joined()
    assert not world.two.reaching.relays.relay_addresses()


@in_world()
async def test_a_relay_that_withholds_is_asked_last_from_then_on(world: World) -> None:
    await world.joined()
    one, two = world.one, world.two
    way = one.reaching._ways[two.peer_id]
    bad = next(relay for relay in world.relays if relay.peer_id == next(iter(way.relays)))

    async def withholds(caller: str, payload: bytes) -> Onward:
        await asyncio.sleep(3600)
        raise TransportError("never")

    bad.inner._routes[RELAY] = withholds
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(10):
            await one.asks(two)
    for _ in range(3):
        async with asyncio.timeout(1):
            assert await one.asks(two) == one.peer_id
    assert bad.reaching.forwarding_metrics.requests == 0


@in_world()
async def test_a_relay_that_alters_replies_is_not_believed(world: World) -> None:
    await world.joined()
    one, two = world.one, world.two
    way = one.reaching._ways[two.peer_id]
    bad = next(relay for relay in world.relays if relay.peer_id == next(iter(way.relays)))

    async def lies(caller: str, payload: bytes) -> bytes:
        return b"\x00\x00lies"

    del bad.inner._routes[RELAY]
    bad.inner._handlers[RELAY] = lies
    assert await one.asks(two) == one.peer_id  # by the other relay, in the same call
    assert one.rejected == {"altered": 1}
    assert list(way.relays)[-1] == bad.peer_id
    assert one.directory.cut(two.peer_id, 0.0) == 0.0  # nobody can tell whose fault it is


@in_world()
async def test_a_target_that_cut_an_asker_serves_it_through_no_relay_and_blames_none(
    world: World,
) -> None:
    await world.joined()
    one, two = world.one, world.two
    two.reaching.sever(one.peer_id, 60.0)
    with pytest.raises(TransportError, match="broke"):
        await one.asks(two)
    assert two.rejected == {}
    for relay in world.relays:
        assert await two.asks(relay) == two.peer_id
        assert await relay.asks(two) == relay.peer_id
    await asyncio.sleep(61.0)
    assert await one.asks(two) == one.peer_id


@in_world(3)
async def test_a_relay_that_passes_on_what_it_should_not_is_cut_off_and_replaced(
    world: World,
) -> None:
    await world.joined()
    two = world.two
    bad = next(
        relay for relay in world.relays if relay.peer_id in two.reaching.relays.relay_addresses()
    )
    with pytest.raises(TransportError, match="bad request"):
        await bad.inner.request(two.peer_id, RELAYED, b"junk")
    assert two.rejected["schema"] == 1
    with pytest.raises(TransportError, match="the link"):
        await bad.asks(two)
    await two.keep()
    assert bad.peer_id not in two.reaching.relays.relay_addresses()
    assert len(two.reaching.relays.relay_addresses()) == 2


@in_world()
async def test_a_peer_that_can_be_reached_directly_is_not_relayed_for_long(world: World) -> None:
    await world.joined()
    one, two = world.one, world.two
    await one.asks(two)
    assert one.reaching.usage.relay_ids[two.peer_id]
    world.network.hide([one.peer_id])
    await one.keep()
    assert await one.asks(two) == one.peer_id
    assert one.reaching.usage.relay_ids[two.peer_id] == ""


@in_world()
async def test_a_peer_that_may_not_know_yet_where_it_is_is_asked_again_ever_more_seldom(
    world: World,
) -> None:
    await world.joined()
    one, times = world.one, []
    one.directory.meet(world.two.peer_id, 0.0)

    async def punch(peer: str) -> None:
        times.append(world.loop.time())

    one.reaching.punch = punch
    begun = world.loop.time()
    while world.loop.time() < begun + 600.0:
        await one.reaching.upgrade()
        await asyncio.sleep(2.0)
    first = [time - begun for time in times if time < begun + 15.0]
    assert all(later - time < 5.0 for time, later in pairwise(first))
    assert len(first) >= 4
    assert sum(time > begun + 300.0 for time in times) <= 4


@in_world()
async def test_a_direct_link_that_is_lost_is_opened_anew_at_once(world: World) -> None:
    await world.joined()
    one, two, punched = world.one, world.two, []
    one.directory.meet(two.peer_id, 0.0)

    async def punch(peer: str) -> bool:
        world.network.hide([one.peer_id])  # two can be dialled
        punched.append(peer)
        return bool(await one.inner.dial([f"/memory/p2p/{two.peer_id}"]))

    one.reaching.punch = punch
    for times in (1, 2):
        await one.asks(two)
        assert one.reaching.usage.relay_ids[two.peer_id]
        await one.reaching.upgrade()
        await one.asks(two)
        assert one.reaching.usage.relay_ids[two.peer_id] == ""
        assert punched == times * [two.peer_id]
        world.network.hide([one.peer_id, two.peer_id])  # and forgets all links
        for each in (one, two):
            await each.keep()


@in_world()
async def test_nobody_is_its_own_relay_and_a_relay_of_a_peer_needs_no_other(world: World) -> None:
    await world.joined()
    relay, two = world.relays[0], world.two
    await relay.told_of(two)
    assert relay.peer_id not in relay.reaching._ways[two.peer_id].relays
    assert await relay.asks(two) == relay.peer_id
    assert relay.reaching.usage.relay_ids[two.peer_id] == ""
    own = f"/memory/p2p/{relay.peer_id}/p2p-circuit/p2p/{two.peer_id}"
    assert await two.reaching.dial([own]) == 0  # a circuit to itself


@in_world()
async def test_direct_addresses_are_kept_for_later_once_a_relay_is_reached(world: World) -> None:
    await world.joined()
    one, two, dialled = world.one, world.two, list[str]()
    dial = one.inner.dial

    async def counted(addresses: Sequence[str], *rest: float, is_punch: bool = False) -> int:
        dialled.extend(addresses)
        return await dial(addresses, *rest, is_punch=is_punch)

    one.inner.dial = counted  # type: ignore[method-assign,assignment]
    stated = circuit.complete_circuits(
        circuit.advertised_addresses(two.reaching.addresses()), two.peer_id
    )
    direct = [text for text in stated if circuit.parse(text) is None]
    assert direct
    other = f"/memory/p2p/{world.relays[0].peer_id}"
    assert await one.reaching.dial([*stated, other]) == 2
    assert dialled == [other]
    assert one.reaching._ways[two.peer_id].direct == tuple(direct)
    assert await one.reaching.is_connected(two.peer_id)
    for relay in world.relays:
        await relay.reaching.stop()
    assert not await one.reaching.is_connected(two.peer_id)
    assert await one.reaching.dial(stated) == 0
    assert dialled[-len(direct) :] == direct


@in_world(1)
async def test_whom_a_node_forgot_or_relays_for_it_does_not_punch(world: World) -> None:
    punched: list[str] = []

    async def punch(peer: str) -> bool:
        punched.append(peer)
        return False

    (relay,), two = world.relays, world.two
    own = f"/memory/p2p/{relay.peer_id}/p2p-circuit/p2p/{two.peer_id}"
    await relay.reaching.dial([own])
    relay.directory.meet(two.peer_id, 0.0)
    await world.joined()
    await two.reaching.stop()  # or it would be linked, and nothing to do
    for asking in (relay, world.one):
        asking.reaching.punch = punch
        await asking.reaching.upgrade()
    assert not punched
    world.one.directory.meet(two.peer_id, 0.0)
    await world.one.reaching.upgrade()
    assert punched == [two.peer_id]


class Nodes:
    """Whole nodes, some of which nobody can dial."""

    def __init__(self, loop: VirtualTimeLoop, place: Path, count: int, hidden: int) -> None:
        network = SilentNetwork(random.Random(0))
        members = Seeded(0).memberships(count)
        self.nodes = []
        for member in members:
            transport = SilentTransport(network, member.identity)
            known = [address_of(members[-1])]
            self.nodes.append(LightNode(place, virtual(loop), transport, member, known))
        self.hidden, self.open = self.nodes[:hidden], self.nodes[hidden:]
        for node in self.nodes:
            node.dialable = node in self.open
            node.start()
        network.hide([node.peer_id for node in self.hidden])

    async def stop(self) -> None:
        for node in self.nodes:
            await node.stop()


@pytest.mark.slow(reason="nodes for ten minutes of virtual time")
@in_virtual_time(lambda loop, place, **_: Nodes(loop, place, 6, 0))
async def test_a_node_without_a_table_asks_more_peers_also_when_it_hears_presences(
    swarm: Nodes,
) -> None:
    without, other = (node.transport for node in swarm.nodes[:2])
    assert isinstance(without, SilentTransport)
    assert isinstance(other, SilentTransport)
    without.has_table = False
    await asyncio.sleep(600.0)
    assert await without.heartbeats()  # as those that came over the own network
    assert without.reached[PEERS] > 3 * other.reached[PEERS]


@pytest.mark.slow(reason="nodes for three minutes of virtual time")
@in_virtual_time(lambda loop, place, **_: Nodes(loop, place, 5, 3))
async def test_whole_nodes_behind_nat_find_and_list_each_other(swarm: Nodes) -> None:
    await asyncio.sleep(180.0)
    for node in swarm.hidden:
        others = {other.peer_id for other in swarm.nodes if other is not node}
        assert set(node.partners()) == others
        via = node.reaching.usage.relay_ids
        relays = {relay.peer_id for relay in swarm.open}
        assert {via[other.peer_id] for other in swarm.hidden if other is not node} <= relays
        assert {via[relay] for relay in relays} == {""}
        assert not node.rejected.keys() - {"unreachable", "not_here", "rate"}
        stated = circuit.fit_heartbeat(node.reaching.addresses())
        assert sum(address.endswith("/p2p-circuit") for address in stated) == 2
        assert node.directory.heartbeat
        presence = wire.unpack(wire.Presence, node.directory.heartbeat, max_bytes=2000)
        assert isinstance(presence, wire.Presence)
        assert b"p2p-circuit" in presence.head


def announced(secret: bytes, swarm: Swarm, key: bytes, presence: bytes) -> bytes:
    """A datagram as everybody can send it who knows the secret."""
    cipher = Lan(Identity.generate(), swarm.info.swarm_id, secret, SYSTEM_CLOCK)._ciphers[0]
    body = key + len(presence).to_bytes(2, "big") + presence
    return bytes(12) + cipher.encrypt(
        bytes(12), body.ljust(34 + wire.MAX_PRESENCE_BYTES, b"\0"), None
    )


@virtual_time
async def test_what_is_said_on_the_own_network_is_no_showing_and_hides_nothing_newer(
    loop: VirtualTimeLoop,
) -> None:
    swarm, network, secret = Swarm(), MemoryNetwork(random.Random(0)), b"s" * 32
    lan = Lan(Identity.generate(), swarm.info.swarm_id, secret, SYSTEM_CLOCK)
    end = End(network, swarm, swarm.member(1), loop, lan=lan)
    await end.reaching.start()
    honest, evil = swarm.member(2), swarm.issuer("evil")
    peer, key = honest.identity.peer_id, honest.identity.public_key
    end.members.admit(honest.chain, peer)
    issuer = end.members.issuer(peer)

    def hears(presence: bytes) -> None:
        lan.datagram_received(announced(secret, swarm, key, presence), None)

    # A member with a ticket of its own signs a longer membership for another member's key.
    other = swarm.chain(honest.identity, evil, "evil", begin=3600)
    head = wire.unpack(wire.Presence, swarm.presence(honest), max_bytes=wire.MAX_PRESENCE_BYTES)
    assert isinstance(head, wire.Presence)
    await asyncio.sleep(3600)
    for said in (head.head, b"junk"):
        hears(wire.pack(wire.Presence(said, *other)))
    assert end.members.issuer(peer) == issuer
    assert lan.heard_presences(1e9) == {}

    # What was recorded is sent again; the table has what is new.
    recorded, new = (swarm.presence(honest, loop.time() + n) for n in (0, 60))
    await asyncio.sleep(60)
    hears(recorded)
    network.publish(peer, new, 600)
    assert await end.reaching.heartbeats() == {peer: new}
    hears(new)
    network.publish(peer, recorded, 600)
    assert await end.reaching.heartbeats() == {peer: new}
    await asyncio.sleep(1000)
    assert lan.heard_presences(1e9)
    hears(swarm.presence(swarm.member(3), 0))
    assert await end.reaching.heartbeats() == {}
    await end.reaching.stop()
