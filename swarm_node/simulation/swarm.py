"""Builds a swarm of real nodes around simulated parts and lets it live through some rounds.

Each node is `swarm_node.node.node.Node` with an in-memory transport, a trainer and a sampler that
compute inline, and a database of its own in shared memory. All share one environment, which is only
read, and those of one model share its codec and a probe that measures held-out reward outside of
virtual time (`Kind`). A node's sampler and trainer keep separate models, as in a real node: while
one samples with version v the other makes v + 1. That is 3.3 MB per node for the tiny model (two
models, two moments, a gradient).
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from swarm_node.clock import Clock
from swarm_node.config import Settings
from swarm_node.environments.host import EnvironmentHost, EnvironmentInfo, InlineEnvironmentHost
from swarm_node.environments.registry import create_environment
from swarm_node.errors import ConfigError
from swarm_node.node.derive import trainer_settings
from swarm_node.node.evaluation import Evaluator
from swarm_node.node.home import Membership
from swarm_node.node.node import Node
from swarm_node.node.parts import Parts
from swarm_node.p2p.memory import MemoryNetwork, MemoryTransport
from swarm_node.policy.training.process import InlineTrainer
from swarm_node.policy.weights.store import shared_memory_dir
from swarm_node.simulation.kinds import Kind, deal, model_digests
from swarm_node.simulation.paced import Pace, PacedSampler, PacedTrainer
from swarm_node.simulation.record import Record, WatchedStorage
from swarm_node.simulation.report import (
    ModelCurve,
    Rounds,
    SimulatedNode,
    SimulationReport,
    make_report,
    plain,
)
from swarm_node.simulation.seeded import EPOCH, Seeded
from swarm_node.simulation.virtual_time import ACCOUNT, VirtualTimeLoop, run_virtual

#: Weights in two versions, checkpoint with two moments, database: in copies of the model.
_COPIES_ON_DISK = 12


@dataclass(frozen=True, slots=True)
class Plan:
    """What to simulate, besides the settings that all nodes share.

    `models` are "tiny" or directories, dealt to the nodes in turn; `rounds` are batches per node;
    `seed` decides everything that is left to chance; node i samples `specialised` of the task
    families, starting at family i × specialised, or all of them if 0; messages take a uniform draw
    from `delay` virtual seconds and are lost with probability `loss`; node speeds are uniform draws
    from `speeds`; samplers get weights `behind` updates late. Held-out reward is measured every
    `eval_rounds` rounds on `eval_tasks` tasks per family.

    Raises:
        ConfigError: a value is impossible; the message says what is possible.
    """

    nodes: int = 8
    rounds: int = 60
    seed: int = 0
    specialised: int = 0
    delay: tuple[float, float] = (0.0, 0.0)
    loss: float = 0.0
    speeds: tuple[float, float] = (1.0, 1.0)
    behind: int = 0
    pace: Pace = field(default_factory=Pace)
    eval_rounds: int = 10
    eval_tasks: int = 16
    models: tuple[str, ...] = ("tiny",)

    def __post_init__(self) -> None:
        if min(self.nodes, self.rounds, self.eval_rounds, self.eval_tasks) < 1:
            raise ConfigError("a simulation needs at least 1 node, 1 round and 1 held-out task")
        if not 1 <= len(self.models) <= self.nodes:
            raise ConfigError(
                f"{len(self.models)} models are dealt to {self.nodes} nodes: every one of at least "
                "1 model needs a node"
            )
        if not 0 <= self.seed < 1 << 32 or min(self.specialised, self.behind) < 0:
            raise ConfigError("the seed is within [0, 2^32), families and updates are 0 or more")
        if not 0 <= self.delay[0] <= self.delay[1] or not 0 <= self.loss <= 1:
            raise ConfigError("a delay is a range LO,HI of seconds >= 0, a loss within 0 and 1")
        if not 0 < self.speeds[0] <= self.speeds[1]:
            raise ConfigError("speeds are a range LO,HI of factors > 0")


def simulate(
    plan: Plan, settings: Settings, on_round: Callable[[], None] = lambda: None
) -> SimulationReport:
    """Run a whole swarm; blocks until it has finished. The same plan and settings give the same
    report, but for CPU seconds, on the same machine and torch version. `on_round` is called at the
    end of each round of each node.

    Raises:
        SwarmNodeError: a model or the settings cannot be used.
    """
    kinds = deal(plan.models, plan.nodes)
    copies = _COPIES_ON_DISK + plan.behind
    need = copies * sum(kind.weight_bytes for kind in kinds)
    work = shared_memory_dir("simulation", need=need)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # sums over several depend on how the work was split
    try:
        return run_virtual(lambda loop: _Swarm(plan, settings, kinds, work, loop, on_round).run())
    finally:
        torch.set_num_threads(threads)
        shutil.rmtree(work, ignore_errors=True)


def describe(plan: Plan, settings: Settings) -> dict[str, Any]:
    """All that decides a result, in plain values; models by their digests, because their paths do
    not. A report with the same description need not be made again.

    Raises:
        ModelError: there is no such model.
    """
    tables = {"network", "environment", "sampling", "experience", "training", "run"}
    chosen = settings.model_dump(mode="json", include=tables)
    return plain({"plan": {**asdict(plan), "models": model_digests(plan.models)}, **chosen})


@dataclass(slots=True)
class _Member:
    node: Node
    kind: Kind
    trainer: PacedTrainer
    evaluator: Evaluator
    record: Record
    speed: float
    probe_seconds: float = 0.0
    #: From here on as they were at the end of its last round.
    received_groups: int = 0
    sent: int = 0
    received: int = 0
    cpu_seconds: float = 0.0


class _Swarm:
    def __init__(
        self,
        plan: Plan,
        settings: Settings,
        kinds: Sequence[Kind],
        work: Path,
        loop: VirtualTimeLoop,
        on_round: Callable[[], None],
    ) -> None:
        self._plan = plan
        self._settings = settings
        self._kinds = kinds
        self._seeded = Seeded(plan.seed)
        self._work = work
        self._loop = loop
        self._on_round = on_round
        self._clock = Clock(now=loop.time, wall=lambda: EPOCH + loop.time())
        self._environment: EnvironmentHost = InlineEnvironmentHost(
            create_environment(settings.environment.name, settings.environment.options)
        )
        self._network = MemoryNetwork(self._seeded.rng("network"), delay=plan.delay, loss=plan.loss)
        self._members: list[_Member] = []
        self._unfinished = plan.nodes

    async def run(self) -> SimulationReport:
        info = await self._environment.start()
        speeds = self._seeded.rng("speeds")
        for index, membership in enumerate(self._seeded.memberships(self._plan.nodes)):
            speed = speeds.uniform(*self._plan.speeds)
            self._members.append(self._member(index, membership, info, speed))
        starts: dict[str, float] = {}
        for member in self._members:
            # One measurement for all that start from the same weights.
            if member.kind.name not in starts:
                starts[member.kind.name] = await self._measure(member)
            member.record.curve.append((0, starts[member.kind.name]))
        await asyncio.gather(*(self._live(member) for member in self._members))
        return self._report()

    async def _live(self, member: _Member) -> None:
        ACCOUNT.set(member.node.membership.identity.peer_id)
        await member.node.run()

    async def _round(self, member: _Member, weights: Path) -> None:
        plan, record = self._plan, member.record
        record.end_round(member.trainer.version)
        if record.rounds % plan.eval_rounds == 0 or record.rounds == plan.rounds:
            began = self._loop.spent()
            await member.kind.probe.load(weights, record.rounds)
            record.curve.append((record.rounds, await self._measure(member)))
            member.probe_seconds += self._loop.spent() - began
        if record.rounds == plan.rounds:
            self._finish(member)
        self._on_round()
        if self._unfinished == 0:
            # Nobody leaves before: the last to finish should not train without peers.
            for other in self._members:
                other.node.stop()

    def _finish(self, member: _Member) -> None:
        peer_id = member.node.membership.identity.peer_id
        member.sent, member.received = self._network.sent[peer_id], self._network.received[peer_id]
        member.received_groups = member.record.received
        member.cpu_seconds = self._loop.spent() - member.probe_seconds
        self._unfinished -= 1

    async def _measure(self, member: _Member) -> float:
        """Held-out reward of its kind's probe. It never waits, so no virtual time passes and
        nobody else's weights get into the shared probe."""
        return (await member.evaluator.measure()).all

    def _member(
        self, index: int, membership: Membership, info: EnvironmentInfo, speed: float
    ) -> _Member:
        plan, kind, record = self._plan, self._kinds[index], Record()
        families = _families(info.families, index, plan.specialised)
        settings = self._settings.model_copy(update={"model": kind.name})
        settings = _with(settings, "environment", families=list(families))
        place = self._work / str(index)
        place.mkdir()
        weights = place / "weights"
        weights.mkdir()
        inline = InlineTrainer(
            kind.directory,
            place / "checkpoints",
            weights,
            replace(trainer_settings(settings), device="cpu", dtype="float32"),
            clock=self._clock,
        )
        members = self._members

        async def on_round(weights: Path) -> None:
            await self._round(members[index], weights)

        trainer = PacedTrainer(inline, plan.pace.update_seconds / speed, plan.rounds, on_round)
        parts = Parts(
            transport=MemoryTransport(self._network, membership.identity),
            sampler=PacedSampler(
                kind.sampler(), plan.pace.token_seconds / speed, plan.behind, place
            ),
            trainer=trainer,
            environment=self._environment,
            storage=WatchedStorage(place / "node.db", record, wall=self._clock.wall),
            codec=kind.codec,
            policy=kind.policy,
            clock=self._clock,
            processes=dict,
        )
        evaluator = Evaluator(
            settings=_with(settings, "run", eval_tasks=plan.eval_tasks),
            parts=replace(parts, sampler=kind.probe),
            info=info,
            own_families=families,
            earlier=0.0,
        )
        node = Node(settings, membership, parts)
        return _Member(node, kind, trainer, evaluator, record, speed)

    def _report(self) -> SimulationReport:
        members = self._members
        records = [member.record for member in members]
        kinds = list(dict.fromkeys(self._kinds))
        rounds = Rounds(
            own=_per_round(sum, [record.own for record in records]),
            batch=_per_round(sum, [record.batch for record in records]),
            informative=_per_round(_mean, [record.informative for record in records]),
            external=_per_round(_mean, [record.external for record in records]),
            made=_per_round(_mean, [record.made for record in records]),
            mixed=_per_round(_mean, [record.mixed for record in records]),
        )
        return make_report(
            describe(self._plan, self._settings),
            _curve(records),
            [_model_curve(kind, members) for kind in kinds],
            rounds,
            [_row(member, kinds.index(member.kind)) for member in members],
            self._loop.time(),
        )


def _curve(records: Sequence[Record]) -> list[tuple[int, float]]:
    """Held-out reward by round, mean over nodes."""
    return [
        (points[0][0], _mean([reward for _, reward in points]))
        for points in zip(*(record.curve for record in records), strict=True)
    ]


def _model_curve(kind: Kind, members: Sequence[_Member]) -> ModelCurve:
    records = [member.record for member in members if member.kind is kind]
    policy = kind.policy
    return ModelCurve(policy.model.hex(), policy.tokenizer.hex(), len(records), _curve(records))


def _row(member: _Member, model: int) -> SimulatedNode:
    node, tally, record = member.node, member.node.tally, member.record
    return SimulatedNode(
        peer_id=node.membership.identity.peer_id,
        model=model,
        speed=member.speed,
        families=list(node.own_families),
        updates=tally.updates,
        skipped_updates=tally.skipped_updates,
        groups_made=sum(record.made),
        groups_received=member.received_groups,
        trained_own=sum(record.drawn) - sum(record.external),
        trained_external=sum(record.external),
        trained_foreign=sum(record.foreign),
        held_out_end=record.curve[-1][1],
        weights=member.trainer.digest,
        rejected=dict(tally.rejected),
        bytes_sent=member.sent,
        bytes_received=member.received,
        cpu_seconds=member.cpu_seconds,
        own_lag=_mean(record.own_lags or [0]),
        own_lag_most=max(record.own_lags, default=0),
        peers_lag=_mean(record.peers_lags or [0]),
        merged=node.buffer.stats().merged,
    )


def _families(families: Sequence[str], index: int, specialised: int) -> tuple[str, ...]:
    count = min(specialised, len(families)) or len(families)
    first = index * count if specialised else 0
    return tuple(families[(first + step) % len(families)] for step in range(count))


def _with(settings: Settings, table: str, **changes: Any) -> Settings:
    changed = getattr(settings, table).model_copy(update=changes)
    return settings.model_copy(update={table: changed})


def _per_round(
    combine: Callable[[Sequence[float]], float], columns: Sequence[Sequence[float]]
) -> list[float]:
    return [float(combine(values)) for values in zip(*columns, strict=True)]


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
