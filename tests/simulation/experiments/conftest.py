"""What the tests of several experiments do."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from swarm_node.simulation.experiments.skeleton import Experiment


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
