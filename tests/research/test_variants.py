"""Batches that no setting composes, and one learner that several samplers feed."""

from __future__ import annotations

import random
from typing import Any

import pytest
from builders import replay_settings, verified

from research.arms import batch_of
from research.scenario import StudyScenario
from research.swarm import FilteredBuffer, simulate
from swarm_node.errors import ConfigError
from swarm_node.policy.experience.replay import Drawn, ReplayBuffer
from swarm_node.rollout import VerifiedGroup
from swarm_node.simulation.history import RoundHistory
from swarm_node.simulation.report import SimulationReport
from swarm_node.simulation.run import simulation_settings
from swarm_node.simulation.scenario import Scenario
from swarm_node.simulation.swarm import describe

MIXED = (1.0, 0.0, 0.0, 0.0)


def group(name: str, author: str = "me", rewards: tuple[float, ...] = MIXED) -> VerifiedGroup:
    return verified(name, author, rewards=rewards)


def drawn(held: ReplayBuffer, version: int, *own: VerifiedGroup) -> Drawn:
    for each in own:
        assert held.admit(each, version) is None
    found = held.draw(version, random.Random(1))
    assert found is not None
    return found


def test_filtered_own_groups_leave_at_once_and_displace_nobody() -> None:
    held = FilteredBuffer(replay_settings(local=2, external=0, own_batches=1), RoundHistory())
    for name in ("a", "b"):
        assert held.admit(group(name), 0) is None
    dull = group("dull", rewards=(1.0, 1.0))
    assert held.admit(dull, 0) is None
    stats = held.stats()
    assert (stats.local, stats.local_admitted, stats.local_mixed_rewards, stats.evicted) == (
        2,
        3,
        2,
        0,
    )
    assert held.collect_departed() == [b"dull"]
    again = held.admit(dull, 0)
    assert again.reason == "duplicate"
    assert [each.id for each in drawn(held, 0).groups] == [b"a", b"b"]
    assert held.admit(group("oldest", rewards=(1.0, 1.0)), held.settings.max_staleness) is None
    assert held.stats().local == 0, "a filtered group is never held"
    late = held.admit(group("late", rewards=(1.0, 1.0)), held.settings.max_staleness + 1)
    assert late.reason == "stale"
    plain = ReplayBuffer(replay_settings(local=2, external=0))
    assert plain.admit(dull, 0) is None
    assert plain.stats().local == 1


def run(nodes: int, flags: dict[str, Any], **scenario: Any) -> SimulationReport:
    whole = StudyScenario(nodes, **{"rounds": 4, "eval_tasks": 1, **scenario})
    return simulate(whole, simulation_settings(whole.seed, flags))


@pytest.mark.slow(reason="simulates a node and a swarm")
def test_groups_of_the_past_are_counted_apart() -> None:
    (alone,) = run(1, batch_of(4, 0, 4) | {"experience.replay": 4}, rounds=6).nodes
    assert alone.trained_local == 24
    assert 0 < alone.trained_replay <= 20
    assert alone.max_local_staleness <= 8
    swarm = run(2, {"experience.replay": 4}, rounds=4)
    assert all(node.trained_replay and node.trained_external for node in swarm.nodes)


@pytest.mark.slow(reason="simulates learners that several samplers feed")
def test_samplers_hold_weights_as_old_as_stated_and_their_bytes_are_counted() -> None:
    flags = batch_of(12, 0, 4) | {"sampling.max_concurrent_groups": 12}
    turns = flags | {"experience.max_staleness": 0}
    fed, alone = run(1, turns, samplers=4, rounds=3), run(1, turns, rounds=3)
    (prompt,) = fed.nodes
    assert prompt.max_local_staleness == 0
    # They make the same answers in a quarter of the time, but for hundredths of a second in which
    # other loops run; three updates take a second each.
    assert prompt.weights == alone.nodes[0].weights
    assert fed.virtual_seconds - 3 == pytest.approx((alone.virtual_seconds - 3) / 4, abs=0.05)
    late = run(1, flags, samplers=4, behind=2, rounds=8, eval_at=(1, 3))
    (node,) = late.nodes
    assert node.max_local_staleness == 4  # two late, and two batches under way
    assert node.study["weights_sent"] == prompt.study["weights_sent"] // 3 * 8 > 8 * 4 * 100_000
    assert [entry for entry, _ in late.eval_reward.curve] == [0, 1, 3, 8]


@pytest.mark.slow(reason="simulates swarms")
def test_tasks_are_drawn_anew_for_each_seed_where_that_is_asked() -> None:
    """The start model is the same for all seeds, so only other tasks change its reward."""
    few = {"rounds": 1, "eval_tasks": 4}
    fixed = {run(1, {}, seed=seed, **few).eval_reward.start for seed in (1, 2, 3)}
    anew = [run(1, {}, seed=seed, fresh_tasks=True, **few) for seed in (1, 2, 3)]
    assert len(fixed) == 1
    assert (
        len(
            {
                (report.eval_reward.start, report.train_reward and report.train_reward.start)
                for report in anew
            }
        )
        > 1
    )
    assert anew[0].settings["plan"]["fresh_tasks"] is True
    assert "fresh_tasks" not in run(1, {}, **few).settings["plan"]


@pytest.mark.slow(reason="simulates swarms")
def test_reward_of_the_first_nodes_alone_is_measured_where_that_is_asked() -> None:
    """A measurement draws nothing that a node draws, so that all of them end as they would."""
    shape = {"rounds": 4, "eval_rounds": 2}
    few, all_of_them = run(3, {}, eval_nodes=2, **shape), run(3, {}, **shape)
    assert [node.eval_reward is None for node in few.nodes] == [False, False, True]
    ends = [node.eval_reward for node in few.nodes[:2] if node.eval_reward is not None]
    assert few.eval_reward.end == pytest.approx(sum(ends) / 2)
    assert [entry for entry, _ in few.eval_reward.curve] == [0, 2, 4]
    assert [node.weights for node in few.nodes] == [node.weights for node in all_of_them.nodes]
    assert few.settings["plan"]["eval_nodes"] == 2
    assert "eval_nodes" not in all_of_them.settings["plan"]


@pytest.mark.slow(reason="simulates swarms")
def test_alone_with_the_filter_every_group_trained_on_is_informative() -> None:
    report = run(1, {"experience.local": 4, "experience.external": 0}, filtered=True, rounds=2)
    assert report.rounds.mixed_in_batch == [4.0, 4.0]
    assert report.nodes[0].sampled > 8
    assert report.nodes[0].bytes_received == 0


def test_scenarios_without_variants_are_described_as_a_simulation() -> None:
    settings = simulation_settings(0, {})
    assert describe(StudyScenario(), settings) == describe(Scenario(), settings)
    varied = StudyScenario(nodes=1, eval_at=(1,), samplers=1, filtered=True)
    assert {"eval_at", "samplers", "filtered"} < describe(varied, settings)["plan"].keys()
    for wrong in ({"samplers": 2}, {"eval_nodes": -1}, {"hostile": ("kind",)}):
        with pytest.raises(ConfigError):
            StudyScenario(nodes=2, **wrong)
