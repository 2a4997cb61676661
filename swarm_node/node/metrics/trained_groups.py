"""Counts which peers' groups were trained on, by family. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from swarm_node.node.metrics.snapshot import TaughtRow
from swarm_node.recent import Recent
from swarm_node.rollout import VerifiedGroup

#: The most pairs of author and family. Beyond it, the pair trained on longest ago is dropped.
MAX_PAIRS = 512


class TrainedGroups:
    """Groups and good answers of peers that were trained on, by author and family."""

    def __init__(self, rows: Iterable[TaughtRow] = ()) -> None:
        self._counts: Recent[tuple[str, str], tuple[int, int]] = Recent(MAX_PAIRS)
        for row in rows:
            self._counts[row.peer_id, row.family] = row.groups, row.rollouts

    def add(self, group: VerifiedGroup) -> None:
        """Take in a peer's group that was trained on."""
        key = group.author, group.group.task.family
        groups, answers = self._counts.get(key) or (0, 0)
        mean = sum(group.rewards) / len(group.rewards)
        good_count = sum(reward > mean for reward in group.rewards)
        self._counts[key] = groups + 1, answers + good_count

    def rows(self) -> list[TaughtRow]:
        """Return the counts, the author and family trained on last at the end."""
        return [TaughtRow(*key, *counts) for key, counts in self._counts.items()]
