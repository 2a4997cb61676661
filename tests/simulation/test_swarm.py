"""A whole simulated swarm as one call."""

from __future__ import annotations

import torch

from swarm_node.simulation.run import simulation_settings
from swarm_node.simulation.scenario import Scenario
from swarm_node.simulation.swarm import simulate


def test_sums_are_of_one_thread_whatever_the_caller_had_set() -> None:
    flags = {"experience.own": 1, "experience.external": 0, "sampling.tasks_per_call": 1}
    scenario = Scenario(nodes=1, rounds=1, eval_rounds=1, eval_tasks=1)
    seen, before = set[int](), torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        simulate(scenario, simulation_settings(0, flags), lambda: seen.add(torch.get_num_threads()))
        after = torch.get_num_threads()
    finally:
        torch.set_num_threads(before)
    assert (seen, after) == ({1}, 2)


def test_a_node_that_trains_an_adapter_reports_its_weights() -> None:
    flags = {"experience.own": 1, "experience.external": 0, "sampling.tasks_per_call": 1}
    scenario = Scenario(nodes=1, rounds=2, eval_rounds=2, eval_tasks=1)
    found = [
        simulate(scenario, simulation_settings(seed, {**flags, "training.lora_rank": 2}))
        for seed in (0, 0, 1)
    ]
    once, again, other = (report.nodes[0].weights for report in found)
    assert len(once) == 64
    assert once == again
    assert once != other
