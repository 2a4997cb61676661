"""Every cause for which a node is alone: its sentences, their order, and the memory of them."""

from __future__ import annotations

import pytest

from swarm_node.p2p.peers.causes import (
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
    told_here,
    told_there,
)
from swarm_node.p2p.wire.reasons import REASONS

AT = "10.77.0.1:31330"
TABLE = [
    (Cause("revoked", name="alice"),
     "the owner revoked this node's membership, says alice",
     "alice was expelled and asks again", "ask the owner"),
    (Cause("revoked", name="alice", detail="2026-11-23 14:05 UTC"),
     "the owner revoked this node's membership (list of 2026-11-23 14:05 UTC), says alice",
     "alice was expelled (list of 2026-11-23 14:05 UTC) and asks again", "ask the owner"),
    (Cause("expired", name="alice", detail="2026-11-23 14:05 UTC"),
     "this node's membership ended on 2026-11-23 14:05 UTC, says alice",
     "the membership of alice ended on 2026-11-23 14:05 UTC", "new ticket"),
    (Cause("used_up", peer="12D3KooWabcdefgh", name="web", detail="1"),
     "this ticket has admitted 1 of 1 nodes, says web",
     "the ticket of web is used up, and another machine (…abcdefgh) tried it", "another ticket"),
    (Cause("expired", name="alice"),
     "this node's membership ended, says alice", "the membership of alice ended", "new ticket"),
    (Cause("used_up", name="web"),
     "this ticket has admitted as many nodes as it may, says web",
     "the ticket of web is used up", "ask for another ticket"),
    (Cause("banned", peer="12D3KooWabcdefgh"),
     "the owner of …abcdefgh shuns this node", "…abcdefgh is banned here", "that node"),
    (Cause("clock", name="alice", seconds=3602.4),
     "this clock is 3,602 s ahead of that of alice", "", "timedatectl set-ntp true"),
    (Cause("clock", name="web", seconds=-3602.4),
     "this clock is 3,602 s behind that of web",
     "the clock of web is 3,602 s behind this one", "timedatectl"),
    (Cause("clock", name="alice", seconds=300.0, detail="at least"),
     "this clock is at least 300 s ahead of that of alice", "", "timedatectl"),
    (Cause("link_down"), "no network interface is up", "", "cable"),
    (Cause("other_swarm", name="bob"), "bob belongs to another swarm", "bob is of", "ticket"),
    (Cause("wire_version", where=AT, name="bob"),
     "bob speaks another version", "bob speaks another version", "upgrade the older"),
    (Cause("refused", name="bob", detail="wrong_subject"),
     "bob refuses this node (wrong_subject)", "bob was refused (wrong_subject)", "owner"),
    (Cause("no_greeting", where=AT, name="bob"),
     "bob at 10.77.0.1:31330 answers, but not a greeting", "", "--version"),
    (Cause("other_node", peer="12D3KooWabcdefgh", where=AT),
     "10.77.0.1:31330 is another node than …abcdefgh", "", "new ticket"),
    (Cause("nobody_listens", where=AT), "10.77.0.1:31330 refuses connections", "", "running"),
    (Cause("silent", where=AT), "10.77.0.1:31330 accepts connections and says", "", "program"),
    (Cause("no_answer", where=AT, seconds=3.0, tries=3),
     "10.77.0.1:31330 does not answer (3 tries, 9 s)", "", "firewall"),
    (Cause("no_peer_id", where="/ip4/10.77.0.1/tcp/1"),
     "/ip4/10.77.0.1/tcp/1 cannot be dialled: it does not end in /p2p/ID", "", "/p2p/ID"),
    (Cause("no_address", where="http://c.example", detail="name or service not known"),
     "http://c.example leads to no address: name or service not known", "", "name servers"),
    (Cause("no_coordinator", where="http://c.example"),
     "http://c.example answers, but not as a coordinator", "", "check the URL"),
    (Cause("environment", name="bob", detail="drills long, this node drills short"),
     "bob uses drills long, this node drills short: they exchange nothing",
     "bob uses drills long", "environment.name"),
    (Cause("model", name="bob, web", detail="a1b2c3d4, this node tiny"),
     "bob, web use another model (a1b2c3d4, this node tiny): their groups count here as text",
     "bob, web use another model", "--model"),
]  # fmt: skip


@pytest.mark.parametrize(("cause", "here", "there", "what"), TABLE)
def test_the_sentences_of_a_cause(cause: Cause, here: str, there: str, what: str) -> None:
    assert told_here(cause).startswith(here)
    assert there in told_there(cause)
    assert what in advice(cause)


def test_the_host_of_each_cause_is_told_what_he_can_do() -> None:
    remedies = {
        "revoked": "swarm-node invite",
        "expired": "swarm-node invite",
        "used_up": "swarm-node members",
        "banned": "swarm-node unban",
        "clock": "timedatectl",
        "other_swarm": "nothing here",
        "wire_version": "upgrade the older",
        "refused": "tell its owner",
        "environment": "environment.name",
        "model": "nothing is wrong",
    }
    assert set(remedies) == {code for code, kind in CAUSES.items() if kind.there}
    for code, remedy in remedies.items():
        assert remedy in advice_there(Cause(code)), code


def test_every_cause_is_in_the_table_above_and_can_arise() -> None:
    assert {cause.code for cause, *_ in TABLE} == set(CAUSES)
    reached = {of_reason(reason) for reason in REASONS} | set(OF_OUTCOME.values()) | {"link_down"}
    reached.add("no_greeting")  # of an address that is open
    reached |= {"no_address", "no_coordinator"}  # of a coordinator (node/loops/dialing.py)
    reached |= {"environment", "model"}  # of what a peer announces (node/figures/verdict.py)
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
        log.failed(Cause("no_answer", "one", where=AT, seconds=3.0), second)
    (found,) = log.causes(5.0)
    assert (found.tries, found.seconds_since) == (3, 3.0)
    log.failed(Cause("nobody_listens", "one", where=AT), 6.0)
    (found,) = log.causes(6.0)
    assert (found.code, found.tries) == ("nobody_listens", 1)
    log.failed(Cause("revoked", "one"), 7.0)
    log.connected("one", AT)
    assert [cause.code for cause in log.causes(7.0)] == ["revoked"], "only the address is well"
    log.answered("one")
    assert log.causes(7.0) == []


def test_a_clock_is_right_again_once_the_peer_signs_a_time_of_now() -> None:
    log = FailureLog()
    log.failed(Cause("clock", "one", seconds=3602.0), 0.0)
    log.failed(Cause("revoked", "two"), 0.0)
    log.in_time("two")
    log.answered("one")
    assert {cause.code for cause in log.causes(0.0)} == {"clock", "revoked"}
    log.in_time("one")
    log.answered("two")
    assert log.causes(0.0) == []
    log.failed(Cause("clock", "one", seconds=3602.0), 0.0)
    log.admitted_here("one")
    assert log.causes(0.0) == [], "it refused the times of the chain, and takes them now"


def test_an_old_entry_says_nothing_about_now() -> None:
    log = FailureLog()
    log.failed(Cause("revoked", "one"), 0.0)
    log.refuse(Cause("used_up", "two"), 0.0)
    assert len(log.causes(FRESH_SECONDS)) == len(log.refused(FRESH_SECONDS)) == 1
    assert log.causes(FRESH_SECONDS + 1) == log.refused(FRESH_SECONDS + 1) == []
    log.link_down = True
    assert [cause.code for cause in log.causes(9e9)] == ["link_down"]


def test_strangers_cannot_fill_the_memory() -> None:
    log = FailureLog()
    for number in range(1000):
        log.failed(Cause("no_answer", f"p{number}"), 1.0)
        log.refuse(Cause("used_up", f"p{number}"), 1.0)
    assert len(log.causes(1.0)) == MAX_FAILED
    assert len(log.refused(1.0)) == MAX_REFUSED
    assert log.refusals == {"used_up": 1000}
    log.admitted("p999")
    assert len(log.refused(1.0)) == MAX_REFUSED - 1
