"""Hostile members of a simulated swarm: what each of them is refused for."""

from __future__ import annotations

from collections import Counter

import pytest

from swarm_node.errors import ConfigError
from swarm_node.p2p.exchange.verify import digests
from swarm_node.p2p.limits.gates import SizeGate
from swarm_node.policy.training.gradient import likely_tokens
from swarm_node.simulation.experiments.arms import batch_of
from swarm_node.simulation.report import SimulationReport
from swarm_node.simulation.run import simulation_settings
from swarm_node.simulation.scenario import Scenario
from swarm_node.simulation.swarm import describe, simulate
from swarm_node.simulation.unguarded import GUARDS, without

LENIENT = {"environment.name": "swarm_node.simulation.lenient:create"}


def attacked(kind: str, *off: str) -> SimulationReport:
    scenario = Scenario(nodes=3, rounds=6, seed=1, eval_rounds=6, hostile=(kind,), without=off)
    return simulate(scenario, simulation_settings(1, {**batch_of(4, 4), **LENIENT}))


def refused(report: SimulationReport) -> Counter[str]:
    counts: Counter[str] = Counter()
    for node in report.nodes:
        counts.update(node.rejected)
    return counts


@pytest.mark.slow(reason="simulates seven swarms of three nodes")
@pytest.mark.parametrize(
    ("kind", "reason", "guard"),
    [
        ("large", "too_large", "size"),
        ("within", "implausible", "likelihood"),
        ("hidden", "implausible", "likelihood"),
        ("lazy", "repeated", "content"),
        ("copier", "own_copied", "content"),
    ],
)
def test_each_kind_is_refused_for_what_it_does_unless_its_guard_is_out(
    kind: str, reason: str, guard: str
) -> None:
    guarded = attacked(kind)
    assert len(guarded.nodes) == 2
    assert refused(guarded)[reason] > 0
    assert all(reason not in node.refused for node in guarded.nodes)
    assert refused(attacked(kind, guard))[reason] == 0


def test_a_liar_is_not_found_out_and_does_no_harm_by_lying() -> None:
    report = attacked("liar")
    assert not {"implausible", "own_copied", "repeated"} & refused(report).keys()
    assert sum(node.trained_external for node in report.nodes) > 0


def test_guards_are_back_afterwards() -> None:
    before = (SizeGate.of(8, 24), digests, likely_tokens)
    with without(GUARDS):
        assert SizeGate.of(8, 24).completions > 64
    assert (SizeGate.of(8, 24), digests, likely_tokens) == before


def test_a_swarm_without_attackers_is_described_as_before_there_were_any() -> None:
    settings = simulation_settings(0, {})
    assert not {"hostile", "without"} & describe(Scenario(), settings)["plan"].keys()
    plan = describe(Scenario(nodes=2, hostile=("liar",)), settings)["plan"]
    assert plan["hostile"] == ["liar"]


@pytest.mark.parametrize(
    "wrong", [{"hostile": ("rude",)}, {"hostile": ("liar",) * 8}, {"without": ("all",)}]
)
def test_an_unknown_attack_is_refused(wrong: dict[str, tuple[str, ...]]) -> None:
    with pytest.raises(ConfigError):
        Scenario(nodes=8, **wrong)
