"""What holds for the controller whatever it observes."""

from __future__ import annotations

import random

import pytest
from builders import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from swarm_node.policy.experience.mixture import (
    Costs,
    Mixture,
    MixtureSettings,
    MixtureState,
    Observation,
    informative,
    observe,
    start,
)

mixture_settings = st.builds(
    MixtureSettings,
    batch=st.integers(1, 64),
    external_share=st.floats(0, 1),
    memory=st.floats(1, 1000),
)
seconds = st.floats(0, 1e6)
observations = st.builds(
    lambda made, part, offered, costs, probe: Observation(
        made, round(made * part), offered, costs, probe
    ),
    st.integers(0, 100),
    st.floats(0, 1),
    st.floats(0, 1e4),
    st.builds(Costs, seconds, seconds, seconds),
    st.none() | st.floats(0, 1),
)


@given(mixture_settings, st.lists(observations, max_size=60))
def test_limits_are_kept_whatever_is_seen(limits: MixtureSettings, seen: list[Observation]) -> None:
    state = start(limits)
    for observation in [None, *seen]:
        if observation is not None:
            before, state = state, observe(state, observation, limits)
            assert state == observe(before, observation, limits), "not a function of its input"
        mixture = state.current
        assert mixture.size == limits.batch
        assert mixture.own >= limits.least_own
        assert 0 <= mixture.external <= limits.external_share * limits.batch
        assert mixture.external <= limits.batch - 1
        assert 0.0 < state.share < 1.0
        assert state.share_error > 0.0
        assert 0.0 < state.allowance <= 1.0


@examples(50)
@given(
    share=st.floats(0.02, 0.9),
    peers=st.integers(1, 31),
    first=st.integers(1, 8),
    seed=st.integers(0, 1 << 32),
)
def test_alike_nodes_come_to_the_best_mixture(
    share: float, peers: int, first: int, seed: int
) -> None:
    """Supply answers to what everybody samples, as in a swarm of alike nodes; rewards are drawn."""
    limits = MixtureSettings(external_share=1.0, memory=256.0)
    state, rng = MixtureState(Mixture(first, 8 - first)), random.Random(seed)
    for _ in range(600):
        own = state.current.own
        mixed = sum(rng.random() < share for _ in range(own))
        offered = sum(rng.random() < share for _ in range(own * peers))
        state = observe(state, Observation(own, mixed, offered), limits)
    best = min(7.0, max(1.0, 8 / (1 + peers * share)))
    assert abs(state.current.own - best) <= 1.0


@pytest.mark.slow(reason="800 steps an example")
@settings(deadline=None)
@given(supply=st.floats(0, 4.5), share=st.floats(0.1, 0.9), first=st.integers(1, 8))
def test_next_to_peers_that_do_not_adapt_it_misses_one_group_at_most(
    supply: float, share: float, first: int
) -> None:
    """Of the informative groups that the best I would give: steps of whole groups, and noise that
    is ignored, end the approach a little early."""
    limits = MixtureSettings(external_share=1.0)
    state = MixtureState(Mixture(first, 8 - first))
    for _ in range(800):
        own = state.current.own
        state = observe(state, Observation(own, round(own * share), supply), limits)
    reached = informative(state.current.own, state.current.external, share, supply)
    best = max(informative(own, 8 - own, share, supply) for own in range(1, 9))
    assert reached >= best - 1.0
