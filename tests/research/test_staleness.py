"""The experiment with old groups over a bad network: what it sets, runs, resumes and shows."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from research.staleness import Staleness
from swarm_node.errors import ConfigError
from swarm_node.policy.choices import LOSS_CHOICES
from swarm_node.simulation.report import SimulationReport, load_report
from swarm_node.simulation.run import simulation_settings


def staleness(
    rounds: int = 3, lags: tuple[int, ...] = (0, 2), corrections: tuple[str, ...] = ("none",)
) -> Staleness:
    return Staleness(1, rounds, 1, {}, lags, corrections, (0.5, 4.0), 0.1)


def test_a_lag_is_the_oldest_age_and_the_weights_come_one_update_sooner() -> None:
    names = ("positive", "sampler", "none")
    cases = staleness(lags=(0, 1, 2, 8), corrections=names).cases(Path())
    for lag, behind in ((0, 0), (1, 0), (8, 7)):
        case = cases["sampler", lag]
        assert (case.scenario.behind, case.flags["experience.max_staleness"]) == (behind, lag)
        assert case.flags["experience.external_correction"] == "importance_sampling"
    assert len({case.name for case in cases.values()}) == 12


def test_every_loss_is_compared_as_it_is_published() -> None:
    cases = staleness(lags=(4,), corrections=tuple(LOSS_CHOICES)).cases(Path())
    for loss in LOSS_CHOICES:
        training = simulation_settings(0, cases[loss, 4].flags).training
        plain = loss in ("dr_grpo", "tba")
        assert (training.loss, training.advantage) == (loss, "dr_grpo" if plain else "grpo")


def test_what_an_update_took_is_tabled_and_the_lags_are_drawn_in_two_panels(
    stored: SimulationReport,
) -> None:
    replace = msgspec.structs.replace
    nodes = [replace(stored.nodes[0], steps=2, trained_local=12, trained_external=4)]
    held_out = replace(stored.eval_reward, curve=[(0, 0.1), (1, 0.2), (2, 0.3), (3, 0.4)])
    report = replace(stored, nodes=nodes, eval_reward=held_out)
    experiment = staleness(lags=(0, 2))
    results = {("none", lag): [report] for lag in (0, 2)}
    (table,) = experiment.tables(results)
    assert [list(column.cells) for column in table.columns[4:]] == [
        *(["8.0 (2.0)"] * 2, ["0.200"] * 2, ["0.300"] * 2, ["0.400"] * 2)
    ]
    from matplotlib.figure import Figure

    figure = Figure()
    experiment.draw(figure, results)
    assert len(figure.axes) == 2


@pytest.mark.slow(reason="simulates two swarms and measures them as an experiment does")
def test_it_runs_shows_lags_and_resumes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "120")  # so that no cell is folded
    staleness().run(tmp_path)
    shown = capsys.readouterr().out
    assert (tmp_path / "n1-r3" / "staleness.png").stat().st_size > 10_000
    files = sorted(tmp_path.rglob("report.json"))
    written = [path.stat().st_mtime_ns for path in files]
    assert len(files) == 2
    for path in files:
        report = load_report(path)
        oldest = max(node.max_local_staleness for node in report.nodes)
        allowed = report.settings["experience"]["max_staleness"]
        assert min(1, allowed) <= oldest <= allowed
        assert f"{report.nodes[0].local_staleness:.1f} ({oldest})" in shown
        assert report.settings["plan"]["message_loss"] == 0.1
    staleness().run(tmp_path)
    assert [path.stat().st_mtime_ns for path in files] == written
    assert capsys.readouterr().out == shown


def test_what_is_impossible_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"positive,.*none"):
        staleness(corrections=("magic",))
    with pytest.raises(ConfigError, match="0 or more"):
        staleness(lags=(-1,))
    with pytest.raises(ConfigError, match="at least 3"):
        staleness(rounds=2)
