"""What is asked for: which offers are listed, which groups are pulled, and how many at once."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from exchange_sides import Side, announce_raw, in_swarm, larger, make_group, right_answer

from swarm_node.clock import SYSTEM_CLOCK
from swarm_node.p2p.exchange.publishing import LocalGroup
from swarm_node.p2p.limits.budgets import FREE_SECONDS
from swarm_node.p2p.membership.statements import revocations
from swarm_node.p2p.peers.standing import STRIKES
from swarm_node.p2p.transports.memory import MemoryNetwork
from swarm_node.p2p.wire import wire
from swarm_node.p2p.wire.envelope import Kind, seal
from swarm_node.p2p.wire.protocols import LIST, PULL
from swarm_node.rollout import TaskRef


@in_swarm()
async def test_what_this_node_does_not_train_on_is_not_even_pulled(
    network: MemoryNetwork, alice: Side, bob: Side
) -> None:
    expected = bob.verifier._criteria
    await alice.publish(0)
    await bob.exchange.discovery.send_heartbeat(0, 20.0)
    for count, other in enumerate(
        ({"families": frozenset({"chess"})}, {"version": "1"}, {"environment": "chess"}), 1
    ):
        bob.verifier._criteria = replace(expected, **other)
        for peer in bob.directory.live(0.0, 1e9):
            peer.cursor = (0, 0)
        await bob.list_some(8, 64)
        assert bob.rejected == {"elsewhere": count}
        assert bob.exchange.puller.on_offer(lambda _: 64) == 0
    # Nobody did wrong: the peer is asked again at once.
    assert all(peer.standing.strikes == 0 for peer in bob.directory.live(0.0, 1e9))


@in_swarm()
async def test_a_group_announced_as_too_large_or_too_long_is_not_even_pulled(
    network: MemoryNetwork, mallory: Side, bob: Side
) -> None:
    group = (await mallory.group(["1", "2"])).group
    sealed = bytes(100_000)
    await announce_raw(mallory, group, sealed, epoch=1, seq=1)
    await bob.exchange.discovery.send_heartbeat(0, 20.0)
    await bob.list_some(8, 64)
    assert bob.rejected == {"too_long": 1}
    bob.forgive()
    await announce_raw(mallory, larger(group), bytes(100), epoch=1, seq=2)
    await bob.list_some(8, 64)
    assert bob.rejected == {"too_long": 1, "too_large": 1}
    assert bob.exchange.puller.on_offer(lambda _: 64) == 0


@in_swarm()
async def test_the_only_peer_is_asked_for_all_that_is_wanted_at_once(
    network: MemoryNetwork, alice: Side, bob: Side
) -> None:
    wanted = 9

    await alice.publish(*range(wanted))
    await bob.exchange.discovery.send_heartbeat(0, 20.0)
    assert await bob.list_some(3, wanted) == wanted
    (author,) = bob.directory.live(SYSTEM_CLOCK.now(), 60.0)
    assert len(author.offers) == wanted
    turns = bob.exchange.puller.turns
    assert [turn.limit for turn in turns(3, 30)] == [30]
    bob.directory.meet("another", SYSTEM_CLOCK.now())
    assert [turn.limit for turn in turns(3, 30)] == [15, 15]
    assert [turn.limit for turn in turns(3, 0)] == [1]


@in_swarm(3)
async def test_not_holding_a_group_is_no_fault_of_a_peer(
    network: MemoryNetwork, alice: Side, bob: Side, carol: Side
) -> None:
    await alice.publish(0)
    for side in (alice, bob, carol):
        await side.exchange.discovery.send_heartbeat(0, 20.0)
    await carol.list_some(8, 64)
    network.cut(alice.peer_id)
    assert await carol.pull() == []
    assert carol.rejected["not_here"] == 1
    innocent = carol.directory.get(bob.peer_id)
    assert innocent.retry.failures == 0
    assert innocent.rejected.total() == 0


async def _useless(side: Side, count: int, first: int = 0) -> None:
    """Publish groups that look informative and are not."""
    lies = [make_group(side.task(first + i), ["no", "nor this"], [1.0, 0.0]) for i in range(count)]
    await side.exchange.publisher.publish([LocalGroup(lie, "") for lie in lies], 0)


@in_swarm(3)
async def test_of_a_peer_whose_groups_are_refused_about_ten_are_pulled(
    network: MemoryNetwork, mallory: Side, alice: Side, bob: Side
) -> None:
    got = 0
    await alice.publish(0)
    for round_ in range(8):
        await _useless(mallory, 8, first=8 * round_)
        got += len(await bob.fetch())
    assert got == len(bob.storage.live(1)) == 1
    assert bob.rejected == {"zero_advantage": STRIKES}
    liar, honest = (bob.directory.get(side.peer_id) for side in (mallory, alice))
    assert not liar.offers
    assert liar.standing.left_until > SYSTEM_CLOCK.now() + 50
    assert honest.standing.left_until == 0.0 < liar.standing.score < honest.standing.score
    # It breaks no rule of the protocol, so it still gets answers.
    assert await mallory.fetch() == []
    assert mallory.rejected["unreachable"] == 0


def _forged(side: Side) -> bytes:
    sealed = _announcement(side, b"\x90")
    return sealed[:-1] + bytes([sealed[-1] ^ 1])


def _announcement(side: Side, body: bytes) -> bytes:
    swarm = side.membership.swarm
    return seal(side.membership.identity, swarm.swarm_id, Kind.RECORD, body)


@pytest.mark.parametrize(
    ("reply", "reason"),
    [
        (lambda side: b"\xc1", "schema"),
        (lambda side: _listed(side, _forged(side)), "signature"),
        (lambda side: _listed(side, _announcement(side, b"\x90")), "schema"),
    ],
    ids=["no list", "a forged announcement", "no announcement"],
)
@in_swarm()
async def test_a_list_with_something_else_is_refused_and_ends_nothing(
    network: MemoryNetwork, mallory: Side, bob: Side, reply, reason
) -> None:
    await mallory.publish(0)
    await bob.exchange.discovery.send_heartbeat(0, 20.0)
    honest = mallory.transport._handlers[LIST]

    async def other(_: str, __: bytes) -> bytes:
        return reply(mallory)

    mallory.transport._handlers[LIST] = other
    assert await bob.list_some(8, 64) == 0
    assert bob.rejected == {reason: 1}
    assert bob.directory.cut(mallory.peer_id, SYSTEM_CLOCK.now()) > 0
    mallory.transport._handlers[LIST] = honest
    bob.forgive()
    peer = bob.directory.get(mallory.peer_id)
    peer.standing.off_until = 0.0
    await bob.list_some(8, 64)
    assert len(await bob.pull()) == 1


def _listed(side: Side, *items: bytes) -> bytes:
    return wire.pack(wire.ListReply(side.storage.epoch, len(items), 0, items))


@in_swarm()
async def test_a_group_that_was_taken_since_it_was_listed_is_not_asked_for(
    network: MemoryNetwork, alice: Side, bob: Side
) -> None:
    await alice.publish(0)
    await bob.exchange.discovery.send_heartbeat(0, 20.0)
    await bob.list_some(8, 64)
    peer = bob.directory.get(alice.peer_id)
    peer.offers *= 2
    served, asked = alice.transport._handlers[PULL], []

    async def counted(peer_id: str, request: bytes) -> bytes:
        asked.append(peer_id)
        return await served(peer_id, request)

    alice.transport._handlers[PULL] = counted
    assert len(await bob.pull()) == 1
    assert asked == [bob.peer_id]
    assert bob.rejected.total() == 0


@in_swarm()
async def test_a_group_of_a_member_that_is_expelled_while_it_is_judged_is_not_taken(
    network: MemoryNetwork, alice: Side, bob: Side
) -> None:
    await bob.publish(0)
    await alice.exchange.discovery.send_heartbeat(0, 20.0)
    await alice.list_some(8, 64)
    judge = alice.verifier._score_texts

    async def meanwhile(ref: TaskRef, texts: Sequence[str], author: str) -> Any:
        now = SYSTEM_CLOCK.wall()
        key = bob.membership.identity.public_key
        alice.members.obey(revocations(1, now, now + 60, [key]))
        return await judge(ref, texts, author)

    alice.verifier._score_texts = meanwhile
    assert await alice.pull() == []


@in_swarm()
async def test_pulls_under_way_take_their_slots(
    network: MemoryNetwork, alice: Side, bob: Side
) -> None:
    await alice.publish(0, 1, 2)
    await bob.exchange.discovery.send_heartbeat(0, 20.0)
    await bob.list_some(8, 64)
    served, go_on = alice.transport._handlers[PULL], asyncio.Event()

    async def slow(peer_id: str, request: bytes) -> bytes:
        await go_on.wait()
        return await served(peer_id, request)

    alice.transport._handlers[PULL] = slow
    puller = bob.exchange.puller
    async with asyncio.TaskGroup() as group:
        for _ in range(2):
            group.create_task(puller.pull(lambda _: 64, 0))
        await asyncio.sleep(0)
        assert puller.on_offer(lambda _: 3) == 1
        assert puller.on_offer(lambda _: 1) == 0  # as after a batch that shrank
        go_on.set()
    assert not puller._pulling


@in_swarm(3)
async def test_an_author_that_has_had_its_share_waits_and_others_do_not(
    network: MemoryNetwork, costly: Side, alice: Side, bob: Side
) -> None:
    for side in (costly, alice):
        right = await right_answer(side, side.task())
        await side.exchange.publisher.publish([await side.group([right, side.peer_id])], 0)
    await bob.exchange.discovery.send_heartbeat(0, 20.0)
    bob.effort.charge(costly.peer_id, 1.5 * FREE_SECONDS, SYSTEM_CLOCK.now())
    await bob.list_some(8, 64)
    (got,) = await bob.pull()
    assert got.author == alice.peer_id
    waiting = bob.directory.get(costly.peer_id)
    assert len(waiting.offers) == 1
    assert bob.rejected.total() == 0
