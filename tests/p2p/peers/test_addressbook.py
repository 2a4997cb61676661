"""The address book: what is tried next, what leaves, and how much of it one attacker reaches."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence

from builders import examples
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from swarm_node.p2p.peers.addressbook import (
    BUCKETS_PER_ISSUER,
    BUCKETS_PER_TELLER,
    BUCKETS_PER_TELLING_ISSUER,
    MAX_FAILURES,
    NEW_BUCKETS,
    SLOTS,
    TRIED_BUCKETS,
    AddressBook,
    Known,
)
from swarm_node.p2p.peers.liveness import PEER, UNMET

KEY = b"a secret key"


def _book() -> AddressBook:
    return AddressBook("me", KEY)


def _tell(
    book: AddressBook,
    names: Iterable[str],
    teller: str = "teller",
    issuer: str = "issuer",
    now: float = 0.0,
) -> None:
    for name in names:
        book.tell(name, [f"/{name}"], now, issuer=issuer, teller=teller, telling_issuer=issuer)


def _picked(book: AddressBook, now: float, seed: int = 0) -> list[Known]:
    """All that may be tried at `now`."""
    rng, found = random.Random(seed), []
    while (known := book.pick(rng, now, lambda _: False)) is not None:
        found.append(known)
    return found


def test_a_new_peer_is_tried_once_and_then_ignored_for_an_hour() -> None:
    book = _book()
    _tell(book, ["peer"])
    assert [known.peer_id for known in _picked(book, 0.0)] == ["peer"]
    book.record_failure("peer", 0.0, last_heard=0.0)
    assert len(book) == 0
    _tell(book, ["peer"], now=UNMET.ceiling - 1)
    assert len(book) == 0
    _tell(book, ["peer"], now=UNMET.ceiling + 1)
    assert len(book) == 1


def test_who_was_not_met_is_listed_also_while_it_is_ignored_and_can_be_taken_back() -> None:
    book = _book()
    book.configure([("named", ["/named"])], 0.0)
    _tell(book, ["dead", "later", "met"])
    book.record_failure("dead", 0.0, last_heard=0.0)
    found, total = book.unmet(1.0, 9, lambda peer: peer == "met")
    tries = {each.peer_id: each.tries for each in found}
    assert [*tries.items()] == [("named", 0), ("dead", 1), ("later", 0)]
    assert found[1].next_at == UNMET.ceiling
    assert total == 3
    assert len(book.unmet(1.0, 2, lambda peer: False)[0]) == 2
    assert book.addresses("dead") == ("/dead",)
    assert book.addresses("nobody") is None
    book.forgive("dead", 1.0, "issuer")
    book.forgive("nobody", 1.0, "issuer")
    assert book.get("dead") is not None
    assert book.get("nobody") is None


def test_a_peer_that_states_other_addresses_is_tried_again() -> None:
    def tell(addresses: Sequence[str], issued_ms: int) -> None:
        book.tell(
            *("peer", addresses, 1.0),
            issuer="i",
            teller="t",
            telling_issuer="i",
            heartbeat=b"h",
            issued_ms=issued_ms,
        )

    book = _book()
    tell(["/behind/nat"], 1)
    assert [known.peer_id for known in _picked(book, 1.0)] == ["peer"]
    book.record_failure("peer", 1.0, last_heard=0.0)
    tell(["/behind/nat"], 2)
    assert len(book) == 0
    tell(["/relay/p2p-circuit", "/behind/nat"], 3)  # it found a relay
    assert [known.peer_id for known in _picked(book, 60.0)] == ["peer"]
    tell(["/relay/p2p-circuit", "/behind/nat"], 4)
    assert _picked(book, 61.0) == []
    tell(["/other/p2p-circuit", "/behind/nat"], 5)  # and now another
    assert [known.peer_id for known in _picked(book, 61.0)] == ["peer"]


def test_who_comes_by_itself_is_no_longer_ignored() -> None:
    book = _book()
    _tell(book, ["peer"])
    book.record_failure("peer", 0.0, last_heard=0.0)
    _tell(book, ["peer"], now=1.0)
    assert len(book) == 0
    book.welcome("peer", ["/peer"], 1.0, "issuer")
    assert [known.teller for known in book.new()] == ["peer"]


def test_a_node_that_hears_nobody_blames_nobody() -> None:
    book = _book()
    _tell(book, ["peer"])
    for _ in range(50):
        book.record_failure("peer", 0.0, last_heard=float("-inf"))
    assert len(book) == 1


def test_a_tried_peer_leaves_after_several_failures_each_later_than_the_last() -> None:
    book = _book()
    _tell(book, ["peer"])
    book.record_answer("peer", 0.0, "issuer")
    now, waits = 0.0, []
    assert [known.peer_id for known in _picked(book, now)] == ["peer"]
    while (known := book.get("peer")) is not None:
        book.record_failure("peer", now, last_heard=now)
        waits.append(known.retry.due_at - now)
        now = known.retry.due_at
        assert _picked(book, now) == [], "the caller knows of the silent ones"
    assert len(waits) == MAX_FAILURES
    assert waits == sorted(waits)
    assert waits[-1] == PEER.ceiling
    assert 5400.0 < now < 7200.0, "it leaves within two hours"


def test_while_the_peers_that_a_teller_names_do_not_answer_the_others_wait() -> None:
    book, rng = _book(), random.Random(0)
    _tell(book, [f"dead {index}" for index in range(500)], teller="liar")
    tries = 0
    for second in range(600):
        known = book.pick(rng, float(second), lambda _: False)
        if known is not None:
            tries += 1
            book.record_failure(known.peer_id, float(second), last_heard=float(second))
    assert tries <= 16  # after 2, 4, 8, 16, 32 and then 60 seconds each
    _tell(book, ["live"], teller="honest", now=600.0)
    assert [known.peer_id for known in _picked(book, 600.0)] == ["live"]


def test_configured_peers_and_anchors_come_first_and_configured_ones_are_kept() -> None:
    book = _book()
    _tell(book, [f"peer {index}" for index in range(20)])
    book.restore(Known("anchor", ("/anchor",), "issuer", ""), anchor=True)
    book.configure([("bootstrap", ["/bootstrap"])], 0.0)
    first = [known.peer_id for known in _picked(book, 0.0)[:2]]
    assert first == ["anchor", "bootstrap"]
    for second in range(100):
        book.record_failure("bootstrap", float(second), last_heard=float(second))
    assert book.get("bootstrap") is not None


def test_nobody_displaces_a_configured_peer() -> None:
    book = _book()
    bootstraps = [f"bootstrap {index}" for index in range(8)]
    book.configure([(name, ["/" + name]) for name in bootstraps], 0.0)
    for issuer in range(200):  # together they reach every bucket
        names = [f"peer {issuer} {index}" for index in range(50)]
        _tell(book, names, f"teller {issuer}", f"issuer {issuer}")
    assert len(book.new()) == NEW_BUCKETS * SLOTS
    assert all(book.get(name) for name in bootstraps)


def test_of_many_configured_peers_those_that_have_room_are_kept() -> None:
    book = _book()
    book.configure([(f"bootstrap {index}", ["/here"]) for index in range(100)], 0.0)
    reached = {known.bucket for known in book.new()}
    assert len(book) == len(reached) * SLOTS <= BUCKETS_PER_TELLER * SLOTS


def test_a_configured_peer_never_leaves_and_others_do() -> None:
    book = _book()
    book.configure([("bootstrap", ["/bootstrap"])], 0.0)
    _tell(book, ["peer"])
    for name in ("bootstrap", "peer"):
        book.record_answer(name, 0.0, "issuer")
    for failures in range(MAX_FAILURES):
        assert len(book) == 2
        assert len(book.silent()) == (2 if failures else 0)
        now = PEER.ceiling * (failures + 1)
        for name in ("bootstrap", "peer"):
            book.record_failure(name, now, last_heard=now)
    assert set(book.silent()) == {"bootstrap"}


def test_who_never_answered_has_not_become_silent() -> None:
    book = _book()
    book.configure([("peer", ["/peer"])], 0.0)
    book.record_failure("peer", 0.0, last_heard=0.0)
    known = book.get("peer")
    assert known.retry.failures == 1
    assert book.silent() == {}


def test_a_peer_that_answered_as_a_partner_has_been_silent_since_then() -> None:
    book = _book()
    _tell(book, ["peer", "other"])
    book.record_answer("peer", 10.0, "issuer")
    book.record_failure("peer", 100.0, last_heard=100.0, last_seen=90.0)
    book.record_failure("peer", 110.0, last_heard=110.0, last_seen=20.0)
    book.record_failure("other", 100.0, last_heard=100.0, last_seen=90.0)
    assert set(book.silent()) == {"peer"}
    known = book.get("peer")
    assert known.answered_at == 90.0


def test_the_book_holds_neither_its_owner_nor_who_has_no_address_nor_anybody_twice() -> None:
    book = _book()
    _tell(book, ["me"])
    book.tell("silent", [], 0.0, issuer="", teller="", telling_issuer="")
    book.restore(Known("me", ("/me",), "issuer", ""), anchor=True)
    book.record_failure("peer", 0.0, last_heard=0.0)
    book.record_answer("peer", 0.0, "issuer")
    assert len(book) == 0
    _tell(book, ["peer"])
    book.restore(Known("peer", ("/elsewhere",), "issuer", ""), anchor=True)
    assert [known.addresses for known in book.new()] == [("/peer",)]
    assert book.tried_peers() == []


def test_who_is_passed_over_is_not_picked() -> None:
    book = _book()
    _tell(book, ["peer"])
    book.configure([("bootstrap", ["/bootstrap"])], 0.0)
    assert book.pick(random.Random(0), 0.0, lambda _: True) is None
    book = _book()
    _tell(book, ["peer"])
    assert book.pick(random.Random(0), 0.0, lambda _: True) is None


def test_a_tried_peer_does_not_wait_for_those_that_its_teller_named() -> None:
    book = _book()
    _tell(book, ["live", "dead", "other"])
    book.record_answer("live", 0.0, "issuer")
    book.record_failure("dead", 0.0, last_heard=0.0)
    assert [known.peer_id for known in _picked(book, 0.5)] == ["live"]


def test_a_peer_that_answers_is_not_displaced_and_one_that_fails_is() -> None:
    book = _book()
    names = [f"peer {index:04}" for index in range(2000)]
    for name in names:
        _tell(book, [name], teller=name)
        book.record_answer(name, 1.0, "issuer")
    first = {known.peer_id for known in book.tried_peers()}
    assert len(first) <= BUCKETS_PER_ISSUER * SLOTS
    for index in range(2000):
        _tell(book, [f"late {index}"], teller=f"late {index}")
        book.record_answer(f"late {index}", 2.0, "issuer")
    assert {known.peer_id for known in book.tried_peers()} == first
    for name in first:
        book.record_failure(name, 3.0, last_heard=2.5)
    _tell(book, [f"later {index}" for index in range(200)], teller="another")
    for index in range(200):
        book.record_answer(f"later {index}", 4.0, "issuer")
    assert any(known.peer_id.startswith("later") for known in book.tried_peers())


def test_an_older_heartbeat_does_not_change_an_address() -> None:
    book = _book()
    for issued, address in ((5, "/new"), (4, "/old")):
        book.tell(
            *("peer", [address], 0.0),
            **{"issuer": "", "teller": "", "telling_issuer": "", "issued_ms": issued},
        )
    known = book.get("peer")
    assert known.addresses == ("/new",)


class StuffedBook(RuleBasedStateMachine):
    """Honest peers, and attackers with as many keys as they like, under few issuers and with few
    tellers. Whatever they do, their share of the buckets has a bound, and so has the book."""

    def __init__(self) -> None:
        super().__init__()
        self.book = _book()
        self.rng = random.Random(0)
        self.now = 0.0
        self.keys = 0
        self.issuers: set[str] = set()
        self.tellers: dict[str, str] = {}

    def new(self, kind: str) -> str:
        self.keys += 1
        return f"{kind} {self.keys}"

    @rule(number=st.integers(0, 2), teller=st.integers(0, 3), many=st.integers(1, 300))
    def stuff(self, number: int, teller: int, many: int) -> None:
        """An attacker names keys of its own issuer, and some of them answer."""
        issuer = f"hostile issuer {number}"
        name = f"hostile teller {number} {teller}"
        self.issuers.add(issuer)
        self.tellers[name] = issuer
        for index in range(many):
            key = self.new("hostile")
            _tell(self.book, [key], name, issuer, self.now)
            if index % 2:
                self.book.record_answer(key, self.now, issuer)

    @rule(teller=st.integers(0, 20), many=st.integers(1, 10), answer=st.booleans())
    def hear_honest(self, teller: int, many: int, answer: bool) -> None:
        for _ in range(many):
            key = self.new("honest")
            _tell(self.book, [key], f"honest teller {teller}", f"issuer {teller % 5}", self.now)
            if answer:
                self.book.record_answer(key, self.now, f"issuer {teller % 5}")

    @rule(answers=st.booleans())
    def try_one(self, answers: bool) -> None:
        known = self.book.pick(self.rng, self.now, lambda _: False)
        if known is not None and answers:
            self.book.record_answer(known.peer_id, self.now, known.issuer)
        elif known is not None:
            self.book.record_failure(known.peer_id, self.now, last_heard=self.now)

    @rule(seconds=st.floats(0.1, 4000.0))
    def wait(self, seconds: float) -> None:
        self.now += seconds

    @precondition(lambda self: self.issuers)
    @invariant()
    def attackers_reach_few_buckets(self) -> None:
        hostile = [k for k in self.book.new() if k.peer_id.startswith("hostile")]
        assert len({k.bucket for k in hostile}) <= BUCKETS_PER_TELLER * len(self.tellers)
        for issuer in self.issuers:
            reached = {k.bucket for k in hostile if self.tellers[k.teller] == issuer}
            assert len(reached) <= BUCKETS_PER_TELLING_ISSUER
            tried = {k.bucket for k in self.book.tried_peers() if k.issuer == issuer}
            assert len(tried) <= BUCKETS_PER_ISSUER

    @invariant()
    def memory_is_bounded(self) -> None:
        new, tried = self.book.new(), self.book.tried_peers()
        assert len(new) <= NEW_BUCKETS * SLOTS
        assert len(tried) <= TRIED_BUCKETS * SLOTS
        assert len(new) + len(tried) == len(self.book)
        for table in (new, tried):
            counts: dict[int, int] = {}
            for known in table:
                counts[known.bucket] = counts.get(known.bucket, 0) + 1
            assert max(counts.values(), default=0) <= SLOTS
        assert len(self.book._ignored_peers) <= 2048
        assert len(self.book._teller_retries) <= 1024


StuffedBook.TestCase.settings = examples(40, stateful_step_count=25)
test_a_stuffed_book = StuffedBook.TestCase


def test_with_k_of_n_issuers_an_attacker_gets_at_most_its_share_of_the_draws() -> None:
    """The share that the buckets promise, as draws: two of ten issuers, and 100 times the keys."""
    book = _book()
    for number in range(10):
        hostile = number < 2
        for index in range(3000 if hostile else 30):
            name = f"{'hostile' if hostile else 'honest'} {number} {index}"
            _tell(book, [name], teller=f"teller {number}", issuer=f"issuer {number}")
            book.record_answer(name, 0.0, f"issuer {number}")
    rng, hits, now = random.Random(0), 0, 0.0
    for _ in range(2000):
        now += 61.0
        known = book.pick(rng, now, lambda _: False)
        hits += known.peer_id.startswith("hostile")
    assert hits / 2000 <= 2 * BUCKETS_PER_ISSUER / TRIED_BUCKETS
