"""Observes one simulated node, which does not know of it."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from swarm_node.node.metrics.snapshot import EvalPoint
from swarm_node.p2p.exchange.verify import restored_group
from swarm_node.policy.experience.replay import Drawn, ReplayBuffer, ReplaySettings
from swarm_node.rollout import Provenance
from swarm_node.storage import Storage, StoredGroup, WindowRow

#: Rewards closer than this are equal, as in `VerifiedGroup.informative`.
_EQUAL_WITHIN = 1e-6


class _Outcome(NamedTuple):
    reward: float
    mixed: bool
    provenance: Provenance
    version: int


@dataclass
class RoundHistory:
    """Record of a node, with one entry per round (a batch the node trained on) in most lists.

    local_rewards: mean reward of the groups that the node sampled since its last round, whether or
        not it trained on them; the previous entry again if it sampled none.
    batch: mean reward of the groups trained on, which is SAPO's own metric.
    batch_sizes, mixed_drawn, external, foreign: groups trained on; those with mixed rewards;
        external ones; cross-model ones.
    sampled, mixed: groups sampled, and those of them with mixed rewards.
    curve, train_curve: pairs of round and reward on held-out and on training prompts, one per
        measurement.
    accepted_groups: external groups that were accepted, over all rounds.
    own_lags, peers_lags: one entry per group trained on. It says by how many updates the policy
        that sampled the group was older than the one it trained. Such versions compare, because
        all nodes of a simulation count updates from the same start.
    past: local groups that were trained on before, among those drawn; `own_lags` are without them.
    """

    local_rewards: list[float] = field(default_factory=list)
    batch: list[float] = field(default_factory=list)
    batch_sizes: list[int] = field(default_factory=list)
    mixed_drawn: list[int] = field(default_factory=list)
    external: list[int] = field(default_factory=list)
    foreign: list[int] = field(default_factory=list)
    sampled: list[int] = field(default_factory=list)
    mixed: list[int] = field(default_factory=list)
    curve: list[tuple[int, float]] = field(default_factory=list)
    train_curve: list[tuple[int, float]] = field(default_factory=list)
    accepted_groups: int = 0
    own_lags: list[int] = field(default_factory=list)
    peers_lags: list[int] = field(default_factory=list)
    past: list[int] = field(default_factory=list)
    _version: int = 0
    _new_outcomes: list[_Outcome] = field(default_factory=list)
    _outcomes: dict[bytes, _Outcome] = field(default_factory=dict)
    _drawn_ids: list[bytes] = field(default_factory=list)
    _trained_ids: set[bytes] = field(default_factory=set)

    @property
    def rounds(self) -> int:
        """Number of batches that the node has trained on."""
        return len(self.batch)

    def measure(self, point: EvalPoint) -> None:
        """Note rewards that were measured at the end of the last round."""
        self.curve.append((self.rounds, point.reward))
        if point.train is not None:
            self.train_curve.append((self.rounds, point.train))

    def publish(self, groups: Sequence[StoredGroup]) -> None:
        """Note own groups that were made."""
        for group in groups:
            self._outcomes[group.id] = outcome = _outcome(group)
            self._new_outcomes.append(outcome)

    def receive(self, group: StoredGroup) -> None:
        """Note a peer's group that was accepted."""
        self._outcomes[group.id] = _outcome(group)
        self.accepted_groups += 1

    def draw(self, batch: Drawn) -> None:
        """Note a batch that was drawn. It replaces one that was drawn and not trained on."""
        self._drawn_ids = [group.id for group in batch.groups]

    def end_round(self, version: int) -> None:
        """Note that the node trained on the batch drawn last; its policy now has version
        `version`."""
        new_outcomes, outcomes = (
            self._new_outcomes,
            [self._outcomes[identifier] for identifier in self._drawn_ids],
        )
        replay_flags = [identifier in self._trained_ids for identifier in self._drawn_ids]
        self._trained_ids.update(self._drawn_ids)
        last = self.local_rewards[-1] if self.local_rewards else 0.0
        self.local_rewards.append(_mean_reward(new_outcomes) if new_outcomes else last)
        self.batch.append(_mean_reward(outcomes))
        self.batch_sizes.append(len(outcomes))
        self.mixed_drawn.append(sum(outcome.mixed for outcome in outcomes))
        origins = [outcome.provenance for outcome in outcomes]
        self.external.append(len(origins) - origins.count(Provenance.LOCAL))
        self.foreign.append(origins.count(Provenance.CROSS_MODEL))
        self.sampled.append(len(new_outcomes))
        self.mixed.append(sum(outcome.mixed for outcome in new_outcomes))
        self.past.append(sum(replay_flags))
        for outcome, is_replay in zip(outcomes, replay_flags, strict=True):
            if is_replay:
                continue
            is_local = outcome.provenance is Provenance.LOCAL
            lags = self.own_lags if is_local else self.peers_lags
            lags.append(self._version - outcome.version)
        self._version = version
        self._new_outcomes, self._drawn_ids = [], []


class WatchedStorage(Storage):
    """A node's storage that tells a `RoundHistory` of every group that the node makes or accepts.
    All of them go through the storage."""

    def __init__(self, path: Path, history: RoundHistory, *, wall: Callable[[], float]) -> None:
        super().__init__(path, wall=wall, threads=False)
        self._history = history

    def publish(self, entries: Sequence[tuple[StoredGroup, bytes | None]]) -> None:
        super().publish(entries)
        self._history.publish([row for row, _ in entries])

    def accept(self, row: StoredGroup, window: WindowRow) -> bool:
        is_accepted = super().accept(row, window)
        if is_accepted:
            self._history.receive(row)
        return is_accepted


class WatchedBuffer(ReplayBuffer):
    """A node's replay buffer that tells a `RoundHistory` of each batch."""

    def __init__(self, settings: ReplaySettings, history: RoundHistory) -> None:
        super().__init__(settings)
        self._history = history

    def draw(self, version: int, rng: random.Random) -> Drawn | None:
        batch = super().draw(version, rng)
        if batch is not None:
            self._history.draw(batch)
        return batch


def _outcome(group: StoredGroup) -> _Outcome:
    rewards = group.rewards
    spread = max(rewards) - min(rewards)
    version = restored_group(group).group.oldest_version
    mixed = spread > _EQUAL_WITHIN
    return _Outcome(sum(rewards) / len(rewards), mixed, group.provenance, version)


def _mean_reward(outcomes: Sequence[_Outcome]) -> float:
    return sum(outcome.reward for outcome in outcomes) / len(outcomes)


def held_out_curve(histories: Sequence[RoundHistory]) -> list[tuple[int, float]]:
    """Reward on unseen texts by round, mean over nodes."""
    return _mean_curve([history.curve for history in histories])


def seen_curve(histories: Sequence[RoundHistory]) -> list[tuple[int, float]]:
    """Reward on seen texts by round, mean over nodes."""
    return _mean_curve([history.train_curve for history in histories])


def _mean_curve(curves: Sequence[Sequence[tuple[int, float]]]) -> list[tuple[int, float]]:
    return [
        (points[0][0], mean([reward for _, reward in points]))
        for points in zip(*filter(None, curves), strict=True)
    ]


def per_round(
    combine: Callable[[Sequence[float]], float], columns: Sequence[Sequence[float]]
) -> list[float]:
    return [float(combine(values)) for values in zip(*columns, strict=True)]


def mean(values: Sequence[float]) -> float:
    """The arithmetic mean."""
    return sum(values) / len(values)
