"""What the tests of several studies do. They run in `make test-all`, but for those of attackers, by
which the guards of every node are tried."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from research.skeleton import Experiment
from swarm_node.simulation.report import SimulationReport
from swarm_node.simulation.run import simulation_settings
from swarm_node.simulation.scenario import Scenario
from swarm_node.simulation.swarm import simulate

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.parent == HERE and item.path.name != "test_hostile.py":
            item.add_marker(pytest.mark.nightly(reason="a study"))


@pytest.fixture(scope="session")
def stored() -> SimulationReport:
    """The report of a node alone after one update."""
    return simulate(Scenario(1, 1, eval_tasks=1), simulation_settings(0, {}))


@pytest.fixture
def run_twice(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> Callable[[Experiment[Any], str], str]:
    """Runs an experiment, which draws a picture at this place, and runs it again: its runs are
    kept, so it shows the same. Returns that."""

    def run(experiment: Experiment[Any], picture: str) -> str:
        experiment.run(tmp_path)
        shown = capsys.readouterr().out
        assert (tmp_path / picture).stat().st_size > 10_000
        experiment.run(tmp_path)
        assert capsys.readouterr().out == shown
        return shown

    return run
