"""The controller of own and external groups: its model, its limits, its reaction to a probe."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import pytest

from swarm_node.errors import ConfigError
from swarm_node.policy.experience.mixture import (
    Costs,
    Mixture,
    MixtureSettings,
    MixtureState,
    Observation,
    best_own,
    informative,
    observe,
    start,
)

SETTINGS = MixtureSettings()


def at(own: int) -> MixtureState:
    """Without any observation, at `own` of 8 groups."""
    return MixtureState(Mixture(own, 8 - own))


def fed(
    state: MixtureState, probes: list[float], share: float = 0.5, rate: float = 2.0
) -> list[MixtureState]:
    """The states after each probe, with 40 own groups between two of them."""
    states = []
    for probe in probes:
        for _ in range(9):
            state = observe(state, Observation(4, round(4 * share), 4 * rate), SETTINGS)
        state = observe(state, Observation(4, round(4 * share), 4 * rate, probe=probe), SETTINGS)
        states.append(state)
    return states


@pytest.mark.parametrize(
    ("own", "measured"), [(8, 1.57), (6, 3.34), (4, 4.67), (2, 3.24)]
)  # counted in eight nodes, rounds 0 to 20, four seeds
def test_the_model_says_how_many_groups_teach_something(own: int, measured: float) -> None:
    share = 1.57 / 8
    assert informative(own, 8 - own, share, 7 * share * own) == pytest.approx(measured, rel=0.06)


@pytest.mark.parametrize(
    ("share", "order"), [(0.1, [4, 6, 2, 8]), (0.2, [4, 6, 2, 8]), (0.4, [2, 4, 6, 8])]
)
def test_the_best_fixed_arm_depends_on_how_sparse_rewards_are(
    share: float, order: list[int]
) -> None:
    counts = {own: informative(own, 8 - own, share, 7 * share * own) for own in (2, 4, 6, 8)}
    ranked = sorted(counts, key=lambda own: (-round(counts[own], 9), -own))
    assert ranked == order


def test_the_best_is_where_own_groups_and_their_return_fill_the_batch() -> None:
    # I* = B / (1 + s): 8, 8 / 2.4 = 3.3 and 8 / 4 = 2.
    for rate, best in ((0.0, 8), (7 * 0.2, 3), (3.0, 2)):
        assert best_own(SETTINGS, 0.2, rate, Costs(), 8) == best


def test_what_costs_more_is_done_less() -> None:
    def best(costs: Costs) -> int:
        return best_own(SETTINGS, 0.6, 1.2, costs, 6)

    assert best(Costs()) == best(Costs(own=0.1, external=0.1, update=1.0)) == 4
    assert best(Costs(own=1.0, external=0.1, update=1.0)) == 3
    assert best(Costs(own=1.0, external=10.0, update=1.0)) == 8


def test_it_starts_with_as_few_own_groups_as_the_limits_allow() -> None:
    assert start(SETTINGS).current == Mixture(1, 7)
    assert start(MixtureSettings(batch=16)).current == Mixture(2, 14)
    assert start(MixtureSettings(batch=8, external_share=0.5)).current == Mixture(4, 4)
    assert start(MixtureSettings(batch=1)).current == Mixture(1, 0)


def test_strong_evidence_lowers_the_own_share_at_once() -> None:
    assert observe(at(8), Observation(4, 4, 40.0), SETTINGS).current == Mixture(1, 7)


def test_weak_evidence_moves_nothing() -> None:
    for own in (3, 8):
        assert observe(at(own), Observation(1, 0, 1.0), SETTINGS).current == Mixture(own, 8 - own)
    assert observe(at(8), Observation(0, 0, 40.0), SETTINGS).current == Mixture(8, 0)


def test_the_own_share_rises_by_a_group_per_update() -> None:
    assert observe(at(2), Observation(64, 4, 0.0), SETTINGS).current == Mixture(3, 5)


def test_a_node_that_nobody_offers_anything_trains_alone() -> None:
    state = at(2)
    for _ in range(40):
        state = observe(state, Observation(state.current.own, 1, 0.0), SETTINGS)
    assert state.current.external <= 1


def test_peers_groups_that_an_update_left_make_room_in_the_next() -> None:
    for left, own in ((0, 8), (3, 4), (99, 1)):
        state = observe(at(7), Observation(64, 4, 0.0, left=left), SETTINGS)
        assert state.current == Mixture(own, 8 - own)


def test_what_was_counted_is_forgotten_with_the_time_constant_that_is_set() -> None:
    settings = MixtureSettings(memory=16.0)
    state = observe(at(4), Observation(made=40, mixed=20, offered=80.0), settings)
    for _ in range(16):
        state = observe(state, Observation(made=0, mixed=0, offered=0.0), settings)
    left = (state.made / 40, state.mixed / 20, state.offered / 80.0)
    assert left == pytest.approx((math.exp(-1.0),) * 3, abs=0.02)


def test_the_estimate_of_p_is_surer_the_more_was_seen() -> None:
    state = at(4)
    errors = [state.share_error]
    for _ in range(10):
        state = observe(state, Observation(8, 2, 0.0), SETTINGS)
        errors.append(state.share_error)
    assert errors == sorted(errors, reverse=True)
    assert state.share == pytest.approx(0.25, abs=0.01)


def test_a_falling_probe_lowers_the_external_share_which_comes_back() -> None:
    *_, before = fed(at(4), [0.5] * 5)
    assert before.current == Mixture(3, 5)
    falling = fed(before, [0.45, 0.40, 0.35, 0.30])
    further = fed(falling[-1], [0.20, 0.10, 0.0])
    lowered = [state.allowance for state in (before, *falling, *further)]
    assert all(after in (before, max(0.125, before / 2)) for before, after in pairwise(lowered))
    assert lowered[-1] == 0.125
    assert min(state.current.external for state in falling) <= 1
    *_, after = fed(falling[-1], [0.30] * 40)
    assert after.allowance == 1.0
    assert after.current == before.current


def test_a_rising_or_merely_noisy_probe_changes_nothing() -> None:
    rising = fed(at(4), [0.1 + 0.01 * step for step in range(50)])
    noisy = fed(at(4), [0.5, 0.54, 0.47, 0.52, 0.46, 0.53, 0.5, 0.48, 0.55] * 5)
    assert {state.allowance for state in rising} == {1.0}
    assert min(state.allowance for state in noisy[3:]) == 1.0


def test_two_nodes_that_adapt_together_do_not_swing() -> None:
    """Eight alike nodes: supply follows from what all of them sample."""
    state, share, peers = at(8), 0.5, 7
    chosen = []
    for _ in range(100):
        own = state.current.own
        made = Observation(own, own // 2, peers * share * own)
        state = observe(state, made, SETTINGS)
        chosen.append(state.current.own)
    assert set(chosen[20:]) == {2}


@pytest.mark.parametrize(
    ("settings", "key"),
    [
        ({"batch": 0}, "batch"),
        ({"least_own": 0}, "least_own"),
        ({"least_own": 9}, "least_own"),
        ({"external_share": 1.5}, "external_share"),
        ({"memory": 0.5}, "memory"),
    ],
)
def test_impossible_settings_are_named(settings: dict[str, Any], key: str) -> None:
    with pytest.raises(ConfigError, match=key):
        MixtureSettings(**settings)


def test_impossible_counts_are_refused() -> None:
    with pytest.raises(ValueError, match="mixed"):
        Observation(made=1, mixed=2, offered=0.0)
    with pytest.raises(ValueError, match="offered"):
        Observation(made=1, mixed=1, offered=-1.0)
