"""The skeleton of the experiments: where results lie, that kept ones are read, and Ctrl-C."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from research import skeleton
from research.estimates import declared_seeds
from research.sapo import Sapo
from research.scenario import StudyScenario
from research.swarm import simulate
from swarm_node.config import Settings
from swarm_node.simulation.report import SimulationReport, _digest, save_json
from swarm_node.simulation.run import simulation_settings
from swarm_node.simulation.swarm import describe

ALONE = Sapo(1, 1, 1, {}, "dense", ("8/0",))
TWO = Sapo(1, 1, 1, {}, "dense", ("8/0", "8/0+filter"))


def test_a_kept_run_is_shown_and_one_of_another_plan_is_made_again(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    stored: SimulationReport,
) -> None:
    def never(*_: object) -> SimulationReport:
        raise AssertionError("it is made again")

    monkeypatch.setattr(skeleton, "simulate", never)
    (case,) = ALONE.cases(tmp_path).values()
    scenario = replace(case.scenario, seed=declared_seeds(1, "sapo")[0])
    plan = describe(scenario, simulation_settings(scenario.seed, case.flags))
    place = tmp_path / ALONE.place / case.name / "seed-0"
    for settings in (stored.settings, plan):  # the first one is of another plan
        with suppress(AssertionError):
            ALONE.run(tmp_path)
        assert "8/0" not in capsys.readouterr().out
        kept = msgspec.structs.replace(stored, settings=settings, hash="")
        save_json(msgspec.structs.replace(kept, hash=_digest(kept)), place)
    ALONE.run(tmp_path)
    assert "8/0" in capsys.readouterr().out


@pytest.mark.slow(reason="simulates two nodes")
def test_ctrl_c_keeps_finished_runs_and_says_how_to_go_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    made = []

    def once(
        scenario: StudyScenario, settings: Settings, on_round: Callable[[], None]
    ) -> SimulationReport:
        if made:
            raise KeyboardInterrupt
        made.append(scenario)
        return simulate(scenario, settings, on_round)

    monkeypatch.setattr(skeleton, "simulate", once)
    with pytest.raises(KeyboardInterrupt):
        TWO.run(tmp_path)
    told = capsys.readouterr().err
    assert str(tmp_path / "dense-n1-r1") in told
    assert "same command" in told
    (kept,) = tmp_path.rglob("report.json")
    written = kept.stat().st_mtime_ns
    monkeypatch.undo()
    TWO.run(tmp_path)
    assert kept.stat().st_mtime_ns == written
    assert len([*tmp_path.rglob("report.json")]) == 2
