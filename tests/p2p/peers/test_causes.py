"""Every cause for which a node is alone: what it names, their order, and the memory of them."""

from __future__ import annotations

import pytest

from swarm_node.p2p.peers.causes import (
    AT_LEAST,
    CAUSES,
    FRESH_SECONDS,
    MAX_FAILED,
    MAX_REFUSED,
    OF_OUTCOME,
    Cause,
    FailureLog,
    advice,
    advice_there,
    of_reason,
    severity,
    text_here,
    text_there,
)
from swarm_node.p2p.wire.reasons import REASONS

AT, WHEN, KEY = "10.77.0.1:31330", "2026-11-23 14:05 UTC", "12D3KooWabcdefgh"


@pytest.mark.parametrize(
    ("cause", "here", "there"),
    [
        (Cause("revoked", name="alice", detail=WHEN), ("alice", WHEN), ("alice", WHEN)),
        (Cause("expired", name="alice", detail=WHEN), ("alice", WHEN), ("alice", WHEN)),
        (
            Cause("used_up", peer=KEY, name="web", detail="1"),
            *(("web", "1 of 1"), ("web", "…abcdefgh")),
        ),
        (Cause("blocked", peer=KEY), ("…abcdefgh",), ("…abcdefgh",)),
        (Cause("clock", name="web", seconds=3602.4), ("web", "3,602 s ahead"), ()),
        (Cause("clock", name="web", seconds=-3602.4), ("3,602 s behind",), ("3,602 s behind",)),
        (Cause("clock", name="web", seconds=300.0, detail=AT_LEAST), (f"{AT_LEAST} 300 s",), ()),
        (Cause("refused", name="bob", detail="tokens"), ("bob", "tokens"), ("bob", "tokens")),
        (Cause("no_greeting", where=AT, name="bob"), ("bob", AT), ()),
        (Cause("other_node", peer=KEY, where=AT), ("…abcdefgh", AT), ()),
        (Cause("no_answer", where=AT, seconds=3.0, tries=3), (AT, "(3 tries, 9 s)"), ()),
        (Cause("no_address", where=AT, detail="unknown"), (AT, "unknown"), ()),
        (Cause("environment", name="bob", detail="drills"), ("bob", "drills"), ("bob", "drills")),
        (Cause("model", name="bob, web", detail="tiny"), ("bob, web", "tiny"), ("bob, web",)),
    ],
)
def test_a_cause_is_told_with_its_peer_address_and_detail(
    cause: Cause, here: tuple[str, ...], there: tuple[str, ...]
) -> None:
    assert [fact for fact in here if fact not in text_here(cause)] == []
    assert [fact for fact in there if fact not in text_there(cause)] == []


def test_every_cause_has_words_of_its_own_and_a_remedy_at_each_end() -> None:
    causes = [Cause(code, where=AT, name="bob") for code in CAUSES]
    assert len({text_here(cause) for cause in causes}) == len(CAUSES)
    assert all(advice(cause) for cause in causes)
    for cause in causes:
        assert bool(text_there(cause)) == bool(CAUSES[cause.code].host_text)
        assert advice_there(cause) or not text_there(cause)
    for code, command in (("revoked", "invite"), ("used_up", "members"), ("blocked", "unblock")):
        assert f"swarm-node {command}" in advice_there(Cause(code))


def test_every_cause_can_arise() -> None:
    reached = {of_reason(reason) for reason in REASONS} | set(OF_OUTCOME.values()) | {"link_down"}
    reached.add("no_greeting")  # of an address that is open
    reached.add("out_of_range")  # of an address that a peer states (node/loops/peers/rows.py)
    reached |= {"no_address", "no_coordinator"}  # of a coordinator (node/loops/peers/dialing.py)
    reached |= {"environment", "model"}  # of what a peer announces (node/metrics/health.py)
    assert reached == set(CAUSES)


def test_a_membership_comes_before_a_clock_and_that_before_an_address() -> None:
    mixed = [Cause(code) for code in ("no_answer", "clock", "nobody_listens", "revoked")]
    order = [cause.code for cause in sorted(mixed, key=severity)]
    assert order == ["revoked", "clock", "nobody_listens", "no_answer"]
    levels = [("bad", "warning", "good").index(kind.level) for kind in CAUSES.values()]
    assert levels == sorted(levels), "no warning comes before what is bad"


def test_tries_are_counted_until_the_cause_changes_or_the_peer_answers() -> None:
    log = FailureLog()
    for second in range(3):
        log.record_failure(Cause("no_answer", "one", where=AT, seconds=3.0), second)
    (found,) = log.causes(5.0)
    assert (found.tries, found.seconds_since) == (3, 3.0)
    log.record_failure(Cause("nobody_listens", "one", where=AT), 6.0)
    (found,) = log.causes(6.0)
    assert (found.code, found.tries) == ("nobody_listens", 1)
    log.record_failure(Cause("revoked", "one"), 7.0)
    log.forget_address_failures("one", AT)
    assert [cause.code for cause in log.causes(7.0)] == ["revoked"], "only the address is well"
    log.forget_refusals("one")
    assert log.causes(7.0) == []


def test_a_clock_is_right_again_once_the_peer_signs_a_time_of_now() -> None:
    log = FailureLog()
    log.record_failure(Cause("clock", "one", seconds=3602.0), 0.0)
    log.record_failure(Cause("revoked", "two"), 0.0)
    log.in_time("two")
    log.forget_refusals("one")
    assert {cause.code for cause in log.causes(0.0)} == {"clock", "revoked"}
    log.in_time("one")
    log.forget_refusals("two")
    assert log.causes(0.0) == []
    log.record_failure(Cause("clock", "one", seconds=3602.0), 0.0)
    log.admitted_here("one")
    assert log.causes(0.0) == [], "it refused the times of the chain, and takes them now"


def test_an_old_entry_says_nothing_about_now() -> None:
    log = FailureLog()
    log.record_failure(Cause("revoked", "one"), 0.0)
    log.refuse(Cause("used_up", "two"), 0.0)
    assert len(log.causes(FRESH_SECONDS)) == len(log.recent_refusals(FRESH_SECONDS)) == 1
    assert log.causes(FRESH_SECONDS + 1) == log.recent_refusals(FRESH_SECONDS + 1) == []
    log.link_down = True
    assert [cause.code for cause in log.causes(9e9)] == ["link_down"]


def test_strangers_cannot_fill_the_memory() -> None:
    log = FailureLog()
    for number in range(1000):
        log.record_failure(Cause("no_answer", f"p{number}"), 1.0)
        log.refuse(Cause("used_up", f"p{number}"), 1.0)
    assert len(log.causes(1.0)) == MAX_FAILED
    assert len(log.recent_refusals(1.0)) == MAX_REFUSED
    assert log.refusals == {"used_up": 1000}
    log.forget_refused_caller("p999")
    assert len(log.recent_refusals(1.0)) == MAX_REFUSED - 1
