"""The tasks that nodes of one swarm sample in common, without telling each other. Pure.

They are numbered, and the number names the task. Each epoch of the wall clock begins at a number of
its own; within it a node counts on from there as far as it gets. So nodes of any speed meet at the
beginning of every epoch, and nobody waits for anybody: a clock that is wrong costs only company.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from swarm_node.environments.seeds import task_seed

#: Long against one call of the sampler, short against the time a group stays useful to peers.
EPOCH_SECONDS = 300
#: Numbers of one epoch; a node that makes more goes on with those of the next.
_EPOCH_TASKS = 1 << 20


def is_common(index: int, share: float) -> bool:
    """Whether the node's task number `index` is one of the swarm's: of any n in a row n·`share`
    are, rounded up or down."""
    return int((index + 1) * share) > int(index * share)


def first_number(counter: int, wall: float) -> int:
    """Where to go on at `wall` Unix seconds, with all numbers below `counter` used: never back."""
    return max(counter, int(wall // EPOCH_SECONDS) * _EPOCH_TASKS)


def common_tasks(
    swarm_id: bytes, families: Sequence[str], own: Collection[str], first: int, count: int
) -> tuple[list[tuple[str, int]], int]:
    """The next `count` tasks from number `first` on as (family, seed), and the number after them.
    Those of families that this node does not sample are left to others.

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
