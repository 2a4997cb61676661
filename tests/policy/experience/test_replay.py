"""The replay buffer: what is drawn, what makes room, what is refused."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import pytest
from builders import completion, replay_settings, verified

from swarm_node.errors import ConfigError, Rejected
from swarm_node.policy.experience.replay import Drawn, ReplayBuffer
from swarm_node.rollout import Provenance, VerifiedGroup

MIXED = (0.0, 1.0)


def group(
    name: str, author: str = "me", *, spans: tuple[int, ...] = (0,), **of: Any
) -> VerifiedGroup:
    """`spans` are the versions that sampled its tokens, one token each."""
    answers = [completion([0] * len(spans), versions=spans)] * len(of.get("rewards", MIXED))
    return verified(name, author, completions=answers, **of)


def buffer(**settings: Any) -> ReplayBuffer:
    return ReplayBuffer(replay_settings(**settings))


def admit(target: ReplayBuffer, *groups: VerifiedGroup, version: int = 0) -> None:
    for each in groups:
        assert target.admit(each, version) is None, each.id


def names(drawn: Drawn | None) -> list[str]:
    return [] if drawn is None else [each.id.decode() for each in drawn.groups]


def reason(verdict: Rejected | None) -> str:
    return "" if verdict is None else verdict.reason


def own(count: int, **options: Any) -> list[VerifiedGroup]:
    return [group(f"own{index}", **options) for index in range(count)]


def test_a_batch_is_own_groups_then_external_ones() -> None:
    held = buffer(local=2, external=2)
    admit(held, *own(3), *(group(f"p{index}", f"peer{index % 2}") for index in range(5)))
    drawn = held.draw(0, random.Random(1))
    assert (drawn.own_count, drawn.external_count) == (2, 2)
    assert names(drawn)[:2] == ["own0", "own1"]
    assert {each.author for each in drawn.groups[2:]} <= {"peer0", "peer1"}
    assert (held.stats().local, held.stats().external) == (1, 3)
    assert held.left == 2, "one of three of a peer's groups was beyond what it may have"


def test_informative_own_groups_come_again_as_a_peers_do_and_are_not_fresh() -> None:
    held = buffer(local=1, external=0, past=2)
    batches = (
        ("a", MIXED, []),
        ("flat", (0.0, 0.0), ["a"]),
        ("b", MIXED, ["a"]),
        ("c", MIXED, ["a", "b"]),
    )
    for version, (name, rewards, again) in enumerate(batches):
        admit(held, group(name, rewards=rewards, spans=(version,)), version=version)
        drawn = held.draw(version, random.Random(1))
        assert names(drawn)[0] == name
        assert sorted(names(drawn)[1:]) == again
        assert {each.provenance for each in drawn.groups[1:]} <= {Provenance.SAME_MODEL}
        assert [each.id.decode() for each in drawn.fresh] == [name]
        assert (drawn.own_count, drawn.external_count) == (1, 0)
    assert held.stats().local_drawn == 4


def test_own_groups_come_again_until_they_are_too_old() -> None:
    held = buffer(local=1, external=0, past=2, max_age=3, max_staleness=9)
    counts = []
    for version in (0, 3, 4):
        admit(held, group(f"at{version}", spans=(version,)), version=version)
        counts.append(len(names(held.draw(version, random.Random(1)))))
    assert counts == [1, 2, 2], "the first one is too old at 4, the second is not"


def test_after_a_rollback_neither_younger_nor_too_many_groups_come_again() -> None:
    held = buffer(local=1, external=0, past=9, max_age=3, max_staleness=99)
    for version in (5, 6):
        admit(held, group(f"at{version}", spans=(version,)), version=version)
        assert held.draw(version, random.Random(1)) is not None
    for number in range(9):  # no update is made, so the version stays
        admit(held, group(f"again{number}", spans=(1,)), version=1)
        drawn = held.draw(1, random.Random(1))
        assert all(each.id.startswith(b"again") for each in drawn.groups)
    assert len(held._past) == 3


def test_without_a_past_a_group_is_drawn_once_in_the_order_of_arrival() -> None:
    held = buffer(local=2, external=0)
    admit(held, *own(4))
    drawn = [names(held.draw(0, random.Random(1))) for _ in range(3)]
    assert drawn == [["own0", "own1"], ["own2", "own3"], []]
    assert not held._past


@pytest.mark.parametrize(("own_ready", "external_ready", "counts"), [
    (2, 0, (2, 0)), (3, 0, (3, 0)), (9, 0, (4, 0)), (9, 1, (3, 1)), (2, 1, (2, 1)), (9, 9, (2, 2)),
])  # fmt: skip
def test_own_groups_stand_in_for_missing_peers(
    own_ready: int, external_ready: int, counts: tuple[int, int]
) -> None:
    held = buffer(local=2, external=2)
    admit(held, *own(own_ready), *(group(f"p{i}", f"peer{i}") for i in range(external_ready)))
    drawn = held.draw(0, random.Random(1))
    assert (drawn.own_count, drawn.external_count) == counts


@pytest.mark.slow(reason="fills 2,000 buffers")
def test_external_groups_are_drawn_uniformly_and_reproducibly() -> None:
    counts: Counter[str] = Counter()
    for seed in range(2000):
        held = buffer(local=0, external=1, external_batches=8)
        admit(held, *(group(f"p{index}", "peer") for index in range(8)))
        counts.update(names(held.draw(0, random.Random(seed))))
    expected = 2000 / 8
    assert sum((seen - expected) ** 2 / expected for seen in counts.values()) < 24.3  # p = 0.001
    pair = []
    for _ in range(2):
        held = buffer(local=0, external=3)
        admit(held, *(group(f"p{index}", "peer") for index in range(8)))
        pair.append(names(held.draw(0, random.Random(7))))
    assert pair[0] == pair[1]


def test_local_groups_are_not_filtered_but_external_ones_are() -> None:
    held = buffer(local=1, external=1)
    admit(held, group("own", rewards=(1.0, 1.0)))
    assert reason(held.admit(group("p", "peer", rewards=(1.0, 1.0)), 0)) == "zero_advantage"
    assert names(held.draw(0, random.Random(1))) == ["own"]
    assert (held.stats().local_admitted, held.stats().local_mixed_rewards) == (1, 0)
    assert held.stats().rejected == {"zero_advantage": 1}


def test_a_group_comes_in_once_even_after_it_left() -> None:
    held = buffer(local=1, external=1)
    admit(held, group("own"), group("p", "peer"))
    assert reason(held.admit(group("own"), 0)) == "duplicate"
    assert reason(held.admit(group("p", "peer"), 0)) == "duplicate"
    assert len(names(held.draw(0, random.Random(1)))) == 2
    assert reason(held.admit(group("own"), 0)) == "duplicate"
    assert reason(held.admit(group("p", "peer"), 0)) == "duplicate"


def test_own_lag_counts_from_the_oldest_tokens() -> None:
    held = buffer(local=1, external=0, max_staleness=3)
    admit(held, group("old", spans=(2, 5)), group("new", spans=(5, 5)), version=5)
    assert reason(held.admit(group("older", spans=(1, 5)), 5)) == "stale"
    assert names(held.draw(6, random.Random(1))) == ["new"]
    assert held.stats().expired == 1


def test_a_group_without_tokens_is_as_old_as_its_policy() -> None:
    held = buffer(local=1, external=0, max_staleness=0)
    admit(held, group("empty", spans=()))
    assert held.draw(1, random.Random(1)) is None


def test_external_age_counts_from_arrival_not_from_the_peers_version() -> None:
    held = buffer(local=0, external=1, max_age=3)
    admit(held, group("p", "peer", spans=(1_000_000,), arrived=10), version=10)
    assert reason(held.admit(group("late", "peer", arrived=9), 13)) == "stale"
    assert held.ready(13)
    assert not held.ready(14)
    assert held.collect_departed() == [b"p"]
    assert held.collect_departed() == []


def test_a_flooding_peer_displaces_only_its_own_groups() -> None:
    held = buffer(local=1, external=4, external_batches=8)
    assert held.settings.peer_quota == 8
    admit(held, *(group(f"good{index}", "good") for index in range(3)))
    admit(held, *(group(f"f{index}", "flood") for index in range(8)))
    assert reason(held.admit(group("same", "flood"), 0)) == "quota"
    for index in range(50):
        admit(held, group(f"young{index}", "flood", arrived=1 + index), version=1 + index // 3)
    stats = held.stats()
    assert (stats.external, stats.authors, stats.evicted) == (11, 2, 50)
    assert not any(each.startswith(b"good") for each in held.collect_departed())


def test_a_full_buffer_takes_younger_groups_from_whoever_holds_most() -> None:
    held = buffer(local=1, external=4, external_batches=2, peer_minimum=5)
    assert (held.settings.capacity_external, held.settings.peer_quota) == (8, 5)
    admit(held, *(group(f"a{index}", "a", arrived=index) for index in range(5)), version=4)
    admit(held, *(group(f"b{index}", "b") for index in range(3)))
    assert reason(held.admit(group("c0", "c"), 0)) == "capacity"
    admit(held, group("c5", "c", arrived=5), version=5)
    assert held.collect_departed() == [b"a0"]
    assert held.stats().external == 8


def test_too_many_own_groups_push_out_the_stalest() -> None:
    held = buffer(local=1, external=1, own_batches=1)
    admit(held, group("v1", spans=(1,)), group("v0", spans=(0,)), group("v2", spans=(2,)))
    assert held.collect_departed() == [b"v0"]
    assert names(held.draw(2, random.Random(1))) == ["v1", "v2"]


@pytest.mark.parametrize(
    ("settings", "key"),
    [
        ({"local": -1}, "local"),
        ({"external": -1}, "external"),
        ({"local": 0, "external": 0}, "both 0"),
        ({"max_staleness": -1}, "max_staleness"),
        ({"max_age": -1}, "max_age"),
        ({"own_batches": 0}, "own_batches"),
        ({"external_batches": 0}, "external_batches"),
        ({"peer_minimum": 0}, "peer_minimum"),
        ({"peer_share": 1.5}, "peer_share"),
        ({"peer_share": float("nan")}, "peer_share"),
    ],
)
def test_impossible_settings_are_named(settings: dict[str, Any], key: str) -> None:
    with pytest.raises(ConfigError, match=key):
        replay_settings(**settings)
