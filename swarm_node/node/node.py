"""One node: a TaskGroup of named loops over a few bounded stores.

      sample ──groups──► [outbox + log: storage] ──► peers list and pull it (p2p/serving)
        ▲  │                                                        │
        │  └──own──► [replay buffer] ◄──verified── pull ◄── list ◄──┘
        │                  │ own + external                 meet: heartbeats, greetings, repair
     weights               ▼
        └────────────── train (child process)        evaluate: held-out reward   report: one line

| loop     | waits for                                  | wakes                   |
| sample   | free slots for own groups                  | train                   |
| train    | enough own groups; never for a peer        | sample (slots, weights) |
| list     | its poll interval                          | pull                    |
| pull     | offers and free slots for peers' groups    | train                   |
| meet     | its heartbeat interval                     | –                       |
| evaluate | its interval                               | –                       |

`policy/experience/slots.py` has the table of slots: the backpressure between these loops.

A group is stored before it is shown to anybody, and its use is stored before it is trained on, so
that a crash loses nothing published and trains nothing twice. The trainer and the environments are
child processes that may die; a dead peer, daemon or bootstrap never stops a loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Callable, Coroutine, Mapping, Sequence
from functools import partial

import structlog

from swarm_node.config import Settings
from swarm_node.environments.host import EnvironmentInfo
from swarm_node.errors import ChildError, Rejected, SwarmNodeError
from swarm_node.node.evaluation import Evaluator
from swarm_node.node.home import Membership
from swarm_node.node.learner import Learner
from swarm_node.node.mixing import replay_settings
from swarm_node.node.parts import Parts, Tally
from swarm_node.node.rollout_maker import RolloutMaker, Scored
from swarm_node.node.snapshot import EvalPoint
from swarm_node.node.tasks import SeededTasks, chosen_families
from swarm_node.p2p.exchange import Exchange
from swarm_node.p2p.gates import PeerGates
from swarm_node.p2p.peers import Directory
from swarm_node.p2p.serving import Server
from swarm_node.p2p.verify import Expected, GroupVerifier, restored_group
from swarm_node.policy.experience.replay import ReplayBuffer
from swarm_node.policy.experience.slots import Slots
from swarm_node.policy.models.codec import check_tokens
from swarm_node.rollout import VerifiedGroup

_HEAL_SECONDS = 5.0
_POLLS_PER_HEARTBEAT = 10
_REPORT_SECONDS = 15.0
_STOP_SECONDS = 20.0
_FAULT_SECONDS = 1.0
_SEEN_SECONDS = 60.0
_LIST_PEERS = 3
_PARALLEL_PULLS = 4
_KNOWN_PEERS = 32
_KEEP_OWN_GROUPS = 4096
_REQUESTS_PER_SECOND = 50.0
_REQUEST_BURST = 500.0
_log = structlog.get_logger(__name__)


class Node:
    """One member of a swarm. `run` lives until `stop` is called."""

    def __init__(self, settings: Settings, membership: Membership, parts: Parts) -> None:
        self.settings = settings
        self.membership = membership
        self.parts = parts
        self.tally = Tally()
        self.state = "starting"
        self.info: EnvironmentInfo | None = None
        self.own_families: tuple[str, ...] = ()
        self.started = parts.clock.now()
        self.running_since: float | None = None
        self.directory = Directory(membership.identity.peer_id)
        self.buffer = ReplayBuffer(replay_settings(settings))
        self.slots = Slots(self.buffer, settings.sampling.tasks_per_call)
        # Separate generators, so that a slow peer does not change what is drawn for training.
        seed = f"{settings.run.seed}:{membership.identity.peer_id}"
        train_rng = random.Random(f"train:{seed}")  # noqa: S311 - reproducible, not secret
        self._share_rng = random.Random(f"share:{seed}")  # noqa: S311
        self._learner = Learner(settings, parts, self.tally, self.buffer, self.slots, train_rng)
        self._stop = asyncio.Event()
        self._changed = asyncio.Condition()
        self._evaluator: Evaluator | None = None
        self._maker: RolloutMaker | None = None
        self._exchange: Exchange | None = None

    def stop(self) -> None:
        """End `run` soon: finish the running update, store a checkpoint, close every part."""
        self._stop.set()

    async def run(self, on_running: Callable[[Sequence[str]], None] | None = None) -> None:
        """Live until `stop`, or until the update number that `run.updates` sets. `on_running` gets
        this node's addresses once peers can dial it.

        Raises:
            SwarmNodeError: the node cannot start or continue; the message says what to do.
        """
        try:
            await self._open()
            self.state = "running"
            self.running_since = self.parts.clock.now()
            if on_running is not None:
                on_running(self.parts.transport.addresses())
            await self._live()
            await self._learner.checkpoint()
        except BaseExceptionGroup as group:
            own, _ = group.split(SwarmNodeError)
            if own is None:
                raise
            raise _first(own) from group
        finally:
            await self._close()

    async def evaluate(self) -> EvalPoint:
        """Measure the held-out reward now and append it to the curve.

        Raises:
            SwarmNodeError: the node has not started, or the environment failed.
        """
        if self._evaluator is None:
            raise SwarmNodeError("the node is still starting; try again in a few seconds")
        point = await self._evaluator.measure()
        self.tally.evals.append(point)
        return point

    async def _live(self) -> None:
        async with asyncio.TaskGroup() as group:
            loops = {
                name: group.create_task(loop(), name=name) for name, loop in self._loops().items()
            }
            await self._stop.wait()
            self.state = "stopping"
            await self._notify()
            await asyncio.wait({loops["train"]}, timeout=_STOP_SECONDS)
            for task in loops.values():
                task.cancel()

    def _loops(self) -> Mapping[str, Callable[[], Coroutine[None, None, None]]]:
        return {
            "sample": self._sample,
            "train": self._train,
            "list": self._list,
            "pull": self._pull,
            "meet": self._meet,
            "evaluate": self._evaluate,
            "report": self._report,
        }

    async def _sample(self) -> None:
        """Sample groups whenever enough slots are free, publish them and admit them."""
        assert self._maker is not None
        while True:
            await self._until(lambda: self.slots.sampling_batch(self.parts.trainer.version) > 0)
            try:
                await self._maker.make(
                    self.slots.sampling_batch(self.parts.trainer.version), self._share
                )
            except ChildError as error:
                await self._environment_failed(error)

    async def _share(self, scored: Sequence[Scored]) -> None:
        """Publish own groups and admit them to the replay buffer."""
        for group in await self._sharing.publish(scored, self.parts.trainer.version):
            self._admit(group)
        self.tally.groups.published += len(scored)
        await self._notify()

    async def _train(self) -> None:
        """Update whenever a batch is ready; never wait for a peer."""
        limit = self.settings.run.updates
        while not self._stop.is_set():
            await self._until(
                lambda: self._stop.is_set() or self.buffer.ready(self.parts.trainer.version)
            )
            if not self._stop.is_set() and await self._learner.step(self._stop.is_set):
                await self._notify()
            if limit and self.tally.updates >= limit:
                self._stop.set()

    async def _list(self) -> None:
        """List the newest announcements of a few random peers, as many as can be pulled."""
        storage = self.parts.storage
        while True:
            free = self._free_external()
            wanted = free(None) - self._sharing.on_offer(free)
            self.tally.offered += await self._sharing.list_some(_LIST_PEERS, wanted)
            await self._notify()
            await storage.run(storage.retire, self.buffer.collect_departed())
            await storage.run(storage.prune, _KEEP_OWN_GROUPS)
            await asyncio.sleep(self.settings.network.poll_seconds)

    async def _pull(self) -> None:
        """Pull and verify offered groups while external slots are free. A few pulls run at once, so
        that a slow or lost answer does not delay the others."""
        async with asyncio.TaskGroup() as group:
            for _ in range(_PARALLEL_PULLS):
                group.create_task(self._pull_singly())

    async def _pull_singly(self) -> None:
        while True:
            await self._until(lambda: self._sharing.on_offer(self._free_external()) > 0)
            version = self.parts.trainer.version
            try:
                group = await self._sharing.pull(self._free_external(), version)
            except ChildError as error:
                await self._environment_failed(error)
                continue
            if group is not None:
                self._admit(group)
                self.tally.groups.received += 1
                await self._notify()

    async def _meet(self) -> None:
        """Find peers, announce this node, repair the network: often at first, then at every
        heartbeat."""
        network, storage, clock = self.settings.network, self.parts.storage, self.parts.clock
        heartbeat = _POLLS_PER_HEARTBEAT * network.poll_seconds
        pause, next_beat = 1.0, 0.0
        while True:
            known = await storage.run(storage.known_peers, _KNOWN_PEERS)
            addresses = [*network.bootstrap, *(a for peer in known for a in peer.addresses)]
            done = await self.parts.transport.heal(addresses)
            if done not in ("ok", "alone"):
                _log.info("network repaired", what=done)
            if clock.now() >= next_beat:
                await self._sharing.beat(self.parts.trainer.version, heartbeat)
                for peer in self.directory.live(clock.now(), pause):
                    await storage.run(storage.remember_peer, peer.peer_id, peer.addresses)
                next_beat = clock.now() + pause
                pause = min(heartbeat, pause * 1.5)
            await asyncio.sleep(min(pause, _HEAL_SECONDS))

    async def _evaluate(self) -> None:
        while True:
            try:
                await self.evaluate()
            except ChildError as error:
                await self._environment_failed(error)
            await asyncio.sleep(self.settings.run.eval_seconds)

    async def _report(self) -> None:
        """Log one line on what the node does and whether it gets better."""
        while True:
            await asyncio.sleep(_REPORT_SECONDS)
            tally = self.tally
            _log.info(
                "progress",
                version=self.parts.trainer.version,
                held_out=round(tally.evals[-1].all, 3) if tally.evals else None,
                peers=len(self.directory.live(self.parts.clock.now(), _SEEN_SECONDS)),
                published=tally.groups.published,
                trained_own=tally.groups.trained_own,
                trained_external=tally.groups.trained_external,
                rejected=tally.rejected.total(),
            )

    async def _open(self) -> None:
        parts = self.parts
        self.info = info = await parts.environment.start()
        self.own_families = chosen_families(self.settings.environment.families, info)
        if info.sandbox is not None and not info.sandbox.complete:
            _log.warning(
                "answers are judged in processes that can do harm", how=info.sandbox.described()
            )
        await self._learner.start()
        # A crash after the newest checkpoint lost no group, so the count comes from the log.
        self.tally.groups.published = await parts.storage.run(parts.storage.head)
        tasks = SeededTasks(
            info,
            self.own_families,
            parts.storage,
            parts.clock,
            seed=self.settings.run.seed,
            peer_id=self.membership.identity.peer_id,
            swarm_id=self.membership.swarm.swarm_id,
            common_share=self.settings.sampling.common_share,
        )
        self._maker = maker = RolloutMaker(
            self.settings,
            parts,
            self.tally,
            tasks,
            self.slots,
            self.membership.identity.peer_id,
        )
        self._evaluator = Evaluator(
            settings=self.settings,
            parts=parts,
            info=info,
            own_families=self.own_families,
            earlier=self.tally.evals[-1].seconds if self.tally.evals else 0.0,
        )
        self._exchange = self._open_exchange(info, maker)
        for row in await parts.storage.run(parts.storage.live, self.settings.experience.reuse):
            self.buffer.restore(restored_group(row), row.uses, parts.trainer.version)
        await parts.transport.start()
        _log.info(
            "node started",
            peer=self.membership.identity.peer_id,
            swarm=self.membership.swarm.name,
            version=parts.trainer.version,
            families=",".join(self.own_families),
        )

    def _open_exchange(self, info: EnvironmentInfo, maker: RolloutMaker) -> Exchange:
        parts, membership = self.parts, self.membership
        verifier = GroupVerifier(
            membership.swarm.swarm_id,
            Expected(info.name, info.version, frozenset(info.families), parts.policy),
            parts.storage,
            maker.judge,
            partial(check_tokens, parts.codec),
        )
        Server(
            transport=parts.transport,
            swarm=membership.swarm,
            chain=membership.chain,
            storage=parts.storage,
            directory=self.directory,
            gates=PeerGates(_REQUESTS_PER_SECOND, _REQUEST_BURST),
            rejected=self.tally.rejected,
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
            rejected=self.tally.rejected,
            clock=parts.clock,
            rng=self._share_rng,
        )

    @property
    def _sharing(self) -> Exchange:
        assert self._exchange is not None, "loops start after _open"
        return self._exchange

    def _free_external(self) -> Callable[[str | None], int]:
        """Free slots for peers' groups, of one author or of anybody."""
        return partial(self.slots.free_external, self.parts.trainer.version)

    def _admit(self, group: VerifiedGroup) -> None:
        refused = self.buffer.admit(group, self.parts.trainer.version)
        if isinstance(refused, Rejected):
            self._sharing.reject(refused, group.author)

    async def _environment_failed(self, error: SwarmNodeError) -> None:
        """Count and log the fault, then pause so that the environment's process can recover."""
        self.tally.faults["environment"] += 1
        _log.warning("the environment failed", error=str(error))
        await asyncio.sleep(_FAULT_SECONDS)

    async def _until(self, ready: Callable[[], bool]) -> None:
        async with self._changed:
            await self._changed.wait_for(ready)

    async def _notify(self) -> None:
        async with self._changed:
            self._changed.notify_all()

    async def _close(self) -> None:
        """Close every part, whatever state it is in; each bounds the time that it takes."""
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


def _first(group: BaseExceptionGroup[SwarmNodeError]) -> SwarmNodeError:
    """The first leaf of a group: the error that ended the others."""
    error = group.exceptions[0]
    return _first(error) if isinstance(error, BaseExceptionGroup) else error
