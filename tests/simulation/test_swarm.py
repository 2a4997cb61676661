"""A whole simulated swarm as one call."""

from __future__ import annotations

import pytest
import torch
from in_memory import tiny

from swarm_node.simulation.models import model_digests
from swarm_node.simulation.run import simulation_settings
from swarm_node.simulation.scenario import Scenario
from swarm_node.simulation.swarm import simulate


def test_sums_are_of_one_thread_whatever_the_caller_had_set() -> None:
    flags = {"experience.local": 1, "experience.external": 0, "sampling.max_concurrent_groups": 1}
    scenario = Scenario(nodes=1, rounds=1, eval_rounds=1, eval_tasks=1)
    seen, before = set[int](), torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        simulate(scenario, simulation_settings(0, flags), lambda: seen.add(torch.get_num_threads()))
        after = torch.get_num_threads()
    finally:
        torch.set_num_threads(before)
    assert (seen, after) == ({1}, 2)


@pytest.mark.slow(reason="imports peft")
def test_a_node_that_trains_an_adapter_reports_its_weights() -> None:
    flags = {"experience.local": 1, "experience.external": 0, "sampling.max_concurrent_groups": 1}
    scenario = Scenario(nodes=1, rounds=1, eval_rounds=1, eval_tasks=1)
    one, other = (
        simulate(scenario, simulation_settings(seed, {**flags, "training.lora_rank": 2}))
        for seed in (0, 1)
    )
    assert len(one.nodes[0].weights) == 64
    assert one.nodes[0].weights != other.nodes[0].weights


def test_a_result_counts_for_the_weights_of_its_models() -> None:
    assert model_digests(["tiny", "tiny"]) == [tiny().policy.model.hex()] * 2
