"""What holds for the advantages of any group."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from swarm_node.policy.choices import AdvantageName
from swarm_node.policy.experience.advantage import ADVANTAGES, grpo

GROUP = st.lists(st.sampled_from([0.0, 0.25, 0.5, 1.0]), min_size=1, max_size=128)
NAMES = st.sampled_from(sorted(ADVANTAGES))


@given(GROUP)
def test_against_an_independent_reference(group: list[float]) -> None:
    mean = sum(group) / len(group)
    deviation = (sum((r - mean) ** 2 for r in group) / len(group)) ** 0.5
    expected = [(r - mean) / (deviation + 1e-4) if deviation else 0.0 for r in group]
    got = grpo(group)
    assert got.dtype == np.float32
    np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-6)


@given(GROUP, NAMES)
def test_advantages_sum_to_zero(group: list[float], name: AdvantageName) -> None:
    assert abs(float(ADVANTAGES[name](group).sum())) < 1e-3


@given(GROUP)
def test_however_rare_a_success_is_its_pull_is_bounded(group: list[float]) -> None:
    assert float(np.abs(grpo(group)).max()) <= np.sqrt(len(group) - 1) + 1e-6
