"""The directory: whom a node asks, and what it holds of what they offer."""

from __future__ import annotations

import random

import pytest

from swarm_node.p2p.peers.liveness import choose
from swarm_node.p2p.peers.peers import ANCHORS, LOST_TRIES, PARTNERS, TRIES, Directory, Offer, Peer


def _directory(partners: int, others: int = 0) -> Directory:
    directory = Directory("me")
    for index in range(partners + others):
        peer = directory.meet(f"peer {index:03}", 0.0)
        if index < partners:
            directory.add_partner(random.Random(0), peer, _issuer, float(index))
    return directory


def _issuer(peer_id: str) -> str:
    return peer_id.rpartition(" ")[0]


def _drawn(directory: Directory, times: int) -> list[str]:
    rng = random.Random(1)
    return [peer.peer_id for _ in range(times) for peer in directory.draw(rng, 3, 0.0)]


def _lost(directory: Directory, now: float) -> Peer | None:
    """The lost peer that is to be tried at `now`, if any."""
    alone = directory.fewer(1, now)
    found = choose(random.Random(1), directory.silent(now), now, is_alone=alone)
    return None if found is None else directory.get(found)


def test_in_a_small_swarm_everybody_is_asked_alike() -> None:
    drawn = _drawn(_directory(partners=5, others=5), 1000)
    assert len(set(drawn)) == 10
    assert all(220 < drawn.count(name) < 380 for name in set(drawn))


def test_those_who_greet_a_node_get_at_most_half_of_its_draws() -> None:
    drawn = _drawn(_directory(partners=8, others=100), 1000)
    partners = [name for name in drawn if name < "peer 008"]
    assert 0.45 < len(partners) / len(drawn) < 0.55


def test_it_is_known_whether_enough_may_be_asked() -> None:
    directory = _directory(partners=3, others=2)
    assert directory.fewer(6, 0.0)
    assert not directory.fewer(5, 0.0)
    assert directory.fewer(4, 0.0, partners=True)
    assert not directory.fewer(3, 0.0, partners=True)
    directory.meet("peer 000", 0.0).record_failure(0.0)
    directory.meet("peer 004", 0.0).standing.left_until = 9.0
    assert directory.fewer(4, 0.0)
    assert directory.fewer(3, 0.0, partners=True)
    assert not directory.fewer(4, 9.0)
    assert Directory("me").fewer(1, 0.0)


def test_no_peer_is_drawn_twice_at_once_and_none_that_is_left_out() -> None:
    directory = _directory(partners=3, others=2)
    drawn = directory.draw(random.Random(1), 9, 0.0, {"peer 001", "peer 004"})
    assert sorted(peer.peer_id for peer in drawn) == ["peer 000", "peer 002", "peer 003"]


def test_a_peer_that_fails_is_asked_for_nothing_until_it_answers_a_retry() -> None:
    directory = _directory(partners=3)
    failing = directory.meet("peer 000", 0.0)
    failing.record_failure(0.0)
    assert "peer 000" not in _drawn(directory, 500)
    assert len(directory.draw(random.Random(1), 3, 1e9)) == 2
    assert _lost(directory, 0.9) is None
    assert _lost(directory, 1.0) is failing
    failing.record_answer(2.0)
    assert _lost(directory, 1e9) is None
    assert len(directory.draw(random.Random(1), 3, 2.0)) == 3


def test_only_silent_peers_that_are_not_left_alone_are_retried_early() -> None:
    directory = _directory(partners=3)
    silent, left = directory.meet("peer 000", 0.0), directory.meet("peer 001", 0.0)
    for peer in (silent, left):
        peer.record_failure(0.0)
    left.standing.left_until = 50.0
    assert directory.silent(49.0) == {"peer 000": silent.retry}
    assert directory.silent(50.0) == {"peer 000": silent.retry, "peer 001": left.retry}
    silent.retry.begin(50.0)
    assert _lost(directory, 50.0) is left


def _fail_retries(peer: Peer, times: int) -> float:
    """Let a peer fail retries, each as soon as it is due. Return when the next one is."""
    for _ in range(times):
        now = max(0.0, peer.retry.due_at)
        peer.retry.begin(now)
        peer.record_failure(now)
    return peer.retry.due_at


def test_requests_that_fail_together_count_as_one_failure() -> None:
    directory = _directory(partners=1)
    peer = directory.meet("peer 000", 0.0)
    for _ in range(8):
        peer.record_miss(0.0)
    assert peer.retry.failures == 1
    assert _lost(directory, 1.0) is peer
    peer.retry.begin(1.0)
    assert _lost(directory, 20.0) is None, "a retry is under way"
    peer.record_failure(6.0)
    peer.record_miss(6.0)
    assert (peer.retry.failures, peer.retry.due_at) == (2, 7.125)


def test_a_peer_that_answers_no_retry_leaves_once_others_are_heard() -> None:
    directory = _directory(partners=2)
    lost = directory.meet("peer 000", 0.0)
    _fail_retries(lost, LOST_TRIES)
    directory.meet("peer 001", 0.0).record_answer(5.0)
    directory.dismiss(lost, asked_before=4.0)
    assert len(directory) == 2
    _fail_retries(lost, 1)
    directory.dismiss(lost, asked_before=5.0)  # nobody was heard since: it may be us
    assert len(directory) == 2
    directory.dismiss(lost, asked_before=4.0)
    assert directory.get("peer 000") is None


def test_whoever_greets_a_full_directory_displaces_no_partner() -> None:
    directory = _directory(partners=PARTNERS)
    for index in range(10_000):
        directory.meet(f"newcomer {index}", 1000.0 + index)
    assert len(directory) == 128
    assert len(directory.partners(1e9)) == PARTNERS


def test_partners_come_to_be_of_many_issuers_and_the_oldest_stay() -> None:
    directory, rng = Directory("me"), random.Random(0)
    for index in range(PARTNERS):
        peer = directory.meet(f"crowd {index:03}", 0.0)
        directory.add_partner(rng, peer, _issuer, float(index))
    oldest = [peer.peer_id for peer in directory.partners(1e9)][:ANCHORS]
    for index in range(20):
        directory.add_partner(rng, Peer(f"issuer {index} one", 0.0), _issuer, 100.0 + index)
    partners = directory.partners(1e9)
    assert len(partners) == PARTNERS
    assert [peer.peer_id for peer in partners][:ANCHORS] == oldest
    assert {_issuer(peer.peer_id) for peer in partners} == {
        "crowd",
        *(f"issuer {i}" for i in range(20)),
    }


def test_an_offer_that_nobody_answered_is_tried_again_and_not_for_ever() -> None:
    directory = _directory(partners=1)
    directory.meet("peer 000", 0.0).offers.append(Offer(b"id", "peer 000", 1, 1, 100))
    drawn = 0
    while offer := directory.draw_offer(random.Random(1), lambda _: 9, str, 0.0):
        drawn += 1
        directory.give_back(offer)
    assert drawn == TRIES


def test_nothing_is_drawn_from_a_peer_that_stopped_answering() -> None:
    directory = _directory(partners=1)
    peer = directory.meet("peer 000", 0.0)
    peer.offers.append(Offer(b"id", "peer 000", 1, 1, 100))
    peer.record_failure(0.0)
    assert directory.offered_count(lambda _: 9, 1e9) == 0
    assert directory.draw_offer(random.Random(1), lambda _: 9, str, 1e9) is None
    peer.record_answer(1.0)
    assert directory.offered_count(lambda _: 9, 1.0) == 1


def test_a_silent_peer_that_asks_is_retried_soon_and_no_more_often() -> None:
    directory = _directory(partners=2)
    silent = directory.meet("peer 000", 0.0)
    due = _fail_retries(silent, 30)
    began = silent.retry.tried_at
    assert _lost(directory, began + 7.0) is None
    silent.record_request(began + 5.0)
    assert _lost(directory, began + 5.0) is None
    assert _lost(directory, began + 6.0) is silent
    silent.retry.begin(began + 6.0)
    silent.record_failure(began + 11.0)
    assert silent.retry.due_at == due, "an early retry lengthens no pause"
    answering = directory.meet("peer 001", 0.0)
    answering.record_request(30.0)
    assert answering.retry_at <= 30.0


def test_retries_do_not_wait_while_nobody_answers_nor_after_a_repair() -> None:
    directory = _directory(partners=2)
    one, other = directory.meet("peer 000", 0.0), directory.meet("peer 001", 0.0)
    _fail_retries(one, 30)
    began = one.retry.tried_at
    other.record_miss(began)
    assert _lost(directory, began + 5.0) is other  # after a second
    other.retry.begin(began + 5.0)
    assert _lost(directory, began + 5.0) is None
    assert _lost(directory, began + 6.0) is one, "nobody answers"
    other.record_answer(began + 6.0)
    assert _lost(directory, began + 6.0) is None, "one peer alone is silent"
    directory.hurry(began + 6.0)
    assert _lost(directory, began + 6.0) is one


def test_an_author_that_has_no_slot_left_offers_nothing_and_hides_nothing() -> None:
    directory, slots = _directory(partners=2), {"peer 000": -1, "peer 001": 0}
    for name in slots:
        directory.meet(name, 0.0).offers.append(Offer(name.encode(), name, 1, 1, 100))
    assert directory.offered_count(slots.__getitem__, 0.0) == 0
    assert directory.draw_offer(random.Random(1), slots.__getitem__, str, 0.0) is None
    slots["peer 001"] = 1
    assert directory.offered_count(slots.__getitem__, 0.0) == 1
    offer = directory.draw_offer(random.Random(1), slots.__getitem__, str, 0.0)
    assert offer.author == "peer 001"


def test_only_who_was_seen_lately_is_shown() -> None:
    directory = _directory(partners=2)
    directory.meet("peer 001", 0.0).record_answer(50.0)
    assert [peer.peer_id for peer in directory.live(60.0, 20.0)] == ["peer 001"]


def test_a_node_is_not_its_own_peer_and_nothing_is_kept_of_strangers() -> None:
    directory = _directory(partners=0)
    with pytest.raises(ValueError, match="own peer"):
        directory.meet("me", 0.0)
    assert directory.record_rejection("stranger", "schema", 0.0) == 0.0
    assert len(directory) == 0


def test_one_lost_message_costs_no_greeting_two_in_a_row_do() -> None:
    peer = _directory(partners=1).meet("peer 000", 0.0)
    peer.is_greeted = True
    peer.record_miss(0.0)
    assert peer.is_greeted
    _fail_retries(peer, 1)
    assert not peer.is_greeted
