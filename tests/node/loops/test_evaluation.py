"""Evaluation takes a tenth of the sampler's time at most, and tells unseen texts from seen ones."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from in_memory import Host, Sampler, World, environment, small_settings, tiny
from virtual import virtual_time

from swarm_node.environments.host import EnvironmentInfo, Whose
from swarm_node.environments.scores import GroupRerun, Rerun
from swarm_node.environments.splits.seeds import held_out_seed
from swarm_node.environments.splits.split import SPLIT
from swarm_node.environments.workers.scoring_worker import Transcript
from swarm_node.node.loops.node_parts import Parts, Tally, Timing
from swarm_node.node.loops.reporting.evaluation import (
    Evaluator,
    evaluation_seconds,
    pause,
    seen_tasks,
)
from swarm_node.node.metrics.snapshot import EvalPoint
from swarm_node.policy.sampling.sampler import SampleRequest
from swarm_node.policy.training.processes.inline import InlineTrainer
from swarm_node.rollout import Completion, TaskRef
from swarm_node.simulation.paced import PacedTrainer
from swarm_node.simulation.virtual_time import VirtualTimeLoop, run_virtual

SECONDS = st.floats(0, 1e6)


@given(SECONDS, SECONDS)
def test_the_pause_leaves_nine_tenths_of_the_time(least: float, spent: float) -> None:
    seconds = pause(least, spent)
    assert seconds >= least
    assert spent <= 0.1001 * (spent + seconds)
    assert seconds == least or seconds <= 9.001 * spent


@given(SECONDS, st.integers(1, 1000), SECONDS)
def test_what_waited_in_a_queue_costs_no_more_than_as_many_own_answers(
    took: float, rows: int, per_row: float
) -> None:
    assert evaluation_seconds(took, rows, 0.0) == took
    found = evaluation_seconds(took, rows, per_row)
    assert found <= took
    assert per_row == 0 or found <= rows * per_row


@pytest.mark.slow(reason="a node samples and measures")
@virtual_time
async def test_a_node_that_samples_slowly_evaluates_less_often(world: World) -> None:
    async def nothing(_: Path) -> None: ...

    settings = small_settings(run__eval_seconds=1.0, network__poll_seconds=30.0)
    sampler = Sampler(tiny().sampler(), 0.2, 0, world.home())
    # After one update nothing is sampled but evaluations.
    trainer = PacedTrainer(InlineTrainer(**world.training(settings)), 1.0, 1, nothing)
    node = world.node(settings, sampler=sampler, trainer=trainer)
    life = asyncio.create_task(node.run())
    await asyncio.sleep(1200)
    node.stop()
    await life
    # Eighteen answers of some 8 tokens take 28 seconds.
    seconds = [point.seconds for point in node.snapshot().evals]
    gaps = [later - earlier for earlier, later in pairwise(seconds)]
    assert len(gaps) >= 2
    assert all(120 <= gap <= 600 for gap in gaps)


@virtual_time
async def test_a_pause_ends_early_once_answers_take_less_time_than_the_first(world: World) -> None:
    """The first answers of all wait until the engine is warm."""
    slow = Sampler(tiny().sampler(), 0.2, 0, world.home())
    settings, tally = small_settings(), Tally(drawing=Timing(seconds=100.0, count=1))
    parts = world.parts(settings, sampler=slow)
    await parts.sampler.load(*await parts.trainer.start())
    info = await parts.environment.start()
    evaluator = _evaluator(parts, info, tally=tally)
    before = parts.clock.now()
    await evaluator.measure()
    took = parts.clock.now() - before
    resting = asyncio.create_task(evaluator.rest())
    await asyncio.sleep(took)
    assert not resting.done()
    tally.drawing.add(0.0, 100_000)
    await asyncio.sleep(2.0)
    assert resting.done()


class _Asked(Sampler):
    """Remembers the answers of each call, and the version of its weights."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.calls: list[tuple[int, int]] = []

    async def sample(self, requests: Sequence[SampleRequest]) -> list[tuple[Completion, ...]]:
        groups = await super().sample(requests)
        self.calls.append((len(requests), groups[0][0].spans[0].version))
        return groups


@pytest.mark.slow(reason="a node samples, measures and trains, twice")
@pytest.mark.parametrize("seconds", [0.0, 1000.0])
@virtual_time
async def test_the_first_point_waits_for_the_first_update_and_is_of_the_untrained_policy(
    world: World, seconds: float
) -> None:
    """An update of two groups waits for two calls of one. The trainer may be quick or slow."""

    async def nothing(_: Path) -> None: ...

    settings = small_settings(sampling__max_concurrent_groups=1)
    sampler = _Asked(tiny().sampler(), 0.01, 0, world.home())
    trainer = PacedTrainer(InlineTrainer(**world.training(settings)), seconds, 1, nothing)
    node = world.node(settings, sampler=sampler, trainer=trainer)
    life = asyncio.create_task(node.run())
    await asyncio.sleep(500)
    measured = next(n for n, (count, _) in enumerate(sampler.calls) if count > 1)
    assert measured >= 2
    assert {version for _, version in sampler.calls[: measured + 1]} == {0}
    (point,) = node.snapshot().evals
    assert point.version == 0
    shot = node.snapshot()
    assert (shot.steps + shot.skipped_batches == 1) == (seconds < 500)
    node.stop()
    await life


class _Known(Host):
    """An environment in which every answer to an unseen text is worth a quarter and every other one
    three quarters. It remembers what it judged."""

    def __init__(self) -> None:
        super().__init__(environment())
        self.judged: dict[TaskRef, str] = {}

    async def rerun(
        self, ref: TaskRef, dialogues: Sequence[Transcript], whose: Whose = "own"
    ) -> GroupRerun:
        found = await super().rerun(ref, dialogues, whose)
        assert ref not in self.judged
        self.judged[ref] = found.prompt
        end = Rerun(reward=0.25 if ref.held_out else 0.75)
        return replace(found, reruns=(end,) * len(dialogues))


def _measured(place: Path, **changes: Any) -> tuple[EvalPoint, dict[TaskRef, str]]:
    """One point, and the tasks that were judged for it with their prompts."""
    host = _Known()

    async def scenario(loop: VirtualTimeLoop) -> EvalPoint:
        settings = small_settings()
        parts = World(place, loop).parts(settings, environment=host)
        await parts.sampler.load(*await parts.trainer.start())
        return await _evaluator(parts, await host.start(), **changes).measure()

    return run_virtual(scenario), host.judged


def _evaluator(parts: Parts, info: EnvironmentInfo, **changes: Any) -> Evaluator:
    arguments = {"tasks": 4, "elapsed": 0.0, "tally": Tally(), "min_pause": 1.0, **changes}
    return Evaluator(
        sampling=small_settings().sampling,
        parts=parts,
        info=info,
        own_families=info.families[:1],
        **arguments,
    )


def test_a_curve_goes_on_from_the_seconds_of_an_earlier_run(tmp_path: Path) -> None:
    seconds = []
    for elapsed in (0.0, 100.0):
        place = tmp_path / f"{elapsed}"
        place.mkdir()
        seconds.append(_measured(place, tries=1, elapsed=elapsed)[0].seconds)
    assert seconds[1] == seconds[0] + 100.0


def test_reward_on_unseen_and_on_seen_texts_are_kept_apart(tmp_path: Path) -> None:
    point, judged = _measured(tmp_path, tries=4)
    assert set(point.families.values()) == set(point.best_of_k.values()) == {0.25}
    assert (point.reward, point.local, point.external_only, point.train) == (0.25, 0.25, 0.25, 0.75)
    assert point.split_version == SPLIT > 0
    unseen = {ref for ref in judged if ref.held_out}
    seen = set(judged) - unseen
    families = len(point.families)
    assert not {judged[ref] for ref in unseen} & {judged[ref] for ref in seen}
    assert (len(unseen), len(seen), len(judged)) == (4 * families, 2 * families, 6 * families)


def test_the_seen_tasks_are_a_quarter_and_two_where_that_is_less() -> None:
    assert [seen_tasks(tasks) for tasks in (1, 2, 8, 16, 64)] == [1, 2, 2, 4, 16]


def test_the_tasks_are_the_same_in_every_run_and_others_with_another_draw(tmp_path: Path) -> None:
    first, again, other, third = (
        set(_measured(tmp_path, tasks=2, draw=draw)[1]) for draw in ("", "", "1", "2")
    )
    assert first == again
    assert len(first | other | third) == 3 * len(first)
    held = {ref.seed for ref in first if ref.held_out}
    assert held == {held_out_seed(ref.family, index) for ref in first for index in range(2)}
