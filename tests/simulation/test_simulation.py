"""A whole swarm in one process: deterministic, and its report adds up."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from swarm_node.errors import ConfigError
from swarm_node.p2p.wire.reasons import REASONS, Blame
from swarm_node.simulation.paced import Pace
from swarm_node.simulation.report import SimulationReport, load_report, save_report
from swarm_node.simulation.run import simulation_settings, summary
from swarm_node.simulation.scenario import Scenario
from swarm_node.simulation.swarm import simulate

pytestmark = pytest.mark.slow(reason="runs whole swarms")

SMALL = {"nodes": 3, "rounds": 4, "eval_rounds": 2, "eval_tasks": 1}


def run(
    seed: int = 0, experience: dict[str, Any] | None = None, **scenario: Any
) -> SimulationReport:
    flags = {f"experience.{key}": value for key, value in (experience or {}).items()}
    return simulate(
        Scenario(**{**SMALL, "seed": seed, **scenario}), simulation_settings(seed, flags)
    )


@pytest.fixture(scope="module")
def first() -> SimulationReport:
    return run(delay=(0.1, 2.0), message_loss=0.05)


def test_the_same_seed_gives_the_same_hash_and_another_does_not(first: SimulationReport) -> None:
    assert run(delay=(0.1, 2.0), message_loss=0.05).hash == first.hash
    other = run(seed=1, delay=(0.1, 2.0), message_loss=0.05)
    assert other.hash != first.hash
    assert {node.weights for node in other.nodes}.isdisjoint(node.weights for node in first.nodes)


@pytest.mark.slow(reason="starts two processes that simulate a swarm each")
def test_every_process_gives_the_same_hash(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "swarm_node", "simulate", "--nodes", "2", "--rounds", "3"]
    options = ["--delay", "0,1", "--message-loss", "0.1", "--speeds", "0.5,2"]
    hashes = []
    for hash_seed in ("1", "2"):
        done = subprocess.run(
            [*command, *options, "--report", str(tmp_path / hash_seed)],
            env={**os.environ, "PYTHONHASHSEED": hash_seed, "SWARM_NODE_POLICY__OWN": "2"},
            capture_output=True,
            text=True,
            timeout=250,
        )
        assert done.returncode == 0, done.stderr
        report = json.loads((tmp_path / hash_seed / "report.json").read_text())
        assert report["schema"] == 1
        assert report["hash"] in done.stdout
        hashes.append(report["hash"])
    assert hashes[0] == hashes[1]


def test_a_report_adds_up(first: SimulationReport) -> None:
    assert [entry for entry, _ in first.eval_reward.curve] == [0, 2, 4]
    assert first.eval_reward.curve[-1][1] == pytest.approx(
        sum(node.eval_reward for node in first.nodes) / 3
    )
    assert [entry for entry, _ in first.train_reward.curve] == [0, 2, 4]
    assert (first.train_reward.start, first.train_reward.end) == (
        first.train_reward.curve[0][1],
        first.train_reward.curve[-1][1],
    )
    text = summary(first, ["tiny"])
    assert (
        f"eval reward          {first.eval_reward.start:.3f} -> {first.eval_reward.end:.3f}" in text
    )
    assert (
        f"training prompts     {first.train_reward.start:.3f} -> {first.train_reward.end:.3f}"
        in text
    )
    assert first.cumulative_local_reward == pytest.approx(sum(first.rounds.local_reward))
    assert len(first.rounds.batch_reward) == 4
    assert 0 < first.mixed_per_step <= 8
    for node in first.nodes:
        assert node.steps + node.skipped_batches == 4
        assert node.sampled >= node.trained_local > 0
        assert node.accepted >= node.trained_external
        assert len(node.families) == 9
    # What one sends another receives, less what was lost or still under way.
    sent = sum(node.bytes_sent for node in first.nodes)
    assert sum(node.bytes_received for node in first.nodes) > 0
    assert sum(node.bytes_received for node in first.nodes) < 1.1 * sent


def test_nodes_train_on_each_others_groups_and_specialists_sample_their_own() -> None:
    report = run(families_per_node=2, speeds=(0.5, 2.0))
    assert [node.families for node in report.nodes] == [
        ["alphabet", "doubling"],
        ["initials", "largest"],
        ["position", "removal"],
    ]
    assert all(node.trained_external > 0 for node in report.nodes)
    assert len({node.speed for node in report.nodes}) == 3


@pytest.mark.slow(reason="simulates twelve rounds of four nodes")
def test_sharing_goes_on_over_a_network_that_delays_and_loses_messages() -> None:
    report = run(nodes=4, rounds=12, eval_rounds=12, delay=(0.5, 4.0), message_loss=0.1)
    trained = sum(node.trained_external for node in report.nodes)
    # One greeting and one listing take nine virtual seconds here, three updates.
    assert trained > 4 * 6
    assert all(node.rejected["unreachable"] for node in report.nodes)


@pytest.mark.slow(reason="simulates two more swarms")
def test_late_weights_make_old_groups_but_none_older_than_allowed() -> None:
    late = run(behind=2, experience={"max_staleness": 3}, nodes=2, rounds=5)
    prompt = run(experience={"max_staleness": 0}, nodes=1, rounds=2)
    assert prompt.nodes[0].local_staleness == prompt.nodes[0].max_local_staleness == 0
    for node in late.nodes:
        assert node.local_staleness > 1
        assert 2 <= node.max_local_staleness <= 3
    assert all(node.external_staleness >= 0 for node in late.nodes)


def test_a_saved_report_is_read_back_and_an_altered_one_is_not(
    first: SimulationReport, tmp_path: Path
) -> None:
    files = save_report(first, tmp_path)
    assert load_report(files[0]) == first
    altered = files[0].read_text().replace('"trained_local": ', '"trained_local": 1', 1)
    files[0].write_text(altered)
    assert load_report(files[0]) is None
    files[0].write_text(altered[:100])
    assert load_report(files[0]) is None
    assert load_report(tmp_path / "none.json") is None


@pytest.mark.parametrize(
    "impossible",
    [
        {"nodes": 0},
        {"seed": -1},
        {"delay": (2.0, 1.0)},
        {"message_loss": 1.5},
        {"speeds": (0.0, 1.0)},
        {"behind": -1},
    ],
)
def test_an_impossible_plan_is_refused(impossible: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        Scenario(**impossible)
    with pytest.raises(ConfigError):
        Pace(token_seconds=0.0)


def test_a_node_alone_comes_to_fill_its_batches() -> None:
    # An update takes time in the controller's eyes, too: otherwise no mixture is worth more.
    report = run(nodes=1, rounds=24, eval_rounds=24)
    # A call of the sampler makes sixteen groups, which are two batches of eight.
    assert sorted(report.rounds.sampled[-4:]) == [0, 0, 16, 16]


def test_simulated_nodes_learn_from_each_others_dialogues() -> None:
    settings = simulation_settings(1, {}, ["environment.name=games"])
    scenario = Scenario(nodes=2, rounds=3, seed=1, models=("tiny-talk",), eval_tasks=2)
    report = simulate(scenario, settings)
    for node in report.nodes:
        assert node.steps == 3
        assert node.trained_external > 0
        assert not {why for why in node.rejected if REASONS[why] is Blame.VIOLATION}
