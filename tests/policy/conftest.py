"""What tests of several rooms of the policy need."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from swarm_node.policy.models.model import TINY, resolve


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A test that is marked `gpu` is skipped where there is none."""
    needy = [item for item in items if item.get_closest_marker("gpu")]
    if needy:
        import torch

        if not torch.cuda.is_available():
            for item in needy:
                item.add_marker(pytest.mark.skip("needs a CUDA device"))


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """A writable copy of the tiny model."""
    return Path(shutil.copytree(resolve(TINY), tmp_path / "copy"))
