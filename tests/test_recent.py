"""What is remembered of what came last."""

from __future__ import annotations

from swarm_node.recent import Recent


def test_the_entries_set_last_are_kept_in_the_order_in_which_they_were_set() -> None:
    recent: Recent[str, int] = Recent(2)
    for number, key in enumerate("abac"):
        recent[key] = number
    assert list(recent.items()) == [("a", 2), ("c", 3)]


def test_reading_keeps_nothing_longer() -> None:
    recent: Recent[str, int] = Recent(2)
    recent["a"], recent["b"] = 1, 2
    assert recent.get("a") == 1
    recent["c"] = 3
    assert list(recent) == ["b", "c"]
