"""What sharing should gain, before the run."""

from __future__ import annotations

import pytest

from research.prediction import Learning, between, predicted

#: Reward rises by .001 a group; half of all groups are informative throughout.
STEADY = Learning([0, 1000], [0.1, 1.1], [0.5, 0.5])


def test_a_node_alone_learns_from_its_own_share() -> None:
    found = predicted(STEADY, 1, batch=16, updates=10, lag=0)
    assert found == pytest.approx(0.1 + 0.001 * 10 * 8)


def test_a_swarm_learns_from_its_peers_as_far_as_they_offer() -> None:
    # I = 16 / (1 + 3 / 2) = 6.4 own groups, and all of the other 9.6 are informative.
    found = predicted(STEADY, 4, batch=16, updates=10, lag=0)
    assert found == pytest.approx(0.1 + 0.001 * 10 * (3.2 + 9.6))
    # At least an eighth of a batch is the node's own.
    many = predicted(STEADY, 1000, batch=16, updates=10, lag=0)
    assert many == pytest.approx(0.1 + 0.001 * 10 * (1 + 14))


def test_a_lag_costs_the_first_updates_of_peers() -> None:
    prompt, late = (predicted(STEADY, 4, batch=16, updates=10, lag=lag) for lag in (0, 3))
    assert prompt - late == pytest.approx(0.001 * 3 * 9.6 / 2)


def test_families_that_nobody_has_stay_as_they_were() -> None:
    half = predicted(STEADY, 4, batch=16, updates=10, lag=0, covered=0.5)
    assert half == pytest.approx(predicted(STEADY, 4, batch=16, updates=10, lag=0))
    flat = Learning([0, 1], [0.1, 0.9], [0.5, 0.5])  # learnt at once
    assert predicted(flat, 4, batch=16, updates=10, lag=0, covered=0.5) == pytest.approx(0.5)


def test_curves_are_interpolated_and_end_flat() -> None:
    assert between([0, 2, 4], [0.0, 1.0, 5.0], 3) == 3.0
    assert (between([0, 2], [0.0, 1.0], -1), between([0, 2], [0.0, 1.0], 9)) == (0.0, 1.0)
    for wrong in (([], [], []), ([0], [0, 1], [0]), ([1, 0], [0, 1], [0, 1])):
        with pytest.raises(ValueError, match=r"measurement|fewer"):
            Learning(*wrong)
