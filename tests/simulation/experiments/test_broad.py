"""The experiment with common tasks: nodes meet in them, and it resumes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from swarm_node.errors import ConfigError
from swarm_node.simulation.experiments.broad import Broad
from swarm_node.simulation.report import load_report

SMALL = Broad(nodes=2, rounds=4, seeds=1, flags={}, regime="dense", shares=(0.0, 1.0))


@pytest.mark.nightly(reason="a study")
@pytest.mark.slow(reason="simulates two swarms and measures them as an experiment does")
def test_groups_of_common_tasks_merge_and_others_do_not(
    tmp_path: Path, run_twice: Callable[..., str]
) -> None:
    shown = run_twice(SMALL, "dense-n2-r4/broad.png")
    merged = {}
    for path in sorted(tmp_path.rglob("report.json")):
        report = load_report(path)
        merged[path.parent.parent.name] = sum(node.merged for node in report.nodes)
        assert report.settings["plan"]["loss"] == 0.0
    assert merged["share-0"] == 0
    assert merged["share-1"] > 4
    assert f"{merged['share-1'] / 8:.2f}" in shown


def test_an_unknown_regime_is_refused() -> None:
    with pytest.raises(ConfigError, match="regime easy"):
        Broad(nodes=1, rounds=1, seeds=1, flags={}, regime="easy")
