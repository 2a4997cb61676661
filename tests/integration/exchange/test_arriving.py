"""What arrives: a group is verified, trained once and held again, whatever its author claims."""

from __future__ import annotations

import asyncio
import sqlite3
from dataclasses import replace

import msgpack
import pytest
import torch
from builders import trainer_settings
from exchange_sides import (
    CODEC,
    MODEL,
    Side,
    announce_changed,
    announce_raw,
    in_swarm,
    make_group,
    right_answer,
)

from swarm_node.clock import SYSTEM_CLOCK
from swarm_node.errors import HomeError
from swarm_node.p2p.exchange.publishing import LocalGroup
from swarm_node.p2p.exchange.verify import restored_group, restored_groups
from swarm_node.p2p.peers.standing import BLAMELESS, STRIKES
from swarm_node.p2p.transports.memory import MemoryNetwork
from swarm_node.p2p.wire import wire
from swarm_node.p2p.wire.envelope import Kind, content_id, seal
from swarm_node.p2p.wire.groups import pack_group
from swarm_node.p2p.wire.protocols import PULL
from swarm_node.policy.experience.batch import build_batch
from swarm_node.policy.training.update.trainer import TrainerCore
from swarm_node.rollout import PolicyRef, Provenance, VerifiedGroup


@in_swarm()
async def test_a_published_group_arrives_verified_and_only_once(
    network: MemoryNetwork, alice: Side, bob: Side
) -> None:
    right = await right_answer(alice, alice.task())
    made = await alice.group([right, "no idea"])
    (own,) = await alice.exchange.publisher.publish([made], 3)
    (got,) = await bob.fetch()
    assert (got.id, got.author, got.provenance) == (own.id, alice.peer_id, Provenance.SAME_MODEL)
    assert got.rewards == own.rewards == (1.0, 0.0)
    assert got.prompt == made[1]
    assert [c.text for c in got.group.completions] == [right, "no idea"]
    assert bob.storage.blob(got.id) == alice.storage.blob(own.id)
    assert await bob.fetch() == []
    (stored,) = bob.storage.live(1)
    assert restored_group(stored).rewards == got.rewards


@in_swarm()
async def test_a_node_that_was_off_catches_up_without_pulling_the_world(
    network: MemoryNetwork, alice: Side, bob: Side
) -> None:
    """It asks for as many of the newest announcements as it has free slots, and pulls no more."""
    published, free = 30, 5

    await alice.publish(0)
    (early,) = await bob.fetch()
    await bob.transport.stop()
    await alice.publish(*range(1, published))
    bob.storage.close()
    bob.__init__(bob.home, network, bob.membership)  # type: ignore[misc]
    await bob.start()
    await bob.exchange.discovery.send_heartbeat(0, 20.0)
    before = network.bytes_received[bob.peer_id]
    puller = bob.exchange.puller
    offered = await puller.list_one(*puller.turns(1, free))
    (author,) = bob.directory.live(SYSTEM_CLOCK.now(), 60.0)
    assert [offer.seq for offer in author.offers] == [*range(published - free + 1, published + 1)]
    assert offered.total() == published, "it hears how much more there is"
    listed = network.bytes_received[bob.peer_id] - before
    assert listed <= free * wire.MAX_ANNOUNCEMENT_BYTES + 64

    pulled = []
    slots = lambda author: free - len(pulled)  # noqa: E731
    while puller.on_offer(slots):
        pulled += [await puller.pull(slots, 0)]
    assert len({group.id for group in pulled} - {early.id}) == free
    assert not (await puller.list_one(*puller.turns(1, 0))).total(), "nothing new"


@in_swarm(3)
async def test_whatever_a_liar_claims_the_gradient_is_the_same(
    network: MemoryNetwork, author: Side, bob: Side, carol: Side
) -> None:
    async def trained(bob: Side, group: VerifiedGroup) -> dict[str, torch.Tensor]:
        core = TrainerCore(MODEL, trainer_settings())
        batch = build_batch([group], CODEC.encode_prompt, CODEC.encode_answer, CODEC.eos_id)
        assert core.update(batch).skipped is None
        return core.weights()

    ref = author.task()
    texts = [await right_answer(author, ref), "wrong", "also wrong"]
    got = []
    for seq, (side, claimed) in enumerate([(bob, [1.0, 0.0, 0.0]), (carol, [0.25, 1.0, 0.75])]):
        await announce_changed(author, make_group(ref, texts, claimed), seq=seq + 1)
        got += await side.fetch()
    truth, lie = got
    assert lie.group.claimed == (0.25, 1.0, 0.75)
    assert lie.rewards == truth.rewards == (1.0, 0.0, 0.0)
    weights = [await trained(bob, group) for group in got]
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])


@in_swarm()
async def test_two_groups_of_one_number_that_arrive_at_once_are_one(
    network: MemoryNetwork, mallory: Side, bob: Side
) -> None:
    """An author that signs a number twice must not end the node that pulls both together."""

    identity, swarm = mallory.membership.identity, mallory.membership.swarm
    place = {"epoch": mallory.storage.epoch, "seq": 1}
    sealed = {}
    for index in range(4):
        ref = mallory.task(index)
        group = make_group(ref, [await right_answer(mallory, ref), "wrong"], [1.0, 0.0])
        packed = pack_group(group, created_ms=0, **place)
        envelope = seal(identity, swarm.swarm_id, Kind.ROLLOUT, packed)
        sealed[content_id(envelope)] = envelope
        await announce_raw(mallory, group, envelope, **place)
        await bob.exchange.discovery.send_heartbeat(0, 20.0)
        await bob.list_some(8, 64)
        peer = bob.directory.get(mallory.peer_id)
        peer.cursor = (0, 0)

    async def pulled(_: str, request: bytes) -> bytes:
        asked = wire.unpack(wire.PullRequest, request, max_bytes=100)
        assert isinstance(asked, wire.PullRequest)
        return sealed[asked.id]

    mallory.transport._handlers[PULL] = pulled
    pulls = [bob.exchange.puller.pull(lambda _: 64, 0) for _ in range(4)]
    got = await asyncio.gather(*pulls)
    assert len([group for group in got if group]) == 1
    assert len(bob.storage.live(1)) == 1


@in_swarm()
async def test_a_replayed_envelope_is_trained_once_even_across_a_restart(
    network: MemoryNetwork, alice: Side, bob: Side
) -> None:
    (own,) = await alice.publish(0)
    assert len(await bob.fetch()) == 1
    sealed = alice.storage.blob(own.id)
    assert sealed is not None
    await bob.stop()
    reborn = Side(bob.home, network, bob.membership)
    await reborn.start()
    await announce_raw(alice, own.group, sealed, epoch=alice.storage.epoch, seq=1)
    assert await reborn.fetch() == []
    # Under a new number the announcement looks new, but the signed bytes say otherwise.
    await announce_raw(alice, own.group, sealed, epoch=alice.storage.epoch, seq=2)
    assert await reborn.fetch() == []
    assert reborn.rejected["sequence"] == 1
    assert len(reborn.storage.live(1)) == 1
    bob.storage = reborn.storage
    bob.transport = reborn.transport


@in_swarm()
async def test_a_restored_home_signs_no_number_twice_and_is_heard_again(
    network: MemoryNetwork, alice: Side, bob: Side
) -> None:
    await alice.publish(0)
    assert len(await bob.fetch()) == 1
    backup = sqlite3.connect(alice.home.path / "backup")
    alice.storage._connection.backup(backup)
    backup.close()
    await alice.publish(1, 2, 3)
    await bob.exchange.discovery.send_heartbeat(0, 20.0)
    await bob.list_some(8, 64)
    assert await bob.exchange.puller.pull(lambda _: 64, 0)  # two stay on offer
    await alice.stop()
    (alice.home.path / "backup").rename(alice.home.database)
    reborn = Side(alice.home, network, alice.membership)
    await reborn.start()
    assert len(reborn.storage.live(1)) == 1  # own groups outlive the epoch they were signed in
    await reborn.publish(4, 5)
    # Offers of the old epoch are pulled until a group of the new one arrives, if drawn before.
    assert 2 <= len(await bob.fetch()) <= 4
    rows = bob.storage.live(1)
    assert len({(row.epoch, row.seq) for row in rows}) == len(rows)
    assert len([row for row in rows if row.epoch == reborn.storage.epoch]) == 2
    assert not {"duplicate", "sequence"} & set(bob.rejected)
    await reborn.stop()


def _restored(side: Side, version: str = "") -> list[VerifiedGroup]:
    return restored_groups(side.storage, side.info.name, version or side.info.version)


@in_swarm()
async def test_groups_of_other_settings_of_the_environment_are_not_trained_on_later(
    network: MemoryNetwork, alice: Side, bob: Side
) -> None:
    """Their texts may be among those that are held out now."""

    await alice.publish(0, 1)
    fetched = await bob.fetch()
    await bob.stop()
    reborn = Side(bob.home, network, bob.membership)
    await reborn.start()
    assert [group.id for group in _restored(reborn)] == [group.id for group in fetched]
    assert _restored(reborn, "another") == []
    assert _restored(reborn) == [], "nor when the earlier settings are back"
    assert reborn.storage.faults == {}


@in_swarm()
async def test_damaged_rows_stop_no_node(network: MemoryNetwork, alice: Side, bob: Side) -> None:
    await alice.publish(0, 1)
    lost, kept = await bob.fetch()
    blob = bytearray(bob.storage.blob(lost.id) or b"")
    blob[len(blob) // 2] ^= 1
    change = bob.storage._connection.execute
    change("UPDATE groups SET blob = ? WHERE id = ?", (bytes(blob), lost.id))
    change("UPDATE windows SET bitmap = x'00'")
    await bob.stop()
    reborn = Side(bob.home, network, bob.membership)
    await reborn.start()
    assert reborn.storage.faults == {"storage": 1}
    assert [group.id for group in _restored(reborn)] == [kept.id]
    assert reborn.storage.faults == {"storage": 2}
    assert reborn.storage.blob(lost.id) is None
    (row,) = reborn.storage.live(1)
    strange = msgpack.packb(["", b"no group", b"", b""])
    with pytest.raises(HomeError, match="another version"):
        restored_group(replace(row, blob=strange, id=content_id(strange)))
    assert await reborn.fetch() == []  # which numbers were seen is not known any more
    await alice.stop()
    later = Side(alice.home, network, alice.membership)
    await later.start()
    await later.publish(2)
    assert len(await reborn.fetch()) == 1
    await reborn.stop()
    await later.stop()


@in_swarm(3)
async def test_what_was_taken_once_is_taken_from_nobody_else_and_nobody_is_blamed(
    network: MemoryNetwork, thief: Side, author: Side, bob: Side
) -> None:
    group = (await author.group([await right_answer(author, author.task()), "wrong"])).group
    await announce_changed(thief, replace(group, completions=group.completions[::-1]))
    assert len(await bob.fetch()) == 1
    await author.exchange.publisher.publish([LocalGroup(group, "")], 0)  # the copy was faster
    await bob.stop()
    reborn = Side(bob.home, network, bob.membership)
    await reborn.start()
    await thief.transport.stop()
    assert await reborn.fetch() == []
    assert reborn.rejected["copied"] == 1
    assert "copied" in BLAMELESS
    bob.storage, bob.transport = reborn.storage, reborn.transport


@in_swarm()
async def test_own_groups_that_come_back_from_another_are_evidence_even_with_other_words(
    network: MemoryNetwork, bob: Side, thief: Side
) -> None:
    right = await right_answer(bob, bob.task())
    await bob.exchange.publisher.publish([await bob.group([right, "wrong"])], 0)
    await announce_changed(thief, make_group(bob.task(), [right, "other"], [1.0, 0.0]))
    assert await bob.fetch() == []
    assert bob.rejected == {"own_copied": 1}
    assert bob.directory.get(thief.peer_id).rejected == {"own_copied": 1}
    assert "own_copied" not in BLAMELESS


@in_swarm(3)
async def test_an_author_is_taken_once_per_task(
    network: MemoryNetwork, lazy: Side, other: Side, bob: Side
) -> None:
    right = await right_answer(lazy, lazy.task())
    for side in (lazy, other):  # two authors may sample one task
        await side.exchange.publisher.publish([await side.group([right, side.peer_id])], 0)
    assert len(await bob.fetch()) == 2
    again = [await lazy.group([right, f"new {index}"]) for index in range(3)]
    await lazy.exchange.publisher.publish(again, 0)
    for _ in again:
        assert await bob.fetch() == []
        bob.forgive()
    assert bob.rejected == {"repeated": 3}


@in_swarm()
async def test_who_lost_its_database_is_not_dropped_for_beginning_anew(
    network: MemoryNetwork, alice: Side, bob: Side
) -> None:
    async def publish(side: Side, what: str, *indices: int) -> None:
        for index in indices:  # the model samples other answers to the same tasks
            right = await right_answer(side, side.task(index))
            made = await side.group([right, f"{what} {index}"], index=index)
            await side.exchange.publisher.publish([made], 0)

    async def fetch(side: Side) -> list[VerifiedGroup]:
        await side.exchange.discovery.send_heartbeat(0, 20.0)
        await side.list_some(1, 64)
        return await side.pull()

    await publish(alice, "first", *range(STRIKES))
    assert len(await fetch(bob)) == STRIKES
    await alice.stop()
    alice.home.database.unlink()
    reborn = Side(alice.home, network, alice.membership)
    await reborn.start()
    alice.storage, alice.transport = reborn.storage, reborn.transport
    await publish(reborn, "again", *range(STRIKES))
    assert await fetch(bob) == []
    assert bob.rejected == {"anew": STRIKES}
    assert bob.directory.get(alice.peer_id).standing.off_until == 0.0
    await publish(reborn, "new", STRIKES)
    assert len(await fetch(bob)) == 1


@in_swarm()
async def test_a_group_of_another_model_is_foreign(
    network: MemoryNetwork, alice: Side, bob: Side
) -> None:
    ref = alice.task()
    texts = [await right_answer(alice, ref), "wrong"]
    other = PolicyRef(bytes(32), bytes(32), 7)
    made = LocalGroup(make_group(ref, texts, [1.0, 0.0], other), "")
    await alice.exchange.publisher.publish([made], 0)
    (got,) = await bob.fetch()
    assert got.provenance is Provenance.CROSS_MODEL


@in_swarm(3)
async def test_a_group_is_served_by_whoever_has_it(
    network: MemoryNetwork, alice: Side, bob: Side, carol: Side
) -> None:
    await alice.publish(0)
    assert len(await bob.fetch()) == 1
    await carol.exchange.discovery.send_heartbeat(0, 20.0)
    await carol.list_some(8, 64)
    await alice.transport.stop()
    (got,) = await carol.pull()
    assert got.author == alice.peer_id


@in_swarm()
async def test_loss_delays_but_loses_nothing(
    network: MemoryNetwork, alice: Side, bob: Side
) -> None:
    published = await alice.publish(*range(12))
    network._loss = 0.3
    got: set[bytes] = set()
    for _ in range(60):
        bob.forgive()
        for group in await bob.fetch():
            assert group.id not in got
            got.add(group.id)
        if bob.directory.get(alice.peer_id).cursor[1] == 12 and len(got) >= 6:
            break
    assert got <= {group.id for group in published}
    assert len(got) >= 6
