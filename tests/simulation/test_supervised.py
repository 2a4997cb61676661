"""The line of right answers that arms are held against."""

from __future__ import annotations

from swarm_node.simulation.run import simulation_settings
from swarm_node.simulation.scenario import Scenario
from swarm_node.simulation.swarm import describe, simulate

SETTINGS = simulation_settings(
    1, {"experience.own": 1, "experience.external": 0, "sampling.group_size": 2}
)


def test_right_answers_teach_although_the_groups_made_do_not() -> None:
    """One group of two answers per update, most of them of equal rewards, would teach nothing in
    twelve updates."""
    found = {
        supervised: simulate(
            Scenario(nodes=1, rounds=12, eval_rounds=12, seed=1, supervised=supervised), SETTINGS
        )
        for supervised in (False, True)
    }
    assert found[True].held_out.end > found[False].held_out.end + 0.1
    assert found[True].nodes[0].skipped_updates == 0


def test_swarms_that_are_not_supervised_are_described_as_before() -> None:
    assert "supervised" not in describe(Scenario(), SETTINGS)["plan"]
    assert describe(Scenario(supervised=True), SETTINGS)["plan"]["supervised"]
