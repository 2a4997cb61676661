"""A node takes over the settings that need no restart."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from in_memory import World, small_settings
from virtual import virtual_time

from swarm_node.config import settings_keys
from swarm_node.config.model import at_once
from swarm_node.node.loops.node import Node
from swarm_node.node.loops.reporting.evaluation import seen_tasks
from swarm_node.policy.training.processes.inline import InlineTrainer
from swarm_node.simulation.paced import PacedTrainer

#: `verbose` is the log's: tests/integration/test_reload.py.
OTHERS = {
    "network.relay": "serve",
    "run.max_steps": 30,
    "run.eval_seconds": 5.0,
    "run.eval_tasks": 3,
    "run.save_steps": 1,
}


class Trainer(InlineTrainer):
    """Counts its checkpoints."""

    stored = 0

    async def checkpoint(self, extra: Mapping[str, Any], *, wait: bool = True) -> None:
        self.stored += 1
        await super().checkpoint(extra, wait=wait)


def test_these_need_no_restart() -> None:
    assert {key for key, _ in settings_keys() if at_once(key)} == {"verbose", *OTHERS}


@pytest.mark.slow(reason="a node samples, measures and trains")
@virtual_time
async def test_a_running_node_goes_on_with_other_settings(world: World) -> None:
    settings = small_settings(run__max_steps=1_000_000)
    trainer = Trainer(**world.training(settings))
    node = world.node(settings, trainer=trainer)
    life = asyncio.create_task(node.run())
    await asyncio.sleep(20)
    before = node.snapshot()
    assert 1 <= before.steps < 30
    assert (len(before.evals), trainer.stored) == (1, 0)
    assert not _serves(node)
    changed = {key.replace(".", "__"): value for key, value in OTHERS.items()}
    node.adopt(small_settings(**changed))
    ended = await asyncio.wait_for(life, 3600)
    assert ended.steps == 30
    assert trainer.stored >= 2
    assert _serves(node)


@virtual_time
async def test_a_pause_between_measurements_ends_by_the_new_setting(world: World) -> None:
    async def nothing(_: Path) -> None: ...

    settings = small_settings()
    # After one update nothing is sampled but evaluations.
    trainer = PacedTrainer(InlineTrainer(**world.training(settings)), 1.0, 1, nothing)
    node = world.node(settings, trainer=trainer)
    # What is read again during the start counts, too.
    node.adopt(small_settings(run__eval_seconds=3600.0, run__eval_tasks=2))
    life = asyncio.create_task(node.run())
    await asyncio.sleep(100)
    first = node.snapshot()
    families = len(first.families)
    assert [len(first.evals), node._work.evaluator._rows] == [1, (2 + seen_tasks(2)) * families]
    node.adopt(small_settings(run__eval_seconds=300.0, run__eval_tasks=1))
    await asyncio.sleep(100)
    assert len(node.snapshot().evals) == 1
    await asyncio.sleep(200)
    assert len(node.snapshot().evals) == 2
    assert node._work.evaluator._rows == (1 + seen_tasks(1)) * families
    node.stop()
    await life


def _serves(node: Node) -> bool:
    relaying = node.snapshot().relaying
    return relaying.serves
