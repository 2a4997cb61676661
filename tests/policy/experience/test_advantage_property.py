"""What holds for groups of one task that are judged together."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from swarm_node.policy.choices import AdvantageName
from swarm_node.policy.experience.advantage import ADVANTAGES, broad, grpo

GROUP = st.lists(st.sampled_from([0.0, 0.25, 0.5, 1.0]), min_size=1, max_size=16)
GROUPS = st.lists(GROUP, min_size=1, max_size=8)
NAMES = st.sampled_from(sorted(ADVANTAGES))


def others(groups: list[list[float]], index: int) -> list[float]:
    return [r for other, group in enumerate(groups) if other != index for r in group]


@given(GROUPS)
def test_against_an_independent_reference(groups: list[list[float]]) -> None:
    everything = np.concatenate([np.array(group) for group in groups])
    mean = sum(everything) / everything.size
    deviation = (sum((r - mean) ** 2 for r in everything) / everything.size) ** 0.5
    for index, group in enumerate(groups):
        expected = [(r - mean) / (deviation + 1e-4) if deviation else 0.0 for r in group]
        got = broad(grpo, group, others(groups, index))
        assert got.dtype == np.float32
        np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-6)


@given(GROUP, NAMES)
def test_merging_one_group_changes_nothing(group: list[float], name: AdvantageName) -> None:
    assert broad(ADVANTAGES[name], group).tobytes() == ADVANTAGES[name](group).tobytes()


@given(GROUPS, NAMES)
def test_advantages_of_a_merged_group_sum_to_zero(
    groups: list[list[float]], name: AdvantageName
) -> None:
    parts = [broad(ADVANTAGES[name], g, others(groups, i)) for i, g in enumerate(groups)]
    assert abs(sum(float(part.sum()) for part in parts)) < 1e-3


@given(GROUP, GROUPS, NAMES, st.randoms(use_true_random=False))
def test_the_order_of_the_others_does_not_matter(
    group: list[float], others: list[list[float]], name: AdvantageName, rng: object
) -> None:
    shuffled = list(others)
    rng.shuffle(shuffled)  # type: ignore[attr-defined]
    flat, again = ([r for other in order for r in other] for order in (others, shuffled))
    one, other = (broad(ADVANTAGES[name], group, rewards) for rewards in (flat, again))
    np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


@given(GROUP, GROUP)
def test_equal_rewards_say_something_next_to_others(
    group: list[float], others: list[float]
) -> None:
    wrong = [0.0] * len(group)
    got = broad(grpo, wrong, others)
    assert bool((got < 0).all()) is (max(others) > 0)
    # However rare a success is among n answers, its pull is bounded.
    count = len(group) + len(others)
    assert float(np.abs(broad(grpo, group, others)).max()) <= np.sqrt(max(count - 1, 0)) + 1e-6


@pytest.mark.parametrize("others", [[float("nan")], [float("inf")]])
def test_what_is_not_finite_is_refused(others: list[float]) -> None:
    with pytest.raises(ValueError, match="finite"):
        broad(grpo, [0.0, 1.0], others)
