"""Slots: how many groups may be under way, and who waits."""

from __future__ import annotations

import random
from typing import Any

import pytest
from builders import completion, replay_settings, verified

from swarm_node.policy.experience.mixture import Mixture
from swarm_node.policy.experience.replay import ReplayBuffer
from swarm_node.policy.experience.slots import Slots, most_at_once
from swarm_node.rollout import VerifiedGroup


def group(name: str, author: str = "me") -> VerifiedGroup:
    return verified(name, author, completions=[completion([0], versions=(0,))] * 2)


def buffer(**settings: Any) -> ReplayBuffer:
    return ReplayBuffer(replay_settings(**settings))


def slots(most: int = 8, **settings: Any) -> Slots:
    return Slots(buffer(**settings), most)


def admit(target: ReplayBuffer, *groups: VerifiedGroup) -> None:
    for each in groups:
        assert target.admit(each, 0) is None, each.id


def own(count: int) -> list[VerifiedGroup]:
    return [group(f"own{index}") for index in range(count)]


def test_groups_begin_while_they_will_be_fresh() -> None:
    held = buffer(local=2, external=2, max_staleness=1)
    limit = Slots(held, 4)
    assert limit.free(0) == 4
    limit.begin(3)
    assert limit.free(0) == 1
    limit.begin(1)
    assert limit.free(0) == 0
    limit.begin(5)
    assert limit.free(0) == 0
    limit.end(9)
    admit(held, *own(4))
    assert held.stats().local == 4
    assert limit.free(0) == 0
    held.draw(0, random.Random(1))
    assert limit.free(0) > 0
    assert slots(local=4, external=4, max_staleness=8).free(0) == 16
    assert slots(local=4, external=4, max_staleness=0).free(0) == 4


@pytest.mark.parametrize("max_staleness", [0, 1, 2, 8])
@pytest.mark.parametrize("most", [1, 4, 8, 12, 16, 64])
@pytest.mark.parametrize(("own_groups", "external"), [(1, 0), (8, 0), (4, 4), (2, 6), (0, 4)])
def test_no_more_groups_are_under_way_than_are_planned_for(
    own_groups: int, external: int, most: int, max_staleness: int
) -> None:
    limit = slots(most, local=own_groups, external=external, max_staleness=max_staleness)
    planned = most_at_once(own_groups, own_groups + external, max_staleness, most)
    assert limit.free(0) == planned
    assert limit.sampling_batch(0) <= min(planned, most)


def test_without_a_lag_sampling_waits_for_the_update_under_way() -> None:
    held = buffer(local=4, external=4, max_staleness=0)
    limit = Slots(held, 8)
    admit(held, *own(4))
    drawn = held.draw(0, random.Random(1))
    limit.train(drawn.own_count)
    assert limit.free(0) == 0
    assert limit.sampling_batch(0) == 0
    limit.end_update()
    assert limit.free(1) == 4
    assert limit.sampling_batch(1) == 4
    for max_staleness, training, free in ((1, 4, 4), (8, 8, 16)):
        limit = slots(local=4, external=4, max_staleness=max_staleness)
        limit.train(training)
        assert limit.free(0) == free


def test_sampling_batches_larger_than_a_training_batch_are_worth_waiting_for() -> None:
    alone: dict[str, Any] = {"local": 8, "external": 0, "max_staleness": 8}
    shared: dict[str, Any] = {"local": 4, "external": 4, "max_staleness": 8}
    sizes = [slots(most, **alone).smallest_batch for most in (1, 8, 12, 16, 99)]
    assert sizes == [8, 8, 12, 16, 16]
    assert [slots(most, **shared).smallest_batch for most in (8, 16)] == [4, 8]
    assert slots(8, **alone).free(0) == 16
    assert slots(16, **alone).free(0) == 24
    assert slots(16, local=8, external=0, max_staleness=0).smallest_batch == 8


@pytest.mark.parametrize("max_staleness", [0, 1, 2, 8])
@pytest.mark.parametrize(("count", "external"), [(1, 7), (4, 4), (8, 0)])
@pytest.mark.parametrize("most", [1, 8, 12, 1024])
@pytest.mark.parametrize("interrupted", [0, 3, 64])
def test_while_an_update_lacks_a_group_a_sampling_batch_has_slots(
    max_staleness: int, count: int, external: int, most: int, interrupted: int
) -> None:
    """Otherwise sampling and training would wait for each other, also where interrupted groups hold
    every free slot: the next sampling batch resumes them."""
    held = buffer(local=count, external=external, max_staleness=max_staleness)
    limit = Slots(held, most)
    admit(held, *own(count - 1))
    version = 0 if max_staleness else 1  # with no lag, what is left is too old for the next version
    assert limit.free(version) >= limit.smallest_batch
    limit.begin(interrupted)
    assert limit.sampling_batch(version) == min(most, limit.free(version) + interrupted) or (
        limit.free(version) == 0
    )
    assert limit.sampling_batch(version) >= min(most, limit.smallest_batch) > 0


@pytest.mark.parametrize("most", [1, 2, 3, 8])
@pytest.mark.parametrize("dropped", [0, 1])
def test_without_a_lag_small_batches_and_dropped_groups_end_in_an_update(
    most: int, dropped: int
) -> None:
    """Neither fewer groups a batch than an update takes nor a group that failed stops both loops,
    the sampler's and the trainer's."""
    held = buffer(local=4, external=4, max_staleness=0)
    limit, names = Slots(held, most), iter(own(99))
    for number in range(9):
        count = limit.sampling_batch(0)
        if not count:
            break
        limit.begin(count)
        admit(held, *(next(names) for _ in range(count - (dropped if number == 0 else 0))))
        limit.end(count)
    assert held.ready(0)
    assert held.held_own() == 4


def test_interrupted_groups_hold_their_slots_and_a_batch_resumes_them() -> None:
    limit = slots(8, local=4, external=4, max_staleness=8)
    limit.begin(12)
    limit.end(8)  # four were interrupted, the others failed
    assert (limit.sampling, limit.free(0), limit.sampling_batch(0)) == (4, 12, 8)
    for wrong in (5, -1):
        with pytest.raises(ValueError, match=f"^{wrong} .* 4 are"):
            limit.end(wrong)
    limit.end(0)
    limit.end(4)
    assert limit.sampling == 0


def test_own_groups_wait_for_about_two_updates_as_these_really_take_them() -> None:
    limit = slots(8, local=2, external=6, max_staleness=8)
    assert limit.free(0) == 16  # nothing of peers is here at the start
    for _ in range(24):
        limit.train(2)
        limit.end_update()
    assert limit.free(0) == 4
    for _ in range(24):
        limit.train(8)
        limit.end_update()
    assert limit.free(0) == 16


def test_a_mixture_with_fewer_own_groups_takes_slots_away() -> None:
    held = buffer(local=4, external=4, max_staleness=1)
    limit = Slots(held, 8)
    admit(held, *own(4))
    assert limit.free(0) == 4
    held.aim(Mixture(1, 4))
    assert (limit.free(0), limit.sampling_batch(0)) == (0, 0)


def test_stale_groups_give_their_slots_back() -> None:
    held = buffer(local=2, external=2, max_staleness=1, max_age=1)
    limit = Slots(held, 4)
    admit(held, *own(4), *(group(f"p{index}", "peer") for index in range(8)))
    assert limit.free(1) == 0
    assert limit.free(2) == 4
    assert limit.free_external(2) == held.settings.capacity_external


def test_free_slots_for_peers_are_those_that_no_group_holds() -> None:
    held = buffer(local=4, external=4)
    limit = Slots(held, 8)
    assert (limit.free_external(0), limit.free_external(0, "a")) == (32, 8)
    admit(held, *(group(f"a{index}", "a") for index in range(8)))
    assert (limit.free_external(0), limit.free_external(0, "a")) == (24, 0)
    assert limit.free_external(0, "b") == 8
    alone = buffer(local=4, external=0)
    assert Slots(alone, 8).free_external(0) == 0
    refused = alone.admit(group("p", "peer"), 0)
    assert refused.reason == "capacity"
