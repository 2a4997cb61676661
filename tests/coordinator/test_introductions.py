"""Which presences are kept, and which of them are shown."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

from coordinator.introductions import Introductions


def _kept(gone: str = "", **limits: Any) -> Introductions:
    return Introductions(lambda peer_id: peer_id != gone, **limits)


def test_the_newest_presence_of_a_member_is_given() -> None:
    kept = _kept()
    kept.leave("a", b"new", "i", 2)
    kept.leave("a", b"old", "i", 1)
    assert kept.sample(random.Random(0), 0.0) == [b"new"]
    kept.leave("a", b"newest", "i", 3)
    assert kept.sample(random.Random(0), 0.0) == [b"newest"]
    assert kept.sample(random.Random(0), 0.0, "a") == []


def test_a_ticket_with_many_keys_is_shown_as_often_as_one_with_one() -> None:
    kept, rng = _kept(), random.Random(1)
    kept.leave("honest", b"honest", "own", 1)
    for n in range(500):
        kept.leave(f"s{n}", b"sybil", "many", 1)
    shown = Counter(kept.sample(rng, 0.0, limit=1)[0] for _ in range(400))
    assert 150 < shown[b"honest"] < 250
    assert kept.sample(rng, 0.0, limit=16).count(b"honest") == 1


def test_a_full_store_forgets_members_of_the_largest_issuer() -> None:
    kept = _kept(capacity=10)
    kept.leave("honest", b"honest", "own", 1)
    for n in range(50):
        kept.leave(f"s{n}", b"sybil", "many", 1)
    assert len(kept) == 10
    assert "honest" in kept
    assert "s49" in kept


def test_what_is_too_old_or_of_no_member_is_neither_given_nor_kept() -> None:
    kept = _kept(gone="gone")
    kept.leave("old", b"old", "i", 0)
    kept.leave("gone", b"gone", "i", 1_000_000)
    kept.leave("here", b"here", "i", 1_000_000)
    assert kept.sample(random.Random(0), 1000.0) == [b"here"]
    kept.expire(1000.0)
    assert len(kept) == 1
