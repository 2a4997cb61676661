"""What a simulation observes of one node, without the node knowing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from swarm_node.p2p.verify import restored_group
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
class Record:
    """One entry per round (a batch the node trained on), except where it says otherwise.

    `own` is the mean reward over the groups the node made since its last round, whatever became of
    them (the value of the round before if there was none); `batch` the mean reward over the groups
    trained on, SAPO's own metric; `drawn` counts these groups, `informative` those whose rewards
    differ, `external` those of peers and `foreign` those of peers with another model; `made` and
    `mixed` count own groups, all and those whose rewards differ. `curve` is (round, held-out
    reward), `received` how many groups of peers came. `own_lags` and `peers_lags` are, for every
    group trained on, by how many updates the policy that sampled it was older than the one it
    trained: in a simulation all nodes count from one start.
    """

    own: list[float] = field(default_factory=list)
    batch: list[float] = field(default_factory=list)
    drawn: list[int] = field(default_factory=list)
    informative: list[int] = field(default_factory=list)
    external: list[int] = field(default_factory=list)
    foreign: list[int] = field(default_factory=list)
    made: list[int] = field(default_factory=list)
    mixed: list[int] = field(default_factory=list)
    curve: list[tuple[int, float]] = field(default_factory=list)
    received: int = 0
    own_lags: list[int] = field(default_factory=list)
    peers_lags: list[int] = field(default_factory=list)
    _version: int = 0
    _fresh: list[_Outcome] = field(default_factory=list)
    _known: dict[bytes, _Outcome] = field(default_factory=dict)
    _batch: list[_Outcome] = field(default_factory=list)

    @property
    def rounds(self) -> int:
        """How many batches the node has trained on."""
        return len(self.batch)

    def publish(self, groups: Sequence[StoredGroup]) -> None:
        """Own groups were made."""
        for group in groups:
            self._known[group.id] = outcome = _outcome(group)
            self._fresh.append(outcome)

    def receive(self, group: StoredGroup) -> None:
        """A peer's group was let in."""
        self._known[group.id] = _outcome(group)
        self.received += 1

    def draw(self, identifiers: Sequence[bytes]) -> None:
        """A batch was drawn; what was drawn before and not trained on is forgotten."""
        self._batch = [self._known[identifier] for identifier in identifiers]

    def end_round(self, version: int) -> None:
        """The batch drawn last was trained on; now the policy is of `version`."""
        fresh, drawn = self._fresh, self._batch
        last = self.own[-1] if self.own else 0.0
        self.own.append(_mean(fresh) if fresh else last)
        self.batch.append(_mean(drawn))
        self.drawn.append(len(drawn))
        self.informative.append(sum(outcome.mixed for outcome in drawn))
        origins = [outcome.provenance for outcome in drawn]
        self.external.append(len(origins) - origins.count(Provenance.OWN))
        self.foreign.append(origins.count(Provenance.FOREIGN))
        self.made.append(len(fresh))
        self.mixed.append(sum(outcome.mixed for outcome in fresh))
        for outcome in drawn:
            own = outcome.provenance is Provenance.OWN
            lags = self.own_lags if own else self.peers_lags
            lags.append(self._version - outcome.version)
        self._version = version
        self._fresh, self._batch = [], []


class WatchedStorage(Storage):
    """A node's storage that tells a `Record` what goes through it: everything a node makes, takes
    in or trains on does."""

    def __init__(self, path: Path, record: Record, *, wall: Callable[[], float]) -> None:
        super().__init__(path, wall=wall, threads=False)
        self._record = record

    def publish(self, entries: Sequence[tuple[StoredGroup, bytes | None]]) -> None:
        super().publish(entries)
        self._record.publish([row for row, _ in entries])

    def accept(self, row: StoredGroup, window: WindowRow) -> bool:
        accepted = super().accept(row, window)
        if accepted:
            self._record.receive(row)
        return accepted

    def record_use(self, identifiers: Sequence[bytes]) -> None:
        super().record_use(identifiers)
        self._record.draw(identifiers)


def _outcome(group: StoredGroup) -> _Outcome:
    rewards = group.rewards
    spread = max(rewards) - min(rewards)
    version = restored_group(group).group.oldest_version
    mixed = spread > _EQUAL_WITHIN
    return _Outcome(sum(rewards) / len(rewards), mixed, group.provenance, version)


def _mean(outcomes: Sequence[_Outcome]) -> float:
    return sum(outcome.reward for outcome in outcomes) / len(outcomes)
