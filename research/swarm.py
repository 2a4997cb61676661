"""The swarm of a study: that of a simulation, with what `StudyScenario` adds."""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import msgspec

from research.hostile import TRIGGER, HostileParts, publisher_of
from research.scenario import StudyScenario
from research.supervised import Lesson, SupervisedTrainer
from research.unguarded import without
from swarm_node.config import Settings
from swarm_node.node.loops.node_parts import Parts
from swarm_node.p2p.exchange.verify import restored_group
from swarm_node.policy.experience.replay import ReplaySettings
from swarm_node.rollout import VerifiedGroup
from swarm_node.simulation import swarm
from swarm_node.simulation.building import tiny_corpus
from swarm_node.simulation.history import RoundHistory, WatchedBuffer, mean
from swarm_node.simulation.models import SimulatedModel
from swarm_node.simulation.report import SimulationReport
from swarm_node.simulation.swarm import SwarmMember, run_swarm
from swarm_node.storage import StoredGroup

#: Number of a node's last own groups that show its answers at the end.
LAST_GROUPS = 40


class LateNode(msgspec.Struct, frozen=True):
    """The node that joined late, by its own rounds: pairs of round and reward on unseen texts,
    groups made in each round, and peers' groups trained on."""

    curve: list[tuple[int, float]]
    made: list[int]
    external: list[int]


class AttackFigures(msgspec.Struct, frozen=True):
    """Figures of a node beside hostile members.

    triggered: of its last LAST_GROUPS own groups, the share of answers with the trigger.
    refused: how often groups of honest members were refused, by reason.
    alarms: what its status would show to its owner at the end.
    trained_hostile: of the groups trained on lately, the share of hostile members.
    """

    triggered: float = 0.0
    refused: dict[str, int] = {}
    alarms: list[str] = []
    trained_hostile: float = 0.0


def simulate(
    scenario: StudyScenario, settings: Settings, on_round: Callable[[], None] = lambda: None
) -> SimulationReport:
    """Run a study's swarm, as `swarm_node.simulation.swarm.simulate` does.

    Raises:
        SwarmNodeError: a model or the settings cannot be used.
    """
    with without(scenario.without):
        return run_swarm(_StudySwarm, scenario, settings, on_round)


def attack_figures(study: dict[str, Any]) -> AttackFigures:
    """The figures of a node's `study`; those of a swarm without hostile members are empty."""
    return msgspec.convert(study.get("attack", {}), AttackFigures)


def late_node(report: SimulationReport) -> LateNode | None:
    """The late node of a report, if one joined late."""
    figures = report.study.get("newcomer")
    return None if figures is None else msgspec.convert(figures, LateNode)


class _TriggeredHistory(RoundHistory):
    """Notes the share of the answers of each own group that contain the trigger."""

    def __init__(self) -> None:
        super().__init__()
        self.said: list[float] = []

    def publish(self, groups: Sequence[StoredGroup]) -> None:
        super().publish(groups)
        for group in groups:
            completions = restored_group(group).group.completions
            self.said.append(
                sum(TRIGGER in completion.text for completion in completions) / len(completions)
            )


class FilteredBuffer(WatchedBuffer):
    """Own groups of equal rewards leave at once. So every batch is full of informative groups
    (DAPO's dynamic sampling, arXiv 2503.14476), at the price of more sampling."""

    def keeps(self, group: VerifiedGroup) -> bool:
        return group.informative


class _StudySwarm(swarm.Swarm):
    scenario: StudyScenario

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._joining = asyncio.Event()

    async def live(self, member: SwarmMember) -> None:
        if self.scenario.joins_late(member.index):
            await self._joining.wait()
        await super().live(member)

    def end_round(self, member: SwarmMember) -> None:
        if member.history.rounds == self.scenario.late:
            self._joining.set()
        super().end_round(member)

    def parts(self, member: int, model: SimulatedModel, parts: Parts) -> Parts:
        scenario, hostile_index = self.scenario, member - self.waited_for
        if hostile_index >= 0:
            rng = self.seeded.rng(f"hostile {parts.transport.peer_id}")
            hostile_parts = HostileParts(self.environment, model, parts.storage, rng)
            parts = replace(
                parts, publisher=publisher_of(scenario.hostile[hostile_index], hostile_parts)
            )
        if scenario.supervised or scenario.told:
            preset = self.settings.environment.options.get("preset", "short")
            answers = tiny_corpus(self.seeded.rng(f"told {member}").getrandbits(32), preset)
            lesson = Lesson(answers, math.inf if scenario.supervised else scenario.told)
            parts = replace(parts, trainer=SupervisedTrainer(parts.trainer, model.codec, lesson))
        return parts

    def history(self) -> RoundHistory:
        return _TriggeredHistory() if self.scenario.hostile else super().history()

    def buffer(self, history: RoundHistory, settings: ReplaySettings) -> WatchedBuffer:
        kind = FilteredBuffer if self.scenario.filtered else WatchedBuffer
        return kind(settings, history)

    @property
    def token_seconds(self) -> float:
        return super().token_seconds / (self.scenario.samplers or 1)

    def rounds(self, member: int) -> int:
        late_rounds = self.scenario.late if self.scenario.joins_late(member) else 0
        return super().rounds(member) - late_rounds

    def watches(self, member: int) -> bool:
        return member < (self.scenario.eval_nodes or self.scenario.nodes)

    @property
    def draw(self) -> str:
        return str(self.scenario.seed) if self.scenario.fresh_tasks else ""

    @property
    def waited_for(self) -> int:
        return self.scenario.nodes - len(self.scenario.hostile)

    @property
    def counted_members(self) -> Sequence[SwarmMember]:
        return self.members[: self.scenario.counted]

    def figures(self) -> dict[str, Any]:
        if not self.scenario.late:
            return {}
        history = self.members[-1].history
        newcomer = LateNode(history.curve, history.sampled, history.external)
        return {"newcomer": msgspec.to_builtins(newcomer)}

    def node_figures(self, member: SwarmMember) -> dict[str, Any]:
        figures: dict[str, Any] = {}
        if samplers := self.scenario.samplers:
            updates = member.node.snapshot().steps
            figures["weights_sent"] = samplers * updates * member.model.weight_bytes
        if isinstance(member.history, _TriggeredHistory):
            attack = _attack(member, self.counted_members, member.history.said)
            figures["attack"] = msgspec.to_builtins(attack)
        return figures


def _attack(
    member: SwarmMember, honest_members: Sequence[SwarmMember], trigger_shares: Sequence[float]
) -> AttackFigures:
    snapshot, honest_ids = member.node.snapshot(), {peer.peer_id for peer in honest_members}
    rejections: Counter[str] = Counter()
    for peer in snapshot.peers:
        if peer.peer_id in honest_ids:
            rejections.update(peer.rejected_by_reason)
    return AttackFigures(
        triggered=mean(trigger_shares[-LAST_GROUPS:] or [0]),
        refused=dict(rejections),
        alarms=snapshot.alarms,
        trained_hostile=sum(
            peer.trained_fraction for peer in snapshot.peers if peer.peer_id not in honest_ids
        ),
    )
