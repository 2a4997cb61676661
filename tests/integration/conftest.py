"""Real `swarm-node` processes for integration tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from running import CoordinatorProcess, RunningNode, started_nodes


@pytest.fixture
def start_node(tmp_path: Path, hears_ctrl_c: None) -> Iterator[Callable[..., RunningNode]]:
    """Start a node process; all are gone, children too, when the test ends."""
    with started_nodes(tmp_path) as start:
        yield start


@pytest.fixture
def start_coordinator(tmp_path: Path) -> Iterator[Callable[..., CoordinatorProcess]]:
    """Start a coordinator; it is gone when the test ends."""
    started = []

    def start(*arguments: str) -> CoordinatorProcess:
        started.append(CoordinatorProcess(tmp_path / "coordinator", *arguments))
        return started[-1].start()

    yield start
    for each in started:
        each.kill()
