"""The memory of several cards, from a program that answers as nvidia-smi does."""

from __future__ import annotations

from pathlib import Path

import pytest
from machines import put_smi_first

from swarm_node.node.preflight.probe import GpuMemory, gpu_memory

#: Card N has N thousand MiB free. The last argument names the cards.
PROGRAM = """#!/bin/sh
for cards; do :; done
for card in $(echo "$cards" | tr , " "); do echo "${card}000, 24000"; done
"""


@pytest.mark.parametrize(
    ("visible", "first", "count", "free"),
    [
        (None, 1, 1, 1000),
        (None, 2, 3, 2000),
        ("7,5,6", 0, 2, 5000),
        ("7,5,6", 2, 1, 6000),
        ("7,5,6", 2, 2, None),
    ],
)
def test_the_card_with_the_least_free_memory_of_those_asked_for_counts(
    visible: str | None,
    first: int,
    count: int,
    free: int | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    put_smi_first(tmp_path, PROGRAM, monkeypatch)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    expected = None if free is None else GpuMemory(free << 20, 24000 << 20)
    assert gpu_memory(first, count) == expected
