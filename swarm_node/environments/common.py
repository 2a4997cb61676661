"""The tasks that nodes of one swarm sample in common, without telling each other. Pure.

The tasks are numbered, and the number names the task. Each epoch of the wall clock has a first
number, and a node counts up from it as far as it gets. So nodes of any speed sample the same first
tasks of every epoch, and no node waits. A node with a wrong clock samples tasks that others do not.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from swarm_node.environments.seeds import task_seed

#: Much longer than one call of the sampler, much shorter than a group stays fresh to peers.
EPOCH_SECONDS = 300
#: Numbers of one epoch. A node that needs more takes those of the next.
_EPOCH_TASKS = 1 << 20


def is_common(index: int, share: float) -> bool:
    """Check that the node's task number `index` is a common one. Of any n successive tasks,
    n·`share` are common, rounded up or down."""
    return int((index + 1) * share) > int(index * share)


def first_number(counter: int, wall: float) -> int:
    """The next number at `wall` Unix seconds, if all below `counter` are used. Never decreases."""
    return max(counter, int(wall // EPOCH_SECONDS) * _EPOCH_TASKS)


def common_tasks(
    swarm_id: bytes, families: Sequence[str], own: Collection[str], first: int, count: int
) -> tuple[list[tuple[str, int]], int]:
    """The next `count` tasks from number `first` on as (family, seed), and the number after them.
    Tasks of families that this node does not sample are skipped.

    Raises:
        ValueError: `own` has none of `families`.
    """
    order = sorted(families)  # nodes may list the same families in another order
    if not set(order) & set(own):
        raise ValueError("a node samples at least one of the families")
    tasks: list[tuple[str, int]] = []
    number = first
    while len(tasks) < count:
        seed = task_seed("common", swarm_id, number)
        family = order[seed % len(order)]
        if family in own:
            tasks.append((family, seed))
        number += 1
    return tasks, number
