"""Tasks that a swarm samples in common: the same for all, without anybody telling."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swarm_node.environments.common import EPOCH_SECONDS, common_tasks, first_number, is_common
from swarm_node.rollout import HELD_OUT_SEED

SWARM = b"s" * 32
FAMILIES = ("gcd", "products", "bf", "arc_1d")


@given(st.integers(0, 10_000), st.integers(1, 500), st.floats(0, 1))
def test_the_share_is_kept_over_any_stretch(first: int, count: int, share: float) -> None:
    common = sum(is_common(index, share) for index in range(first, first + count))
    assert abs(common - count * share) <= 1.0 + 1e-6
    if share in (0.0, 1.0):
        assert common == count * share


def test_nodes_meet_at_the_beginning_of_an_epoch_and_nobody_goes_back() -> None:
    fast, slow = 5_000, 7
    now = 1_700_000_000.0
    start = first_number(0, now)
    assert first_number(start + fast, now + 1) == start + fast
    soon = now - now % EPOCH_SECONDS + EPOCH_SECONDS
    assert first_number(start + fast, soon) == first_number(start + slow, soon) > start + fast
    # A clock that went back, or was far ahead once, repeats nothing.
    ahead = first_number(0, now + 1e9)
    assert first_number(ahead + 3, now) == ahead + 3


@given(st.integers(0, 1 << 50), st.integers(0, 40))
def test_all_nodes_derive_the_same_training_tasks(first: int, count: int) -> None:
    tasks, after = common_tasks(SWARM, FAMILIES, FAMILIES, first, count)
    assert (len(tasks), after) == (count, first + count)
    assert all(0 <= seed < HELD_OUT_SEED for _, seed in tasks)
    assert len({seed for _, seed in tasks}) == count
    assert common_tasks(SWARM, FAMILIES[::-1], FAMILIES, first, count) == (tasks, after)
    if count:
        assert common_tasks(b"t" * 32, FAMILIES, FAMILIES, first, count)[0] != tasks
        # Seeds are hashed: reasoning-gym would make shifted copies of neighbouring ones.
        following, _ = common_tasks(SWARM, FAMILIES, FAMILIES, after, 1)
        assert abs(following[0][1] - tasks[-1][1]) > 1 << 20


@given(st.sets(st.sampled_from(FAMILIES), min_size=1), st.integers(0, 1 << 40))
def test_specialists_share_the_tasks_of_the_families_they_share(own: set[str], first: int) -> None:
    mine, after = common_tasks(SWARM, FAMILIES, own, first, 10)
    everything, _ = common_tasks(SWARM, FAMILIES, FAMILIES, first, after - first)
    assert mine == [task for task in everything if task[0] in own]


def test_a_node_without_a_family_is_refused() -> None:
    with pytest.raises(ValueError, match="least one"):
        common_tasks(SWARM, FAMILIES, ("other",), 0, 1)
