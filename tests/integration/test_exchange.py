"""Two to four nodes' exchanges on the in-memory network: what is let in, and what is not."""

from __future__ import annotations

import asyncio
import random
import sqlite3
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import msgpack
import numpy as np
import pytest
import torch

from swarm_node.clock import SYSTEM_CLOCK
from swarm_node.environments.host import InlineEnvironmentHost
from swarm_node.environments.reasoning_gym.environment import create
from swarm_node.environments.seeds import held_out_seed, task_seed
from swarm_node.errors import HomeError, Rejected, SlowTaskError, TransportError
from swarm_node.node.home import Home, Membership
from swarm_node.p2p import wire
from swarm_node.p2p.budgets import FREE_SECONDS, Effort, Traffic, Wants
from swarm_node.p2p.conduct import BLAMELESS, FIRST_OFF_SECONDS, STRIKES, Standing
from swarm_node.p2p.credentials import Credentials
from swarm_node.p2p.envelope import Kind, content_id, seal
from swarm_node.p2p.exchange import open_exchange
from swarm_node.p2p.gates import SizeGate
from swarm_node.p2p.identity import Identity
from swarm_node.p2p.members import Member, Members
from swarm_node.p2p.memory import MemoryNetwork, MemoryTransport
from swarm_node.p2p.peers import Directory
from swarm_node.p2p.serving import (
    HELLO,
    LIST,
    PEERS,
    PULL,
    RENEW,
    REVOKED,
    SECRET,
    Server,
    hello_body,
)
from swarm_node.p2p.statements import NewSecret, Revocations, Signed, revocations
from swarm_node.p2p.stewards import issue_renewal
from swarm_node.p2p.ticket import parse_ticket
from swarm_node.p2p.verify import Expected, GroupVerifier, restored_group, restored_groups
from swarm_node.policy.experience.batch import build_batch
from swarm_node.policy.models.codec import Codec, check_tokens
from swarm_node.policy.models.model import policy_digests, resolve
from swarm_node.policy.training.settings import TrainerSettings
from swarm_node.policy.training.trainer import TrainerCore
from swarm_node.rollout import (
    Completion,
    Finish,
    PolicyRef,
    Provenance,
    RolloutGroup,
    TaskRef,
    VerifiedGroup,
    VersionSpan,
)
from swarm_node.storage import Storage

MODEL = resolve("tiny")
CODEC = Codec.from_directory(MODEL)
POLICY = PolicyRef(*policy_digests(MODEL), 3)
WANTS = Wants(groups=50.0, size=4096, external=1.0)


class Side:
    """One node's exchange with real storage, environment and membership."""

    def __init__(self, home: Home, network: MemoryNetwork, membership: Membership) -> None:
        self.home = home
        self.membership = membership
        self.rejected: Counter[str] = Counter()
        self.storage = Storage(home.database)
        self.storage.begin_epoch()
        self.environment = InlineEnvironmentHost(create())
        self.transport = MemoryTransport(network, membership.identity)
        self.directory = Directory(membership.identity.peer_id)

    async def start(self) -> None:
        info = await self.environment.start()
        self.info = info
        self.verifier = verifier = GroupVerifier(
            self.membership.swarm.swarm_id,
            Expected(
                info.name,
                info.version,
                frozenset(info.families),
                POLICY,
                SizeGate.of(group_size=4, max_new_tokens=24),
                own_tasks=self.peer_id,
            ),
            self.storage,
            lambda ref, texts, author: self.environment.judge(ref, texts),
            partial(check_tokens, CODEC),
            CODEC.encode_answer,
        )
        self.members = Members(self.membership.swarm, SYSTEM_CLOCK.wall)
        shared = {
            "transport": self.transport,
            "credentials": Credentials(
                self.membership.identity,
                self.membership.swarm,
                self.membership.chain,
                members=self.members,
                office=self.home,
                wall=SYSTEM_CLOCK.wall,
                use_secret=self.transport.use_secret,
            ),
            "storage": self.storage,
            "members": self.members,
            "directory": self.directory,
            "rejected": self.rejected,
            "clock": SYSTEM_CLOCK,
            "rng": random.Random(0),
        }
        traffic = Traffic(WANTS, self.members.issuer)
        self.effort = Effort(1.0, self.members.issuer)
        Server(traffic=traffic, **shared)
        self.exchange = open_exchange(
            traffic=traffic,
            effort=self.effort,
            identity=self.membership.identity,
            swarm_id=self.membership.swarm.swarm_id,
            verifier=verifier,
            let_go=self.directory.forget,
            **shared,
        )
        await self.transport.start()

    async def stop(self) -> None:
        await self.transport.stop()
        self.storage.close()

    @property
    def peer_id(self) -> str:
        return self.membership.identity.peer_id

    def task(self, index: int = 0, family: str = "gcd", held_out: bool = False) -> TaskRef:
        seed = (held_out_seed if held_out else task_seed)("test", index)
        return TaskRef(self.info.name, self.info.version, family, seed)

    async def group(self, texts: Sequence[str], **task: object) -> tuple[RolloutGroup, str]:
        """A group of `texts`, scored honestly."""
        ref = self.task(**task)
        judged = await self.environment.judge(ref, texts)
        return make_group(ref, texts, judged.rewards), judged.prompt

    async def publish(self, *indices: int) -> None:
        """Publish a group of a right and a wrong answer for each of these tasks."""
        for index in indices:
            right = await _right_answer(self, self.task(index))
            made = await self.group([right, "wrong"], index=index)
            await self.exchange.publisher.publish([made], 0)

    async def list_some(self, count: int, wanted: int) -> int:
        """List `count` peers at once. Returns how many new offers they state, listed or not."""
        turns = self.exchange.puller.turns(count, wanted)
        return sum(await asyncio.gather(*(self.exchange.puller.list_one(turn) for turn in turns)))

    async def fetch(self) -> list[VerifiedGroup]:
        """Meet, list and pull everything there is."""
        await self.exchange.meeting.beat(0, 20.0)
        await self.list_some(8, 64)
        return await self.pull()

    def forgive(self) -> None:
        """End every pause, for what is not about how long to leave a peer alone."""
        for peer in self.directory.live(SYSTEM_CLOCK.now(), float("inf")):
            peer.standing.left_until = peer.failed_until = 0.0

    async def pull(self) -> list[VerifiedGroup]:
        """Pull everything on offer."""
        pulled: list[VerifiedGroup] = []
        while self.exchange.puller.on_offer(lambda _: 64):
            group = await self.exchange.puller.pull(lambda _: 64, 0)
            pulled += [group] if group else []
            self._overlook()
        return pulled

    def _overlook(self) -> None:
        """End the short pauses after useless groups, not those of a peer that was dropped."""
        for peer in self.directory.live(SYSTEM_CLOCK.now(), float("inf")):
            if not peer.standing.offences:
                peer.standing.left_until = 0.0


def make_group(
    ref: TaskRef, texts: Sequence[str], claimed: Sequence[float], policy: PolicyRef = POLICY
) -> RolloutGroup:
    return RolloutGroup(ref, policy, tuple(map(make_completion, texts)), tuple(claimed))


def make_completion(text: str) -> Completion:
    ids = np.array([*CODEC.encode_answer(text), CODEC.eos_id], dtype=np.uint32)
    logprobs = np.full(ids.shape, -0.5, dtype=np.float32)
    return Completion(text, ids, logprobs, (VersionSpan(3, 0, len(ids)),), Finish.STOP)


@pytest.fixture
def in_swarm(tmp_path: Path) -> Callable[..., None]:
    """Run a coroutine function with `count` started sides of one swarm."""

    def run(body: Callable[..., Awaitable[None]], count: int = 2) -> None:
        owner, now = Home(tmp_path / "0"), SYSTEM_CLOCK.wall()
        memberships = [owner.found_swarm("test", now)]
        ticket = owner.invite([], now=now, valid_seconds=3600, member_seconds=3600)
        homes = [owner, *(Home(tmp_path / str(index)) for index in range(1, count))]
        memberships += [home.join_swarm(parse_ticket(ticket, now), now) for home in homes[1:]]

        async def main() -> None:
            network = MemoryNetwork(random.Random(1), patience=0.1)
            sides = [Side(h, network, m) for h, m in zip(homes, memberships, strict=True)]
            for side in sides:
                await side.start()
            for side in sides:
                await side.exchange.meeting.beat(0, 20.0)
            await body(network, *sides)
            for side in sides:
                await side.stop()

        asyncio.run(main())

    return run


async def _right_answer(side: Side, ref: TaskRef) -> str:
    for guess in map(str, range(1, 21)):
        if (await side.environment.judge(ref, [guess])).rewards == (1.0,):
            return guess
    raise AssertionError("gcd of numbers up to 20 is among 1 to 20")


def test_a_published_group_arrives_verified_and_only_once(in_swarm) -> None:
    async def body(network: MemoryNetwork, alice: Side, bob: Side) -> None:
        right = await _right_answer(alice, alice.task())
        made = await alice.group([right, "no idea"])
        (own,) = await alice.exchange.publisher.publish([made], 3)
        (got,) = await bob.fetch()
        assert (got.id, got.author, got.provenance) == (own.id, alice.peer_id, Provenance.KIN)
        assert got.rewards == own.rewards == (1.0, 0.0)
        assert got.prompt == made[1]
        assert [c.text for c in got.group.completions] == [right, "no idea"]
        assert bob.storage.blob(got.id) == alice.storage.blob(own.id)
        assert await bob.fetch() == []
        (stored,) = bob.storage.live(1)
        assert restored_group(stored).rewards == got.rewards

    in_swarm(body)


def test_a_node_that_was_off_catches_up_without_pulling_the_world(in_swarm) -> None:
    """It asks for as many of the newest announcements as it has free slots, and pulls no more."""
    published, free = 200, 5

    async def body(network: MemoryNetwork, alice: Side, bob: Side) -> None:
        await alice.publish(0)
        (early,) = await bob.fetch()
        await bob.transport.stop()
        await alice.publish(*range(1, published))
        bob.storage.close()
        bob.__init__(bob.home, network, bob.membership)  # type: ignore[misc]
        await bob.start()
        await bob.exchange.meeting.beat(0, 20.0)
        before = network.received[bob.peer_id]
        puller = bob.exchange.puller
        offered = await puller.list_one(*puller.turns(1, free))
        (author,) = bob.directory.live(SYSTEM_CLOCK.now(), 60.0)
        assert [offer.seq for offer in author.offers] == [
            *range(published - free + 1, published + 1)
        ]
        assert offered > free, "it hears how much more there is"
        listed = network.received[bob.peer_id] - before
        assert listed <= free * wire.MAX_ANNOUNCEMENT_BYTES + 64

        pulled = []
        slots = lambda author: free - len(pulled)  # noqa: E731
        while puller.on_offer(slots):
            pulled += [await puller.pull(slots, 0)]
        assert len({group.id for group in pulled} - {early.id}) == free
        assert await puller.list_one(*puller.turns(1, 0)) == 0, "nothing new"

    in_swarm(body)


def test_whatever_a_liar_claims_the_gradient_is_the_same(in_swarm) -> None:
    async def trained(bob: Side, group: VerifiedGroup) -> dict[str, torch.Tensor]:
        core = TrainerCore(MODEL, TrainerSettings())
        batch = build_batch([group], CODEC.encode_prompt, CODEC.encode_answer, CODEC.eos_id)
        assert core.update(batch).skipped is None
        return core.weights()

    async def body(network: MemoryNetwork, author: Side, bob: Side, carol: Side) -> None:
        ref = author.task()
        texts = [await _right_answer(author, ref), "wrong", "also wrong"]
        got = []
        for seq, (side, claimed) in enumerate([(bob, [1.0, 0.0, 0.0]), (carol, [0.25, 1.0, 0.75])]):
            await _announce_changed(author, make_group(ref, texts, claimed), seq=seq + 1)
            got += await side.fetch()
        truth, lie = got
        assert lie.group.claimed == (0.25, 1.0, 0.75)
        assert lie.rewards == truth.rewards == (1.0, 0.0, 0.0)
        weights = [await trained(bob, group) for group in got]
        assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])

    in_swarm(body, 3)


def test_wrong_answers_claimed_right_teach_nothing(in_swarm) -> None:
    async def body(network: MemoryNetwork, liar: Side, bob: Side) -> None:
        lie = make_group(liar.task(), ["wrong", "also wrong"], [1.0, 0.0])
        await liar.exchange.publisher.publish([(lie, "")], 0)
        assert await bob.fetch() == []
        assert bob.rejected == {"zero_advantage": 1}
        assert bob.storage.live(1) == []

    in_swarm(body)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda sealed: sealed[:-1] + bytes([sealed[-1] ^ 1]), "signature"),
        (lambda sealed: sealed[:300] + bytes([sealed[300] ^ 1]) + sealed[301:], "signature"),
        (lambda sealed: sealed + b"\x00", "schema"),
    ],
)
def test_a_tampered_envelope_is_refused(in_swarm, change, reason: str) -> None:
    """Its author announces damaged bytes: the hash fits, so the signature decides."""

    async def body(network: MemoryNetwork, mallory: Side, bob: Side) -> None:
        await _serve_raw(mallory, change)
        assert await bob.fetch() == []
        assert bob.rejected[reason] == 1

    in_swarm(body)


@pytest.mark.parametrize(
    ("change", "reason"),
    [({"id": content_id(b"something else")}, "hash"), ({"size": 4000}, "size")],
)
def test_what_is_sent_must_be_what_was_announced(in_swarm, change, reason: str) -> None:
    """A well signed group with the announced number, and another hash or size than announced."""

    async def body(network: MemoryNetwork, mallory: Side, bob: Side) -> None:
        ref = mallory.task()
        group = make_group(ref, [await _right_answer(mallory, ref), "wrong"], [1.0, 0.0])
        place = {"epoch": mallory.storage.epoch, "seq": 1}
        packed = wire.pack_group(group, created_ms=0, **place)
        identity, swarm = mallory.membership.identity, mallory.membership.swarm
        sealed = seal(identity, swarm.swarm_id, Kind.ROLLOUT, packed)
        await _announce_raw(mallory, group, sealed, **place, **change)
        assert await bob.fetch() == []
        assert bob.rejected[reason] == 1
        assert bob.storage.live(1) == []

    in_swarm(body)


def test_what_this_node_does_not_train_on_is_not_even_pulled(in_swarm) -> None:
    async def body(network: MemoryNetwork, alice: Side, bob: Side) -> None:
        expected = bob.verifier._expected
        await alice.publish(0)
        await bob.exchange.meeting.beat(0, 20.0)
        for count, other in enumerate(
            ({"families": frozenset({"lcm"})}, {"version": "1"}, {"environment": "chess"}), 1
        ):
            bob.verifier._expected = replace(expected, **other)
            for peer in bob.directory.live(0.0, 1e9):
                peer.cursor = (0, 0)
            await bob.list_some(8, 64)
            assert bob.rejected == {"elsewhere": count}
            assert bob.exchange.puller.on_offer(lambda _: 64) == 0
        # Nobody did wrong: the peer is asked again at once.
        assert all(peer.standing.strikes == 0 for peer in bob.directory.live(0.0, 1e9))

    in_swarm(body)


def test_a_group_of_another_environment_than_announced_is_refused(in_swarm) -> None:
    async def body(network: MemoryNetwork, mallory: Side, bob: Side) -> None:
        group, _ = await mallory.group(["1", "2"])
        place = {"epoch": mallory.storage.epoch, "seq": 1}
        packed = wire.pack_group(_foreign_environment(group), created_ms=0, **place)
        identity, swarm = mallory.membership.identity, mallory.membership.swarm
        sealed = seal(identity, swarm.swarm_id, Kind.ROLLOUT, packed)
        await _announce_raw(mallory, group, sealed, **place)
        assert await bob.fetch() == []
        assert bob.rejected == {"environment": 1}

    in_swarm(body)


def test_two_groups_of_one_number_that_arrive_at_once_are_one(in_swarm) -> None:
    """An author that signs a number twice must not end the node that pulls both together."""

    async def body(network: MemoryNetwork, mallory: Side, bob: Side) -> None:
        identity, swarm = mallory.membership.identity, mallory.membership.swarm
        place = {"epoch": mallory.storage.epoch, "seq": 1}
        sealed = {}
        for index in range(4):
            ref = mallory.task(index)
            group = make_group(ref, [await _right_answer(mallory, ref), "wrong"], [1.0, 0.0])
            packed = wire.pack_group(group, created_ms=0, **place)
            envelope = seal(identity, swarm.swarm_id, Kind.ROLLOUT, packed)
            sealed[content_id(envelope)] = envelope
            await _announce_raw(mallory, group, envelope, **place)
            await bob.exchange.meeting.beat(0, 20.0)
            await bob.list_some(8, 64)
            peer = bob.directory.get(mallory.peer_id)
            assert peer is not None
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

    in_swarm(body)


def test_a_well_signed_body_that_is_no_group_is_refused(in_swarm) -> None:
    async def body(network: MemoryNetwork, mallory: Side, bob: Side) -> None:
        identity, swarm = mallory.membership.identity, mallory.membership.swarm
        sealed = seal(identity, swarm.swarm_id, Kind.ROLLOUT, b"\x90")
        group = make_group(mallory.task(), ["right", "wrong"], [1.0, 0.0])
        await _announce_raw(mallory, group, sealed, epoch=mallory.storage.epoch, seq=1)
        assert await bob.fetch() == []
        assert bob.rejected["schema"] == 1

    in_swarm(body)


def test_a_group_that_ended_its_judge_is_refused(in_swarm) -> None:
    async def body(network: MemoryNetwork, mallory: Side, bob: Side) -> None:
        judge = bob.verifier._judge

        async def dies(*arguments: Any) -> Any:
            return replace(await judge(*arguments), lost="crashed")

        bob.verifier._judge = dies
        await mallory.publish(0)
        assert await bob.fetch() == []
        assert bob.rejected["judging"] == 1
        assert bob.storage.live(1) == []

    in_swarm(body)


def test_a_task_too_slow_for_this_machine_cuts_nobody_off(in_swarm) -> None:
    async def body(network: MemoryNetwork, alice: Side, bob: Side) -> None:
        async def slow(*arguments: Any) -> Any:
            raise SlowTaskError("it took too long", 10.0)

        bob.verifier._judge = slow
        await alice.publish(0)
        assert await bob.fetch() == []
        assert bob.rejected == {"slow_task": 1}
        assert bob.directory.get(alice.peer_id).standing.cut_until == 0.0

    in_swarm(body)


async def _serve_raw(side: Side, change: Callable[[bytes], bytes], **header: int) -> None:
    """Publish a group whose stored bytes were changed after they were sealed."""
    ref = side.task()
    texts = [await _right_answer(side, ref), "wrong"]
    group = make_group(ref, texts, [1.0, 0.0])
    place = {"epoch": side.storage.epoch, "seq": 1, "created_ms": 0, **header}
    body = wire.pack_group(group, **place)
    sealed = change(
        seal(side.membership.identity, side.membership.swarm.swarm_id, Kind.ROLLOUT, body)
    )
    await _announce_raw(side, group, sealed, epoch=side.storage.epoch, seq=1)


async def _announce_raw(
    side: Side, group: RolloutGroup, sealed: bytes, *, epoch: int, seq: int, **changes: Any
) -> None:
    fields: dict[str, Any] = dict(
        v=1,
        epoch=epoch,
        seq=seq,
        id=content_id(sealed),
        size=len(sealed),
        environment=group.task.environment,
        version=group.task.version,
        family=group.task.family,
        model=POLICY.model,
        tokenizer=POLICY.tokenizer,
        policy_version=0,
        completions=len(group.completions),
        mixed=True,
    )
    announcement = wire.Announcement(**{**fields, **changes})
    record = seal(
        side.membership.identity,
        side.membership.swarm.swarm_id,
        Kind.RECORD,
        wire.pack(announcement),
    )

    async def listed(_: str, __: bytes) -> bytes:
        return wire.pack(wire.ListReply(epoch=epoch, head=seq, left_out=0, items=(record,)))

    async def pulled(_: str, __: bytes) -> bytes:
        return sealed

    side.transport._handlers[LIST] = listed
    side.transport._handlers[PULL] = pulled


def test_a_replayed_envelope_is_trained_once_even_across_a_restart(in_swarm) -> None:
    async def body(network: MemoryNetwork, alice: Side, bob: Side) -> None:
        made = await alice.group([await _right_answer(alice, alice.task()), "wrong"])
        (own,) = await alice.exchange.publisher.publish([made], 0)
        assert len(await bob.fetch()) == 1
        sealed = alice.storage.blob(own.id)
        assert sealed is not None
        await bob.stop()
        reborn = Side(bob.home, network, bob.membership)
        await reborn.start()
        await _announce_raw(alice, made[0], sealed, epoch=alice.storage.epoch, seq=1)
        assert await reborn.fetch() == []
        # Under a new number the announcement looks new, but the signed bytes say otherwise.
        await _announce_raw(alice, made[0], sealed, epoch=alice.storage.epoch, seq=2)
        assert await reborn.fetch() == []
        assert reborn.rejected["sequence"] == 1
        assert len(reborn.storage.live(1)) == 1
        bob.storage = reborn.storage
        bob.transport = reborn.transport

    in_swarm(body)


def test_a_restored_home_signs_no_number_twice_and_is_heard_again(in_swarm) -> None:
    async def body(network: MemoryNetwork, alice: Side, bob: Side) -> None:
        await alice.publish(0)
        assert len(await bob.fetch()) == 1
        backup = sqlite3.connect(alice.home.path / "backup")
        alice.storage._connection.backup(backup)
        backup.close()
        await alice.publish(1, 2, 3)
        await bob.exchange.meeting.beat(0, 20.0)
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

    in_swarm(body)


def test_damaged_rows_stop_no_node(in_swarm) -> None:
    async def body(network: MemoryNetwork, alice: Side, bob: Side) -> None:
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
        assert [group.id for group in restored_groups(reborn.storage)] == [kept.id]
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

    in_swarm(body)


def test_another_members_group_cannot_be_announced_as_ones_own(in_swarm) -> None:
    async def body(network: MemoryNetwork, alice: Side, thief: Side, bob: Side) -> None:
        made = await alice.group([await _right_answer(alice, alice.task()), "wrong"])
        (own,) = await alice.exchange.publisher.publish([made], 0)
        sealed = alice.storage.blob(own.id)
        assert sealed is not None
        await alice.transport.stop()
        await _announce_raw(thief, made[0], sealed, epoch=alice.storage.epoch, seq=1)
        assert await bob.fetch() == []
        assert bob.rejected["author"] == 1

    in_swarm(body, 3)


def _foreign_environment(group: RolloutGroup) -> RolloutGroup:
    task = TaskRef(group.task.environment, "other", group.task.family, group.task.seed)
    return RolloutGroup(task, group.policy, group.completions, group.claimed)


def _other_tokens(group: RolloutGroup) -> RolloutGroup:
    first, *rest = group.completions
    ids = first.token_ids.copy()
    ids[0] = CODEC.encode_answer("Z")[0]
    swapped = Completion(first.text, ids, first.logprobs, first.spans, first.finish)
    return RolloutGroup(group.task, group.policy, (swapped, *rest), group.claimed)


def _held_out(group: RolloutGroup) -> RolloutGroup:
    task = TaskRef(group.task.environment, group.task.version, "gcd", held_out_seed("exam"))
    return RolloutGroup(task, group.policy, group.completions, group.claimed)


@pytest.mark.parametrize(
    ("change", "reason"),
    [(_foreign_environment, "elsewhere"), (_other_tokens, "tokens"), (_held_out, "held_out")],
)
def test_what_was_not_agreed_on_is_refused(in_swarm, change, reason: str) -> None:
    async def body(network: MemoryNetwork, mallory: Side, bob: Side) -> None:
        group, _ = await mallory.group(["1", "2"])
        await _announce_changed(mallory, change(group))
        assert await bob.fetch() == []
        assert bob.rejected == {reason: 1}

    in_swarm(body)


async def _announce_changed(side: Side, group: RolloutGroup, seq: int = 1) -> None:
    body = wire.pack_group(group, epoch=side.storage.epoch, seq=seq, created_ms=0)
    sealed = seal(side.membership.identity, side.membership.swarm.swarm_id, Kind.ROLLOUT, body)
    await _announce_raw(side, group, sealed, epoch=side.storage.epoch, seq=seq)


def _longer(group: RolloutGroup) -> RolloutGroup:
    return make_group(group.task, ["1" * 96, "2"], [1.0, 0.0])


def _larger(group: RolloutGroup) -> RolloutGroup:
    return make_group(group.task, ["1", *"2" * 16], [1.0] + [0.0] * 16)


def _longer_abroad(group: RolloutGroup) -> RolloutGroup:
    """Few tokens where it was made, and many here."""
    other = PolicyRef(bytes(32), bytes(32), 7)
    short = replace(make_completion("2"), text="1" * 97)
    return replace(make_group(group.task, ["1", "2"], [1.0, 0.0], other), completions=(short,) * 2)


@pytest.mark.parametrize(
    ("change", "reason"),
    [(_longer, "too_long"), (_longer_abroad, "too_long"), (_larger, "too_large")],
)
def test_groups_much_longer_or_larger_than_ones_own_are_refused(
    in_swarm, change, reason: str
) -> None:
    async def body(network: MemoryNetwork, mallory: Side, bob: Side) -> None:
        judged: list[TaskRef] = []
        judge = bob.environment.judge
        bob.verifier._judge = lambda ref, texts: judged.append(ref) or judge(ref, texts)
        group, _ = await mallory.group(["1", "2"])
        await _announce_changed(mallory, change(group))
        assert await bob.fetch() == []
        assert bob.rejected == {reason: 1}
        assert judged == []

    in_swarm(body)


def test_a_group_announced_as_too_large_or_too_long_is_not_even_pulled(in_swarm) -> None:
    async def body(network: MemoryNetwork, mallory: Side, bob: Side) -> None:
        group, _ = await mallory.group(["1", "2"])
        sealed = bytes(100_000)
        await _announce_raw(mallory, group, sealed, epoch=1, seq=1)
        await bob.exchange.meeting.beat(0, 20.0)
        await bob.list_some(8, 64)
        assert bob.rejected == {"too_long": 1}
        bob.forgive()
        await _announce_raw(mallory, _larger(group), bytes(100), epoch=1, seq=2)
        await bob.list_some(8, 64)
        assert bob.rejected == {"too_long": 1, "too_large": 1}
        assert bob.exchange.puller.on_offer(lambda _: 64) == 0

    in_swarm(body)


def test_what_was_taken_once_is_taken_from_nobody_else_and_nobody_is_blamed(in_swarm) -> None:
    async def body(network: MemoryNetwork, thief: Side, author: Side, bob: Side) -> None:
        group, _ = await author.group([await _right_answer(author, author.task()), "wrong"])
        await _announce_changed(thief, replace(group, completions=group.completions[::-1]))
        assert len(await bob.fetch()) == 1
        await author.exchange.publisher.publish([(group, "")], 0)  # the copy was faster
        await bob.stop()
        reborn = Side(bob.home, network, bob.membership)
        await reborn.start()
        await thief.transport.stop()
        assert await reborn.fetch() == []
        assert reborn.rejected["copied"] == 1
        assert "copied" in BLAMELESS
        bob.storage, bob.transport = reborn.storage, reborn.transport

    in_swarm(body, 3)


def test_own_groups_that_come_back_from_another_are_evidence_even_with_other_words(
    in_swarm,
) -> None:
    async def body(network: MemoryNetwork, bob: Side, thief: Side) -> None:
        right = await _right_answer(bob, bob.task())
        await bob.exchange.publisher.publish([await bob.group([right, "wrong"])], 0)
        await _announce_changed(thief, make_group(bob.task(), [right, "other"], [1.0, 0.0]))
        assert await bob.fetch() == []
        assert bob.rejected == {"own_copied": 1}
        assert bob.directory.get(thief.peer_id).rejected == {"own_copied": 1}
        assert "own_copied" not in BLAMELESS

    in_swarm(body)


def test_nothing_is_kept_of_a_pull_that_ended(in_swarm) -> None:
    async def body(network: MemoryNetwork, alice: Side, bob: Side) -> None:
        await alice.publish(0, 1)
        assert len(await bob.fetch()) == 2
        assert not bob.exchange.puller._pulling

    in_swarm(body)


def test_an_author_is_taken_once_per_task(in_swarm) -> None:
    async def body(network: MemoryNetwork, lazy: Side, other: Side, bob: Side) -> None:
        right = await _right_answer(lazy, lazy.task())
        for side in (lazy, other):  # two authors may sample one task
            await side.exchange.publisher.publish([await side.group([right, side.peer_id])], 0)
        assert len(await bob.fetch()) == 2
        again = [await lazy.group([right, f"new {index}"]) for index in range(3)]
        await lazy.exchange.publisher.publish(again, 0)
        for _ in again:
            assert await bob.fetch() == []
            bob.forgive()
        assert bob.rejected == {"repeated": 3}

    in_swarm(body, 3)


def test_who_lost_its_database_is_not_dropped_for_beginning_anew(in_swarm) -> None:
    async def publish(side: Side, what: str, *indices: int) -> None:
        for index in indices:  # the model samples other answers to the same tasks
            right = await _right_answer(side, side.task(index))
            made = await side.group([right, f"{what} {index}"], index=index)
            await side.exchange.publisher.publish([made], 0)

    async def fetch(side: Side) -> list[VerifiedGroup]:
        await side.exchange.meeting.beat(0, 20.0)
        await side.list_some(1, 64)
        return await side.pull()

    async def body(network: MemoryNetwork, alice: Side, bob: Side) -> None:
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

    in_swarm(body)


def test_a_group_of_another_model_is_foreign(in_swarm) -> None:
    async def body(network: MemoryNetwork, alice: Side, bob: Side) -> None:
        ref = alice.task()
        texts = [await _right_answer(alice, ref), "wrong"]
        other = PolicyRef(bytes(32), bytes(32), 7)
        await alice.exchange.publisher.publish([(make_group(ref, texts, [1.0, 0.0], other), "")], 0)
        (got,) = await bob.fetch()
        assert got.provenance is Provenance.FOREIGN

    in_swarm(body)


def test_a_group_is_served_by_whoever_has_it(in_swarm) -> None:
    async def body(network: MemoryNetwork, alice: Side, bob: Side, carol: Side) -> None:
        made = await alice.group([await _right_answer(alice, alice.task()), "wrong"])
        await alice.exchange.publisher.publish([made], 0)
        assert len(await bob.fetch()) == 1
        await carol.exchange.meeting.beat(0, 20.0)
        await carol.list_some(8, 64)
        await alice.transport.stop()
        (got,) = await carol.pull()
        assert got.author == alice.peer_id

    in_swarm(body, 3)


def test_only_the_newest_offers_there_is_room_for_are_read_and_the_rest_counted(in_swarm) -> None:
    async def body(network: MemoryNetwork, alice: Side, bob: Side) -> None:
        right = await _right_answer(alice, alice.task())
        made = [await alice.group([right, "wrong"])]
        made += [await alice.group(["1", "2", "3"], index=index) for index in range(1, 40)]
        made = [(group, prompt) for group, prompt in made if len(set(group.claimed)) > 1][:6]
        published = await alice.exchange.publisher.publish(made, 0)
        await bob.exchange.meeting.beat(0, 20.0)
        assert await bob.list_some(3, 2) == 6
        pulled = await bob.pull()
        assert {group.id for group in pulled} == {group.id for group in published[-2:]}
        assert await bob.list_some(3, 2) == 0

    in_swarm(body)


def test_the_only_peer_is_asked_for_all_that_is_wanted_at_once(in_swarm) -> None:
    wanted = 9

    async def body(network: MemoryNetwork, alice: Side, bob: Side) -> None:
        await alice.publish(*range(wanted))
        await bob.exchange.meeting.beat(0, 20.0)
        assert await bob.list_some(3, wanted) == wanted
        (author,) = bob.directory.live(SYSTEM_CLOCK.now(), 60.0)
        assert len(author.offers) == wanted
        turns = bob.exchange.puller.turns
        assert [turn.limit for turn in turns(3, 30)] == [30]
        bob.directory.meet("another", SYSTEM_CLOCK.now())
        assert [turn.limit for turn in turns(3, 30)] == [15, 15]
        assert [turn.limit for turn in turns(3, 0)] == [1]

    in_swarm(body)


def test_with_peers_enough_heartbeats_are_read_rarely(in_swarm) -> None:
    async def body(network: MemoryNetwork, *sides: Side) -> None:
        reads: list[int] = []
        read = network.heartbeats

        def counted(reader: str) -> dict[str, bytes]:
            reads.append(sides[0].peer_id == reader)
            return read(reader)

        network.heartbeats = counted  # type: ignore[method-assign]
        for side in sides[1:]:
            await side.exchange.meeting.beat(0, 20.0)
        for _ in range(258):  # two periods of a node that has peers enough
            await sides[0].exchange.meeting.beat(0, 20.0)
        assert sum(reads) == 2

    in_swarm(body, 10)


def test_not_holding_a_group_is_no_fault_of_a_peer(in_swarm) -> None:
    async def body(network: MemoryNetwork, alice: Side, bob: Side, carol: Side) -> None:
        made = await alice.group([await _right_answer(alice, alice.task()), "wrong"])
        await alice.exchange.publisher.publish([made], 0)
        for side in (alice, bob, carol):
            await side.exchange.meeting.beat(0, 20.0)
        await carol.list_some(8, 64)
        network.cut(alice.peer_id)
        assert await carol.pull() == []
        assert carol.rejected["not_here"] == 1
        innocent = carol.directory.get(bob.peer_id)
        assert innocent is not None
        assert innocent.failures == 0
        assert innocent.rejected.total() == 0

    in_swarm(body, 3)


def test_invented_heartbeats_enter_no_directory_and_cost_their_teller(in_swarm) -> None:
    async def body(network: MemoryNetwork, alice: Side, bob: Side) -> None:
        await bob.exchange.meeting.beat(0, 30)
        await alice.exchange.meeting.beat(0, 30)
        asked = alice.directory.get(bob.peer_id)
        assert asked is not None

        async def invented(caller: str, payload: bytes) -> bytes:
            made = []
            for _ in range(50):
                ghost = Identity.generate()
                head = wire.Heartbeat(
                    *(1, ("/ip4/192.0.2.1/tcp/4001/p2p/" + ghost.peer_id,), 0, 1, 0),
                    *(int(SYSTEM_CLOCK.wall() * 1000), "ghost", 0, 0, False, False),
                )
                sealed = seal(ghost, alice.membership.swarm.swarm_id, Kind.HEAD, wire.pack(head))
                made.append(wire.pack(wire.Presence(sealed, *bob.membership.chain)))
            return wire.pack(wire.PeersReply(tuple(made)))

        bob.transport._handlers[PEERS] = invented
        await alice.exchange.meeting.beat(0, 30)
        assert len(alice.directory) == 1
        assert alice.rejected["wrong_subject"] > 0
        assert asked.standing.cut_until > SYSTEM_CLOCK.now()

    in_swarm(body)


def test_a_node_passes_on_what_members_said_of_themselves_but_not_to_themselves(in_swarm) -> None:
    async def body(network: MemoryNetwork, alice: Side, bob: Side, carol: Side) -> None:
        async def told() -> set[bytes]:
            request = wire.pack(wire.PeersRequest(100))
            reply = await bob.transport.request(alice.peer_id, PEERS, request)
            listed = wire.unpack(wire.PeersReply, reply, max_bytes=len(reply))
            assert not isinstance(listed, Rejected)
            return set(listed.presences)

        for side in (bob, carol, alice):
            await side.exchange.meeting.beat(0, 20.0)
        own = alice.directory.heartbeat
        caller, other = (alice.directory.get(side.peer_id) for side in (bob, carol))
        assert caller is not None
        assert other is not None
        assert caller.heartbeat
        assert await told() == {other.heartbeat, own}
        heard, other.heartbeat = other.heartbeat, b""
        assert await told() == {own}
        other.heartbeat, now = heard, SYSTEM_CLOCK.wall()
        alice.members.obey(revocations(1, now, now + 60, [carol.membership.identity.public_key]))
        assert await told() == {own}

    in_swarm(body, 3)


def test_a_greeting_leaves_out_addresses_that_are_too_long(in_swarm) -> None:
    async def body(network: MemoryNetwork, alice: Side) -> None:
        alice.transport.addresses = lambda: ["/" + "x" * 160, "/short"]  # type: ignore[method-assign]
        own = alice.exchange.meeting._credentials
        assert hello_body(wire.HelloRequest, own, alice.transport).addresses == ("/short",)

    in_swarm(body, 1)


def test_an_expelled_member_is_neither_asked_nor_answered(in_swarm) -> None:
    async def body(network: MemoryNetwork, alice: Side, bob: Side) -> None:
        await bob.exchange.meeting.beat(0, 20.0)
        made = await bob.group([await _right_answer(bob, bob.task()), "wrong"])
        await bob.exchange.publisher.publish([made], 3)
        await alice.exchange.meeting.beat(0, 20.0)
        await alice.list_some(8, 64)
        assert alice.exchange.puller.on_offer(lambda _: 64) == 1
        key = bob.membership.identity.public_key
        now = SYSTEM_CLOCK.wall()
        alice.members.obey(revocations(1, now, now + 60, [key]))
        assert await alice.pull() == []
        assert alice.rejected["revoked"] == 1
        for protocol in (LIST, PULL, PEERS, REVOKED, SECRET, RENEW):
            with pytest.raises(TransportError, match="hello"):
                await bob.transport.request(alice.peer_id, protocol, b"")
        hello = wire.HelloRequest(bob.membership.chain, "", (), 0, 0)
        with pytest.raises(TransportError, match="revoked"):
            await bob.transport.request(alice.peer_id, HELLO, wire.pack(hello))
        await alice.exchange.meeting.beat(0, 20.0)
        assert len(alice.directory) == 0
        assert bob.peer_id not in await alice.transport.heartbeats()

    in_swarm(body)


def test_who_is_no_member_gets_nothing(in_swarm, tmp_path: Path) -> None:
    async def body(network: MemoryNetwork, alice: Side) -> None:
        other = Home(tmp_path / "other").found_swarm("other", SYSTEM_CLOCK.wall())
        # A member's certificates in a stranger's hands: the link says who is calling.
        hellos = {
            "no member": other.chain,
            "wrong_subject": alice.membership.chain,
        }
        payloads = {
            "hello": (LIST, wire.pack(wire.ListRequest(epoch=0, since=0, limit=10))),
            **{
                said: (HELLO, wire.pack(wire.HelloRequest(chain, "swarm-node", (), 0, 0)))
                for said, chain in hellos.items()
            },
        }
        junk = [("bad request", (HELLO, junk)) for junk in (b"", b"\xc1", b"\x91" * 1000)]
        for said, (protocol, payload) in [*payloads.items(), *junk]:
            stranger = MemoryTransport(network, Identity.generate())
            await stranger.start()
            with pytest.raises(TransportError, match=said):
                await stranger.request(alice.peer_id, protocol, payload)
            again = "hello" if said == "hello" else "cut the link"
            with pytest.raises(TransportError, match=again):
                await stranger.request(alice.peer_id, *payloads["hello"])
            await stranger.stop()

    in_swarm(body, 1)


@pytest.mark.parametrize("protocol", [LIST, PULL, PEERS, HELLO])
@pytest.mark.parametrize("junk", [b"", b"\xc1", b"\x91" * 1000])
def test_a_malformed_request_of_a_member_is_counted_and_cuts_its_link(
    in_swarm, protocol: str, junk: bytes
) -> None:
    async def body(network: MemoryNetwork, alice: Side, bob: Side) -> None:
        await bob.fetch()  # a greeting makes each a member for the other
        peer = alice.directory.get(bob.peer_id)
        assert peer is not None
        with pytest.raises(TransportError, match="bad request"):
            await bob.transport.request(alice.peer_id, protocol, junk)
        assert alice.rejected == peer.rejected == {"schema": 1}
        sound = wire.pack(wire.ListRequest(epoch=0, since=0, limit=10))
        with pytest.raises(TransportError, match="cut the link"):
            await bob.transport.request(alice.peer_id, LIST, sound)
        assert alice.directory.draw(random.Random(0), 9, SYSTEM_CLOCK.now()) == []
        # A new greeting, or the directory's forgetting, lifts nothing.
        del alice.directory._peers[bob.peer_id]
        assert alice.directory.meet(bob.peer_id, 0.0).retry_at > SYSTEM_CLOCK.now() + 50

    in_swarm(body)


@pytest.mark.parametrize("protocol", [REVOKED, SECRET])
def test_a_forged_statement_of_a_member_is_counted_and_cuts_its_link(
    in_swarm, protocol: str
) -> None:
    async def body(network: MemoryNetwork, alice: Side, bob: Side) -> None:
        await bob.fetch()
        kind = Kind.REVOKE if protocol == REVOKED else Kind.SECRET
        swarm_id = alice.membership.swarm.swarm_id
        now = SYSTEM_CLOCK.wall()
        made: Revocations | NewSecret = revocations(1, now, now + 60, [b"k" * 32])
        if protocol == SECRET:
            made = NewSecret(1, 1, int(now), b"s" * 32)
        sealed = seal(bob.membership.identity, swarm_id, kind, wire.pack(made))
        forged = wire.pack(Signed(b"", sealed))
        with pytest.raises(TransportError, match="refused: wrong_root"):
            await bob.transport.request(alice.peer_id, protocol, forged)
        assert alice.rejected == {"wrong_root": 1}
        with pytest.raises(TransportError, match="cut the link"):
            await bob.transport.request(alice.peer_id, protocol, b"")

    in_swarm(body)


def test_a_beat_stores_the_peers_only_if_they_changed(in_swarm) -> None:
    async def body(network: MemoryNetwork, alice: Side, bob: Side) -> None:
        await bob.exchange.meeting.beat(0, 20.0)
        (stored,) = bob.storage.known_peers(9)
        assert (stored.peer_id, stored.failures, stored.anchor) == (alice.peer_id, 0, True)
        before = bob.storage._connection.total_changes
        await bob.exchange.meeting.beat(0, 20.0)
        assert bob.storage._connection.total_changes == before
        bob.exchange.meeting._book.failed(alice.peer_id, SYSTEM_CLOCK.now(), float("inf"))
        await bob.exchange.meeting.beat(0, 20.0)
        (stored,) = bob.storage.known_peers(9)
        assert stored.failures == 1
        assert bob.storage._connection.total_changes > before

    in_swarm(body)


def test_who_is_no_steward_says_so_when_asked_for_a_renewal(in_swarm) -> None:
    async def body(network: MemoryNetwork, alice: Side, bob: Side) -> None:
        await bob.exchange.meeting.beat(0, 20.0)
        with pytest.raises(TransportError, match="no renewal: not_steward"):
            await alice.transport.request(bob.peer_id, RENEW, b"")

    in_swarm(body)


def test_a_member_that_was_let_go_must_greet_again(in_swarm) -> None:
    async def body(network: MemoryNetwork, alice: Side, bob: Side) -> None:
        alice.directory.forget(bob.peer_id)
        assert alice.members.is_member(bob.peer_id)
        with pytest.raises(TransportError, match="hello"):
            await bob.transport.request(alice.peer_id, PEERS, wire.pack(wire.PeersRequest(limit=1)))

    in_swarm(body)


def test_who_was_cut_off_before_a_restart_stays_so(in_swarm) -> None:
    async def body(network: MemoryNetwork, alice: Side, bob: Side) -> None:
        alice.directory.recall(bob.peer_id, Standing(cut_until=SYSTEM_CLOCK.now() + 60))
        hello = wire.HelloRequest(bob.membership.chain, "", (), 0, 0)
        with pytest.raises(TransportError, match="broke the protocol"):
            await bob.transport.request(alice.peer_id, HELLO, wire.pack(hello))
        with pytest.raises(TransportError) as cut:
            await bob.transport.request(alice.peer_id, HELLO, wire.pack(hello))
        assert "broke the protocol" not in str(cut.value)  # its link is cut: nobody reads it

    in_swarm(body)


def test_a_renewed_member_counts_for_the_issuer_that_admitted_it(in_swarm) -> None:
    async def body(network: MemoryNetwork, alice: Side, bob: Side) -> None:
        steward = alice.home.steward()
        member = bob.members.admit(bob.membership.chain, bob.peer_id)
        assert steward is not None
        assert isinstance(member, Member)
        later = SYSTEM_CLOCK.wall() + 60
        chain = issue_renewal(steward, alice.membership.swarm, member, later)
        assert not isinstance(chain, Rejected)
        assert bob.exchange.meeting._credentials.adopt(chain) is None
        await bob.exchange.meeting.beat(0, 20.0)
        peer = alice.directory.meet(bob.peer_id, SYSTEM_CLOCK.now())
        heard = (await alice.transport.heartbeats())[bob.peer_id]
        alice.exchange.meeting._hear(heard, expected=bob.peer_id, teller=None)
        assert peer.heartbeat == heard
        assert (
            alice.members.issuer(bob.peer_id)
            == member.admitted_by.hex()
            != steward.key.public_key.hex()
        )

    in_swarm(body)


def test_a_peer_that_forgot_us_is_greeted_again(in_swarm) -> None:
    async def body(network: MemoryNetwork, alice: Side, bob: Side) -> None:
        made = await alice.group([await _right_answer(alice, alice.task()), "wrong"])
        assert await bob.fetch() == []
        assert alice.members.is_member(bob.peer_id)
        alice.members._known.clear()
        await alice.exchange.publisher.publish([made], 0)
        assert len(await bob.fetch()) == 1

    in_swarm(body)


def test_loss_delays_but_loses_nothing(in_swarm) -> None:
    async def body(network: MemoryNetwork, alice: Side, bob: Side) -> None:
        made = [
            await alice.group([await _right_answer(alice, alice.task(i)), "wrong"], index=i)
            for i in range(12)
        ]
        network._loss = 0.3
        published = await alice.exchange.publisher.publish(made, 0)
        got: set[bytes] = set()
        for _ in range(60):
            for peer in (bob.directory.get(alice.peer_id),):
                if peer is not None:
                    peer.failed_until = 0.0  # this test is not about how long to leave a peer alone
            for group in await bob.fetch():
                assert group.id not in got
                got.add(group.id)
            if bob.directory.get(alice.peer_id).cursor[1] == 12 and len(got) >= 6:
                break
        assert got <= {group.id for group in published}
        assert len(got) >= 6

    in_swarm(body)


async def _useless(side: Side, count: int, first: int = 0) -> None:
    """Publish groups that look informative and are not."""
    lies = [make_group(side.task(first + i), ["no", "nor this"], [1.0, 0.0]) for i in range(count)]
    await side.exchange.publisher.publish([(lie, "") for lie in lies], 0)


def test_of_a_peer_whose_groups_are_refused_about_ten_are_pulled(in_swarm) -> None:
    async def body(network: MemoryNetwork, mallory: Side, alice: Side, bob: Side) -> None:
        right, got = await _right_answer(alice, alice.task()), 0
        await alice.exchange.publisher.publish([await alice.group([right, "wrong"])], 0)
        for round_ in range(8):
            await _useless(mallory, 8, first=8 * round_)
            got += len(await bob.fetch())
        assert got == 1
        assert bob.rejected == {"zero_advantage": STRIKES}
        liar, honest = (bob.directory.get(side.peer_id) for side in (mallory, alice))
        assert liar is not None
        assert honest is not None
        assert not liar.offers
        assert liar.standing.left_until > SYSTEM_CLOCK.now() + 50
        assert honest.standing.left_until == 0.0 < liar.standing.score < honest.standing.score
        # It breaks no rule of the protocol, so it still gets answers.
        assert await mallory.fetch() == []
        assert mallory.rejected["unreachable"] == 0

    in_swarm(body, 3)


def test_a_peer_that_breaks_the_protocol_is_asked_nothing_and_gets_no_answer(in_swarm) -> None:
    async def body(network: MemoryNetwork, mallory: Side, bob: Side) -> None:
        await _serve_raw(mallory, lambda sealed: sealed[:-1] + bytes([sealed[-1] ^ 1]))
        assert await bob.fetch() == []
        assert bob.rejected == {"signature": 1}
        now = SYSTEM_CLOCK.now()
        assert 50 < bob.directory.cut(mallory.peer_id, now) <= FIRST_OFF_SECONDS
        assert bob.directory.draw(random.Random(0), 9, now) == []
        with pytest.raises(TransportError, match="cut the link"):
            await mallory.transport.request(bob.peer_id, HELLO, b"")

    in_swarm(body)


def test_a_holder_that_sends_other_bytes_is_cut_off_and_not_the_author(in_swarm) -> None:
    async def body(network: MemoryNetwork, alice: Side, liar: Side, bob: Side) -> None:
        made = await alice.group([await _right_answer(alice, alice.task()), "wrong"])
        (own,) = await alice.exchange.publisher.publish([made], 0)
        for side in (alice, liar, bob):
            await side.exchange.meeting.beat(0, 20.0)
        await bob.list_some(8, 64)
        size = len(alice.storage.blob(own.id) or b"")

        async def junk(_: str, __: bytes) -> bytes:
            return bytes(size)

        liar.transport._handlers[PULL] = junk
        network.cut(alice.peer_id)
        assert await bob.pull() == []
        now = SYSTEM_CLOCK.now()
        assert bob.rejected["hash"] == 1
        assert bob.directory.cut(liar.peer_id, now) > 0
        assert bob.directory.cut(alice.peer_id, now) == 0

    in_swarm(body, 3)


def test_an_author_that_states_a_wrong_size_makes_no_holder_guilty(in_swarm) -> None:
    async def body(network: MemoryNetwork, mallory: Side, carol: Side, bob: Side) -> None:
        made = await mallory.group([await _right_answer(mallory, mallory.task()), "wrong"])
        await mallory.exchange.publisher.publish([made], 0)
        assert len(await carol.fetch()) == 1
        for side in (mallory, carol, bob):
            await side.exchange.meeting.beat(0, 20.0)
        await bob.list_some(8, 64)
        peer = bob.directory.get(mallory.peer_id)
        assert peer is not None
        peer.offers[0] = replace(peer.offers[0], size=10)
        network.cut(mallory.peer_id)
        assert await bob.pull() == []
        assert bob.rejected["size"] > 0
        holder = bob.directory.get(carol.peer_id)
        assert holder is not None
        assert (holder.rejected.total(), holder.failures) == (0, 0)

    in_swarm(body, 3)


def test_a_reply_over_the_limit_of_the_protocol_cuts_its_sender_off(in_swarm) -> None:
    async def body(network: MemoryNetwork, mallory: Side, bob: Side) -> None:
        async def large(_: str, __: bytes) -> bytes:
            return bytes(200_000)

        mallory.transport._handlers[LIST] = large
        await bob.fetch()
        assert bob.rejected == {"size": 1}
        assert bob.directory.cut(mallory.peer_id, SYSTEM_CLOCK.now()) > 0

    in_swarm(body)


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
def test_a_list_with_something_else_is_refused_and_ends_nothing(in_swarm, reply, reason) -> None:
    async def body(network: MemoryNetwork, mallory: Side, bob: Side) -> None:
        await mallory.publish(0)
        await bob.exchange.meeting.beat(0, 20.0)
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
        assert peer is not None
        peer.standing.off_until = 0.0
        await bob.list_some(8, 64)
        assert len(await bob.pull()) == 1

    in_swarm(body)


def _listed(side: Side, *items: bytes) -> bytes:
    return wire.pack(wire.ListReply(side.storage.epoch, len(items), 0, items))


def test_a_group_that_was_taken_since_it_was_listed_is_not_asked_for(in_swarm) -> None:
    async def body(network: MemoryNetwork, alice: Side, bob: Side) -> None:
        await alice.publish(0)
        await bob.exchange.meeting.beat(0, 20.0)
        await bob.list_some(8, 64)
        peer = bob.directory.get(alice.peer_id)
        assert peer is not None
        peer.offers *= 2
        served, asked = alice.transport._handlers[PULL], []

        async def counted(peer_id: str, request: bytes) -> bytes:
            asked.append(peer_id)
            return await served(peer_id, request)

        alice.transport._handlers[PULL] = counted
        assert len(await bob.pull()) == 1
        assert asked == [bob.peer_id]
        assert bob.rejected.total() == 0

    in_swarm(body)


def test_a_group_of_a_member_that_is_expelled_while_it_is_judged_is_not_taken(in_swarm) -> None:
    async def body(network: MemoryNetwork, alice: Side, bob: Side) -> None:
        await bob.publish(0)
        await alice.exchange.meeting.beat(0, 20.0)
        await alice.list_some(8, 64)
        judge = alice.verifier._judge

        async def meanwhile(ref: TaskRef, texts: Sequence[str], author: str) -> Any:
            now = SYSTEM_CLOCK.wall()
            key = bob.membership.identity.public_key
            alice.members.obey(revocations(1, now, now + 60, [key]))
            return await judge(ref, texts, author)

        alice.verifier._judge = meanwhile
        assert await alice.pull() == []

    in_swarm(body)


def test_pulls_under_way_take_their_slots(in_swarm) -> None:
    async def body(network: MemoryNetwork, alice: Side, bob: Side) -> None:
        await alice.publish(0, 1, 2)
        await bob.exchange.meeting.beat(0, 20.0)
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

    in_swarm(body)


def test_a_number_far_ahead_in_a_log_is_a_lie(in_swarm) -> None:
    async def body(network: MemoryNetwork, mallory: Side, bob: Side) -> None:
        made = await mallory.group([await _right_answer(mallory, mallory.task()), "wrong"])
        await mallory.exchange.publisher.publish([made], 0)
        assert len(await bob.fetch()) == 1
        epoch = mallory.storage.epoch
        await _announce_raw(mallory, made[0], bytes(100), epoch=epoch, seq=2_000_000)
        assert await bob.fetch() == []
        assert bob.rejected == {"seq_jump": 1}
        assert bob.directory.cut(mallory.peer_id, SYSTEM_CLOCK.now()) > 0

    in_swarm(body)


def test_an_author_that_has_had_its_share_waits_and_others_do_not(in_swarm) -> None:
    async def body(network: MemoryNetwork, costly: Side, alice: Side, bob: Side) -> None:
        for side in (costly, alice):
            right = await _right_answer(side, side.task())
            await side.exchange.publisher.publish([await side.group([right, side.peer_id])], 0)
        await bob.exchange.meeting.beat(0, 20.0)
        bob.effort.judged(costly.peer_id, 1.5 * FREE_SECONDS, SYSTEM_CLOCK.now())
        await bob.list_some(8, 64)
        (got,) = await bob.pull()
        assert got.author == alice.peer_id
        waiting = bob.directory.get(costly.peer_id)
        assert waiting is not None
        assert len(waiting.offers) == 1
        assert bob.rejected.total() == 0

    in_swarm(body, 3)


def test_who_only_downloads_is_told_to_slow_down_and_cut_off_if_it_does_not(in_swarm) -> None:
    async def body(network: MemoryNetwork, alice: Side, leech: Side) -> None:
        await leech.fetch()
        request = wire.pack(wire.ListRequest(epoch=0, since=0, limit=wire.MAX_LIST_ITEMS))
        said: Counter[str] = Counter()
        for _ in range(2000):
            try:
                await leech.transport.request(alice.peer_id, LIST, request)
            except TransportError as error:
                said[str(error)] += 1
        slow, cut = (
            next(n for text, n in said.items() if word in text) for word in ("slow", "cut")
        )
        assert slow < 100 < cut
        assert alice.rejected["flood"] == 1

    in_swarm(body)
