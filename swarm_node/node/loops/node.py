"""One node: a TaskGroup of named loops over a few bounded stores.

      sample ──groups──► [outbox + log: storage] ──► peers list and pull it (p2p/exchange/serving)
        ▲  │                                                        │
        │  └──own──► [replay buffer] ◄──verified── pull ◄── list ◄──┘
        │                  │ own + external                 meet: heartbeats, greetings, repair
     weights               ▼
        └────────────── train (child process)        evaluate: unseen, seen      record: history

| loop     | waits for                                  | wakes                   |
| restore  | the scoring worker, for stored rollouts    | train                   |
| sample   | free slots for own groups                  | train                   |
| train    | enough own groups; never for a peer        | sample (slots, weights) |
| list     | its poll interval                          | pull                    |
| pull     | offers and free slots for peers' groups    | train                   |
| meet     | its heartbeat interval                     | –                       |
| repair   | three seconds                              | try, meet               |
| try      | one peer that is no partner, at a time     | –                       |
| probe    | ten minutes, or another address            | –                       |
| relay    | two seconds                                | –                       |
| link     | two seconds                                | –                       |
| punch    | a member that asks for a direct link       | –                       |
| belong   | two seconds; not with --alone              | –                       |
| evaluate | its interval, or nine times its cost       | –                       |
| coordinate | a minute; only with a coordinator        | –                       |
| serve    | a request of the owner's programs          | –                       |
| track    | the end of the tracker; only with one      | –                       |
| record   | an update, a measurement, or a minute      | –                       |

`policy/experience/slots.py` has the table of slots: the backpressure between these loops.

A group is stored before it is shown to anybody, so a crash loses nothing published. Its use is
stored before it is trained on, so a crash trains nothing twice. The trainer and the environments
are child processes that may die; a dead peer, daemon or bootstrap never stops a loop. Every loop
runs under one supervisor (`supervisor.py`): it counts a fault that is not the end, and goes on.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable, Coroutine, Mapping, Sequence
from functools import partial

import structlog
from msgspec.structs import replace

from swarm_node.config import Settings, named_home
from swarm_node.environments.host import EnvironmentInfo
from swarm_node.errors import Rejected, SwarmNodeError, first_of
from swarm_node.node.loops.learning.learner import Learner
from swarm_node.node.loops.node_parts import Parts, Shared
from swarm_node.node.loops.peers.dialing import DialCheck, ping, try_everything
from swarm_node.node.loops.peers.membership_check import MembershipCheck
from swarm_node.node.loops.peers.violations import watch
from swarm_node.node.loops.reporting.recording import Recorder
from swarm_node.node.loops.reporting.snapshots import take_report, take_snapshot
from swarm_node.node.loops.sampling.fit import check_groups
from swarm_node.node.loops.sampling.tasks import chosen_families
from swarm_node.node.loops.supervisor import Step, Supervisor
from swarm_node.node.loops.workers import OpenWorkers, Workers
from swarm_node.node.metrics.curve import add
from swarm_node.node.metrics.samples import SampleRow
from swarm_node.node.metrics.snapshot import Ended, EvalPoint, NetworkReport, PingReport, Snapshot
from swarm_node.p2p.exchange.publishing import LocalGroup
from swarm_node.p2p.exchange.pulling import Turn
from swarm_node.p2p.exchange.verify import restored_groups
from swarm_node.p2p.reach.transport import ReachingTransport
from swarm_node.page.event_log import EventReport
from swarm_node.rollout import VerifiedGroup

_STOP_SECONDS, _KEEP_OWN_GROUPS = 20.0, 4096
_LIST_PEERS, _PARALLEL_LISTS, _PARALLEL_PULLS = 3, 12, 8
#: Pruning reads every row of the index: 28 ms of processor time for 4,096 groups, on a busy core.
_POLLS_PER_PRUNE = 10
_log = structlog.get_logger(__name__)


class Node:
    """One member of a swarm. `run` lasts until `stop` is called."""

    def __init__(
        self,
        *,
        settings: Settings,
        parts: Parts,
        shared_state: Shared,
        learner: Learner,
        reaching: ReachingTransport,
        open_work: OpenWorkers,
    ) -> None:
        """The node closes `parts` when `run` ends. `assembly.assemble` makes all these objects."""
        self.settings = settings
        self._parts = parts
        self._shared_state = shared_state
        self._tally = shared_state.tally
        self._buffer = shared_state.buffer
        self._slots = shared_state.slots
        self._learner = learner
        self._supervisor = Supervisor(self._tally.faults, self._tally.alarms, parts.clock)
        self._reaching = reaching
        self._open_work = open_work
        self._state = "starting"
        self._started_at = parts.clock.now()
        self._running_since: float | None = None
        self._info: EnvironmentInfo | None = None
        self._own_families: tuple[str, ...] = ()
        self._workers: Workers | None = None
        #: Groups of an earlier start that are not in the replay buffer yet.
        self._stored_groups: deque[VerifiedGroup] = deque()
        self._polls = 0
        #: Own groups since the start.
        self._sampled_groups = 0
        self._dials: DialCheck | None = None
        if parts.knock is not None:
            self._dials = DialCheck(shared_state.local, settings.network.bootstrap, parts.knock)
        self.membership_check: MembershipCheck | None = None
        self._stop = asyncio.Event()
        self._condition = asyncio.Condition()

    def stop(self) -> None:
        """End `run` soon: break off a start, finish an update, store a checkpoint, close all
        parts."""
        self._stop.set()

    def leave_if_refused(self, inviters: Sequence[str]) -> None:
        """Have `run` end once the swarm refuses this node for certain; see `MembershipCheck`."""
        local, storage = self._shared_state.local, self._parts.storage
        self.membership_check = MembershipCheck(local, storage, inviters, self.stop)

    def adopt(self, settings: Settings) -> None:
        """Apply new settings, which differ from the old ones in `at_once` keys only."""
        self.settings = settings
        self._reaching.mode = settings.network.relay
        self._learner.save_steps = settings.run.save_steps
        if self._workers is not None:
            self._workers.evaluator.adopt(settings.run.eval_tasks, settings.run.eval_seconds)

    async def run(
        self,
        on_running: Callable[[Sequence[str]], object] = lambda addresses: None,
        on_step: Callable[[str], None] = lambda step: None,
    ) -> Ended | None:
        """Run until `stop`, or until the update number that `run.max_steps` sets. `on_running` gets
        this node's addresses once peers can dial it, and `on_step` each part that is started.
        Returns the node's end; None if it was stopped during its start.

        Raises:
            SwarmNodeError: the node cannot start or continue; the message says what to do.
        """
        try:
            if not await self._opens(on_step):
                return None
            self._state = "running"
            self._running_since = self._parts.clock.now()
            on_running(self._parts.transport.addresses())
            await self._live()
            started_at = self._parts.clock.now()
            is_stored = await self._learner.checkpoint()
            seconds = self._parts.clock.now() - started_at
            return Ended(self._tally.steps, seconds, is_stored)
        except BaseExceptionGroup as group:
            errors, _ = group.split(SwarmNodeError)
            if errors is None:
                raise
            raise first_of(errors) from group
        finally:
            await self.close()

    async def close(self) -> None:
        """Close every part, whatever state it is in; each bounds the time that it takes. An error
        of one part leaves no other part open. `run` does it at its end."""
        parts = self._parts
        async with contextlib.AsyncExitStack() as stack:  # the last one in is closed first
            stack.callback(parts.storage.close)
            closes = [parts.environment.close, parts.trainer.close, parts.sampler.close]
            closes += [parts.tracker.close] if parts.tracker else []
            for close in (*closes, parts.transport.stop):
                stack.push_async_callback(_quietly, close)

    async def evaluate(self) -> EvalPoint:
        """Measure reward on unseen and on seen texts now and append it to the curve.

        Raises:
            SwarmNodeError: the node has not started, or the environment failed.
        """
        if self._workers is None:
            raise SwarmNodeError("the node is still starting", "try again in a few seconds")
        point = await self._workers.evaluator.measure()
        point = replace(point, isolated=self._tally.groups.trained_external == 0)
        add(self._tally.evals, point)
        return point

    async def network(self) -> NetworkReport:
        """Return the network as this node finds it now.

        Raises:
            SwarmNodeError: the node has not started, or asks nobody.
        """
        if self._state != "running" or self._work.prober is None:
            raise SwarmNodeError("the node is not running yet", "try again in a few seconds")
        await self._work.prober.refresh()
        report = await take_report(self._parts, self._shared_state, self._reaching)
        asker, url = self._work.exchange.asker, self.settings.network.coordinator
        report.tried.extend(await try_everything(self._shared_state.local, asker, self._dials, url))
        shot = self.snapshot()  # the tries may have found causes
        return replace(report, findings=shot.findings, causes=shot.causes)

    async def ping(self, peer_id: str, seconds: float) -> PingReport:
        """Make one round trip to a peer, which has `seconds` to answer.

        Raises:
            SwarmNodeError: the node has not started, or never heard of this peer.
        """
        if self._state != "running":
            raise SwarmNodeError("the node is not running yet; try again in a few seconds")
        local, exchange = self._shared_state.local, self._work.exchange
        return await ping(peer_id, seconds, local, exchange, self._reaching)

    def samples(self) -> list[SampleRow]:
        """Some answers, own and peers'."""
        return self._tally.samples.rows()

    def events(self) -> EventReport:
        """Return the log of what happened to peers."""
        return self._tally.events.report()

    def snapshot(self) -> Snapshot:
        """Return the snapshot of this node now."""
        return take_snapshot(
            self._parts,
            self._shared_state,
            self._reaching,
            self._workers.exchange.discovery if self._workers else None,
            model=self.settings.model,
            limit=self.settings.run.max_steps,
            levels=[] if self._workers is None else self._workers.levels.rows(),
            state=self._state,
            started_at=self._started_at,
            running_since=self._running_since,
            info=self._info,
            own_families=self._own_families,
            home=named_home(self.settings.home),
        )

    async def _live(self) -> None:
        async with asyncio.TaskGroup() as group:
            loops = {
                name: group.create_task(loop(), name=name) for name, loop in self._loops().items()
            }
            await self._stop.wait()
            self._state = "stopping"
            _log.info("stopping", sentence="the current step ends first")
            self._learner.may_load.set()
            await self._notify()
            patience = 0.0 if self._learner.is_restarting else _STOP_SECONDS
            if train := loops.get("train"):  # a member of another program's has none
                await asyncio.wait({train}, timeout=patience)
            for task in loops.values():
                task.cancel()

    def _loops(self) -> Mapping[str, Callable[[], Coroutine[None, None, None]]]:
        """All loops, each under the supervisor: those that repeat one step, and the others."""
        repeat, connectivity = self._supervisor.repeat, self._work.connectivity
        return {
            **({"restore": self._restore} if self._stored_groups else {}),
            "sample": partial(repeat, "sample", self._sample),
            "train": self._train,
            "list": self._list,
            "pull": self._pull,
            "meet": partial(repeat, "meet", connectivity.meet),
            "repair": partial(repeat, "repair", connectivity.repair),
            "try": partial(repeat, "try", connectivity.try_peers),
            **{name: partial(repeat, name, step) for name, step in self._further_steps().items()},
            **self._punching(),
            "evaluate": partial(repeat, "evaluate", self._evaluate),
            "record": partial(
                repeat, "record", Recorder(self._parts, self._shared_state, self.snapshot).step
            ),
        }

    async def _restore(self) -> None:
        """Admit the multi-turn rollouts that an earlier start stored and did not train on. A
        scoring worker re-runs them one by one: half a second for a thousand groups of a game, and
        up to its limit for each of an environment that is slow."""
        while self._stored_groups:
            group = self._stored_groups.popleft()
            await self._supervisor.attempt("restore", partial(self._restore_one, group))
            await self._notify()

    async def _restore_one(self, group: VerifiedGroup) -> None:
        storage = self._parts.storage
        full_group = await self._work.exchange.verifier.rescore(group)
        if full_group is None:
            await storage.run(storage.retire, [group.id])
        else:
            self._buffer.admit(full_group, self._parts.trainer.version)

    def _further_steps(self) -> Mapping[str, Step]:
        """The steps of loops that not every node has. A node without a prober needs no relay, and
        few nodes have a coordinator."""
        steps: dict[str, Step] = {}
        if self._work.prober is not None:
            relay, link = self._work.connectivity.relay, self._work.connectivity.link
            steps |= {"probe": self._work.prober.step, "relay": relay, "link": link}
        if (guests := self._parts.guests) is not None:
            steps["serve"] = guests.step
        if (tracker := self._parts.tracker) is not None:
            steps["track"] = tracker.step
        if self._dials is not None:
            steps["dial"] = self._dials.step
        if self.membership_check is not None:
            steps["belong"] = partial(self.membership_check.step, self._work.me)
        if self._work.coordinator_loop is not None:
            steps["coordinate"] = partial(self._work.coordinator_loop.step, self.snapshot)
        return steps

    def _punching(self) -> Mapping[str, Callable[[], Coroutine[None, None, None]]]:
        """The loops that open direct links, which take many steps at once."""
        if self._work.puncher is None:
            return {}
        return {"punch": partial(self._work.puncher.run, partial(self._supervisor.repeat, "punch"))}

    async def _sample(self) -> None:
        """Sample groups once enough slots are free, publish them and admit them."""
        await self._until(lambda: self._slots.sampling_batch(self._parts.trainer.version) > 0)
        count = self._slots.sampling_batch(self._parts.trainer.version)
        await self._work.maker.make(count, self._share)

    async def _share(self, new_groups: Sequence[LocalGroup]) -> None:
        """Publish own groups and admit them to the replay buffer."""
        publisher, groups = self._work.exchange.publisher, self._tally.groups
        previous_count, oversize = publisher.announced, publisher.oversize
        local_groups = await publisher.publish(new_groups, self._parts.trainer.version)
        for group in local_groups:
            self._admit(group)
        self._sampled_groups += len(local_groups)
        await self._work.levels.note(local_groups)
        groups.sampled += len(local_groups)
        groups.announced += publisher.announced - previous_count
        if publisher.oversize > oversize:
            self._tally.faults["group_too_large"] += publisher.oversize - oversize
        await self._notify()

    async def _train(self) -> None:
        """Update whenever a batch is ready; never wait for a peer."""
        while not self._stop.is_set():
            await self._supervisor.attempt("train", self._train_once)

    async def _train_once(self) -> None:
        limit = self.settings.run.max_steps
        if limit and self._tally.steps >= limit:  # perhaps at an earlier start
            self._stop.set()
            return
        await self._until(
            lambda: self._stop.is_set() or self._buffer.ready(self._parts.trainer.version)
        )
        reject = self._work.exchange.asker.reject
        if not self._stop.is_set() and await self._learner.step(self._stop.is_set, reject):
            await self._notify()

    async def _list(self) -> None:
        """List the newest announcements of a few random peers, as many as can be pulled. A round
        does not wait for peers of the last round that answer late or never."""
        free_lists = asyncio.Semaphore(_PARALLEL_LISTS)
        async with asyncio.TaskGroup() as group:
            await self._supervisor.repeat("list", partial(self._list_some, group, free_lists))

    async def _list_some(self, group: asyncio.TaskGroup, free_lists: asyncio.Semaphore) -> None:
        storage = self._parts.storage
        puller, free = self._work.exchange.puller, self._free_external()
        for turn in puller.turns(_LIST_PEERS, free(None) - puller.on_offer(free)):
            if not free_lists.locked():
                await free_lists.acquire()
                listing = self._supervisor.attempt("list", partial(self._list_one, turn))
                task = group.create_task(listing)
                task.add_done_callback(lambda _: free_lists.release())
        watch(self._shared_state, self._shared_state.local.peer_id, self._parts.clock.now())
        await self._notify()
        if departed_ids := self._buffer.collect_departed():
            await storage.run(storage.retire, departed_ids)
        if self._polls % _POLLS_PER_PRUNE == 0:
            await storage.run(storage.prune, _KEEP_OWN_GROUPS)
        self._polls += 1
        await asyncio.sleep(self.settings.network.poll_seconds)

    async def _list_one(self, turn: Turn) -> None:
        self._tally.offered_by.update(await self._work.exchange.puller.list_one(turn))
        await self._notify()

    async def _pull(self) -> None:
        """Pull and verify offered groups while external slots are free. A few pulls run at once, so
        that a slow or lost answer does not delay the others."""
        puller, free_pulls = self._work.exchange.puller, asyncio.Semaphore(_PARALLEL_PULLS)
        async with asyncio.TaskGroup() as group:
            while True:
                await free_pulls.acquire()
                await self._until(lambda: puller.on_offer(self._free_external()) > 0)
                task = group.create_task(self._supervisor.attempt("pull", self._pull_one))
                task.add_done_callback(lambda _: free_pulls.release())
                await asyncio.sleep(0)  # the pull draws its offer, which is then no offer any more

    async def _pull_one(self) -> None:
        version = self._parts.trainer.version
        group = await self._work.exchange.puller.pull(self._free_external(), version)
        if group is not None:
            self._admit(group)
            self._tally.groups.accepted += 1
            self._tally.samples.external(group)
            await self._notify()

    async def _evaluate(self) -> None:
        """Measure one point and rest. The rest comes after a failure too: a point is dear.

        The first point waits until the first update has its groups, and is sampled while the
        trainer is busy. So it delays neither, and only the weights of that update wait for it. A
        sampler that rests during updates finishes its answers with those weights."""
        await self._until(self._has_first_groups)
        await self._supervisor.attempt("evaluate", self.evaluate)
        self._learner.may_load.set()
        await self._work.evaluator.rest()

    async def _opens(self, on_step: Callable[[str], None]) -> bool:
        """Open all parts; return False if `stop` came first."""
        async with asyncio.TaskGroup() as group:
            opening = group.create_task(self._open(on_step))
            stop_task = group.create_task(self._stop.wait())
            opening.add_done_callback(lambda _: stop_task.cancel())
            stop_task.add_done_callback(lambda _: opening.cancel())
        return not opening.cancelled()

    async def _open(self, on_step: Callable[[str], None]) -> None:
        parts = self._parts
        on_step("tasks")
        self._info = info = await parts.environment.start()
        self._own_families = chosen_families(self.settings.environment.families, info)
        check_groups(info, parts.codec, self.settings.sampling)
        if info.sandbox is not None and not info.sandbox.complete:
            sandbox = info.sandbox.describe()
            _log.warning("completions are scored without a full sandbox", sandbox=sandbox)
        await self._learner.start(on_step)
        if not self._tally.evals:
            self._learner.may_load.clear()
        # A crash after the newest checkpoint lost no group, so the database has the count.
        self._tally.groups.sampled = await parts.storage.run(parts.storage.published_count)
        self._workers = self._open_work(info, self._own_families)
        await self._workers.levels.restore()
        self.adopt(self.settings)  # they may be others than at the start
        ground = info.name, info.version
        self._stored_groups.extend(await parts.storage.run(restored_groups, parts.storage, *ground))
        if info.turns == 1:  # no scoring worker is asked
            while self._stored_groups:
                await self._restore_one(self._stored_groups.popleft())
        on_step("network")
        await parts.transport.start()
        _log.info(
            "node started",
            peer=self._shared_state.local.peer_id,
            swarm=self._shared_state.local.swarm.name,
            version=parts.trainer.version,
            families=",".join(self._own_families),
        )

    def _has_first_groups(self) -> bool:
        """Check that the first update since the start has its groups, or lacks none of the node's
        own."""
        return (
            self._sampled_groups >= self._buffer.mixture.own
            or self._tally.updating.count > 0
            or self._buffer.ready(self._parts.trainer.version)
        )

    @property
    def _work(self) -> Workers:
        assert self._workers is not None, "loops start after _open"
        return self._workers

    def _free_external(self) -> Callable[[str | None], int]:
        """Return a function that counts free slots for peers' groups, of one author or of any."""
        return partial(self._slots.free_external, self._parts.trainer.version)

    def _admit(self, group: VerifiedGroup) -> None:
        result = self._buffer.admit(group, self._parts.trainer.version)
        if isinstance(result, Rejected):
            self._work.exchange.asker.reject(result, group.author)

    async def _until(self, is_ready: Callable[[], bool]) -> None:
        async with self._condition:
            await self._condition.wait_for(is_ready)

    async def _notify(self) -> None:
        async with self._condition:
            self._condition.notify_all()


async def _quietly(close: Callable[[], Coroutine[None, None, None]]) -> None:
    with contextlib.suppress(SwarmNodeError):
        await close()
