"""Every link has its turn."""

from __future__ import annotations

from swarm_node.p2p.reach.returning import PINGED, Rounds


def test_all_links_are_pinged_in_turns_and_a_new_one_first() -> None:
    rounds = Rounds()
    linked = [f"peer {index:03}" for index in range(2 * PINGED)]
    first, second = rounds.next(linked), rounds.next(linked)
    assert len(first) == len(second) == PINGED
    assert {*first, *second} == {*linked}
    assert rounds.next([*linked, "new"])[0] == "new"


def test_few_links_are_pinged_each_time() -> None:
    rounds = Rounds()
    assert rounds.next(["a", "b"]) == rounds.next(["b", "a"]) == ["a", "b"]
    assert rounds.next([]) == []
