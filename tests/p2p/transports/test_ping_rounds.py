"""Every link has its turn, those of members first."""

from __future__ import annotations

from collections.abc import Iterable

from swarm_node.p2p.transports.ping_rounds import PINGED, Rounds


def turns(rounds: Rounds, linked: Iterable[str]) -> list[str]:
    return rounds.next(linked, lambda peer: not peer.startswith("stranger"))


def test_all_links_are_pinged_in_turns_and_a_new_one_first() -> None:
    rounds = Rounds()
    linked = [f"peer {index:03}" for index in range(2 * PINGED)]
    first, second = turns(rounds, linked), turns(rounds, linked)
    assert len(first) == len(second) == PINGED
    assert {*first, *second} == {*linked}
    assert turns(rounds, [*linked, "new"])[0] == "new"


def test_few_links_are_pinged_each_time() -> None:
    rounds = Rounds()
    assert turns(rounds, ["a", "b"]) == turns(rounds, ["b", "a"]) == ["a", "b"]
    assert turns(rounds, []) == []


def test_links_of_strangers_have_the_turns_that_members_leave() -> None:
    rounds = Rounds()
    members = ["a", "b"]
    strangers = [f"stranger {index:04}" for index in range(1000)]
    pinged = [turns(rounds, [*strangers, *members]) for _ in range(3)]
    assert all(each[:2] == members for each in pinged)
    assert len({each for turn in pinged for each in turn[2:]}) == 3 * (PINGED - 2)
