"""Partial rollouts: interrupted groups, the order of starting, and the slots they hold."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from builders import replay_settings

from swarm_node.clock import SYSTEM_CLOCK
from swarm_node.config import load_settings
from swarm_node.environments.host import EnvironmentInfo
from swarm_node.environments.scores import GroupScores
from swarm_node.errors import ChildError
from swarm_node.node.loops.node_parts import Parts, Tally
from swarm_node.node.loops.sampling.partial_rollouts import PartialRollouts, still_fresh
from swarm_node.node.loops.sampling.rollout_maker import RolloutMaker
from swarm_node.node.loops.sampling.scoring import Scoring
from swarm_node.node.loops.sampling.tasks import FittingTasks
from swarm_node.p2p.exchange.publishing import LocalGroup
from swarm_node.p2p.limits.budgets import Effort
from swarm_node.policy.experience.replay import ReplayBuffer
from swarm_node.policy.experience.slots import Slots, provision
from swarm_node.policy.sampling.sampler import Row, SampleRequest, extend_row, finish_row
from swarm_node.rollout import Completion, PolicyRef, TaskRef


def tokens(*ids: int) -> np.ndarray:
    return np.asarray(ids, np.uint32)


def logprobs(*values: float) -> np.ndarray:
    return np.asarray(values, np.float32)


@pytest.mark.parametrize(
    ("target", "over", "waiting", "new"),
    [(8, 1.0, 0, 8), (8, 1.5, 0, 12), (8, 1.5, 4, 8), (8, 1.0, 20, 0), (3, 1.25, 0, 4)],
)
def test_so_many_groups_are_started(target: int, over: float, waiting: int, new: int) -> None:
    assert provision(target, over, waiting) == new


def test_a_row_that_is_too_old_starts_anew() -> None:
    old = extend_row(Row.empty(), tokens(1), logprobs(-1), [(2, 0, 1)], "abort")
    young = extend_row(Row.empty(), tokens(1), logprobs(-1), [(6, 0, 1)], "abort")
    kept = still_fresh([old, young, Row.empty()], version=10, max_staleness=4)
    assert [row.token_ids.size for row in kept] == [0, 1, 0]


class Engine:
    """Completes short tasks at once; a long one takes as many calls as its prompt's token says."""

    version = 0
    faults: Mapping[str, int] = {}

    def __init__(self) -> None:
        self.begun: list[int] = []

    async def complete(
        self, request: SampleRequest, begun: Sequence[Row] = (), cut: asyncio.Event | None = None
    ) -> list[Row]:
        rows = list(begun) or [Row.empty() for _ in range(request.n)]
        if not begun:
            self.begun.append(request.seed)
        left = request.prompt_ids[0] - len(rows[0].token_ids)
        if left > 1:
            try:
                await asyncio.wait_for(cut.wait(), 0.2)
            except TimeoutError:
                left = 1  # nobody is waiting for another group: it goes on to its end
        word = "length" if left <= 1 else "abort"
        return [extend_row(row, tokens(1), logprobs(-1), [(0, 0, 1)], word) for row in rows]

    def completion(self, row: Row) -> Completion:
        return finish_row(row, str)

    async def sample(self, requests: Sequence[SampleRequest]) -> list[tuple[Completion, ...]]:
        raise AssertionError("an engine that can be interrupted is given one group at a time")

    load = close = sample


class Tasks:
    """Every third task is long."""

    def __init__(self) -> None:
        self.chosen = 0

    async def choose(self, count: int) -> list[TaskRef]:
        self.chosen += count
        first = self.chosen - count
        return [
            TaskRef("env", "1", "short" if n % 3 else "long", n)
            for n in range(first, first + count)
        ]


class Bench:
    """A rollout maker with that engine, and the slots of a buffer that keeps nothing."""

    def __init__(self, over: float, **replay: Any) -> None:
        self.engine, self.tasks, self.broken = Engine(), Tasks(), False
        environment: Any = SimpleNamespace(
            info=EnvironmentInfo("env", "1", ("long", "short")),
            render=self._render,
            score_all=self._score_all,
        )
        codec = SimpleNamespace(
            encode_prompt=lambda prompt: (int(prompt),), fits=lambda ids, longest: True
        )
        unused: Mapping[str, Any] = {"transport": None, "storage": None, "processes": dict}
        parts = Parts(
            sampler=self.engine,
            trainer=SimpleNamespace(version=0),
            environment=environment,
            codec=codec,
            policy=PolicyRef(b"m" * 32, b"t" * 32, 0),
            clock=SYSTEM_CLOCK,
            **unused,
        )
        tally, sampling = Tally(), load_settings({}, environ={}).sampling
        self.slots = Slots(ReplayBuffer(replay_settings(**replay)), 8)
        self.maker = RolloutMaker(
            sampling,
            parts,
            tally,
            Scoring(environment, tally, Effort(1.0, str), SYSTEM_CLOCK),
            FittingTasks(sampling, parts, tally, self.tasks),
            self.slots,
            PartialRollouts(self.engine, max_staleness=8, over_provision=over),
            seed=0,
            peer_id="peer",
        )
        self.made: list[LocalGroup] = []

    async def batch(self) -> int:
        """One sampling batch; the number of groups that it begins."""
        before = len(self.engine.begun)
        count = self.slots.sampling_batch(0)
        assert count > 0
        await self.maker.make(count, self._deliver)
        return len(self.engine.begun) - before

    async def _deliver(self, groups: Sequence[LocalGroup]) -> None:
        self.made.extend(groups)

    async def _render(self, refs: Sequence[TaskRef]) -> list[str]:
        return ["3" if ref.family == "long" else "1" for ref in refs]

    async def _score_all(
        self, groups: Sequence[tuple[TaskRef, Sequence[str]]]
    ) -> list[GroupScores]:
        if self.broken:
            raise ChildError("gone")
        # Groups that teach something: no change of settings is tried.
        return [
            GroupScores("", tuple(float(n % 2) for n, _ in enumerate(texts))) for _, texts in groups
        ]


async def test_interrupted_groups_are_counted_until_a_later_batch_completes_them() -> None:
    bench = Bench(1.5, local=4, external=4, max_staleness=8)
    assert await bench.batch() == 12  # 8 · 1.5, of which four are long
    assert (len(bench.made), bench.slots.sampling) == (8, 4)
    assert bench.slots.free(0) == 12
    assert await bench.batch() == 8  # with the four that were interrupted
    assert len(bench.made) + bench.slots.sampling == 20


async def test_over_provision_begins_no_group_without_a_slot() -> None:
    bench = Bench(2.0, local=4, external=4, max_staleness=1)
    assert bench.slots.free(0) == 8
    assert await bench.batch() == 8  # and not 16
    assert bench.slots.sampling == 8 - len(bench.made) == 0


async def test_interrupted_groups_that_hold_every_slot_are_completed() -> None:
    bench = Bench(2.0, local=4, external=4, max_staleness=3)
    assert bench.slots.free(0) == 16
    assert await bench.batch() == 16
    assert (len(bench.made), bench.slots.sampling) == (10, 6)
    bench.slots.train(10)
    assert (bench.slots.free(0), bench.slots.sampling_batch(0)) == (0, 6)
    assert await bench.batch() == 0
    assert (len(bench.made), bench.slots.sampling, bench.slots.free(0)) == (16, 0, 6)


async def test_groups_that_fail_give_their_slots_back() -> None:
    bench = Bench(1.5, local=4, external=4, max_staleness=8)
    bench.broken = True
    with pytest.raises(ChildError, match="gone"):
        await bench.batch()
    assert bench.made == []
    assert bench.slots.sampling == 4  # the interrupted ones
    bench.broken = False
    await bench.batch()
    assert len(bench.made) + bench.slots.sampling == 12
