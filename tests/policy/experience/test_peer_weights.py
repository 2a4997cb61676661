"""The worth of peers' groups, and the places in a batch that it buys."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from builders import completion, replay_settings, verified

from swarm_node.policy.experience.mixture import Mixture
from swarm_node.policy.experience.peer_weights import PeerWeights
from swarm_node.policy.experience.replay import ReplayBuffer
from swarm_node.policy.experience.slots import Slots

FAMILIES = ("addition", "reversal", "sorting")


def known(own: float, count: int = 60, **authors: float) -> PeerWeights:
    """Everybody's groups are of all families in turn, and teach this much."""
    worth = PeerWeights()
    for number in range(count):
        family = FAMILIES[number % len(FAMILIES)]
        worth.note_own(family, own)
        for author, learnt in authors.items():
            worth.note(author, family, learnt)
    return worth


def test_who_teaches_as_much_as_own_groups_has_as_many_places_and_others_far_fewer() -> None:
    worth = known(0.2, alike=0.2, better=0.9, half=0.1, easy=0.01)
    shares = [worth.share(author) for author in ("alike", "better", "half", "easy")]
    assert shares[0] == pytest.approx(1.0, abs=0.02)
    assert shares[1] == 1.0
    assert shares[1] > 2 * shares[2] > 4 * shares[3] > 0.0


def test_a_share_falls_as_soon_as_an_author_teaches_less_and_rises_again() -> None:
    worth = known(0.2, turning=0.2)
    shares = [worth.share("turning")]
    for learnt in (0.0, 0.2):
        for number in range(64):
            worth.note("turning", FAMILIES[number % 3], learnt)
        shares.append(worth.share("turning"))
    assert shares[1] < 0.1 < 0.8 < shares[2] <= shares[0]


def test_an_unknown_author_and_a_node_that_learns_nothing_alone_take_what_there_is() -> None:
    assert PeerWeights().share("anybody") == 1.0
    assert known(0.2).share("anybody") == 1.0
    weak = PeerWeights()
    for number in range(40):
        weak.note("teacher", FAMILIES[number % 3], 0.0)
    assert weak.share("teacher") == 1.0


def test_many_groups_of_one_family_count_less_than_those_of_several() -> None:
    worth = PeerWeights()
    for number in range(120):
        family = FAMILIES[number % 3]
        worth.note_own(family, 0.2)
        worth.note("broad", family, 0.2)
        worth.note("narrow", "addition", 0.2)
    assert worth.share("broad") > 2 * worth.share("narrow")


def test_where_there_is_one_family_it_counts_in_full() -> None:
    worth = PeerWeights()
    for _ in range(40):
        worth.note_own("only", 0.2)
        worth.note("peer", "only", 0.2)
    assert worth.share("peer") == pytest.approx(1.0)


def drawn_by_author(volumes: dict[str, int], worth: PeerWeights, updates: int = 40) -> Counter[str]:
    """Groups drawn of each author in batches of eight, where each update brings eight own groups
    and so many of each author."""
    buffer, rng, names = ReplayBuffer(replay_settings(local=1, external=7)), random.Random(1), 0
    buffer.aim(Mixture(4, 4))
    buffer.worth = worth
    found: Counter[str] = Counter()
    for version in range(updates):
        for author, count in {"me": 8, **volumes}.items():
            for _ in range(count):
                names += 1
                answers = [completion([0], versions=(version,))] * 2
                made = verified(
                    f"{author}{names}", author, completions=answers, arrived=version, seed=names
                )
                buffer.admit(made, version)
        drawn = buffer.draw(version, rng)
        found.update(group.author for group in drawn.groups)
    assert found.total() == 8 * updates
    return found


def test_volume_buys_no_places_of_an_author_that_teaches_little() -> None:
    worth = known(0.2, ann=0.2, bob=0.2, flood=0.02)
    alone = drawn_by_author({"ann": 1, "bob": 1}, worth)
    beside = drawn_by_author({"ann": 1, "bob": 1, "flood": 16}, worth)
    assert beside["flood"] < 0.1 * beside.total()
    for author in ("ann", "bob"):
        assert beside[author] >= 0.9 * alone[author]


def test_equal_peers_are_drawn_in_full_and_none_more_than_this_node_itself() -> None:
    alike = {f"peer{number}": 1 for number in range(4)}
    found = drawn_by_author(alike, known(0.2, **dict.fromkeys(alike, 0.2)))
    assert all(found[author] >= 39 for author in alike)
    teachers = drawn_by_author({"ann": 1, "flood": 16}, known(0.2, ann=0.2, flood=0.2))
    assert teachers["ann"] >= 39
    assert teachers["flood"] <= teachers["me"]


def test_a_mixture_without_own_groups_takes_all_that_there_is() -> None:
    buffer = ReplayBuffer(replay_settings(local=0, external=4))
    for version in range(8):
        for number in range(4):
            group = verified(
                f"{version}-{number}", "ann", arrived=version, seed=9 * version + number
            )
            assert buffer.admit(group, version) is None
        drawn = buffer.draw(version, random.Random(version))
        assert len(drawn.groups) == 4


def test_what_a_flood_holds_leaves_slots_to_others() -> None:
    buffer = ReplayBuffer(replay_settings(local=1, external=7))
    slots = Slots(buffer, 4)
    assert slots.free_external(0, "flood") == buffer.settings.peer_quota == 14
    buffer.worth = known(0.2, flood=0.01)
    assert 0 < slots.free_external(0, "flood") <= 2
    for number in range(14):
        buffer.admit(verified(f"{number}", "flood", seed=number), 0)
    assert buffer.held_external("flood") <= 2
    assert slots.free_external(0, "ann") == 14
