"""Arms of an experiment at equal cost."""

from __future__ import annotations

import msgspec
import pytest

from research.arms import Arm
from research.budgets import (
    CostRatio,
    answers_made,
    at_equal_cost,
    reward_at,
)
from research.scenario import StudyScenario
from research.swarm import simulate
from swarm_node.errors import ConfigError
from swarm_node.simulation.report import RewardCurve, SimulationReport
from swarm_node.simulation.run import simulation_settings


@pytest.fixture(scope="module")
def report() -> SimulationReport:
    """A real one, with a curve that is easy to read."""
    settings = simulation_settings(1, {"experience.local": 2, "experience.external": 0})
    made = simulate(StudyScenario(nodes=1, rounds=4, eval_rounds=2, eval_tasks=1, seed=1), settings)
    curve = RewardCurve(0.1, 0.5, [(0, 0.1), (2, 0.3), (4, 0.5)])
    return msgspec.structs.replace(made, eval_reward=curve)


def test_reward_is_read_off_between_measurements(report: SimulationReport) -> None:
    spent = [0.0, 1.0, 3.0, 7.0, 11.0]
    found = [reward_at(report, spent, budget) for budget in (0.0, 1.5, 3.0, 7.0, 11.0, 50.0)]
    assert found == pytest.approx([0.1, 0.2, 0.3, 0.4, 0.5, 0.5])


def test_an_arm_that_made_nothing_for_a_while_has_no_slope_there(report: SimulationReport) -> None:
    assert reward_at(report, [0.0, 0.0, 0.0, 0.0, 4.0], 2.0) == pytest.approx(0.4)


def with_groups(
    report: SimulationReport, size: int, made: list[float], informative: list[float]
) -> SimulationReport:
    rounds = msgspec.structs.replace(report.rounds, sampled=made, mixed_in_batch=informative)
    settings = {**report.settings, "sampling": {"group_size": size}}
    return msgspec.structs.replace(report, rounds=rounds, settings=settings)


def test_time_is_what_was_made_and_what_was_trained_on(report: SimulationReport) -> None:
    # A batch of eight groups of eight, all informative, takes one batch of time at any ratio.
    whole = with_groups(report, 8, [8.0] * 4, [8.0] * 4)
    small = with_groups(report, 4, [16.0] * 4, [16.0] * 4)
    for ratio in (CostRatio(70, 30), CostRatio(1, 1), CostRatio(0, 3)):
        assert ratio.spent(whole) == pytest.approx([0, 1, 2, 3, 4])
        assert ratio.spent(small) == pytest.approx([0, 1, 2, 3, 4])
    shared = with_groups(report, 8, [2.0] * 4, [8.0] * 4)
    assert CostRatio(70, 30).spent(shared)[-1] == pytest.approx(4 * (0.7 / 4 + 0.3))
    assert (
        answers_made(shared)[-1] == answers_made(with_groups(report, 2, [8.0] * 4, [0.0] * 4))[-1]
    )


def test_arms_are_compared_where_the_cheapest_ended(report: SimulationReport) -> None:
    cheap = with_groups(report, 8, [2.0] * 4, [8.0] * 4)
    dear = with_groups(report, 8, [4.0] * 4, [8.0] * 4)
    arms = {Arm("cheap"): [cheap], Arm("dear"): [dear], Arm("told", supervised=True): [cheap]}
    budget, found = at_equal_cost(arms, answers_made)
    assert budget == 64
    assert {arm.name: values for arm, values in found.items()} == {
        "cheap": pytest.approx([0.5]),
        "dear": pytest.approx([0.3]),
    }


@pytest.mark.parametrize("ratio", [(-1, 2), (0, 0), (float("nan"), 1), (1, float("inf"))])
def test_an_impossible_cost_ratio_is_refused(ratio: tuple[float, float]) -> None:
    with pytest.raises(ConfigError, match="cost ratio"):
        CostRatio(*ratio)
