"""One node's exchange, started by itself, and what tests of it are made of."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from surrounded import surrounded

from swarm_node.clock import SYSTEM_CLOCK
from swarm_node.environments.host import InlineEnvironmentHost
from swarm_node.environments.registry import create_environment
from swarm_node.environments.splits.seeds import held_out_seed, task_seed
from swarm_node.node.home.home import Home, Membership
from swarm_node.p2p.exchange.exchange import open_exchange
from swarm_node.p2p.exchange.publishing import LocalGroup
from swarm_node.p2p.exchange.serving import Server
from swarm_node.p2p.exchange.verify import Expected, GroupVerifier
from swarm_node.p2p.limits.budgets import Effort, Traffic, Wants
from swarm_node.p2p.limits.gates import SizeGate
from swarm_node.p2p.membership.credentials import Credentials
from swarm_node.p2p.membership.local_node import LocalNode
from swarm_node.p2p.membership.ticket import parse_ticket
from swarm_node.p2p.transports.memory import MemoryNetwork, MemoryTransport
from swarm_node.p2p.wire import wire
from swarm_node.p2p.wire.envelope import Kind, content_id, seal
from swarm_node.p2p.wire.groups import pack_group
from swarm_node.p2p.wire.protocols import LIST, PULL
from swarm_node.policy.models.model import policy_digests, resolve
from swarm_node.policy.models.text.codec import Codec, check_tokens
from swarm_node.rollout import (
    Completion,
    Finish,
    PolicyRef,
    RolloutGroup,
    TaskRef,
    VerifiedGroup,
    VersionSpan,
)
from swarm_node.storage import Storage

MODEL = resolve("tiny")
CODEC = Codec.from_directory(MODEL)
POLICY = PolicyRef(*policy_digests(MODEL), 3)
#: That of the default settings. All sides share it and only read it.
ENVIRONMENT = create_environment("drills", {})
WANTS = Wants(groups=50.0, size=4096, external_ratio=1.0)


class Side:
    """One node's exchange with real storage, environment and membership."""

    def __init__(self, home: Home, network: MemoryNetwork, membership: Membership) -> None:
        self.home = home
        self.membership = membership
        self.local = LocalNode.of(membership.identity, membership.swarm, SYSTEM_CLOCK)
        self.members, self.directory = self.local.members, self.local.directory
        self.rejected = self.local.rejected
        self.storage = Storage(home.database)
        self.storage.begin_epoch()
        self.environment = InlineEnvironmentHost(ENVIRONMENT)
        self.transport = MemoryTransport(network, membership.identity)

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
                peer_id=self.peer_id,
            ),
            self.storage,
            lambda ref, texts, author: self.environment.score(ref, texts),
            partial(check_tokens, CODEC),
            CODEC.encode_answer,
        )
        shared: dict[str, Any] = {
            "transport": self.transport,
            "credentials": Credentials(
                self.local,
                self.membership.chain,
                office=self.home,
                use_secret=self.transport.use_secret,
            ),
            "storage": self.storage,
            "rng": random.Random(0),
        }
        traffic = Traffic(WANTS, self.members.issuer)
        self.effort = Effort(1.0, self.members.issuer)
        Server(self.local, traffic=traffic, **shared)
        self.exchange = open_exchange(
            self.local,
            traffic=traffic,
            effort=self.effort,
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

    def task(self, index: int = 0, family: str = "alphabet", held_out: bool = False) -> TaskRef:
        seed = (held_out_seed if held_out else task_seed)("test", index)
        return TaskRef(self.info.name, self.info.version, family, seed)

    async def group(self, texts: Sequence[str], **task: object) -> LocalGroup:
        """A group of `texts`, scored honestly."""
        ref = self.task(**task)
        judged = await self.environment.score(ref, texts)
        return LocalGroup(make_group(ref, texts, judged.rewards), judged.prompt)

    async def publish(self, *indices: int) -> list[VerifiedGroup]:
        """Publish a group of a right and a wrong answer for each of these tasks."""
        published: list[VerifiedGroup] = []
        for index in indices:
            right = await right_answer(self, self.task(index))
            made = await self.group([right, "wrong"], index=index)
            published += await self.exchange.publisher.publish([made], 0)
        return published

    async def list_some(self, count: int, wanted: int) -> int:
        """List `count` peers at once. Returns how many new offers they state, listed or not."""
        turns = self.exchange.puller.turns(count, wanted)
        listed = await asyncio.gather(*(self.exchange.puller.list_one(turn) for turn in turns))
        return sum(offers.total() for offers in listed)

    async def fetch(self) -> list[VerifiedGroup]:
        """Meet, list and pull everything there is."""
        await self.exchange.discovery.send_heartbeat(0, 20.0)
        await self.list_some(8, 64)
        return await self.pull()

    def forgive(self) -> None:
        """End every pause, for what is not about how long to leave a peer alone."""
        for peer in self.directory.live(SYSTEM_CLOCK.now(), float("inf")):
            peer.standing.left_until = 0.0
            peer.retry.record_answer(0.0)

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


async def right_answer(side: Side, ref: TaskRef) -> str:
    answer = ENVIRONMENT.answer(ENVIRONMENT.derive(ref))
    assert answer is not None
    assert (await side.environment.score(ref, [answer])).rewards == (1.0,)
    return answer


async def serve_raw(side: Side, change: Callable[[bytes], bytes], **header: int) -> None:
    """Publish a group whose stored bytes were changed after they were sealed."""
    ref = side.task()
    texts = [await right_answer(side, ref), "wrong"]
    group = make_group(ref, texts, [1.0, 0.0])
    place = {"epoch": side.storage.epoch, "seq": 1, "created_ms": 0, **header}
    body = pack_group(group, **place)
    sealed = change(
        seal(side.membership.identity, side.membership.swarm.swarm_id, Kind.ROLLOUT, body)
    )
    await announce_raw(side, group, sealed, epoch=side.storage.epoch, seq=1)


async def announce_raw(
    side: Side, group: RolloutGroup, sealed: bytes, *, epoch: int, seq: int, **changes: Any
) -> None:
    """Announce these bytes as `group` to whoever lists, and send them to whoever pulls. `changes`
    are fields of the announcement."""
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
        turns=1,
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


async def announce_changed(
    side: Side,
    group: RolloutGroup,
    seq: int = 1,
    sent: RolloutGroup | None = None,
    **changes: Any,
) -> None:
    """Announce and send a group that an honest node would not make, or send another one than is
    announced. `changes` are fields of the announcement."""
    body = pack_group(sent or group, epoch=side.storage.epoch, seq=seq, created_ms=0)
    sealed = seal(side.membership.identity, side.membership.swarm.swarm_id, Kind.ROLLOUT, body)
    await announce_raw(side, group, sealed, epoch=side.storage.epoch, seq=seq, **changes)


def larger(group: RolloutGroup) -> RolloutGroup:
    """A group of the same task with 17 answers: no node of these tests makes more than four."""
    return make_group(group.task, ["1", *"2" * 16], [1.0] + [0.0] * 16)


def in_swarm(count: int = 2) -> Callable[[Callable[..., Coroutine[Any, Any, None]]], Any]:
    """Run a test with a network and `count` started sides of one swarm, which are its first
    parameters; the others are fixtures."""

    def decorated(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
        def run(place: Path, **fixtures: Any) -> None:
            asyncio.run(_with_sides(place, count, partial(test, **fixtures)))

        return surrounded(test, run, first=count + 1)

    return decorated


async def _with_sides(
    place: Path, count: int, body: Callable[..., Coroutine[Any, Any, None]]
) -> None:
    owner, now = Home(place / "0"), SYSTEM_CLOCK.wall()
    memberships = [owner.found_swarm("test", now)]
    ticket = owner.invite([], now=now, valid_seconds=3600, member_seconds=3600)
    homes = [owner, *(Home(place / str(index)) for index in range(1, count))]
    memberships += [home.join_swarm(parse_ticket(ticket, now), now) for home in homes[1:]]
    network = MemoryNetwork(random.Random(1), patience=0.1)
    sides = [Side(h, network, m) for h, m in zip(homes, memberships, strict=True)]
    for side in sides:
        await side.start()
    for side in sides:
        await side.exchange.discovery.send_heartbeat(0, 20.0)
    await body(network, *sides)
    for side in sides:
        await side.stop()
