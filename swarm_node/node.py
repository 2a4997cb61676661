"""The composition root: one node, as one TaskGroup of named loops over a few bounded stores.

      sample ──groups──► [outbox + log: storage] ──► peers list and pull it (p2p/serving)
        ▲  │                                                        │
        │  └──own──► [replay buffer] ◄──verified── share ◄──────────┘
        │                  │ own + external                 meet: heartbeats, greetings, repair
     weights               ▼
        └────────────── train (child process)        evaluate: held-out reward   report: one line

| loop     | waits for                                | wakes                 |
| sample   | room for own groups in the replay buffer | train                 |
| train    | enough own groups; never for a peer      | sample (room, weights)|
| share    | its poll interval, room for peers' groups| train                 |
| meet     | its heartbeat interval                   | –                     |
| evaluate | its interval                             | –                     |

A group is stored before it is shown to anybody, and its use is stored before it is trained on, so
that a crash loses nothing published and trains nothing twice. The trainer and the environments are
children that may die; a dead peer, daemon or bootstrap never stops a loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections import Counter
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import msgspec
import structlog

from swarm_node.clock import Clock
from swarm_node.config import Settings
from swarm_node.environments.host import EnvironmentHost, EnvironmentInfo, Judgement
from swarm_node.environments.seeds import task_seed
from swarm_node.errors import (
    CheckpointError,
    ChildError,
    ConfigError,
    ModelError,
    Rejected,
    SwarmNodeError,
)
from swarm_node.evaluation import Evaluator
from swarm_node.home import Membership
from swarm_node.p2p.exchange import Exchange
from swarm_node.p2p.gates import PeerGates
from swarm_node.p2p.peers import Directory
from swarm_node.p2p.serving import Server
from swarm_node.p2p.transport import Transport
from swarm_node.p2p.verify import Expected, GroupVerifier, restored_group
from swarm_node.policy.batch import build_batch
from swarm_node.policy.models import Codec
from swarm_node.policy.replay import ReplayBuffer, ReplaySettings
from swarm_node.policy.sampler import Sampler, SampleRequest
from swarm_node.policy.tokens import check_tokens
from swarm_node.policy.trainer import UpdateStats
from swarm_node.policy.trainer_process import Trainer
from swarm_node.rollout import PolicyRef, RolloutGroup, TaskRef, VerifiedGroup
from swarm_node.snapshot import EvalPoint, GroupCounts, UpdateRow
from swarm_node.storage import Storage

_HEAL_SECONDS = 5.0
_REPORT_SECONDS = 15.0
_STOP_SECONDS = 20.0
_LIST_PEERS = 3
_RESTART_SECONDS = (1.0, 60.0)
_KEEP_OWN_GROUPS = 4096
_KEEP_EVALS = 2000
_REQUESTS_PER_SECOND = 50.0
_REQUEST_BURST = 500.0
_log = structlog.get_logger(__name__)


@dataclass(frozen=True)
class Parts:
    """What a node is made of; real ones from compose.py, in-memory ones in a simulation."""

    transport: Transport
    sampler: Sampler
    trainer: Trainer
    environment: EnvironmentHost
    storage: Storage
    codec: Codec
    policy: PolicyRef
    clock: Clock
    processes: Callable[[], Mapping[str, int]]


class Node:
    """One member of a swarm. `run` is its whole life; `stop` ends it."""

    def __init__(self, settings: Settings, membership: Membership, parts: Parts) -> None:
        self.settings = settings
        self.membership = membership
        self.parts = parts
        self.state = "starting"
        self.info: EnvironmentInfo | None = None
        self.own_families: tuple[str, ...] = ()
        self.counts = GroupCounts()
        self.rejected: Counter[str] = Counter()
        self.faults: Counter[str] = Counter()
        self.evals: list[EvalPoint] = []
        self.updates = 0
        self.skipped = 0
        self.restarts = 0
        self.last_update: UpdateRow | None = None
        self.started = parts.clock.now()
        self.directory = Directory(membership.identity.peer_id)
        policy = settings.policy
        self.buffer = ReplayBuffer(
            ReplaySettings(
                own=policy.own,
                external=policy.external,
                max_lag=policy.max_lag,
                max_age=policy.max_age,
                reuse=policy.reuse,
            )
        )
        # Streams of their own, so that a slow peer does not change what is drawn for training.
        seed = f"{settings.run.seed}:{membership.identity.peer_id}"
        self._train_rng = random.Random(f"train:{seed}")  # noqa: S311 - reproducible, not secret
        self._share_rng = random.Random(f"share:{seed}")  # noqa: S311
        self._stop = asyncio.Event()
        self._changed = asyncio.Condition()
        self._evaluator: Evaluator | None = None
        self._exchange: Exchange | None = None

    def stop(self) -> None:
        """Leave soon: finish the update under way, store a checkpoint, close everything."""
        self._stop.set()

    async def run(self, on_running: Callable[[Sequence[str]], None] | None = None) -> None:
        """Live until `stop` or, with `run.updates`, that many updates. `on_running` is told this
        node's addresses once it can be dialled.

        Raises:
            SwarmNodeError: it cannot start; the message says what to do.
        """
        try:
            await self._open()
            self.state = "running"
            if on_running is not None:
                on_running(self.parts.transport.addresses())
            async with asyncio.TaskGroup() as group:
                loops = {
                    name: group.create_task(loop(), name=name)
                    for name, loop in self._loops().items()
                }
                await self._stop.wait()
                self.state = "stopping"
                await self._notify()
                await asyncio.wait({loops["train"]}, timeout=_STOP_SECONDS)
                for task in loops.values():
                    task.cancel()
            await self._checkpoint()
        finally:
            await self._close()

    async def evaluate(self) -> EvalPoint:
        """Measure held-out reward now and add it to the curve.

        Raises:
            SwarmNodeError: the node has not started, or the environment failed.
        """
        if self._evaluator is None:
            raise SwarmNodeError("the node is still starting; try again in a few seconds")
        point = await self._evaluator.measure()
        self.evals.append(point)
        return point

    async def _open(self) -> None:
        parts, settings = self.parts, self.settings
        self.info = info = await parts.environment.start()
        self.own_families = _chosen(settings.environment.families, info)
        weights, version = await parts.trainer.start()
        await parts.sampler.load(weights, version)
        self._restore(parts.trainer.extra)
        self._evaluator = Evaluator(
            environment=parts.environment,
            info=info,
            sampler=parts.sampler,
            codec=parts.codec,
            own_families=self.own_families,
            tasks=settings.run.eval_tasks,
            max_new_tokens=settings.sampling.max_new_tokens,
            temperature=settings.sampling.temperature,
            clock=parts.clock,
        )
        self._exchange = self._share_with(info)
        await self._refill()
        await parts.transport.start()
        _log.info(
            "node started",
            peer=self.membership.identity.peer_id,
            swarm=self.membership.swarm.name,
            version=version,
            families=",".join(self.own_families),
        )

    def _share_with(self, info: EnvironmentInfo) -> Exchange:
        parts, membership = self.parts, self.membership
        verifier = GroupVerifier(
            membership.swarm.swarm_id,
            Expected(info.name, info.version, frozenset(info.families), parts.policy),
            parts.storage,
            self._judge,
            partial(check_tokens, parts.codec),
        )
        Server(
            transport=parts.transport,
            swarm=membership.swarm,
            chain=membership.chain,
            storage=parts.storage,
            directory=self.directory,
            gates=PeerGates(_REQUESTS_PER_SECOND, _REQUEST_BURST),
            rejected=self.rejected,
            clock=parts.clock,
            rng=self._share_rng,
        )
        return Exchange(
            transport=parts.transport,
            identity=membership.identity,
            swarm=membership.swarm,
            chain=membership.chain,
            storage=parts.storage,
            verifier=verifier,
            directory=self.directory,
            rejected=self.rejected,
            clock=parts.clock,
            rng=self._share_rng,
        )

    def _loops(self) -> Mapping[str, Callable[[], Coroutine[None, None, None]]]:
        return {
            "sample": self._sample,
            "train": self._train,
            "share": self._share,
            "meet": self._meet,
            "evaluate": self._evaluate,
            "report": self._report,
        }

    async def _sample(self) -> None:
        """Draw tasks, complete them, score them, publish the groups and keep them for training."""
        while True:
            await self._until(lambda: self._room() >= self.settings.policy.own)
            try:
                scored = await self._rollouts(
                    min(self._room(), self.settings.sampling.tasks_per_call)
                )
            except ChildError as error:
                await self._fault("environment", error)
                continue
            for group in await self._sharing.publish(scored, self.parts.trainer.version):
                self._admit(group)
            self.counts.published += len(scored)
            await self._notify()

    def _room(self) -> int:
        return self.buffer.own_room(self.parts.trainer.version)

    async def _rollouts(self, count: int) -> list[tuple[RolloutGroup, str]]:
        """Groups of `count` new tasks, each with its prompt; `claimed` are the local rewards."""
        sampling, parts = self.settings.sampling, self.parts
        refs = await self._next_tasks(count)
        prompts = await parts.environment.render(refs)
        version = parts.sampler.version
        sampled = await parts.sampler.sample(
            [
                SampleRequest(
                    parts.codec.encode_prompt(prompt),
                    n=sampling.group_size,
                    seed=task_seed("sample", self.settings.run.seed, ref.seed),
                    max_new_tokens=sampling.max_new_tokens,
                    temperature=sampling.temperature,
                )
                for ref, prompt in zip(refs, prompts, strict=True)
            ]
        )
        policy = PolicyRef(parts.policy.model, parts.policy.tokenizer, version)
        scored = []
        for ref, prompt, completions in zip(refs, prompts, sampled, strict=True):
            judged = await self._judge(ref, [completion.text for completion in completions])
            scored.append((RolloutGroup(ref, policy, completions, judged.rewards), prompt))
        return scored

    async def _next_tasks(self, count: int) -> list[TaskRef]:
        """The next tasks of this node's own stream, which no restart repeats."""
        assert self.info is not None
        first = await self.parts.storage.run(self.parts.storage.advance, "tasks", count)
        peer = self.membership.identity.peer_id
        refs = []
        for index in range(first, first + count):
            seed = task_seed("train", self.settings.run.seed, peer, index)
            family = self.own_families[seed % len(self.own_families)]
            refs.append(TaskRef(self.info.name, self.info.version, family, seed))
        return refs

    async def _train(self) -> None:
        """Draw a batch, record its use, update, hand the new weights to the sampler."""
        parts = self.parts
        while True:
            await self._until(
                lambda: self._stop.is_set() or self.buffer.ready(parts.trainer.version)
            )
            drawn = self.buffer.draw(parts.trainer.version, self._train_rng)
            if self._stop.is_set():
                return
            if drawn is None:
                continue
            await parts.storage.run(parts.storage.record_use, [group.id for group in drawn.groups])
            batch = build_batch(
                drawn.groups,
                parts.codec.encode_prompt,
                parts.codec.encode_answer,
                parts.codec.eos_id,
                self.settings.policy.correction,
            )
            try:
                result = await parts.trainer.update(batch)
            except (ChildError, ModelError) as error:
                await self._restart_trainer(error)
                continue
            self._record(drawn.groups, result.stats)
            self.counts.trained_own += drawn.own_count
            self.counts.trained_external += drawn.external_count
            if result.stats.skipped is None:
                await parts.sampler.load(result.weights, result.stats.version)
            await self._notify()
            if self.updates % self.settings.run.checkpoint_updates == 0:
                await self._checkpoint()
            if self.settings.run.updates and self.updates >= self.settings.run.updates:
                self._stop.set()

    def _record(self, groups: tuple[VerifiedGroup, ...], stats: UpdateStats) -> None:
        if stats.skipped is None:
            self.updates += 1
        else:
            self.skipped += 1
        rewards = [reward for group in groups for reward in group.rewards]
        self.last_update = UpdateRow(
            loss=stats.loss,
            grad_norm=stats.grad_norm,
            mean_reward=sum(rewards) / len(rewards),
            clipped_share=stats.clipped_share,
            kl=stats.kl,
            tokens=stats.tokens,
            seconds=stats.seconds,
        )

    async def _restart_trainer(self, error: SwarmNodeError) -> None:
        """Bring the trainer back from its last checkpoint, for as long as it takes."""
        shortest, longest = _RESTART_SECONDS
        while not self._stop.is_set():
            await self._fault("trainer", error)
            self.restarts += 1
            try:
                weights, version = await self.parts.trainer.restart()
            except (ChildError, ModelError) as again:
                error = again
                await asyncio.sleep(min(longest, shortest * 2.0 ** min(self.restarts, 6)))
                continue
            await self.parts.sampler.load(weights, version)
            return

    async def _share(self) -> None:
        """List a few random peers, then pull and verify as many offers as there is room for."""
        storage = self.parts.storage
        while True:
            await self._sharing.list_some(_LIST_PEERS)
            version = self.parts.trainer.version
            for group in await self._sharing.pull_some(
                self.buffer.external_room(version),
                partial(self.buffer.external_room, version),
                version,
            ):
                self._admit(group)
                self.counts.received += 1
            await self._notify()
            await storage.run(storage.retire, self.buffer.collect_departed())
            await storage.run(storage.prune, _KEEP_OWN_GROUPS)
            await asyncio.sleep(self.settings.network.poll_seconds)

    async def _meet(self) -> None:
        """Find peers, be found, repair: often at first, then every heartbeat."""
        network, storage = self.settings.network, self.parts.storage
        pause, next_beat = 1.0, 0.0
        while True:
            known = await storage.run(storage.known_peers, 32)
            addresses = [*network.bootstrap, *(a for peer in known for a in peer.addresses)]
            done = await self.parts.transport.heal(addresses)
            if done not in ("ok", "alone"):
                _log.info("network repaired", what=done)
            if self.parts.clock.now() >= next_beat:
                await self._sharing.beat(self.parts.trainer.version, network.heartbeat_seconds)
                next_beat = self.parts.clock.now() + pause
                pause = min(network.heartbeat_seconds, pause * 1.5)
                for peer in self.directory.live(self.parts.clock.now(), pause):
                    await storage.run(storage.remember_peer, peer.peer_id, peer.addresses)
            await asyncio.sleep(min(pause, _HEAL_SECONDS))

    async def _evaluate(self) -> None:
        while True:
            try:
                await self.evaluate()
            except ChildError as error:
                await self._fault("environment", error)
            await asyncio.sleep(self.settings.run.eval_seconds)

    async def _report(self) -> None:
        """One line that says what the node is doing and whether it gets better."""
        while True:
            await asyncio.sleep(_REPORT_SECONDS)
            point = self.evals[-1] if self.evals else None
            _log.info(
                "progress",
                version=self.parts.trainer.version,
                held_out=round(point.all, 3) if point else None,
                peers=len(self.directory.live(self.parts.clock.now(), 60.0)),
                published=self.counts.published,
                trained_own=self.counts.trained_own,
                trained_external=self.counts.trained_external,
                rejected=sum(self.rejected.values()),
            )

    @property
    def _sharing(self) -> Exchange:
        assert self._exchange is not None, "loops start after _open"
        return self._exchange

    async def _judge(self, ref: TaskRef, texts: Sequence[str]) -> Judgement:
        judged = await self.parts.environment.judge(ref, texts)
        if judged.faults:
            self.faults[f"scorer_{judged.fault_reason}"] += judged.faults
        return judged

    def _admit(self, group: VerifiedGroup) -> None:
        refused = self.buffer.admit(group, self.parts.trainer.version)
        if isinstance(refused, Rejected):
            self._sharing.reject(refused, group.author)

    async def _refill(self) -> None:
        """Groups that were stored but not used up before the last stop."""
        storage = self.parts.storage
        for row in await storage.run(storage.live, self.settings.policy.reuse):
            self.buffer.restore(restored_group(row), row.uses, self.parts.trainer.version)

    def _restore(self, extra: Mapping[str, object]) -> None:
        if extra:
            saved = msgspec.convert(extra, _Saved)
            self.counts, self.updates, self.evals = saved.counts, saved.updates, saved.evals

    async def _checkpoint(self) -> None:
        saved = _Saved(self.updates, self.counts, self.evals[-_KEEP_EVALS:])
        try:
            await self.parts.trainer.checkpoint(msgspec.to_builtins(saved))
        except (ChildError, CheckpointError) as error:
            await self._fault("checkpoint", error)

    async def _fault(self, what: str, error: SwarmNodeError) -> None:
        """Count and tell an own part's failure, and give it a moment."""
        self.faults[what] += 1
        _log.warning("fault", part=what, error=str(error))
        await asyncio.sleep(_RESTART_SECONDS[0])

    async def _until(self, ready: Callable[[], bool]) -> None:
        async with self._changed:
            await self._changed.wait_for(ready)

    async def _notify(self) -> None:
        async with self._changed:
            self._changed.notify_all()

    async def _close(self) -> None:
        """Close every part, each within its own bound, whatever state it is in."""
        parts = self.parts
        for close in (
            parts.transport.stop,
            parts.sampler.close,
            parts.trainer.close,
            parts.environment.close,
        ):
            with contextlib.suppress(SwarmNodeError):
                await close()
        parts.storage.close()


class _Saved(msgspec.Struct):
    """What a checkpoint keeps besides the training state."""

    updates: int
    counts: GroupCounts
    evals: list[EvalPoint]


def _chosen(wanted: list[str], info: EnvironmentInfo) -> tuple[str, ...]:
    unknown = sorted(set(wanted) - set(info.families))
    if unknown:
        raise ConfigError(
            f"environment.families: {', '.join(unknown)} is not among {', '.join(info.families)}"
        )
    return tuple(wanted) or info.families
