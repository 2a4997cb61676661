"""`run.track`: the tracker that runs beside a node, as the real command in a real process."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from page_server import row
from structlog.testing import capture_logs

from swarm_node.errors import ConfigError
from swarm_node.node.home.home import Home
from swarm_node.node.metrics.history import MetricsFile
from swarm_node.node.start.tracking import require_tracker, tracker_directory, tracking


def _home(path: Path) -> Path:
    Home(path).create()
    Home(path).begin()
    return path


def _steps(runs: Path) -> list[int]:
    board = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    directories = [path for path in runs.glob("*/*") if path.is_dir()]
    if not directories:
        return []
    events = board.EventAccumulator(str(directories[0])).Reload()
    if "accepted" not in events.Tags()["scalars"]:
        return []
    return [event.step for event in events.Scalars("accepted")]


def test_a_tracker_whose_package_is_missing_is_refused_before_the_start() -> None:
    require_tracker("")
    require_tracker("json")  # any package that is there
    with pytest.raises(ConfigError, match=r"run\.track: absent_tracker is not installed"):
        require_tracker("absent_tracker")


@pytest.mark.slow(reason="starts a process that imports torch")
async def test_it_logs_until_the_node_ends_also_the_last_rows(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard", reason="NOT RUN: needs tensorboard")
    home = _home(tmp_path / "home")
    metrics, runs = MetricsFile(Home(home).metrics), tracker_directory(home)
    metrics.append(row(0))
    async with tracking("tensorboard", home):
        async with asyncio.timeout(120):
            while _steps(runs) != [0]:  # noqa: ASYNC110
                await asyncio.sleep(0.1)  # another process's files
        metrics.append(row(1))
    assert _steps(runs) == [0, 1]


@pytest.mark.slow(reason="starts a process that imports torch")
async def test_one_that_fails_is_told_and_leaves_the_node_alone(tmp_path: Path) -> None:
    home = _home(tmp_path / "home")
    tracker_directory(home).write_text("a file where a directory should be")
    with capture_logs() as logs:
        async with asyncio.timeout(120), tracking("tensorboard", home):
            while not logs:  # noqa: ASYNC110
                await asyncio.sleep(0.05)
    (entry,) = logs
    assert (entry["tracker"], entry["code"]) == ("tensorboard", 1)
    assert str(tracker_directory(home)) in entry["message"]


async def test_an_error_of_the_node_is_its_own(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="of the node"):
        async with tracking("tensorboard", _home(tmp_path / "home")):
            raise ConfigError("of the node")


async def test_without_one_nothing_is_started(tmp_path: Path) -> None:
    before = asyncio.all_tasks()
    async with tracking("", tmp_path):
        assert asyncio.all_tasks() == before
