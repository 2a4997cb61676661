"""The models of a simulation, and the digests under which its results count."""

from __future__ import annotations

from in_memory import tiny

from swarm_node.simulation.models import model_digests


def test_a_result_counts_for_the_weights_of_its_models() -> None:
    assert model_digests(["tiny", "tiny"]) == [tiny().policy.model.hex()] * 2
