"""What a relay forwards, for whom, and how much: every way to make it do more."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

import pytest
from swarm_keys import Swarm

from swarm_node.clock import Clock
from swarm_node.errors import TransportError
from swarm_node.node.home.home import Membership
from swarm_node.p2p.limits.budgets import Wants
from swarm_node.p2p.membership.local_node import LocalNode
from swarm_node.p2p.membership.members import Members
from swarm_node.p2p.membership.statements import Revocations
from swarm_node.p2p.peers.peers import Directory
from swarm_node.p2p.reach import relaying
from swarm_node.p2p.reach.relayed import PASSED_AT_ONCE, REPLY_ROOM, request_to, seal_request
from swarm_node.p2p.reach.relaying import (
    CIRCUITS,
    PER_ASKER,
    PER_PAIR,
    PER_TARGET,
    Circuits,
    Relaying,
)
from swarm_node.p2p.wire import wire
from swarm_node.p2p.wire.identity import Identity
from swarm_node.p2p.wire.protocols import RELAY, RELAYED
from swarm_node.p2p.wire.transport import Onward

WANTS = Wants(groups=4.0, size=1000, external_ratio=1.0)


class World:
    """A relay, and members of two issuers that are connected to it."""

    def __init__(self) -> None:
        swarm = Swarm()
        self.info = swarm.info
        other = swarm.issuer("other")
        self.relay = swarm.member(0)
        self.askers = [swarm.member(n) for n in range(1, 20)]
        self.others = [swarm.member(n, other, "other") for n in range(20, 30)]
        self.now, self.serves = 0.0, True
        self.members = Members(swarm.info, lambda: swarm.begin + self.now)
        for each in (*self.askers, *self.others):
            self.members.admit(each.chain, peer(each))
        self.directory = Directory(peer(self.relay))
        clock = Clock(now=lambda: self.now, wall=lambda: self.wall)
        own = self.relay.identity
        self.local = LocalNode(own, swarm.info, self.members, self.directory, clock)
        self.connected = {peer(each) for each in (*self.askers, *self.others)}
        self.refused: list[tuple[str, str]] = []
        self.wall = float(swarm.begin)
        self.end = self.relaying(WANTS)

    def relaying(self, wants: Wants) -> Relaying:
        return Relaying(
            self.local,
            is_relay=lambda: self.serves,
            is_connected=self._connected,
            refuse=lambda who, why: self.refused.append((who, why.reason)),
            wants=wants,
        )

    async def _connected(self, who: str) -> bool:
        return who in self.connected

    def sealed(
        self, asker: Membership, target: str, protocol: str = "/swarm-node/pull/1", most: int = 5000
    ) -> bytes:
        body = request_to(target, protocol, b"x", most, nonce=bytes(16), wall=self.wall)
        return seal_request(asker.identity, self.info.swarm_id, body)

    async def ask(self, asker: Membership, target: Membership, most: int = 5000) -> Onward:
        return await self.end.route(peer(asker), self.sealed(asker, peer(target), most=most))


def peer(member: Membership) -> str:
    return member.identity.peer_id


async def test_a_members_request_goes_on_as_it_was_sealed() -> None:
    world = World()
    asker, target = world.askers[:2]
    sealed = world.sealed(asker, peer(target))
    onward = await world.end.route(peer(asker), sealed)
    assert (onward.peer, onward.protocol, onward.payload) == (peer(target), RELAYED, sealed)
    assert onward.max_reply == 5000 + REPLY_ROOM
    onward.on_sent(700)
    onward.on_ended()
    assert (world.end.totals.requests, world.end.totals.bytes) == (1, len(sealed) + 700)
    assert world.refused == []


async def test_a_relay_forwards_to_members_that_are_connected_and_names_no_reason_for_others() -> (
    None
):
    world = World()
    asker, target = world.askers[:2]
    world.connected.discard(peer(target))
    stranger = Identity.generate().peer_id
    world.connected.add(stranger)
    for named in (peer(target), stranger, Identity.generate().peer_id):
        with pytest.raises(TransportError, match="not connected"):
            await world.end.route(peer(asker), world.sealed(asker, named))
    assert world.end.totals.requests == 0
    assert world.end.totals.refusals == {"not_connected": 3}
    assert world.refused == []  # an asker may have an old address


async def test_only_members_ask_and_only_while_it_serves() -> None:
    world = World()
    asker, target = world.askers[:2]
    stranger = replace(asker, identity=Identity.generate())
    for call in (world.ask(stranger, target), world.end.keep(peer(stranger), b"")):
        with pytest.raises(TransportError, match="say hello"):
            await call
    assert await world.end.keep(peer(asker), b"") == b""
    world.serves = False
    for call in (world.ask(asker, target), world.end.keep(peer(asker), b"")):
        with pytest.raises(TransportError, match="no relay"):
            await call


async def test_what_no_honest_asker_sends_is_counted_against_it() -> None:
    world = World()
    asker, other, target = world.askers[:3]
    cases = {
        "author": world.sealed(other, peer(target)),  # replayed by another
        "signature": world.sealed(asker, peer(target))[:-1] + b"x",
        "schema": b"junk",
    }
    routes = [
        world.sealed(asker, peer(world.relay)),
        world.sealed(asker, peer(asker)),
        *(world.sealed(asker, peer(target), protocol) for protocol in (RELAY, RELAYED)),
    ]
    for sealed in (*cases.values(), *routes):
        with pytest.raises(TransportError, match="bad request"):
            await world.end.route(peer(asker), sealed)
    reasons = [*cases, *["route"] * 4]
    assert world.refused == [(peer(asker), reason) for reason in reasons]
    assert world.end.totals.requests == 0


async def test_a_peer_that_broke_the_protocol_is_not_served() -> None:
    world = World()
    asker, target = world.askers[:2]
    world.directory.meet(peer(asker), 0.0)
    world.directory.record_rejection(peer(asker), "signature", 0.0)
    with pytest.raises(TransportError, match="broke"):
        await world.ask(asker, target)


async def test_who_is_expelled_while_its_request_waits_is_not_forwarded() -> None:
    world = World()
    asker, target = world.askers[:2]
    held = [await world.ask(asker, target) for _ in range(PER_PAIR)]
    waiting = asyncio.create_task(world.ask(asker, target))
    await asyncio.sleep(0)
    keys = (asker.identity.public_key,)
    world.members.obey(Revocations(1, 1, 0, int(world.wall) + 60, keys))
    held[0].on_ended()
    with pytest.raises(TransportError, match="not connected"):
        await waiting
    for each in held[1:]:
        each.on_ended()
    assert len(world.end._circuits) == 0


async def test_an_asker_that_floods_is_refused_and_then_cut_and_others_are_served() -> None:
    world = World()
    junk, honest, target = world.askers[:3]
    for _ in range(2000):
        with suppress(TransportError):
            (await world.ask(junk, target)).on_ended()
    assert (peer(junk), "flood") in world.refused
    served = world.end.totals.requests
    assert served < 500
    assert world.end.totals.refusals == {"rate": 2000 - served}
    world.now += 1.0
    (await world.ask(honest, target)).on_ended()
    (await world.ask(world.others[0], target)).on_ended()
    for _ in range(20):
        with suppress(TransportError):
            await world.end.keep(peer(honest), b"")
    assert world.end.totals.refusals["rate"] == 2000 - served + 4


async def test_large_replies_are_paid_for_by_their_asker() -> None:
    world = World()
    greedy, honest, target, another = world.askers[:4]
    size = 2 * wire.MAX_SEALED_BYTES - REPLY_ROOM
    group = await world.ask(greedy, target, size)  # two of the largest groups pass
    for waits in range(3):
        # Not even a small reply more, before this one ends and after.
        with pytest.raises(TransportError, match="slow down"):
            await world.ask(greedy, another, size // 8)
        (await world.ask(world.others[0], another, size // 2)).on_ended()  # others' share
        if not waits:
            group.on_sent(size)
            group.on_ended()
    assert world.end.totals.refusals == {"rate": 3}
    world.now += 10.0
    (await world.ask(greedy, another, size)).on_ended()  # nothing of it was sent
    (await world.ask(greedy, another, size)).on_ended()
    (await world.ask(honest, another)).on_ended()


Leave = Callable[[], None]


def members_of(asker: str) -> str:
    return asker.partition(" ")[0]


async def fill(circuits: Circuits, asker: str, target: str, count: int) -> list[Leave]:
    return [await circuits.enter(asker, target.format(n)) for n in range(count)]


async def test_circuits_have_limits_by_pair_asker_target_and_issuer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(relaying, "WAIT_SECONDS", 0.01)

    circuits = Circuits(members_of)

    async def full(asker: str, target: str) -> None:
        with pytest.raises(TransportError, match="busy"):
            await circuits.enter(asker, target)

    held = await fill(circuits, "i 1", "t", PER_PAIR)
    await full("i 1", "t")
    held += await fill(circuits, "i 1", "u {}", PER_ASKER - PER_PAIR)
    await full("i 1", "v")
    for asker in range(2, 1 + PER_TARGET // PER_PAIR):
        held += await fill(circuits, f"i {asker}", "t", PER_PAIR)
    await full("j 9", "t")
    # The members of one issuer leave half to others, and these half of the rest.
    for asker in range(10, 14):
        room = CIRCUITS // 2 - len(held)
        held += await fill(circuits, f"i {asker}", f"{asker} {{}}", min(PER_ASKER, room))
    assert len(circuits) == CIRCUITS // 2
    await full("i 50", "w")
    held += await fill(circuits, "j 1", "w {}", PER_ASKER)
    held.pop()()
    assert len(circuits) == len(held)
    for leave in held:
        leave()
    assert len(circuits) == 0
    assert not circuits._circuit_counts
    await fill(circuits, "i 1", "t", PER_PAIR)


async def test_a_request_waits_for_a_circuit_in_its_turn() -> None:
    circuits, order = Circuits(members_of), []
    held = [await circuits.enter("i 1", "t") for _ in range(PER_PAIR)]

    async def enter(name: int) -> None:
        held.append(await circuits.enter("i 1", "t"))
        order.append(name)

    async with asyncio.TaskGroup() as group:
        for name in range(4):
            group.create_task(enter(name))
        await asyncio.sleep(0)
        for _ in range(4):
            held.pop(0)()
            await asyncio.sleep(0.01)
    assert order == [0, 1, 2, 3]


async def test_a_stranger_that_goes_on_is_cut_and_is_not_told_what_the_node_does() -> None:
    world = World()
    stranger = replace(world.askers[0], identity=Identity.generate())
    world.serves = False
    for number in range(100):
        call = world.end.keep(peer(stranger), b"")
        with pytest.raises(TransportError, match="say hello"):
            await (call if number % 2 else world.ask(stranger, world.askers[1]))
        if number % 2 == 0:
            call.close()
        if number == 63:
            assert world.refused == []  # a node that restarted forgot its members
    assert set(world.refused) == {(peer(stranger), "flood")}


@pytest.mark.slow(reason="hundreds of signed requests")
async def test_a_relay_passes_on_no_more_than_its_target_bears_and_one_asker_is_not_all() -> None:
    world = World()
    world.end = world.relaying(replace(WANTS, groups=10_000.0))
    target, another, *askers = world.askers

    async def passed(askers: list[Membership], times: int) -> int:
        count = 0
        for asker in askers * times:
            with suppress(TransportError):
                (await world.ask(asker, target)).on_ended()
                count += 1
        return count

    assert await passed(askers[:1], 1000) == PASSED_AT_ONCE / 2
    assert await passed(askers, 50) == 0  # of the same issuer, which leaves half to others
    assert 100 < await passed(world.others, 50) <= PASSED_AT_ONCE / 2
    assert world.refused == []  # the askers are many, and none is at fault
    (await world.ask(askers[0], another)).on_ended()
