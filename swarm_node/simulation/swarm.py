"""Builds a swarm of real nodes around simulated parts and runs it for some rounds.

`swarm_node.node.start.assembly` makes each node, as it makes a real one. The parts are simulated:
an in-memory transport, a trainer and a sampler that compute inline, and a database of the node's
own in shared memory. All nodes share one environment, which they only read. The nodes of one model
share its codec and its probe (`SimulatedModel`).

A node's sampler and trainer keep separate models, as in a real node: the sampler uses version v
while the trainer makes v + 1. For the tiny model that is 3.3 MB per node (two models, two moments
and a gradient).
"""

from __future__ import annotations

import asyncio
import math
import shutil
from collections import Counter
from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from swarm_node.clock import Clock
from swarm_node.config import Settings
from swarm_node.environments.host import EnvironmentHost, EnvironmentInfo, InlineEnvironmentHost
from swarm_node.environments.registry import create_environment
from swarm_node.environments.split import SPLIT
from swarm_node.node.figures.snapshot import EvalPoint
from swarm_node.node.home.home import Membership
from swarm_node.node.loops.evaluation import Evaluator
from swarm_node.node.loops.node import Node
from swarm_node.node.loops.parts import Parts, Tally
from swarm_node.node.start.assembly import assemble
from swarm_node.node.start.derive import trainer_settings
from swarm_node.p2p.transports.memory import MemoryNetwork, MemoryTransport
from swarm_node.policy.experience.replay import MAX_AGE, ReplayBuffer, ReplaySettings
from swarm_node.policy.weights.store import shared_memory_dir
from swarm_node.simulation.building import tiny_corpus
from swarm_node.simulation.history import (
    RoundHistory,
    WatchedStorage,
    held_out_curve,
    mean,
    per_round,
    seen_curve,
)
from swarm_node.simulation.hostile import TRIGGER, HostileParts, corrupt
from swarm_node.simulation.models import (
    SimulatedModel,
    deal,
    dealt_families,
)
from swarm_node.simulation.paced import PacedSampler, PacedTrainer
from swarm_node.simulation.report import (
    LAST_GROUPS,
    LateNode,
    ModelCurve,
    RoundFigures,
    SimulatedNode,
    SimulationReport,
    make_report,
    plain,
)
from swarm_node.simulation.scenario import Scenario
from swarm_node.simulation.seeded import EPOCH, Seeded
from swarm_node.simulation.supervised import Lesson
from swarm_node.simulation.unguarded import without
from swarm_node.simulation.variants import VariantBuffer
from swarm_node.simulation.virtual_time import ACCOUNT, ChargingLoop, run_charging
from swarm_node.storage import Storage

#: Disk space of a node, in sizes of its model: two versions of the weights, a checkpoint with two
#: moments, and the database.
_COPIES_ON_DISK = 12


def simulate(
    scenario: Scenario, settings: Settings, on_round: Callable[[], None] = lambda: None
) -> SimulationReport:
    """Run a whole swarm and block until it has finished.

    The same scenario and settings give the same report on the same machine and torch version,
    except for CPU seconds. `on_round` is called at the end of each round of each node.

    Raises:
        SwarmNodeError: a model or the settings cannot be used.
    """
    models = deal(scenario.models, scenario.nodes)
    copies = _COPIES_ON_DISK + scenario.behind
    need = copies * sum(model.weight_bytes for model in models)
    work = shared_memory_dir("simulation", need=need)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # sums over several threads depend on how the work was split
    try:
        with without(scenario.without):
            return run_charging(
                lambda loop: _Swarm(scenario, settings, models, work, loop, on_round).run()
            )
    finally:
        torch.set_num_threads(threads)
        shutil.rmtree(work, ignore_errors=True)


def describe(scenario: Scenario, settings: Settings) -> dict[str, Any]:
    """Everything that decides a result, in plain values. A report with the same description is not
    made again.

    Raises:
        ModelError: there is no such model.
    """
    tables = {"network", "environment", "sampling", "experience", "training", "run"}
    chosen = settings.model_dump(mode="json", include=tables)
    # Removed settings, as earlier runs had them, so that those stay valid.
    chosen["sampling"] |= {"over_provision": 1.0, "sync": "file", "common_share": scenario.common}
    chosen["experience"] |= {"reuse": 1, "max_age": MAX_AGE, "filter_own": scenario.filtered}
    chosen["training"]["activation_checkpointing"] = False
    del chosen["network"]["coordinator"]  # a simulated network has none
    plan = scenario.plan()
    if past := chosen["experience"].pop("past"):  # where it stood before it was a setting
        plan["own_past"] = past
    return plain({"plan": plan, "split": SPLIT, **chosen})


@dataclass(slots=True)
class _Member:
    peer_id: str
    node: Node
    model: SimulatedModel
    trainer: PacedTrainer
    evaluator: Evaluator
    history: RoundHistory
    speed: float
    storage: Storage
    rounds: int
    measured: Callable[[int], bool]
    probe_seconds: float = 0.0
    #: These four are taken at the end of its last round.
    received_groups: int = 0
    sent: int = 0
    received: int = 0
    cpu_seconds: float = 0.0


class _Swarm:
    def __init__(
        self,
        scenario: Scenario,
        settings: Settings,
        models: Sequence[SimulatedModel],
        work: Path,
        loop: ChargingLoop,
        on_round: Callable[[], None],
    ) -> None:
        self._scenario = scenario
        self._settings = settings
        self._models = models
        self._seeded = Seeded(scenario.seed)
        self._work = work
        self._loop = loop
        self._on_round = on_round
        self._clock = Clock(now=loop.time, wall=lambda: EPOCH + loop.time())
        made = create_environment(settings.environment.name, settings.environment.options)
        self._made = made
        self._environment: EnvironmentHost = InlineEnvironmentHost(
            made, settings.environment.families
        )
        self._network = MemoryNetwork(
            self._seeded.rng("network"), delay=scenario.delay, loss=scenario.loss
        )
        self._members: list[_Member] = []
        self._unfinished = scenario.nodes - len(scenario.hostile)
        self._joining = asyncio.Event()

    async def run(self) -> SimulationReport:
        scenario, info = self._scenario, await self._environment.start()
        speeds = self._seeded.rng("speeds")
        for index, membership in enumerate(self._seeded.memberships(scenario.nodes)):
            speed = speeds.uniform(*scenario.speeds)
            self._members.append(self._member(index, membership, info, speed))
        starts: dict[str, EvalPoint] = {}
        watched: list[_Member] = []
        for member in self._members:
            # Nodes that start from the same weights share one measurement.
            if member.model.name not in starts:
                starts[member.model.name] = await self._measure(member)
            if len(watched) < (scenario.eval_nodes or scenario.nodes):
                watched.append(member)
                member.history.measure(starts[member.model.name])
        hostile = self._members[scenario.nodes - len(scenario.hostile) :]
        for member, kind in zip(hostile, scenario.hostile, strict=True):
            rng = self._seeded.rng(f"hostile {member.peer_id}")
            corrupt(member.node, kind, HostileParts(self._made, member.model, member.storage, rng))
        await asyncio.gather(*(self._live(member) for member in self._members))
        return self._report()

    async def _live(self, member: _Member) -> None:
        ACCOUNT.set(member.peer_id)
        if member is self._newcomer:
            await self._joining.wait()
        await member.node.run()

    @property
    def _newcomer(self) -> _Member | None:
        return self._members[-1] if self._scenario.late else None

    @property
    def _counted(self) -> list[_Member]:
        """The members that a report counts as nodes."""
        apart = len(self._scenario.hostile) + (self._scenario.late > 0)
        return self._members[: self._scenario.nodes - apart]

    async def _round(self, member: _Member, weights: Path) -> None:
        history = member.history
        history.end_round(member.trainer.version)
        due = member.measured(history.rounds) or history.rounds == member.rounds
        if due and history.curve:
            began = self._loop.spent()
            await member.model.probe.load(weights, history.rounds)
            history.measure(await self._measure(member))
            member.probe_seconds += self._loop.spent() - began
        if history.rounds == member.rounds:
            self._finish(member)
        if history.rounds == self._scenario.late:
            self._joining.set()
        self._on_round()
        if self._unfinished == 0:
            # No node leaves earlier, so that the last one to finish still has its peers.
            for other in self._members:
                other.node.stop()

    def _finish(self, member: _Member) -> None:
        hostile = len(self._scenario.hostile)
        member.sent = self._network.sent[member.peer_id]
        member.received = self._network.received[member.peer_id]
        member.received_groups = member.history.received
        member.cpu_seconds = self._loop.spent() - member.probe_seconds
        self._unfinished -= member in self._members[: len(self._members) - hostile]

    async def _measure(self, member: _Member) -> EvalPoint:
        """Rewards with the weights in the probe of its model. The measurement never waits. So no
        virtual time passes, and no other node loads its weights meanwhile."""
        return await member.evaluator.measure()

    def _member(
        self, index: int, membership: Membership, info: EnvironmentInfo, speed: float
    ) -> _Member:
        scenario, model = self._scenario, self._models[index]
        history = RoundHistory(trigger=TRIGGER if scenario.hostile else "")
        families = dealt_families(info.families, index, scenario.specialised)
        settings = self._settings.model_copy(update={"model": model.name})
        if scenario.specialised:
            settings = _with(settings, "environment", families=list(families))
        place = self._work / str(index)
        place.mkdir()
        late, newcomer = scenario.late, scenario.late > 0 and index == scenario.nodes - 1
        rounds = scenario.rounds - late * newcomer
        seldom = replace(scenario, eval_rounds=late, eval_at=()) if late else scenario
        measured = scenario.measured if newcomer else seldom.measured
        inline = model.trainer(place, trainer_settings(settings), self._clock, self._lesson(index))
        members = self._members

        async def on_round(weights: Path) -> None:
            await self._round(members[index], weights)

        trainer = PacedTrainer(inline, scenario.pace.update_seconds / speed, rounds, on_round)
        storage = WatchedStorage(place / "node.db", history, wall=self._clock.wall)
        parts = Parts(
            transport=MemoryTransport(self._network, membership.identity),
            sampler=PacedSampler(
                model.sampler(),
                scenario.pace.token_seconds / speed / (scenario.samplers or 1),
                scenario.behind,
                place,
            ),
            trainer=trainer,
            environment=self._environment,
            storage=storage,
            codec=model.codec.asking(self._made.asking.system),
            policy=model.policy,
            clock=self._clock,
            processes=dict,
            turns=info.turns,
            buffer=partial(self._buffer, history),
            common_share=scenario.common,
        )
        evaluator = Evaluator(
            sampling=settings.sampling,
            parts=replace(parts, sampler=model.probe),
            info=info,
            own_families=families,
            tasks=scenario.eval_tasks,
            earlier=0.0,
            tally=Tally(),
            least=settings.run.eval_seconds,
            draw=str(scenario.seed) if scenario.fresh_tasks else "",
        )
        node = assemble(settings, membership, parts)
        peer_id = membership.identity.peer_id
        parted = (evaluator, history, speed, storage, rounds, measured)
        return _Member(peer_id, node, model, trainer, *parted)

    def _lesson(self, index: int) -> Lesson | None:
        """The right answers that a node is told; their tasks are its own."""
        scenario = self._scenario
        if not (scenario.supervised or scenario.told):
            return None
        preset = self._settings.environment.options.get("preset", "short")
        answers = tiny_corpus(self._seeded.rng(f"told {index}").getrandbits(32), preset)
        return Lesson(answers, math.inf if scenario.supervised else scenario.told)

    def _buffer(self, history: RoundHistory, settings: ReplaySettings) -> ReplayBuffer:
        """The replay buffer of a node, which tells its history of each batch."""
        scenario = self._scenario
        settings = replace(settings, merge=scenario.common > 0)
        return VariantBuffer(
            settings, scenario.by_rows, filtered=scenario.filtered, on_draw=history.draw
        )

    def _report(self) -> SimulationReport:
        members, newcomer = self._counted, self._newcomer
        honest = {member.peer_id for member in members}
        histories = [member.history for member in members]
        models = list(dict.fromkeys(self._models))
        rounds = RoundFigures(
            own=per_round(sum, [history.own for history in histories]),
            batch=per_round(sum, [history.batch for history in histories]),
            informative=per_round(mean, [history.informative for history in histories]),
            external=per_round(mean, [history.external for history in histories]),
            made=per_round(mean, [history.made for history in histories]),
            mixed=per_round(mean, [history.mixed for history in histories]),
        )
        return make_report(
            describe(self._scenario, self._settings),
            held_out_curve(histories),
            [_model_curve(model, members) for model in models],
            rounds,
            [
                _row(member, models.index(member.model), honest, self._scenario.samplers)
                for member in members
            ],
            self._loop.time(),
            LateNode(newcomer.history.curve, newcomer.history.made, newcomer.history.external)
            if newcomer
            else None,
            seen_curve(histories),
        )


def _model_curve(model: SimulatedModel, members: Sequence[_Member]) -> ModelCurve:
    histories = [member.history for member in members if member.model is model]
    policy = model.policy
    return ModelCurve(
        policy.model.hex(), policy.tokenizer.hex(), len(histories), held_out_curve(histories)
    )


def _row(member: _Member, model: int, honest: AbstractSet[str], samplers: int) -> SimulatedNode:
    seen, history = member.node.snapshot(), member.history
    refused: Counter[str] = Counter()
    for peer in seen.peers:
        if peer.peer_id in honest and history.trigger:
            refused.update(peer.refused)
    return SimulatedNode(
        peer_id=seen.peer_id,
        model=model,
        speed=member.speed,
        families=seen.own_families,
        updates=seen.updates,
        skipped_updates=seen.skipped_updates,
        groups_made=sum(history.made),
        groups_received=member.received_groups,
        trained_own=sum(history.drawn) - sum(history.external) - sum(history.past),
        trained_external=sum(history.external),
        trained_foreign=sum(history.foreign),
        held_out_end=history.curve[-1][1] if history.curve else None,
        weights=member.trainer.digest,
        rejected=seen.rejected,
        bytes_sent=member.sent,
        bytes_received=member.received,
        cpu_seconds=member.cpu_seconds,
        own_lag=mean(history.own_lags or [0]),
        own_lag_most=max(history.own_lags, default=0),
        peers_lag=mean(history.peers_lags or [0]),
        merged=seen.buffer["merged"],
        triggered=mean(history.said[-LAST_GROUPS:] or [0]),
        refused=dict(refused),
        alarms=seen.alarms if history.trigger else [],
        trained_past=sum(history.past),
        weights_sent=samplers * seen.updates * member.model.weight_bytes,
        trained_hostile=sum(peer.share for peer in seen.peers if peer.peer_id not in honest)
        if history.trigger
        else 0.0,
    )


def _with(settings: Settings, table: str, **changes: Any) -> Settings:
    changed = getattr(settings, table).model_copy(update=changes)
    return settings.model_copy(update={table: changed})
