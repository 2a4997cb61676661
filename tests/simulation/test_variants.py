"""Batches that no setting composes, and one learner that several samplers feed."""

from __future__ import annotations

import random
from typing import Any

import pytest
from builders import replay_settings, verified

from swarm_node.errors import ConfigError
from swarm_node.policy.experience.replay import Drawn
from swarm_node.rollout import VerifiedGroup
from swarm_node.simulation.experiments.arms import batch_of
from swarm_node.simulation.report import SimulationReport
from swarm_node.simulation.run import simulation_settings
from swarm_node.simulation.scenario import Scenario
from swarm_node.simulation.swarm import describe, simulate
from swarm_node.simulation.variants import VariantBuffer, gradient_rows

MIXED = (1.0, 0.0, 0.0, 0.0)


def group(name: str, author: str = "me", rewards: tuple[float, ...] = MIXED) -> VerifiedGroup:
    return verified(name, author, rewards=rewards)


def filled(rows: int, own: int = 1, external: int = 0, peers: int = 0) -> VariantBuffer:
    held = VariantBuffer(replay_settings(own=own, external=external), rows)
    for index in range(peers):
        assert held.admit(group(f"p{index}", f"peer{index}"), 0) is None
    return held


def drawn(held: VariantBuffer, version: int, *own: VerifiedGroup) -> Drawn:
    for each in own:
        assert held.admit(each, version) is None
    found = held.draw(version, random.Random(1))
    assert found is not None
    return found


def test_a_batch_by_rows_takes_peers_groups_until_it_has_enough() -> None:
    held = filled(rows=7, external=2, peers=8)
    found = drawn(held, 0, group("a"))
    # Four rows of the own group, one of each peer's: only its right answer has a gradient.
    assert sum(map(gradient_rows, found.groups)) == 7
    assert (found.own_count, found.external_count) == (1, 3)
    assert held.left == held.stats().external == 5
    assert held.stats().external_drawn == 3
    # The mixture bounds what comes on top.
    assert len(drawn(filled(1000, external=2, peers=8), 0, group("a")).groups) == 6


def test_filtered_own_groups_leave_at_once_and_displace_nobody() -> None:
    held = VariantBuffer(replay_settings(own=2, external=0, own_batches=1), filtered=True)
    for name in ("a", "b"):
        assert held.admit(group(name), 0) is None
    dull = group("dull", rewards=(1.0, 1.0))
    assert held.admit(dull, 0) is None
    stats = held.stats()
    assert (stats.own, stats.own_admitted, stats.own_informative, stats.evicted) == (2, 3, 2, 0)
    assert held.collect_departed() == [b"dull"]
    again = held.admit(dull, 0)
    assert again.reason == "duplicate"
    assert [each.id for each in drawn(held, 0).groups] == [b"a", b"b"]
    assert held.admit(group("oldest", rewards=(1.0, 1.0)), held.settings.max_lag) is None
    assert held.stats().own == 0, "a filtered group is never held"
    late = held.admit(group("late", rewards=(1.0, 1.0)), held.settings.max_lag + 1)
    assert late.reason == "stale"
    plain = VariantBuffer(replay_settings(own=2, external=0))
    assert plain.admit(dull, 0) is None
    assert plain.stats().own == 1


def run(nodes: int, flags: dict[str, Any], **scenario: Any) -> SimulationReport:
    whole = Scenario(nodes, scenario.pop("rounds", 4), eval_tasks=1, **scenario)
    return simulate(whole, simulation_settings(0, flags))


@pytest.mark.slow(reason="simulates a node and a swarm")
def test_groups_of_the_past_are_counted_apart() -> None:
    (alone,) = run(1, batch_of(4, 0, 4) | {"experience.past": 4}, rounds=6).nodes
    assert alone.trained_own == 24
    assert 0 < alone.trained_past <= 20
    assert alone.own_lag_most <= 8
    swarm = run(2, {"experience.past": 4}, rounds=4)
    assert all(node.trained_past and node.trained_external for node in swarm.nodes)


@pytest.mark.slow(reason="simulates learners that several samplers feed")
def test_samplers_hold_weights_as_old_as_stated_and_their_bytes_are_counted() -> None:
    flags = batch_of(12, 0, 4) | {"sampling.tasks_per_call": 12}
    turns = flags | {"experience.max_lag": 0}
    fed, alone = run(1, turns, samplers=4, rounds=3), run(1, turns, rounds=3)
    (prompt,) = fed.nodes
    assert prompt.own_lag_most == 0
    # They make the same answers in a quarter of the time, but for hundredths of a second in which
    # other loops run; three updates take a second each.
    assert prompt.weights == alone.nodes[0].weights
    assert fed.virtual_seconds - 3 == pytest.approx((alone.virtual_seconds - 3) / 4, abs=0.05)
    late = run(1, flags, samplers=4, behind=2, rounds=8, eval_at=(1, 3))
    (node,) = late.nodes
    assert node.own_lag_most == 4  # two late, and two batches under way
    assert node.weights_sent == prompt.weights_sent // 3 * 8 > 8 * 4 * 100_000
    assert [entry for entry, _ in late.held_out.curve] == [0, 1, 3, 8]


def test_scenarios_without_variants_are_described_as_before() -> None:
    settings = simulation_settings(0, {})
    new = {"eval_at", "samplers", "by_rows"}
    assert not new & describe(Scenario(), settings)["plan"].keys()
    varied = Scenario(nodes=1, eval_at=(1,), samplers=1, by_rows=1)
    assert new < describe(varied, settings)["plan"].keys()
    # The past stood among them before it was a setting, and only where there was one.
    past = [describe(Scenario(), simulation_settings(0, {"experience.past": k})) for k in (0, 3)]
    assert [found["plan"].get("own_past") for found in past] == [None, 3]
    assert not any("past" in found["experience"] for found in past)
    # Two of them were settings once, and runs with them stay valid.
    once = describe(Scenario(filtered=True, common=0.5), settings)
    assert once["plan"] == describe(Scenario(), settings)["plan"]
    assert (once["experience"]["filter_own"], once["sampling"]["common_share"]) == (True, 0.5)
    assert describe(Scenario(), settings)["experience"]["filter_own"] is False
    unknown = {"hostile": ("kind",)}
    for wrong in ({"samplers": 2}, {"by_rows": -1}, {"common": 1.5}, unknown):
        with pytest.raises(ConfigError):
            Scenario(nodes=2, **wrong)
