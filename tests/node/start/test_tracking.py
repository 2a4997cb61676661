"""`run.track`: the tracker that runs beside a node, as the real command in a real process."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from page_server import row

from swarm_node.errors import ConfigError, TrackerError
from swarm_node.node.home.home import Home
from swarm_node.node.loops.faults import decide
from swarm_node.node.metrics.history import MetricsFile
from swarm_node.node.start.tracking import make_tracker, require_tracker


def _home(path: Path) -> Home:
    Home(path).create()
    Home(path).begin()
    return Home(path)


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
        require_tracker("absent_tracker", "run.track")


@pytest.mark.slow(reason="starts a process that imports torch")
async def test_it_logs_until_the_node_ends_also_the_last_rows(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard", reason="NOT RUN: needs tensorboard")
    home = _home(tmp_path / "home")
    metrics = MetricsFile(home.metrics)
    metrics.append(row(0))
    tracker = make_tracker("tensorboard", home)
    async with asyncio.timeout(120), asyncio.TaskGroup() as group:
        step = group.create_task(tracker.step())
        while _steps(home.runs) != [0]:  # noqa: ASYNC110
            await asyncio.sleep(0.1)  # another process's files
        metrics.append(row(1))
        step.cancel()  # as the node ends its loops
        await tracker.close()
    assert _steps(home.runs) == [0, 1]
    await tracker.close()  # as often as a node's parts


@pytest.mark.slow(reason="starts a process that imports torch")
async def test_one_that_fails_is_told_and_leaves_the_node_alone(tmp_path: Path) -> None:
    home = _home(tmp_path / "home")
    home.runs.write_text("a file where a directory should be")
    tracker = make_tracker("tensorboard", home)
    with pytest.raises(TrackerError, match="tensorboard ended with exit code 1") as raised:
        await asyncio.wait_for(tracker.step(), 120)
    assert str(home.runs) in str(raised.value)
    decision = decide(raised.value, 0)
    assert decision.part == "tracker"
    with pytest.raises(TimeoutError):  # it is not started again at once
        await asyncio.wait_for(tracker.step(), 1)
    await tracker.close()


def test_without_one_nothing_is_started(tmp_path: Path) -> None:
    assert make_tracker("", _home(tmp_path)) is None
