"""Arms of an experiment at equal cost."""

from __future__ import annotations

import msgspec
import pytest

from swarm_node.simulation.experiments.budgets import reward_at
from swarm_node.simulation.report import HeldOut, SimulationReport
from swarm_node.simulation.run import simulation_settings
from swarm_node.simulation.swarm import Scenario, simulate


@pytest.fixture(scope="module")
def report() -> SimulationReport:
    """A real one, with a curve that is easy to read."""
    settings = simulation_settings(1, {"experience.own": 2, "experience.external": 0})
    made = simulate(Scenario(nodes=1, rounds=4, eval_rounds=2, eval_tasks=1, seed=1), settings)
    curve = HeldOut(0.1, 0.5, [(0, 0.1), (2, 0.3), (4, 0.5)])
    return msgspec.structs.replace(made, held_out=curve)


def test_reward_is_read_off_between_measurements(report: SimulationReport) -> None:
    spent = [0.0, 1.0, 3.0, 7.0, 11.0]
    found = [reward_at(report, spent, budget) for budget in (0.0, 1.5, 3.0, 7.0, 11.0, 50.0)]
    assert found == pytest.approx([0.1, 0.2, 0.3, 0.4, 0.5, 0.5])


def test_an_arm_that_made_nothing_for_a_while_has_no_slope_there(report: SimulationReport) -> None:
    assert reward_at(report, [0.0, 0.0, 0.0, 0.0, 4.0], 2.0) == pytest.approx(0.4)
