"""The experiment with a newcomer: it joins late, learns of what is there, and is counted apart."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from research.newcomer import Newcomer, Reached, reached
from research.scenario import StudyScenario
from research.swarm import LateNode as Late
from research.swarm import late_node, simulate
from swarm_node.errors import ConfigError
from swarm_node.simulation.report import SimulationReport, load_report
from swarm_node.simulation.run import simulation_settings

SMALL = Newcomer(nodes=2, rounds=10, seeds=1, flags={}, regime="dense")


@pytest.mark.slow(reason="simulates a swarm that a node joins, and three nodes alone")
def test_the_newcomer_is_measured_beside_nodes_that_begin_alone(
    tmp_path: Path, run_twice: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")  # no cell is wrapped
    shown = run_twice(SMALL, "dense-n2-r10/newcomer.png")
    joins = next(line for line in shown.splitlines() if line.strip().startswith("joins"))
    report = load_report(tmp_path / "dense-n2-r10" / "joins" / "seed-0" / "report.json")
    aim = 0.9 * report.eval_reward.curve[1][1]
    assert f"{reached(report, aim).updates:.1f}" in joins
    for name in ("alone", "alone+filter", "supervised"):
        assert f"\n  {name} " in shown


@pytest.mark.slow(reason="simulates a swarm of three")
def test_a_late_node_begins_when_the_others_have_trained_and_takes_their_groups() -> None:
    scenario = StudyScenario(3, 6, eval_rounds=2, eval_tasks=1, late=4)
    # Calls of one batch: after one of two batches, the others have groups in the first update too.
    report = simulate(scenario, simulation_settings(0, {"sampling.max_concurrent_groups": 8}))
    assert len(report.nodes) == 2
    assert [entry for entry, _ in report.eval_reward.curve] == [0, 4, 6]
    late = late_node(report)
    assert [entry for entry, _ in late.curve] == [0, 2]
    assert len(late.made) == 2
    # It finds groups of the others in its first update; they found none in theirs.
    assert late.external[0] > report.rounds.external_in_batch[0] == 0


def test_a_reward_is_reached_between_two_measurements_or_never(
    stored: SimulationReport,
) -> None:
    late = Late(curve=[(0, 0.0), (2, 0.2), (4, 0.4)], made=[1, 1, 2, 2], external=[])
    size = stored.settings["sampling"]["group_size"]
    report = msgspec.structs.replace(stored, study={"newcomer": msgspec.to_builtins(late)})
    assert reached(report, 0.3) == Reached(pytest.approx(3.0), pytest.approx(4 * size), False)
    assert reached(report, 0.5) == Reached(4, 6 * size, True)


@pytest.mark.parametrize("wrong", [{"late": 3}, {"late": -1}, {"nodes": 1, "late": 1}])
def test_a_late_node_joins_others_before_the_end(wrong: dict[str, int]) -> None:
    with pytest.raises(ConfigError, match="late node"):
        StudyScenario(**{"nodes": 2, "rounds": 3, **wrong})
