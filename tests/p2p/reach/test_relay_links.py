"""Which relays a node keeps: how many, of whom, and what becomes of those that fail."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress

import pytest
from reach_world import WHO, End, World, in_world

from swarm_node.errors import RefusedError, TransportError
from swarm_node.node.home.home import Membership
from swarm_node.p2p.addresses import circuit
from swarm_node.p2p.peers.liveness import SOON_SECONDS
from swarm_node.p2p.transports.memory import MemoryTransport
from swarm_node.p2p.wire.protocols import KEEP


@in_world(4)
async def test_a_lost_relay_is_replaced_within_ten_seconds_and_the_other_serves_meanwhile(
    world: World,
) -> None:
    await world.joined()
    one, two = world.one, world.two
    before = two.reaching.relays.relay_addresses()
    lost = next(relay for relay in world.relays if relay.peer_id in before)
    await lost.reaching.stop()
    assert await one.asks(two) == one.peer_id
    began = world.loop.time()
    while (
        len(two.reaching.relays.relay_addresses()) < 2
        or lost.peer_id in two.reaching.relays.relay_addresses()
    ):
        await two.keep()
    assert world.loop.time() - began <= 10
    # Those who greet it again hear of the new one.
    stated = circuit.fit_heartbeat(two.reaching.addresses())
    assert not any(lost.peer_id in address for address in stated)
    for relay in world.relays:
        if relay.peer_id in before:
            await relay.reaching.stop()
    await one.told_of(two)
    assert await one.asks(two) == one.peer_id


@in_world()
async def test_who_can_be_dialled_or_does_not_know_keeps_no_relay(world: World) -> None:
    for known in (True, None):
        await world.joined()
        assert world.two.reaching.relays.relay_addresses()
        world.two.dialable = known
        await world.two.keep()
        assert not world.two.reaching.relays.relay_addresses()
        assert world.two.reaching.addresses() == world.two.inner.addresses()
        world.two.dialable = False


@pytest.mark.parametrize(
    ("hosts", "keeps"),
    [
        (["ip6/2a00:11::1"], True),
        (["ip6/2a00:11::1", "ip4/192.168.1.5", "ip4/127.0.0.1"], True),
        (["ip6/2a00:11::1", "ip4/11.0.0.1"], False),
        (["ip6/2a00:11::1", "dns4/example.org"], False),
        (["ip6/fd00::1", "ip4/192.168.1.5"], False),
    ],
)
@in_world()
async def test_who_can_be_dialled_over_ipv6_alone_keeps_relays_for_those_without_it(
    world: World, hosts: Sequence[str], keeps: bool
) -> None:
    two = world.two
    two.inner.stated = [f"/{host}/tcp/1/p2p/{two.peer_id}" for host in hosts]
    two.dialable = True
    await two.keep()
    assert bool(two.reaching.relays.relay_addresses()) is keeps
    assert two.reaching.serves


@in_world(12)
async def test_relays_of_one_issuer_do_not_take_both_places_because_they_answer(
    world: World,
) -> None:
    two = world.two
    for relay in world.relays[::2]:  # of one issuer, and partners
        two.directory.meet(relay.peer_id, 0.0)
    await two.keep()
    issuers = {two.members.issuer(relay) for relay in two.reaching.relays.relay_addresses()}
    assert len(issuers) == 2


@pytest.mark.parametrize(("payload", "greetings"), [(b"no", 1), (b"prose", 0)])
@in_world(1)
async def test_a_relay_is_greeted_anew_for_that_refusal_and_not_for_prose_that_quotes_it(
    world: World, payload: bytes, greetings: int
) -> None:
    relay, relays = world.relays[0], world.two.reaching.relays
    greeted = list[str]()

    async def introduce(peer_id: str) -> bool:
        greeted.append(peer_id)
        return True

    relays.introduce = introduce
    with pytest.raises(RefusedError, match="say hello"):
        await relays.ask(relay.peer_id, WHO, payload, 100)
    assert greeted == [relay.peer_id] * greetings


@in_world(1)
async def test_a_relay_is_announced_at_its_own_address_only(world: World) -> None:
    relay, two, victim = world.relays[0], world.two, world.one
    told_address(world, relay, f"/ip4/11.7.7.7/tcp/80/p2p/{victim.peer_id}")
    await two.keep()
    assert relay.peer_id not in two.reaching.relays.relay_addresses()
    assert not [text for text in two.reaching.addresses() if "11.7.7.7" in text]


def told_address(world: World, relay: End, address: str) -> None:
    """Let the second end hear that a relay is at this address."""
    chain = world.swarm.chain(relay.identity, world.swarm.delegate, "owner")
    membership = Membership(relay.identity, world.swarm.info, chain)
    stated = {"addresses": (address,), "relays": True}
    heard = world.two.members.read_presence(
        world.swarm.presence(membership, world.loop.time(), **stated)
    )
    assert not hasattr(heard, "reason"), heard


def counting(relay: End) -> list[str]:
    """Whoever asks a relay from now on whether it relays."""
    asked, answer = [], relay.inner._handlers[KEEP]

    async def counted(caller: str, payload: bytes) -> bytes:
        asked.append(caller)
        return await answer(caller, payload)

    relay.inner._handlers[KEEP] = counted
    return asked


@pytest.mark.parametrize("relays", [1, 5])
@in_world()
async def test_a_relay_is_asked_once_a_look_and_no_more_than_are_kept(
    world: World, relays: int
) -> None:
    await world.joined()
    asked = [counting(relay) for relay in world.relays]
    await world.two.keep(3)
    assert sum(map(len, asked)) == 3 * min(relays, 2)


@in_world(3)
async def test_a_relay_that_failed_was_cut_or_cannot_be_named_is_left_alone(world: World) -> None:
    silent, cut, long = world.relays
    silent.dialable = False
    world.two.reaching.sever(cut.peer_id, 3600.0)
    told_address(world, long, f"/dns4/{'a' * 90}/tcp/1/p2p/{long.peer_id}")
    asked = [counting(relay) for relay in world.relays]
    await world.two.keep(2)
    assert list(map(len, asked)) == [1, 0, 0]
    await asyncio.sleep(SOON_SECONDS)  # less long, because there is no other
    await world.two.keep()
    assert list(map(len, asked)) == [2, 0, 0]
    assert not world.two.reaching.relays.relay_addresses()


@in_world(10)
async def test_relays_that_stopped_answering_are_tried_after_the_others(world: World) -> None:
    directory = world.two.directory
    for number, relay in enumerate(world.relays[::2]):  # of one issuer
        peer = directory.meet(relay.peer_id, 0.0)
        if number:
            peer.record_failure(0.0)
    for _ in range(8):
        first = next(r for r, _ in world.two.reaching.relays._candidates() if directory.get(r))
        assert first == world.relays[0].peer_id


@in_world(1)
async def test_a_relay_that_forgot_a_node_is_greeted_and_others_are_not(world: World) -> None:
    (relay,), two, greeted = world.relays, world.two, list[str]()
    relays, chain = two.reaching.relays, world.swarm.member(2).chain
    answers = False

    async def greet(peer: str) -> bool:
        greeted.append(peer)
        with suppress(TransportError):
            await relays.ask(peer, KEEP, b"", 0)  # as a greeting through this relay does
        if answers:
            relay.members.admit(chain, two.peer_id)
        return answers

    asked = counting(relay)
    relay.members._forget(two.peer_id)
    await two.keep()
    assert not relays.relay_addresses()  # this node cannot greet yet
    relays.introduce = greet
    await asyncio.sleep(30.0)
    await two.keep()
    assert (len(greeted), len(asked)) == (1, 3)  # and not asked again in vain
    answers = True
    await asyncio.sleep(30.0)
    await two.keep()
    assert list(relays.relay_addresses()) == [relay.peer_id]
    assert len(greeted) == 2
    relay.dialable = False  # a refusal for another reason
    await two.keep(2)
    assert not relays.relay_addresses()
    assert len(greeted) == 2


class Unlinked(MemoryTransport):
    """It is linked to whom it dialled only."""

    linked = False

    async def is_connected(self, peer: str) -> bool:
        return self.linked

    async def dial(
        self, addresses: Sequence[str], patience: float = 4.0, *, is_punch: bool = False
    ) -> int:
        reached = await super().dial(addresses, patience)
        self.linked = self.linked or reached > 0
        return reached


@in_world(1)
async def test_a_relay_is_joined_once_it_is_dialled_and_a_member(world: World) -> None:
    (relay,), two, greeted = world.relays, world.two, list[str]()
    two.inner.__class__ = Unlinked
    relays, address = two.reaching.relays, f"/memory/p2p/{relay.peer_id}"
    told_address(world, relay, f"/ip4/11.0.0.9/tcp/1/p2p/{relay.peer_id}")  # nobody is there
    assert not await relays.connect(relay.peer_id, "", 1.0)
    assert not await relays.connect(relay.peer_id, "/memory/p2p/nobody", 1.0)
    assert await relays.connect(relay.peer_id, address, 1.0)

    await asyncio.sleep(1.0)
    told_address(world, relay, address)
    two.inner.linked = False  # type: ignore[attr-defined]
    named = f"/ip6/2a00:11::1/tcp/1/p2p/{relay.peer_id}"  # by who has another version of IP
    assert await relays.connect(relay.peer_id, named, 1.0)

    async def greet(peer: str) -> bool:
        greeted.append(peer)
        return len(greeted) > 1

    two.members._forget(relay.peer_id)
    assert not await relays.connect(relay.peer_id, address, 1.0)
    relays.introduce = greet
    assert not await relays.connect(relay.peer_id, address, 1.0)
    assert await relays.connect(relay.peer_id, address, 1.0)
