"""The line of right answers that arms are held against."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from research.scenario import StudyScenario
from research.supervised import ROWS, SupervisedTrainer
from research.swarm import simulate
from swarm_node.policy.experience.batch import TrainRow
from swarm_node.simulation.run import simulation_settings

SETTINGS = simulation_settings(
    1, {"experience.local": 1, "experience.external": 0, "sampling.group_size": 2}
)


@pytest.mark.slow(reason="a node learns for twelve rounds, twice")
def test_right_answers_teach_although_the_groups_made_do_not() -> None:
    """One group of two answers per update, most of them of equal rewards, would teach nothing in
    twelve updates."""
    found = {
        supervised: simulate(
            StudyScenario(nodes=1, rounds=12, eval_rounds=12, seed=1, supervised=supervised),
            SETTINGS,
        )
        for supervised in (False, True)
    }
    assert found[True].eval_reward.end > found[False].eval_reward.end + 0.1
    assert found[True].nodes[0].skipped_batches == 0


@pytest.mark.slow(reason="a node learns for twelve rounds, twice")
def test_nodes_that_are_told_at_first_learn_from_rollouts_afterwards() -> None:
    scenario = StudyScenario(nodes=1, rounds=12, eval_rounds=6, seed=1, supervised=True)
    whole = simulate(scenario, SETTINGS)
    begun = simulate(replace(scenario, supervised=False, told=6), SETTINGS)
    assert begun.eval_reward.curve[1] == whole.eval_reward.curve[1]
    assert begun.eval_reward.end < whole.eval_reward.end
    assert begun.nodes[0].skipped_batches > 0  # most of its groups of two have equal rewards


def test_right_answers_are_to_tasks_of_the_preset(monkeypatch: pytest.MonkeyPatch) -> None:
    questions: list[str] = []
    row = SupervisedTrainer._row

    def noted(trainer: SupervisedTrainer) -> TrainRow:
        made = row(trainer)
        questions.append(trainer._codec.decode(made.prompt_ids.tolist()))
        return made

    monkeypatch.setattr(SupervisedTrainer, "_row", noted)
    settings = simulation_settings(1, {"environment.options.preset": "long"})
    simulate(StudyScenario(nodes=1, rounds=1, eval_tasks=1, supervised=True), settings)
    assert len(questions) == ROWS
    spelt = [found[1] for each in questions if (found := re.search(r"Spell (\w+) back", each))]
    assert spelt
    assert all(5 <= len(word) <= 7 for word in spelt)  # 3 or 4 in "short"
