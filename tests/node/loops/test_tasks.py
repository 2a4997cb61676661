"""Which tasks a node samples: of its own families, and none of them twice."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from swarm_node.clock import Clock
from swarm_node.environments.host import EnvironmentInfo
from swarm_node.errors import ConfigError
from swarm_node.node.loops.tasks import SeededTasks, chosen_families
from swarm_node.p2p.membership.local import Local
from swarm_node.rollout import TaskRef
from swarm_node.simulation.seeded import Seeded
from swarm_node.storage import Storage

#: A clock that stands still: common tasks change with its epochs.
CLOCK = Clock(now=lambda: 0.0, wall=lambda: 1e9)
INFO = EnvironmentInfo("env", "1", ("a", "b", "c"))
MEMBERS = Seeded(0).memberships(2)


def choose(home: Path, count: int, *, share: float = 0.0, peer: int = 0) -> list[TaskRef]:
    """The first tasks that the node of member `peer`, started on `home`, chooses."""
    storage, member = Storage(home / f"{peer}.sqlite"), MEMBERS[peer]
    try:
        tasks = SeededTasks(
            Local.of(member.identity, member.swarm, CLOCK),
            INFO,
            ("a", "b"),
            storage,
            seed=0,
            common_share=share,
        )
        return asyncio.run(tasks.choose(count))
    finally:
        storage.close()


@pytest.mark.parametrize("share", [0.0, 0.5, 1.0])
def test_a_restart_repeats_no_task(tmp_path: Path, share: float) -> None:
    chosen = [*choose(tmp_path, 20, share=share), *choose(tmp_path, 20, share=share)]
    assert len(set(chosen)) == 40
    assert {task.family for task in chosen} == {"a", "b"}


def test_nodes_share_no_task_unless_it_is_common(tmp_path: Path) -> None:
    own = {peer: set(choose(tmp_path, 20, peer=peer)) for peer in (0, 1)}
    assert not own[0] & own[1]
    common = {peer: choose(tmp_path, 20, share=1.0, peer=peer) for peer in (0, 1)}
    assert set(common[0]) & set(common[1])


def test_the_families_are_those_wanted_or_all() -> None:
    assert chosen_families([], INFO) == ("a", "b", "c")
    assert chosen_families(["c", "a"], INFO) == ("c", "a")
    with pytest.raises(ConfigError, match=r"x is .* a, b, c"):
        chosen_families(["a", "x"], INFO)
