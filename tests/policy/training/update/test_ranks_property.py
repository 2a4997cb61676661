"""How an update's rows are dealt to the processes that train together."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from swarm_node.policy.experience.batch import TrainRow
from swarm_node.policy.training.objective.packing import padded_tokens, sequences, shared_length
from swarm_node.policy.training.update.ranks import Ranks, rounds, split
from swarm_node.rollout import Provenance


@dataclass
class One(Ranks):
    """Process number `index` of `count`, as far as dealing goes."""

    index: int
    count: int


def row(prompt: int, length: int, group: int) -> TrainRow:
    ids = np.ones(max(prompt, length), np.uint32)
    return TrainRow(ids[:prompt], ids[:length], None, 1.0, Provenance.LOCAL, group=group)


LENGTHS = st.integers(1, 40)
ROWS = st.lists(st.builds(row, LENGTHS, LENGTHS, st.integers(0, 5)), min_size=1, max_size=40)


@given(ROWS, st.integers(1, 6), st.integers(2, 200), st.booleans())
def test_every_row_goes_to_one_process_and_loads_are_close(
    rows: list[TrainRow], count: int, budget: int, whole: bool
) -> None:
    shares = split(rows, count, budget, whole_groups=whole)
    assert len(shares) == count
    assert sorted(index for share in shares for index in share) == list(range(len(rows)))
    pieces = sequences(rows, budget)
    sizes = [shared_length(rows, pack) for pack in pieces]
    if whole:
        tasks = {one.group for one in rows}
        pieces = [[n for n, one in enumerate(rows) if one.group == task] for task in tasks]
        sizes = [sum(len(rows[index]) for index in piece) for piece in pieces]
    taken = [[n for n, piece in enumerate(pieces) if set(piece) & set(share)] for share in shares]
    assert sum(map(len, taken)) == len(pieces)
    # Longest first, each to who has least: no two differ by more than one piece.
    loads = [sum(sizes[n] for n in piece) for piece in taken]
    assert max(loads) - min(loads) <= max(sizes)


@given(ROWS, st.integers(1, 6), st.integers(2, 200), st.booleans())
def test_all_processes_take_as_many_steps_and_each_row_once(
    rows: list[TrainRow], count: int, budget: int, whole: bool
) -> None:
    ranks = [One(index, count) for index in range(count)]
    dealt = [rounds(rows, budget, one, whole_groups=whole) for one in ranks]
    assert len({len(steps) for steps in dealt}) == 1
    given_rows = [index for steps in dealt for step in steps for index in step]
    assert sorted(given_rows) == list(range(len(rows)))
    for step in (step for steps in dealt for step in steps if len(step) > 1):
        assert padded_tokens(rows, step) <= budget
