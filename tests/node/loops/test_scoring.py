"""Time that judging takes is counted against whom it was spent for."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from swarm_node.clock import SYSTEM_CLOCK
from swarm_node.environments.bundled.drills import create
from swarm_node.environments.host import InlineEnvironmentHost, Whose
from swarm_node.environments.scores import GroupScores
from swarm_node.environments.splits.splitting import SplitEnvironment
from swarm_node.errors import SlowTaskError
from swarm_node.node.loops.node_parts import Tally
from swarm_node.node.loops.sampling.scoring import Scoring
from swarm_node.p2p.limits.budgets import Effort
from swarm_node.rollout import TaskRef

REF = TaskRef("env", "1", "family", 1)


class Slow(InlineEnvironmentHost):
    """Judges nobody in time."""

    async def score(self, ref: TaskRef, texts: Sequence[str], whose: Whose = "own") -> GroupScores:
        raise SlowTaskError("it took too long", 10.0)


class Queued(InlineEnvironmentHost):
    """Judges quickly, after a wait for others."""

    async def score(self, ref: TaskRef, texts: Sequence[str], whose: Whose = "own") -> GroupScores:
        await asyncio.sleep(0.05)
        return GroupScores("prompt", (1.0,), seconds=0.001, faults=1, fault_reason="raised")


def test_a_task_that_took_too_long_counts_as_its_authors_time() -> None:
    effort = Effort(1.0, str.upper)
    judging = Scoring(Slow(SplitEnvironment(create())), Tally(), effort, SYSTEM_CLOCK)
    with pytest.raises(SlowTaskError):
        asyncio.run(judging.of_peer(REF, ["7"], "author"))
    assert effort.exceeds("author", SYSTEM_CLOCK.now())


def test_what_a_peers_group_costs_is_not_the_time_that_it_waits_for_others() -> None:
    tally = Tally()
    judging = Scoring(Queued(SplitEnvironment(create())), tally, Effort(1.0, str), SYSTEM_CLOCK)
    asyncio.run(judging.of_peer(REF, ["7"], "author"))
    assert tally.scoring.mean == 0.001


def test_own_texts_are_no_peers_time_and_their_faults_count() -> None:
    tally, effort = Tally(), Effort(1.0, str)
    judging = Scoring(Queued(SplitEnvironment(create())), tally, effort, SYSTEM_CLOCK)
    asyncio.run(judging.score_local(REF, ["7"]))
    assert tally.faults == {"scorer_raised": 1}
    assert tally.scoring.mean == 0.0
