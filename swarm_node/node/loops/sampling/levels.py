"""Levels of difficulty: which family of each ladder a node samples, by its own answers.

A family named `NAME-N` (N = 1, 2, …) is level N of the ladder NAME, the easiest first. A family
without a number is a ladder of one level. The node measures each ladder from its easiest level up
until between a fifth and four fifths of the answers are right, where groups have mixed rewards:
the gradient of a group vanishes at both ends. Then it follows its own progress.

Of two levels, one may be learnt and the next too hard. Then the node samples both, each by its
share of mixed groups: of groups of eight 57% are mixed where nine tenths of the answers are right,
and 34% where a twentieth is. A node that moved to and fro between them would learn less (a
simulated learner in tests/node/loops/test_levels.py).
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Final

import structlog

from swarm_node.environments.host import EnvironmentInfo
from swarm_node.node.metrics.snapshot import LevelRow
from swarm_node.rollout import VerifiedGroup
from swarm_node.storage import Storage

#: Rewards between which a level is worth sampling.
LOW: Final = 0.2
HIGH: Final = 0.8
#: Groups that measure a level at first, and those whose mean decides later.
PROBE: Final = 2
WINDOW: Final = 8
#: The weight of a level is its share of mixed groups, and this at least.
LEAST: Final = 0.1
#: The weight of the level below, as a part of the current one's.
BELOW: Final = 0.1
#: A stored counter goes up only: its rest by this number is the level, 0 for none.
_LEVELS: Final = 1 << 16
_NUMBERED = re.compile(r"(.+)-([1-9][0-9]{0,3})")
_log = structlog.get_logger(__name__)


def ladders(families: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """Return the families of each ladder, the easiest first. What is no level has its own name."""
    levels_by_name: dict[str, dict[int, str]] = {}
    for family in families:
        match = _NUMBERED.fullmatch(family)
        name, level = (match[1], int(match[2])) if match else (family, 0)
        levels_by_name.setdefault(name, {})[level] = family
    return {
        name: tuple(by_level[n] for n in sorted(by_level))
        for name, by_level in levels_by_name.items()
    }


class Ladder:
    """One ladder: its level now, and of its families' newest groups the mean rewards, and whether
    they were mixed."""

    def __init__(self, name: str, families: Sequence[str]) -> None:
        self.name, self.families = name, tuple(families)
        self.level = 0
        self.is_placed = len(families) == 1
        #: Levels that the owner was told of: one may move between two of them for ever.
        self.reported_levels: set[tuple[bool, int]] = set()
        self.mean_rewards: dict[str, deque[float]] = {
            family: deque(maxlen=WINDOW) for family in families
        }
        self._mixed: dict[str, deque[bool]] = {family: deque(maxlen=WINDOW) for family in families}

    @property
    def family(self) -> str:
        """The family of the level now."""
        return self.families[self.level]

    def reward(self, family: str) -> float | None:
        """The mean reward of the newest groups of a family; None before the first."""
        means = self.mean_rewards[family]
        return fmean(means) if means else None

    def note(self, family: str, rewards: Sequence[float]) -> None:
        """Take in the rewards of a group, and change the level if it is time."""
        self.mean_rewards[family].append(fmean(rewards))
        self._mixed[family].append(len(set(rewards)) > 1)
        while not self.is_placed and len(self.mean_rewards[self.family]) >= PROBE:
            self._place(fmean(self.mean_rewards[self.family]))
        if not self.is_placed:
            return
        if self._is_learnt and self.level + 1 < len(self.families) and not self._is_above_hard:
            self.level += 1
        elif self.level > 0 and self._is_hard(self.family):
            self.level -= 1

    def _place(self, reward: float) -> None:
        if reward > HIGH and self.level + 1 < len(self.families):
            self.level += 1
            return
        self.is_placed = True
        if reward < LOW and self.level > 0:
            self.level -= 1

    @property
    def _is_learnt(self) -> bool:
        means = self.mean_rewards[self.family]
        return len(means) == WINDOW and fmean(means) > HIGH

    @property
    def _is_above_hard(self) -> bool:
        return self.level + 1 < len(self.families) and self._is_hard(self.families[self.level + 1])

    def _is_hard(self, family: str) -> bool:
        means = self.mean_rewards[family]
        return len(means) == WINDOW and fmean(means) < LOW

    def weights(self) -> dict[str, float]:
        """Weights of the families that are sampled."""
        by_family = {self.family: self._weight(self.family)}
        if self.level:
            by_family[self.families[self.level - 1]] = BELOW * by_family[self.family]
        if self._is_learnt and self._is_above_hard:
            next_family = self.families[self.level + 1]
            by_family[next_family] = self._weight(next_family)
        return by_family

    def _weight(self, family: str) -> float:
        mixed = self._mixed[family]
        return max(LEAST, fmean(mixed)) if len(mixed) == WINDOW else 1.0

    def row(self) -> LevelRow:
        """Its figures now."""
        rewards = {family: self.reward(family) for family in self.families}
        return LevelRow(
            self.name,
            self.level + 1,
            len(self.families),
            self.is_placed,
            {family: reward for family, reward in rewards.items() if reward is not None},
            self.reward(self.family),
        )


class Levels:
    """The ladders of the families that a node samples, and their levels over restarts."""

    def __init__(
        self, info: EnvironmentInfo, families: Sequence[str], storage: Storage, *, climbs: bool
    ) -> None:
        """A node that does not climb, or that has no ladder of several levels, samples all
        `families` alike."""
        self._info, self._storage = info, storage
        by_name = {name: Ladder(name, entry) for name, entry in ladders(families).items()}
        self.is_active = climbs and any(len(entry.families) > 1 for entry in by_name.values())
        self._ladders = by_name if self.is_active else {}
        self._of = {entry: ladder for ladder in self._ladders.values() for entry in ladder.families}

    async def restore(self) -> None:
        """Go on with the levels of an earlier start."""
        for ladder in self._climbable_ladders():
            level = await self._storage.run(self._storage.counter, self._key(ladder)) % _LEVELS
            if level:
                ladder.level, ladder.is_placed = min(level, len(ladder.families)) - 1, True

    async def note(self, groups: Sequence[VerifiedGroup]) -> None:
        """Take in own groups."""
        for group in groups:
            ladder = self._of.get(group.group.task.family)
            if ladder is not None:
                previous_place = ladder.is_placed, ladder.level
                ladder.note(group.group.task.family, group.rewards)
                if (ladder.is_placed, ladder.level) != previous_place and len(ladder.families) > 1:
                    await self._keep(ladder)

    def choose(self, seeds: Sequence[int]) -> list[str]:
        """Return a family for each task of these seeds (63 bits). Ladders that are not placed come
        first: their level now, and the levels above it for what is left of the batch."""
        probes = self._probes(seeds)
        weights = {
            family: weight
            for ladder in self._ladders.values()
            if ladder.is_placed
            for family, weight in ladder.weights().items()
        }
        choices = probes[: len(seeds)]
        for seed in seeds[len(choices) :]:
            choices.append(_draw_family(weights, seed))
        return choices

    def main(self, main_families: Sequence[str]) -> tuple[str, ...]:
        """Return the families whose mean is the curve: `main_families`, those of earlier points, or
        else the level now of each own ladder, and the easiest one of every other."""
        known_families = tuple(family for family in main_families if family in self._info.families)
        if known_families:
            return known_families
        all_ladders = ladders(self._info.families)
        return tuple(
            self._ladders[name].family if name in self._ladders else families[0]
            for name, families in all_ladders.items()
        )

    def sampled_families(self) -> tuple[str, ...]:
        """Return the family of each ladder's level now."""
        return tuple(ladder.family for ladder in self._ladders.values())

    def rows(self) -> list[LevelRow]:
        """Figures of the ladders that have several levels."""
        return [ladder.row() for ladder in self._climbable_ladders()]

    def _climbable_ladders(self) -> list[Ladder]:
        return [ladder for ladder in self._ladders.values() if len(ladder.families) > 1]

    def _probes(self, seeds: Sequence[int]) -> list[str]:
        """Families to measure, PROBE tasks of each; all of them at once where no ladder is placed.
        The first one is drawn: a small batch is not always for the same ladder, all of whose
        prompts may be too long."""
        open_ladders = [ladder for ladder in self._ladders.values() if not ladder.is_placed]
        count, first = len(seeds), seeds[0] % len(open_ladders) if seeds and open_ladders else 0
        open_ladders = [*open_ladders[first:], *open_ladders[:first]]
        families: list[str] = []
        highest = max((len(ladder.families) - ladder.level for ladder in open_ladders), default=0)
        for offset in range(highest):
            for ladder in open_ladders:
                number = ladder.level + offset
                if number < len(ladder.families):
                    family = ladder.families[number]
                    families += [family] * max(0, PROBE - len(ladder.mean_rewards[family]))
            if any(ladder.is_placed for ladder in self._ladders.values()):
                break  # the others have something to learn from
        while families and len(families) < count and len(open_ladders) == len(self._ladders):
            families += families[: count - len(families)]
        return families

    async def _keep(self, ladder: Ladder) -> None:
        storage, key, row = self._storage, self._key(ladder), ladder.row()
        if ladder.is_placed:
            stored_level = await storage.run(storage.counter, key)
            await storage.run(storage.advance, key, (ladder.level + 1 - stored_level) % _LEVELS)
        summary = ", ".join(f"{family} {reward:.2f}" for family, reward in row.measured.items())
        log = (
            _log.debug if (ladder.is_placed, ladder.level) in ladder.reported_levels else _log.info
        )
        ladder.reported_levels.add((ladder.is_placed, ladder.level))
        log(
            "level",
            ladder=ladder.name,
            level=row.level,
            levels=row.levels,
            placed=row.placed,
            measured=row.measured,
            sentence=f"{ladder.name}: level {row.level} of {row.levels} (right: {summary})",
        )

    def _key(self, ladder: Ladder) -> str:
        return f"level:{self._info.name}:{self._info.version}:{ladder.name}"


def _draw_family(weights: Mapping[str, float], seed: int) -> str:
    """Draw a family with these weights; the seed decides."""
    place = (seed % (1 << 30)) / (1 << 30) * sum(weights.values())
    for family, weight in weights.items():
        place -= weight
        if place < 0:
            return family
    return [*weights][-1]  # rounding
