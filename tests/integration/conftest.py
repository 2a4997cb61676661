"""Real `swarm-node` processes for integration tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from running import CoordinatorProcess, RunningNode


@pytest.fixture
def start_node(tmp_path: Path, hears_ctrl_c: None) -> Iterator[Callable[..., RunningNode]]:
    """Start a node process; all are gone, children too, when the test ends."""
    nodes: list[RunningNode] = []

    def start(name: str, *arguments: str, **changes: Any) -> RunningNode:
        node = RunningNode(tmp_path / name, list(arguments), **changes)
        nodes.append(node)
        node.start()
        return node

    yield start
    for node in nodes:
        node.end()


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
