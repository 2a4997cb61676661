"""Checkpoints that are read while a node replaces them."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from trained_homes import TINY, trained_home

from swarm_node.errors import CheckpointError
from swarm_node.library.stored_policy import ALL, holding, stored_policies
from swarm_node.policy.training.checkpoints.stored import checkpoints, fault_of


@pytest.fixture
def store(tmp_path: Path) -> Path:
    trained_home(tmp_path, 8).close()
    return tmp_path / "checkpoints"


def test_a_checkpoint_that_is_replaced_meanwhile_stays_until_it_is_measured(store: Path) -> None:
    with holding(store) as hold:
        _, found = stored_policies(ALL, store, TINY, hold)
        shutil.rmtree(store / found.name)
        assert checkpoints(store) == []
        assert fault_of(found.path) is None
    assert [*store.iterdir()] == []


def test_a_checkpoint_that_is_gone_before_it_is_read_is_left_out(store: Path) -> None:
    (path,) = checkpoints(store)
    gone: list[str] = []

    def late(wanted: Path) -> Path:
        shutil.rmtree(wanted)
        return hold(wanted)

    with holding(store) as hold:
        found = stored_policies(ALL, store, TINY, late, gone.append)
    assert [policy.name for policy in found] == ["base"]
    assert gone == [path.name]


def test_a_checkpoint_of_that_name_that_is_gone_is_an_error(store: Path) -> None:
    (path,) = checkpoints(store)

    def late(wanted: Path) -> Path:
        shutil.rmtree(wanted)
        return wanted

    with pytest.raises(CheckpointError, match=path.name):
        stored_policies(path.name, store, TINY, late)


def test_what_a_killed_evaluation_left_is_removed(store: Path) -> None:
    left = store / ".held-4194305"  # no process has a number above the kernel's limit
    left.mkdir()
    with holding(store):
        assert not left.exists()
