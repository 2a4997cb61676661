"""Lists that are cut have members of as many issuers as possible."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from swarm_node.p2p.limits.round_robin import drawn_in_turn, in_turn


def test_the_first_of_each_comes_before_the_second_of_any() -> None:
    items = ["a1", "a2", "a3", "b1", "c1", "c2"]
    assert in_turn(items, lambda item: item[0], 6) == ["a1", "b1", "c1", "a2", "c2", "a3"]
    assert in_turn(items, lambda item: item[0], 2) == ["a1", "b1"]
    assert in_turn([], str, 2) == []


@given(st.lists(st.integers(0, 200), unique=True), st.integers(0, 30), st.integers())
def test_no_issuer_has_two_more_than_another_that_has_some_left(
    items: list[int], most: int, seed: int
) -> None:
    drawn = drawn_in_turn(random.Random(seed), items, lambda item: str(item % 5), most)
    assert len(drawn) == len(set(drawn)) == min(most, len(items))
    for issuer in range(5):
        mine = sum(item % 5 == issuer for item in drawn)
        if any(item % 5 == issuer for item in set(items).difference(drawn)):
            assert all(sum(item % 5 == other for item in drawn) <= mine + 1 for other in range(5))
