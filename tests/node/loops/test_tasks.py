"""Which tasks a node samples: of its own families, and none of them twice."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from swarm_node.environments.host import EnvironmentInfo
from swarm_node.errors import ConfigError
from swarm_node.node.loops.sampling.tasks import SeededTasks, chosen_families
from swarm_node.rollout import TaskRef
from swarm_node.storage import Storage

INFO = EnvironmentInfo("env", "1", ("a", "b", "c"))


def choose(home: Path, count: int, peer_id: str = "peer") -> list[TaskRef]:
    """The first tasks that the node `peer_id`, started on `home`, chooses."""
    storage = Storage(home / f"{peer_id}.sqlite")
    try:
        tasks = SeededTasks(INFO, ("a", "b"), storage, seed=0, peer_id=peer_id)
        return asyncio.run(tasks.choose(count))
    finally:
        storage.close()


def test_a_restart_repeats_no_task(tmp_path: Path) -> None:
    chosen = [*choose(tmp_path, 20), *choose(tmp_path, 20)]
    assert len(set(chosen)) == 40
    assert {task.family for task in chosen} == {"a", "b"}


def test_nodes_share_no_task(tmp_path: Path) -> None:
    assert not set(choose(tmp_path, 20, "peer")) & set(choose(tmp_path, 20, "other"))


def test_the_families_are_those_wanted_or_all() -> None:
    assert chosen_families([], INFO) == ("a", "b", "c")
    assert chosen_families(["c", "a"], INFO) == ("c", "a")
    with pytest.raises(ConfigError, match=r"x is .* a, b, c"):
        chosen_families(["a", "x"], INFO)
