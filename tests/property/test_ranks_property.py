"""How an update's rows are dealt to the processes that train together."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from swarm_node.policy.batch import TrainRow
from swarm_node.policy.ranks import Alone, rounds, split
from swarm_node.rollout import Provenance


@dataclass
class One(Alone):
    """Process number `index` of `count`, as far as dealing goes."""

    index: int
    count: int


def row(length: int, group: int) -> TrainRow:
    ids = np.ones(length, np.uint32)
    return TrainRow(ids[:1], ids, None, 1.0, Provenance.OWN, group=group)


ROWS = st.lists(st.builds(row, st.integers(1, 40), st.integers(0, 5)), min_size=1, max_size=40)


@given(ROWS, st.integers(1, 6), st.booleans())
def test_every_row_goes_to_one_process_and_loads_are_close(
    rows: list[TrainRow], count: int, whole: bool
) -> None:
    shares = split(rows, count, whole_groups=whole)
    assert len(shares) == count
    assert sorted(index for share in shares for index in share) == list(range(len(rows)))
    tasks = [{rows[index].group for index in share} for share in shares]
    if whole:
        assert sum(map(len, tasks)) == len({one.group for one in rows})
        sizes = [sum(len(one) for one in rows if one.group == task) for task in range(6)]
    else:
        sizes = [len(one) for one in rows]
    loads = [sum(len(rows[index]) for index in share) for share in shares]
    # Longest first, each to who has least: no two differ by more than one piece.
    assert max(loads) - min(loads) <= max(sizes)


@given(ROWS, st.integers(1, 6), st.integers(2, 100), st.booleans())
def test_all_processes_take_as_many_steps_and_each_row_once(
    rows: list[TrainRow], count: int, budget: int, whole: bool
) -> None:
    ranks = [One(index, count) for index in range(count)]
    dealt = [rounds(rows, budget, one, whole_groups=whole) for one in ranks]
    assert len({len(steps) for steps in dealt}) == 1
    given_rows = [index for steps in dealt for step in steps for index in step]
    assert sorted(given_rows) == list(range(len(rows)))
    for step in (step for steps in dealt for step in steps if len(step) > 1):
        assert len(step) * max(len(rows[index]) for index in step) <= budget
