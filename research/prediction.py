"""The expected gain of sharing, from the nodes of a swarm, the share p of informative groups and
the lag, before the swarm has run. Pure.

A swarm of two shows two curves over the informative groups that a node has trained on: its reward R
and its share p. A node in a swarm of N goes along the same curves, only faster. In an update it
takes I own groups and up to J of its peers (`arms.expected_informative`), where I is the optimum of
the mixture's controller, B / (1 + (N - 1)·p). Peers' groups are those that they made `lag` updates
ago. Where peers offer too little, own groups fill the batch.

If the nodes of a swarm have only a part of the families, all groups go into that part.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass

#: The largest part of a batch that is of peers (`MixtureSettings.external_share`).
_MOST_EXTERNAL = 0.875


@dataclass(frozen=True, slots=True)
class Learning:
    """A node of the source: `groups` that it had trained on when its reward and its share of
    informative groups were measured.

    Raises:
        ValueError: the lists differ in length, are empty, or do not rise.
    """

    groups: Sequence[float]
    reward: Sequence[float]
    share: Sequence[float]

    def __post_init__(self) -> None:
        if not len(self.groups) == len(self.reward) == len(self.share) > 0:
            raise ValueError("a measurement has groups, a reward and a share")
        if list(self.groups) != sorted(self.groups):
            raise ValueError("groups trained on never become fewer")

    def reward_at(self, groups: float) -> float:
        """The reward after `groups` informative groups."""
        return between(self.groups, self.reward, groups)

    def share_at(self, groups: float) -> float:
        """The share of informative groups after `groups` of them."""
        return between(self.groups, self.share, groups)


def predicted(
    learning: Learning, nodes: int, *, batch: int, updates: int, lag: int, covered: float = 1.0
) -> float:
    """The reward of a swarm's nodes after `updates` updates with batches of `batch` groups. They
    have a part `covered` of the families among them; in the others they stay as they began."""
    trained = 0.0
    shares: list[float] = []
    for update in range(updates):
        share = learning.share_at(trained / covered)
        shares.append(share)
        own_groups = max(batch * (1.0 - _MOST_EXTERNAL), batch / (1.0 + (nodes - 1) * share))
        then = shares[update - lag] if update >= lag else 0.0
        external_groups = min(batch - own_groups, (nodes - 1) * then * own_groups)
        trained += share * (batch - external_groups) + external_groups
    start = learning.reward_at(0.0)
    return start + covered * (learning.reward_at(trained / covered) - start)


def between(places: Sequence[float], values: Sequence[float], place: float) -> float:
    """The value at a place, interpolated; beyond the ends the last ones stand."""
    after = bisect_left(places, place)
    if after == 0 or after == len(places):
        return values[min(after, len(values) - 1)]
    low, high = places[after - 1], places[after]
    share = (place - low) / (high - low)
    return values[after - 1] + share * (values[after] - values[after - 1])
