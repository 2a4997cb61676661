"""Which groups to start first, and which interrupted ones may go on. Pure.

Where places in the engine are fewer than rows, what is started last ends last: the longest first
leaves the shortest tail (longest-processing-time-first scheduling; StreamRL, arXiv 2504.15930,
ranks prompts by a trained predictor, here the mean of what a task family needed lately stands in
for it). Groups that were cut off when their call had its target come first of all (APRIL, arXiv
2509.18521).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from swarm_node.policy.sampling.rows import Row

#: Weight of the newest group in its family's mean.
_NEWEST = 0.2


class LengthRanker:
    """Learns how many tokens the longest row of a group takes, by task family."""

    def __init__(self) -> None:
        self._longest: dict[str, float] = {}

    def observe(self, family: str, tokens: int) -> None:
        """A group of `family` ended; its longest row has so many tokens."""
        before = self._longest.get(family, float(tokens))
        self._longest[family] = before + _NEWEST * (tokens - before)

    def expected(self, family: str) -> float:
        """Tokens of the longest row; infinite for a family never seen, so that it is seen early."""
        return self._longest.get(family, math.inf)

    def order(self, families: Sequence[str]) -> list[int]:
        """The places of `families`, longest first; of equal ones in the order given."""
        return sorted(range(len(families)), key=lambda place: -self.expected(families[place]))


def provision(target: int, over: float, waiting: int) -> int:
    """How many new groups to start so that `over` times `target` are under way with those
    `waiting` to go on; never fewer than `target` in all."""
    return max(0, math.ceil(target * max(over, 1.0)) - waiting)


def still_fresh(rows: Sequence[Row], version: int, max_lag: int) -> list[Row]:
    """Rows to go on with at policy `version`: one whose oldest token is more than `max_lag`
    versions old starts anew, because its group would be too old to be trained on."""
    return [
        Row.empty() if row.spans and version - row.spans[0].version > max_lag else row
        for row in rows
    ]
