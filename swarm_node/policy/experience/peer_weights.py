"""The worth of each author's groups, and the places in a batch that it buys. Pure.

A peer chooses what it publishes, and how much. A flood of easy tasks would fill the batches of all
others and have them sample less themselves: its groups look informative, and teach little. What a
group teaches is known when it is trained on (`plausible.learnt`). It is compared with what this
node's own informative groups teach, because only informative groups travel. Families that were
trained on more than others count less, so many groups of one family do not add up.

Whatever an author's volume, it has at most as many places in a batch as own groups have, and fewer
where less is learnt from it. Peers that are alike stay below that: each offers only the informative
ones of as many groups.
"""

from __future__ import annotations

from swarm_node.recent import Recent

#: An author's share falls with this power of what it teaches.
_POWER = 3
#: Prior of an author: a number of groups that teach as much as own ones.
_CREDIT = 4.0
#: Half-lives of a group: in further groups of its author, and in further groups of anybody.
_AUTHOR_KEPT, _FAMILY_KEPT = 0.5 ** (1.0 / 16.0), 0.5 ** (1.0 / 64.0)
#: Authors that are remembered.
MOST_AUTHORS = 4096


class PeerWeights:
    """Means of what an informative group teaches, by author."""

    def __init__(self) -> None:
        self._local_gains = (0.0, 0.0)
        self._authors: Recent[str, tuple[float, float]] = Recent(MOST_AUTHORS)
        self._families: dict[str, float] = {}

    def note_own(self, family: str, gain: float) -> None:
        """Take in what an update learnt from an own group that has a gradient."""
        self._local_gains = _add_gain(self._local_gains, gain * self._rarity(family))

    def note(self, author: str, family: str, gain: float) -> None:
        """Take in what an update learnt from a peer's group."""
        tally = self._authors.get(author, (0.0, 0.0))
        self._authors[author] = _add_gain(tally, gain * self._rarity(family))

    def share(self, author: str) -> float:
        """Places that `author` may have for each place of an own group, in [0, 1]. It is 1 while
        nothing is learnt from own groups: such a node takes what there is."""
        count, total = self._local_gains
        if total <= 0.0:
            return 1.0
        local_mean = total / count
        count, total = self._authors.get(author, (0.0, 0.0))
        ratio = (total / local_mean + _CREDIT) / (count + _CREDIT)
        return min(1.0, ratio) ** _POWER

    def _rarity(self, family: str) -> float:
        """Count a group of `family`. Return 1 if no more than the mean number of groups were of it
        lately, and less in proportion."""
        self._families = {name: _FAMILY_KEPT * count for name, count in self._families.items()}
        self._families[family] = self._families.get(family, 0.0) + 1.0
        mean = sum(self._families.values()) / len(self._families)
        return min(1.0, mean / self._families[family])


def _add_gain(tally: tuple[float, float], gain: float) -> tuple[float, float]:
    count, total = tally
    return count * _AUTHOR_KEPT + 1.0, total * _AUTHOR_KEPT + gain
