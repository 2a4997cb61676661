"""The experiment with old groups over a bad network: what it sets, runs, resumes and shows."""

from __future__ import annotations

from pathlib import Path

import pytest

from swarm_node.errors import ConfigError
from swarm_node.simulation.experiments.staleness import CORRECTIONS, Staleness, run_staleness
from swarm_node.simulation.report import load_report

SMALL = Staleness(nodes=1, rounds=3, seeds=1, lags=(0, 2), corrections=("none",))


def test_a_lag_is_the_oldest_age_and_the_weights_come_one_update_sooner() -> None:
    for lag, behind in ((0, 0), (1, 0), (8, 7)):
        case = SMALL.case("sampler", lag)
        assert (case.plan.behind, case.flags["policy.max_lag"]) == (behind, lag)
        assert case.flags["policy.correction"] == "sampler"
    names = {SMALL.case(name, lag).name for name in CORRECTIONS for lag in (0, 1, 2)}
    assert len(names) == 9


@pytest.mark.slow(reason="simulates two swarms and measures them as an experiment does")
def test_it_runs_shows_lags_and_resumes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "120")  # so that no cell is folded
    run_staleness(SMALL, tmp_path)
    shown = capsys.readouterr().out
    assert (tmp_path / "n1-r3" / "staleness.png").stat().st_size > 10_000
    files = sorted(tmp_path.rglob("report.json"))
    written = [path.stat().st_mtime_ns for path in files]
    assert len(files) == 2
    for path in files:
        report = load_report(path)
        assert report is not None
        oldest = max(node.own_lag_most for node in report.nodes)
        allowed = report.settings["policy"]["max_lag"]
        assert min(1, allowed) <= oldest <= allowed
        assert f"{report.nodes[0].own_lag:.1f} ({oldest})" in shown
        assert report.settings["plan"]["loss"] == 0.1
    run_staleness(SMALL, tmp_path)
    assert [path.stat().st_mtime_ns for path in files] == written
    assert capsys.readouterr().out == shown


def test_what_is_impossible_is_refused() -> None:
    with pytest.raises(ConfigError, match="positive, sampler, none"):
        Staleness(corrections=("magic",))
    with pytest.raises(ConfigError, match="0 or more"):
        Staleness(lags=(-1,))
    with pytest.raises(ConfigError, match="at least 3"):
        Staleness(rounds=2)
