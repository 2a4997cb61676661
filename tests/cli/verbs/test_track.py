"""`swarm-node track`, with the real TensorBoard."""

from __future__ import annotations

from pathlib import Path

import pytest
from page_server import row
from typer.testing import CliRunner

from swarm_node.cli.main import app
from swarm_node.cli.verbs.track import figures
from swarm_node.node.figures.history import HistoryRow, MetricsFile
from swarm_node.node.home.home import Home


def _write(home: Path, numbers: range) -> None:
    metrics = MetricsFile(Home(home).metrics)
    for number in numbers:
        metrics.append(row(number))


def _track(home: Path, into: Path) -> list[tuple[int, float]]:
    board = pytest.importorskip(
        "tensorboard.backend.event_processing.event_accumulator",
        reason="NOT RUN: needs tensorboard",
    )
    arguments = ["track", "tensorboard", "--home", str(home), "--into", str(into), "--once"]
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 0, done.output
    runs = [path for path in into.iterdir() if path.is_dir()]
    assert len(runs) == 1
    found = board.EventAccumulator(str(runs[0])).Reload()
    assert "entropy" in found.Tags()["scalars"]
    return [(event.step, event.value) for event in found.Scalars("received")]


def test_each_row_is_passed_on_once_also_those_from_before(tmp_path: Path) -> None:
    home, into = tmp_path / "home", tmp_path / "runs"
    Home(home).create()
    Home(home).begin()
    _write(home, range(3))
    assert _track(home, into) == [(0, 0.0), (1, 1.0), (2, 2.0)]
    _write(home, range(3, 5))
    assert _track(home, into) == [(n, float(n)) for n in range(5)]
    (home / "tracked.tensorboard").write_text("not a number")
    assert len(_track(home, into)) == 10  # told twice rather than never


def test_reward_is_by_family_and_in_the_mean() -> None:
    found = figures(
        HistoryRow(
            **{
                **_fields(row(7)),
                "pass_1": {"gcd": 0.5, "chess": 1.0},
                "k": 4,
                "seen_1": 0.9,
                "split": 1,
            }
        )
    )
    assert found["pass_1/gcd"] == 0.5
    assert found["pass_1/all"] == 0.75
    assert found["seen_1"] == 0.9
    assert found["updates"] == 7.0
    assert {"time", "k", "split", "loss", "pass_k/all"}.isdisjoint(found)


def _fields(of: HistoryRow) -> dict[str, object]:
    return {name: getattr(of, name) for name in of.__struct_fields__}


def test_a_tracker_that_is_not_installed_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "wandb", None)
    Home(tmp_path).begin()
    done = CliRunner().invoke(app, ["track", "wandb", "--home", str(tmp_path), "--once"])
    assert done.exit_code == 1
    assert "pip install '.[wandb]'" in done.output
