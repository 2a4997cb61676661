"""Evaluation takes a tenth of the sampler's time at most, however long its answers are."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st
from in_memory import Sampler, World, small_settings, tiny

from swarm_node.node.assembly import assemble
from swarm_node.node.evaluation import cost, pause
from swarm_node.policy.training.process import InlineTrainer
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
    assert cost(took, rows, 0.0) == took
    found = cost(took, rows, per_row)
    assert found <= took
    assert per_row == 0 or found <= rows * per_row


def test_a_node_that_samples_slowly_evaluates_less_often(tmp_path: Path) -> None:
    async def nothing(_: Path) -> None: ...

    async def scenario(loop: VirtualTimeLoop) -> None:
        world = World(tmp_path, loop)
        settings = small_settings(run__eval_seconds=1.0, network__poll_seconds=30.0)
        sampler = Sampler(tiny().sampler(), 0.2, 0, world.home())
        # After one update nothing is sampled but evaluations.
        trainer = PacedTrainer(InlineTrainer(**world.training(settings)), 1.0, 1, nothing)
        parts = world.parts(settings, sampler=sampler, trainer=trainer)
        node = assemble(settings, world.memberships[0], parts)
        life = asyncio.create_task(node.run())
        await asyncio.sleep(600)
        node.stop()
        await life
        # Nine answers of some 8 tokens take 14 seconds.
        seconds = [point.seconds for point in node.snapshot().evals]
        gaps = [later - earlier for earlier, later in pairwise(seconds)]
        assert len(gaps) >= 2
        assert all(60 <= gap <= 300 for gap in gaps)

    run_virtual(scenario)
