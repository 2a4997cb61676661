"""The directory: whom a node asks, and what it holds of what they offer."""

from __future__ import annotations

import random

from swarm_node.p2p.peers import PARTNERS, TRIES, Directory, Offer


def _directory(known: int, greeted: int) -> Directory:
    directory = Directory("me")
    for index in range(known):
        peer = directory.meet(f"peer {index:03}", 0.0)
        peer.greeted = index < greeted
    return directory


def _drawn(directory: Directory, times: int) -> set[str]:
    rng = random.Random(1)
    return {peer.peer_id for _ in range(times) for peer in directory.draw(rng, 3, 0.0)}


def test_everybody_is_asked_until_there_are_enough_partners() -> None:
    assert len(_drawn(_directory(known=100, greeted=PARTNERS - 1), 500)) == 100


def test_a_node_of_a_large_swarm_keeps_to_its_partners_and_meets_a_new_one_now_and_then() -> None:
    directory = _directory(known=100, greeted=PARTNERS)
    greeted = {f"peer {index:03}" for index in range(PARTNERS)}
    drawn = _drawn(directory, 100)
    assert greeted <= drawn
    assert 0 < len(drawn - greeted) < 20


def test_partners_that_fail_are_replaced() -> None:
    directory = _directory(known=100, greeted=PARTNERS)
    lost = directory.meet("peer 000", 0.0)
    lost.failed(0.0)
    drawn = _drawn(directory, 500)
    assert "peer 000" not in drawn
    assert len(drawn) == 99


def test_an_offer_that_nobody_answered_is_tried_again_and_not_for_ever() -> None:
    directory = _directory(known=1, greeted=1)
    directory.meet("peer 000", 0.0).offers.append(Offer(b"id", "peer 000", 1, 1, 100))
    drawn = 0
    while offer := directory.draw_offer(random.Random(1), lambda _: 9, str, 0.0):
        drawn += 1
        directory.give_back(offer)
    assert drawn == TRIES


def test_nothing_is_drawn_from_a_peer_that_is_left_alone() -> None:
    directory = _directory(known=1, greeted=1)
    peer = directory.meet("peer 000", 0.0)
    peer.offers.append(Offer(b"id", "peer 000", 1, 1, 100))
    peer.failed(0.0)
    assert directory.offered(lambda _: 9, 0.5) == 0
    assert directory.draw_offer(random.Random(1), lambda _: 9, str, 0.5) is None
    assert directory.offered(lambda _: 9, 1.0) == 1


def test_one_lost_message_costs_no_greeting_two_in_a_row_do() -> None:
    peer = _directory(known=1, greeted=1).meet("peer 000", 0.0)
    peer.failed(0.0)
    assert peer.greeted
    peer.failed(0.0)
    assert not peer.greeted
