"""A node climbs the ladders of its families by its own answers, and goes on after a restart."""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from statistics import fmean

import pytest
from builders import verified
from in_memory import Host, World, environment, small_settings
from structlog.testing import capture_logs
from virtual import virtual_time

from swarm_node.environments.host import EnvironmentInfo, Whose
from swarm_node.environments.scores import GroupRerun, GroupScores, Rerun
from swarm_node.environments.workers.scoring_worker import Transcript
from swarm_node.node.loops.sampling.levels import (
    BELOW,
    HIGH,
    LEAST,
    LOW,
    PROBE,
    WINDOW,
    Ladder,
    Levels,
)
from swarm_node.node.loops.sampling.levels import ladders as ladders_of
from swarm_node.rollout import TaskRef
from swarm_node.storage import Storage

FIVE = tuple(f"sum-{n}" for n in range(1, 6))


def climbed(
    rates: Mapping[str, float], families: Sequence[str] = FIVE, groups: int = 400
) -> Ladder:
    """A ladder after groups of these rates, of its level now each time."""
    ladder = Ladder("sum", families)
    for _ in range(groups):
        ladder.note(ladder.family, [rates[ladder.family]])
    return ladder


class _ToAndFro(Ladder):
    """A ladder that samples its level alone, and forgets what it measured when it moves."""

    def weights(self) -> dict[str, float]:
        return {self.family: 1.0}

    def note(self, family: str, rewards: Sequence[float]) -> None:
        level = self.level
        super().note(family, rewards)
        if self.is_placed and self.level != level:
            for means in self.mean_rewards.values():
                means.clear()


def learner(
    make: type[Ladder], skills: Sequence[float], *, rate: float, seed: int, groups: int = 600
) -> tuple[int, float]:
    """The moves of a ladder's level and the mean skill after `groups` groups of eight answers. A
    skill is the log odds of a right answer to a level's mean question. A mixed group raises that of
    its level by `rate` times the deviation of its rewards, as the advantages of GRPO do, and those
    of the levels beside it by half as much."""
    rng, ladder, moves = random.Random(seed), make("sum", FIVE), 0
    found = [*skills]
    for _ in range(groups):
        families, weights = zip(*ladder.weights().items(), strict=True)
        family = rng.choices(families, weights)[0]
        at = FIVE.index(family)
        odds = found[at] + rng.gauss(0.0, 1.0)
        right = sum(rng.random() < 1.0 / (1.0 + math.exp(-odds)) for _ in range(8))
        for level in range(len(found)):
            spread = math.sqrt(right * (8 - right)) / 8
            found[level] += rate * spread * 0.5 ** abs(level - at)
        before = ladder.is_placed, ladder.level
        ladder.note(family, [1.0] * right + [0.0] * (8 - right))
        moves += before[0] and ladder.level != before[1]
    return moves, fmean(found)


def test_levels_are_numbers_at_the_end_in_their_order() -> None:
    families = ("sum-10", "gcd", "sum-2", "sum-1", "odd-0", "chain-sum-1", "sum-02")
    assert ladders_of(families) == {
        "sum": ("sum-1", "sum-2", "sum-10"),
        "gcd": ("gcd",),
        "odd-0": ("odd-0",),
        "chain-sum": ("chain-sum-1",),
        "sum-02": ("sum-02",),
    }


@pytest.mark.parametrize(
    ("rates", "level"),
    [
        ((0.95, 0.9, 0.5, 0.1, 0.0), 2),
        ((0.6, 0.3, 0.0, 0.0, 0.0), 0),
        ((0.0, 0.0, 0.0, 0.0, 0.0), 0),
        ((1.0, 1.0, 1.0, 1.0, 1.0), 4),
        ((LOW, LOW, LOW, LOW, LOW), 0),
        ((HIGH, HIGH, HIGH, HIGH, HIGH), 0),
    ],
)
def test_the_level_settles_where_a_fifth_to_four_fifths_are_right(
    rates: Sequence[float], level: int
) -> None:
    ladder = climbed(dict(zip(FIVE, rates, strict=True)))
    assert (ladder.is_placed, ladder.level) == (True, level)


def test_two_groups_place_a_ladder_and_a_full_window_moves_it() -> None:
    ladder = Ladder("sum", FIVE)
    for _ in range(PROBE):
        assert not ladder.is_placed
        ladder.note("sum-1", [LOW])
    assert ladder.is_placed
    for _ in range(WINDOW - PROBE):
        ladder.note("sum-1", [1.0])
    assert ladder.level == 0, "the first groups are still in the window"
    ladder.note("sum-1", [1.0])
    assert ladder.level == 1
    assert ladder.weights() == {"sum-2": 1.0, "sum-1": BELOW}
    for _ in range(WINDOW):
        ladder.note("sum-2", [0.0])
    assert ladder.level == 0


def test_a_learnt_level_is_sampled_beside_one_that_is_too_hard_by_their_mixed_groups() -> None:
    easy, hard = [1.0] * 7 + [0.0], [1.0] + [0.0] * 7
    ladder = Ladder("sum", FIVE)
    for _ in range(WINDOW):
        ladder.note("sum-1", easy)
    for rewards in [hard] * 2 + [[0.0] * 8] * 6:
        ladder.note("sum-2", rewards)
    assert ladder.weights() == {"sum-1": 1.0, "sum-2": 0.25}
    for _ in range(WINDOW):
        ladder.note("sum-1", [1.0] * 8)
        ladder.note("sum-2", hard)
    assert ladder.weights() == {"sum-1": LEAST, "sum-2": 1.0}
    for _ in range(WINDOW):
        ladder.note("sum-2", [1.0, 0.0])
    assert ladder.level == 1


def test_what_is_hardly_ever_mixed_is_seldom_sampled() -> None:
    for rate in (0.0, 1.0):
        assert climbed(dict.fromkeys(FIVE, rate)).weights().popitem()[1] <= LEAST
    assert climbed({"gcd": 1.0}, ["gcd"]).weights() == {"gcd": LEAST}


@pytest.mark.parametrize("easy", [2.5, 4.0])
def test_between_two_levels_the_level_rests(easy: float) -> None:
    def moves(make: type[Ladder]) -> list[int]:
        skills = [easy - 7 * n for n in range(5)]
        return [learner(make, skills, rate=0.0, seed=seed)[0] for seed in range(4)]

    assert max(moves(Ladder)) < 10 < min(moves(_ToAndFro))


@pytest.mark.parametrize("gap", [6.0, 7.0])
def test_a_learner_of_steep_levels_learns_more_than_by_moving_to_and_fro(gap: float) -> None:
    skills = [gap / 2 - gap * n for n in range(5)]

    def learnt(make: type[Ladder]) -> float:
        return fmean(learner(make, skills, rate=0.03, seed=n)[1] for n in range(8)) - fmean(skills)

    assert learnt(Ladder) > 1.05 * learnt(_ToAndFro)


def test_a_level_that_is_too_hard_gives_way_to_the_one_below() -> None:
    ladder = Ladder("sum", FIVE)
    for family, reward in (("sum-1", 1.0), ("sum-2", 0.0)):
        for _ in range(PROBE):
            ladder.note(family, [reward])
    assert (ladder.is_placed, ladder.family) == (True, "sum-1")


@pytest.fixture
def storage(tmp_path: Path) -> Iterator[Storage]:
    with closing(Storage(tmp_path / "db")) as storage:
        yield storage


def levels(storage: Storage, families: Sequence[str], *, climbs: bool = True) -> Levels:
    info = EnvironmentInfo("env", "1", ("gcd", *FIVE, "take-1", "take-2"))
    return Levels(info, families, storage, climbs=climbs)


def test_the_first_batch_measures_every_ladder(storage: Storage) -> None:
    found = levels(storage, ("gcd", *FIVE, "take-1", "take-2"))
    assert set(found.choose(range(4))) == {"sum-1", "take-1"}
    # A single ladder measures as many of its levels as the batch holds.
    alone = levels(storage, FIVE)
    assert alone.choose(range(4)) == ["sum-1"] * 2 + ["sum-2"] * 2
    assert len(alone.choose(range(99))) == 99


def test_a_small_batch_is_not_always_for_the_same_ladder(storage: Storage) -> None:
    """All prompts of a ladder may be too long, so that nothing of it is ever measured."""
    found = levels(storage, (*FIVE, "take-1", "take-2"))
    chosen = {family for seed in range(9) for family in found.choose([seed, seed + 1])}
    assert chosen == {"sum-1", "take-1"}
    assert found.choose([]) == []


async def test_a_ladder_between_two_levels_does_not_fill_the_log(storage: Storage) -> None:
    """Nearly all of one level is right, and hardly anything of the next."""
    found = levels(storage, ("take-1", "take-2"))
    with capture_logs() as logs:
        for _ in range(20 * WINDOW):
            (family,) = found.sampled_families()
            reward = 1.0 if family == "take-1" else 0.0
            await found.note([verified(family=family, rewards=(reward, reward))])
    assert {each["log_level"] for each in logs} == {"info", "debug"}
    assert sum(each["log_level"] == "info" for each in logs) <= 3


def test_without_levels_or_for_a_single_one_nothing_is_climbed(storage: Storage) -> None:
    assert not levels(storage, FIVE, climbs=False).is_active
    assert not levels(storage, ("gcd", "sum-3", "take-2")).is_active


def test_the_curve_keeps_its_families_and_has_those_of_other_ladders(storage: Storage) -> None:
    found = levels(storage, FIVE)
    found._ladders["sum"].level = 2
    assert found.main(()) == ("gcd", "sum-3", "take-1")
    assert found.main(("gcd", "sum-1", "take-1")) == ("gcd", "sum-1", "take-1")
    assert found.sampled_families() == ("sum-3",)


class _Graded(Host):
    """Drills under the names of levels. The first two are always right; of the third, every other
    answer is."""

    def __init__(self) -> None:
        super().__init__(environment())
        self.judged: list[str] = []

    async def start(self) -> EnvironmentInfo:
        self._real = await super().start()
        self._names = {f"sum-{n}": self._real.families[0] for n in (1, 2, 3, 4)}
        return replace(self._real, families=tuple(self._names))

    async def render(self, refs: Sequence[TaskRef]) -> list[str]:
        return await super().render([self._inner(ref) for ref in refs])

    async def score(self, ref: TaskRef, texts: Sequence[str], whose: Whose = "own") -> GroupScores:
        found = await super().score(self._inner(ref), texts, whose)
        self.judged.append(ref.family)
        return replace(found, rewards=self._rewards(ref, len(texts)))

    async def rerun(
        self, ref: TaskRef, dialogues: Sequence[Transcript], whose: Whose = "own"
    ) -> GroupRerun:
        found = await super().rerun(self._inner(ref), dialogues, whose)
        ends = [Rerun(reward=each) for each in self._rewards(ref, len(dialogues))]
        return replace(found, reruns=tuple(ends))

    def _rewards(self, ref: TaskRef, count: int) -> tuple[float, ...]:
        share = {"sum-1": 1.0, "sum-2": 1.0, "sum-3": 0.5, "sum-4": 0.0}[ref.family]
        return tuple(float(n < share * count) for n in range(count))

    def _inner(self, ref: TaskRef) -> TaskRef:
        return replace(ref, family=self._names[ref.family])


@pytest.mark.slow(reason="two starts of a node")
@virtual_time
async def test_a_node_climbs_and_goes_on_at_its_level_after_a_restart(world: World) -> None:
    settings, shots, judged = small_settings(), [], []
    for _ in range(2):
        host = _Graded()
        node = world.node(settings, environment=host, climbs=True)
        life = asyncio.create_task(node.run())
        await asyncio.sleep(15)
        shots.append(node.snapshot())
        judged.append(host.judged)
        node.stop()
        await life
    assert judged[0][0] == "sum-1"
    assert "sum-1" not in judged[1]
    for shot in shots:
        (row,) = shot.levels
        assert (row.ladder, row.level, row.levels, row.placed) == ("sum", 3, 4, True)
    assert judged[1].count("sum-3") > len(judged[1]) / 2
    # The curve of the second start is that of the first.
    assert len({tuple(point.main) for shot in shots for point in shot.evals}) == 1
