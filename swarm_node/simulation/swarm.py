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
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from swarm_node.clock import Clock
from swarm_node.config import Settings
from swarm_node.environments.host import EnvironmentHost, EnvironmentInfo, InlineEnvironmentHost
from swarm_node.environments.registry import create_environment
from swarm_node.environments.splits.split import SPLIT
from swarm_node.node.home.home import Membership
from swarm_node.node.loops.node import Node
from swarm_node.node.loops.node_parts import Parts, Tally
from swarm_node.node.loops.reporting.evaluation import Evaluator
from swarm_node.node.metrics.snapshot import EvalPoint
from swarm_node.node.start.assembly import assemble
from swarm_node.node.start.derive import trainer_settings
from swarm_node.p2p.transports.memory import MemoryNetwork, MemoryTransport
from swarm_node.policy.experience.replay import ReplaySettings
from swarm_node.policy.weights.store import shared_memory_dir
from swarm_node.simulation.history import (
    RoundHistory,
    WatchedBuffer,
    WatchedStorage,
    held_out_curve,
    mean,
    per_round,
    seen_curve,
)
from swarm_node.simulation.models import (
    SimulatedModel,
    deal,
    dealt_families,
)
from swarm_node.simulation.paced import PacedSampler, PacedTrainer
from swarm_node.simulation.report import (
    ModelCurve,
    RoundMetrics,
    SimulatedNode,
    SimulationReport,
    make_report,
    plain,
)
from swarm_node.simulation.scenario import Scenario
from swarm_node.simulation.seeded import EPOCH, Seeded
from swarm_node.simulation.virtual_time import ACCOUNT, ChargingLoop, run_charging

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
    return run_swarm(Swarm, scenario, settings, on_round)


def run_swarm(
    kind: Callable[..., Swarm],
    scenario: Any,
    settings: Settings,
    on_round: Callable[[], None] = lambda: None,
) -> SimulationReport:
    """Run a `Swarm`, or a study's, as `simulate` does."""
    models = deal(scenario.models, scenario.nodes)
    copies = _COPIES_ON_DISK + scenario.behind
    need = copies * sum(model.weight_bytes for model in models)
    work = shared_memory_dir("simulation", need=need)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # sums over several threads depend on how the work was split
    try:
        return run_charging(
            lambda loop: kind(scenario, settings, models, work, loop, on_round).run()
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
    values = settings.model_dump(mode="json", include=tables)
    del values["network"]["coordinator"]  # a simulated network has none
    return plain({"plan": scenario.plan(), "split": SPLIT, **values})


@dataclass(slots=True)
class SwarmMember:
    """A node of a swarm with what watches it."""

    index: int
    peer_id: str
    node: Node
    model: SimulatedModel
    trainer: PacedTrainer
    evaluator: Evaluator
    history: RoundHistory
    speed: float
    rounds: int
    probe_seconds: float = 0.0
    #: These four are taken at the end of its last round.
    received_groups: int = 0
    bytes_sent: int = 0
    bytes_received: int = 0
    cpu_seconds: float = 0.0


class Swarm:
    """The nodes of one simulation. A study derives from it; its hooks are the methods from `live`
    to `node_figures`."""

    def __init__(
        self,
        scenario: Scenario,
        settings: Settings,
        models: Sequence[SimulatedModel],
        work: Path,
        loop: ChargingLoop,
        on_round: Callable[[], None],
    ) -> None:
        self.scenario = scenario
        self.settings = settings
        self.seeded = Seeded(scenario.seed)
        self.environment = create_environment(
            settings.environment.name, settings.environment.options
        )
        self.members: list[SwarmMember] = []
        self._models = models
        self._work = work
        self._loop = loop
        self._on_round = on_round
        self._clock = Clock(now=loop.time, wall=lambda: EPOCH + loop.time())
        self._host: EnvironmentHost = InlineEnvironmentHost(
            self.environment, settings.environment.families
        )
        self._network = MemoryNetwork(
            self.seeded.rng("network"), delay=scenario.delay, loss=scenario.message_loss
        )
        self._finished_ids: set[str] = set()

    async def run(self) -> SimulationReport:
        """Run it once."""
        scenario, info = self.scenario, await self._host.start()
        speeds = self.seeded.rng("speeds")
        for index, membership in enumerate(self.seeded.memberships(scenario.nodes)):
            speed = speeds.uniform(*scenario.speeds)
            self.members.append(self._member(index, membership, info, speed))
        starts: dict[str, EvalPoint] = {}
        for member in self.members:
            # Nodes that start from the same weights share one measurement.
            if member.model.name not in starts:
                starts[member.model.name] = await self._measure(member)
            if self.watches(member.index):
                member.history.measure(starts[member.model.name])
        await asyncio.gather(*(self._live(member) for member in self.members))
        return self._report()

    async def live(self, member: SwarmMember) -> None:
        """Run a node until it is stopped."""
        await member.node.run()

    def parts(self, member: int, model: SimulatedModel, parts: Parts) -> Parts:
        """The parts of node `member`, whose storage is empty."""
        return parts

    def history(self) -> RoundHistory:
        """A record for a node."""
        return RoundHistory()

    def buffer(self, history: RoundHistory, settings: ReplaySettings) -> WatchedBuffer:
        """The replay buffer of a node."""
        return WatchedBuffer(settings, history)

    @property
    def token_seconds(self) -> float:
        """Virtual seconds that a node of speed 1 needs for a token."""
        return self.scenario.pace.token_seconds

    def rounds(self, member: int) -> int:
        """The number of batches of a node."""
        return self.scenario.rounds

    def watches(self, member: int) -> bool:
        """Check that the reward of a node is measured."""
        return True

    @property
    def draw(self) -> str:
        """Chooses the tasks by which reward is measured; they are the same for the same text."""
        return ""

    @property
    def waited_for(self) -> int:
        """The number of the first nodes whose last round ends the simulation."""
        return len(self.members)

    @property
    def counted_members(self) -> Sequence[SwarmMember]:
        """The members that a report counts as nodes."""
        return self.members

    def end_round(self, member: SwarmMember) -> None:
        """Note that a node has ended a round."""
        self._on_round()

    def figures(self) -> dict[str, Any]:
        """What a study reports of the whole swarm, in plain values."""
        return {}

    def node_figures(self, member: SwarmMember) -> dict[str, Any]:
        """What a study reports of a node, in plain values."""
        return {}

    async def _live(self, member: SwarmMember) -> None:
        ACCOUNT.set(member.peer_id)
        await self.live(member)

    async def _round(self, member: SwarmMember, weights: Path) -> None:
        history = member.history
        history.end_round(member.trainer.version)
        last = history.rounds == member.rounds
        if (last or self.scenario.is_eval_round(member.index, history.rounds)) and history.curve:
            start = self._loop.spent_seconds()
            await member.model.probe.load(weights, history.rounds)
            history.measure(await self._measure(member))
            member.probe_seconds += self._loop.spent_seconds() - start
        if last:
            self._finish(member)
        self.end_round(member)
        if all(peer.peer_id in self._finished_ids for peer in self.members[: self.waited_for]):
            # No node leaves earlier, so that the last one to finish still has its peers.
            for swarm_member in self.members:
                swarm_member.node.stop()

    def _finish(self, member: SwarmMember) -> None:
        member.bytes_sent = self._network.bytes_sent[member.peer_id]
        member.bytes_received = self._network.bytes_received[member.peer_id]
        member.received_groups = member.history.accepted_groups
        member.cpu_seconds = self._loop.spent_seconds() - member.probe_seconds
        self._finished_ids.add(member.peer_id)

    async def _measure(self, member: SwarmMember) -> EvalPoint:
        """Rewards with the weights in the probe of its model. The measurement never waits. So no
        virtual time passes, and no other node loads its weights meanwhile."""
        return await member.evaluator.measure()

    def _member(
        self, index: int, membership: Membership, info: EnvironmentInfo, speed: float
    ) -> SwarmMember:
        scenario, model, history = self.scenario, self._models[index], self.history()
        families = dealt_families(info.families, index, scenario.families_per_node)
        settings = self.settings.model_copy(update={"model": model.name})
        if scenario.families_per_node:
            settings = _with(settings, "environment", families=list(families))
        place = self._work / str(index)
        place.mkdir()
        inline = model.trainer(place, trainer_settings(settings), self._clock)

        async def on_round(weights: Path) -> None:
            await self._round(self.members[index], weights)

        rounds = self.rounds(index)
        trainer = PacedTrainer(inline, scenario.pace.update_seconds / speed, rounds, on_round)
        parts = Parts(
            transport=MemoryTransport(self._network, membership.identity),
            sampler=PacedSampler(
                model.sampler(), self.token_seconds / speed, scenario.behind, place
            ),
            trainer=trainer,
            environment=self._host,
            storage=WatchedStorage(place / "node.db", history, wall=self._clock.wall),
            codec=model.codec.asking(self.environment.asking.system),
            policy=model.policy,
            clock=self._clock,
            processes=dict,
            turns=info.turns,
            buffer=partial(self.buffer, history),
        )
        evaluator = Evaluator(
            sampling=settings.sampling,
            parts=replace(parts, sampler=model.probe),
            info=info,
            own_families=families,
            tasks=scenario.eval_tasks,
            elapsed=0.0,
            tally=Tally(),
            min_pause=settings.run.eval_seconds,
            draw=self.draw,
        )
        node = assemble(settings, membership, self.parts(index, model, parts))
        peer_id = membership.identity.peer_id
        return SwarmMember(index, peer_id, node, model, trainer, evaluator, history, speed, rounds)

    def _report(self) -> SimulationReport:
        members = self.counted_members
        histories = [member.history for member in members]
        models = list(dict.fromkeys(self._models))
        rounds = RoundMetrics(
            local_reward=per_round(sum, [history.local_rewards for history in histories]),
            batch_reward=per_round(sum, [history.batch for history in histories]),
            mixed_in_batch=per_round(mean, [history.mixed_drawn for history in histories]),
            external_in_batch=per_round(mean, [history.external for history in histories]),
            sampled=per_round(mean, [history.sampled for history in histories]),
            mixed_sampled=per_round(mean, [history.mixed for history in histories]),
        )
        return make_report(
            describe(self.scenario, self.settings),
            held_out_curve(histories),
            [_model_curve(model, members) for model in models],
            rounds,
            [
                _row(member, models.index(member.model), self.node_figures(member))
                for member in members
            ],
            self._loop.time(),
            seen_curve(histories),
            self.figures(),
        )


def _model_curve(model: SimulatedModel, members: Sequence[SwarmMember]) -> ModelCurve:
    histories = [member.history for member in members if member.model is model]
    policy = model.policy
    return ModelCurve(
        policy.model.hex(), policy.tokenizer.hex(), len(histories), held_out_curve(histories)
    )


def _row(member: SwarmMember, model: int, study: dict[str, Any]) -> SimulatedNode:
    snapshot, history = member.node.snapshot(), member.history
    return SimulatedNode(
        peer_id=snapshot.peer_id,
        model=model,
        speed=member.speed,
        families=snapshot.local_families,
        steps=snapshot.steps,
        skipped_batches=snapshot.skipped_batches,
        sampled=sum(history.sampled),
        accepted=member.received_groups,
        trained_local=sum(history.batch_sizes) - sum(history.external) - sum(history.past),
        trained_external=sum(history.external),
        trained_cross_model=sum(history.foreign),
        eval_reward=history.curve[-1][1] if history.curve else None,
        weights=member.trainer.digest,
        rejected=snapshot.rejected,
        bytes_sent=member.bytes_sent,
        bytes_received=member.bytes_received,
        cpu_seconds=member.cpu_seconds,
        local_staleness=mean(history.own_lags or [0]),
        max_local_staleness=max(history.own_lags, default=0),
        external_staleness=mean(history.peers_lags or [0]),
        trained_replay=sum(history.past),
        study=study,
    )


def _with(settings: Settings, table: str, **changes: Any) -> Settings:
    new_table = getattr(settings, table).model_copy(update=changes)
    return settings.model_copy(update={table: new_table})
