"""Checkpoints that are written while training goes on."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from builders import train_rows, trainer_settings

from swarm_node.errors import CheckpointError
from swarm_node.policy.experience.batch import Batch
from swarm_node.policy.memory.footprint import checkpoint_bytes
from swarm_node.policy.training.checkpoints.checkpoint import TrainingState, read
from swarm_node.policy.training.checkpoints.checkpoint_writer import CheckpointWriter
from swarm_node.policy.training.checkpoints.stored import newest_valid
from swarm_node.policy.training.processes.worker import TrainerHost
from swarm_node.policy.training.update.trainer import TrainerCore
from swarm_node.policy.weights.device import in_place

SETTINGS = trainer_settings(warmup_updates=0, learning_rate=1e-2)
PATIENCE = 60.0


def state(version: int = 1, value: float = 1.0) -> TrainingState:
    weights = {"w": torch.full((4, 3), value)}
    return TrainingState(version, version, weights, {}, b"", {}, b"m" * 32)


class Gate:
    """Holds every copy of a state until it is opened."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.opened = threading.Event()
        copied = TrainingState.copy_to_host

        def held(each: TrainingState) -> TrainingState:
            assert self.opened.wait(PATIENCE)
            return copied(each)

        monkeypatch.setattr(TrainingState, "copy_to_host", held)

    def holds(self, act: Callable[[], object], waits: threading.Event | None = None) -> None:
        """`act` ends, and not before the gate is open; it sets `waits` when it begins to wait."""
        acting = threading.Thread(target=act)
        acting.start()
        while waits is not None and acting.is_alive() and not waits.wait(0.1):
            pass
        assert waits is None or waits.is_set()
        acting.join(0.2)
        assert acting.is_alive()
        self.opened.set()
        acting.join(PATIENCE)
        assert not acting.is_alive()


def test_what_changes_after_the_copy_is_not_written(tmp_path: Path) -> None:
    writer, own = CheckpointWriter(tmp_path), state()
    path = writer.begin(own, copy=True)
    writer.wait_for_copy()
    own.weights["w"].zero_()
    writer.finish()
    assert newest_valid(tmp_path) == path
    assert read(path).weights["w"].min() == 1
    writer.close()


@pytest.mark.parametrize(
    "lora_rank", [0, pytest.param(2, marks=pytest.mark.slow(reason="imports transformers"))]
)
def test_a_step_waits_for_the_copy(
    random_qwen2: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lora_rank: int
) -> None:
    settings = replace(SETTINGS, lora_rank=lora_rank)
    waits, wait_for_copy = threading.Event(), CheckpointWriter.wait_for_copy

    def waiting(writer: CheckpointWriter) -> None:
        waits.set()
        wait_for_copy(writer)

    monkeypatch.setattr(CheckpointWriter, "wait_for_copy", waiting)
    host = TrainerHost(random_qwen2, tmp_path / "checkpoints", tmp_path, settings)
    batch = Batch(tuple(train_rows()))
    host.update(batch)
    before = host.core.state(b"", {})
    gate = Gate(monkeypatch)
    path = host.checkpoint({}, wait=False)
    waits.clear()  # on a slow machine, an update that waits for nothing takes as long, too
    gate.holds(lambda: host.update(batch), waits)
    assert host.core.version == 2
    host.close()
    stored = read(path)
    assert (stored.version, stored.updates) == (1, 1)
    for mine, its in ((before.weights, stored.weights), (before.optimizer, stored.optimizer)):
        assert mine.keys() == its.keys()
        assert all(torch.equal(value, its[name]) for name, value in mine.items())
    shape = host.core.model.config
    assert stored.bytes == pytest.approx(
        checkpoint_bytes(shape, lora_rank), abs=4 * len(before.optimizer)
    )
    after = host.core.state(b"", {}).weights
    assert not all(torch.equal(value, after[name]) for name, value in stored.weights.items())


def test_a_trainer_that_ends_waits_for_its_checkpoint(
    random_qwen2: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    host = TrainerHost(random_qwen2, tmp_path / "checkpoints", tmp_path, SETTINGS)
    gate = Gate(monkeypatch)
    path = host.checkpoint({}, wait=False)
    gate.holds(host.close)
    assert newest_valid(tmp_path / "checkpoints") == path


def test_one_is_written_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writer, gate = CheckpointWriter(tmp_path), Gate(monkeypatch)
    first = writer.begin(state(1), copy=True)
    gate.holds(lambda: writer.begin(state(2), copy=True))
    writer.close()
    assert sorted(tmp_path.iterdir()) == [first, first.with_name(state(2).name)]


def test_without_memory_for_a_copy_it_is_written_at_once_and_said_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    size = state().bytes
    writer = CheckpointWriter(tmp_path, free=lambda: 2 * size - 1)
    gate = Gate(monkeypatch)
    for version in (1, 2):
        assert newest_valid(tmp_path) != (path := writer.begin(state(version), copy=True))
        assert newest_valid(tmp_path) == path
        writer.wait_for_copy()
    assert caplog.text.count("training waits") == 1
    writer.finish()
    writer.close()
    enough = CheckpointWriter(tmp_path / "other", free=lambda: 2 * size)
    enough.begin(state(), copy=True)
    gate.holds(enough.wait_for_copy)
    enough.close()


def test_what_is_written_at_once_is_read_where_it_lies(random_qwen2: Path, tmp_path: Path) -> None:
    core = TrainerCore(random_qwen2, SETTINGS)
    core.update(Batch(tuple(train_rows())))
    writer = CheckpointWriter(tmp_path, free=lambda: 0)
    own = core.state(b"", {}, in_place)  # of several names that lie in one fused tensor
    stored = read(writer.begin(own, copy=True))
    writer.close()
    copied = core.state(b"", {})
    for mine, its in ((copied.weights, stored.weights), (copied.optimizer, stored.optimizer)):
        assert mine.keys() == its.keys()
        assert all(torch.equal(value, its[name]) for name, value in mine.items())


def test_a_failed_write_is_told_once_and_the_next_one_goes_on(tmp_path: Path) -> None:
    root = tmp_path / "checkpoints"
    root.write_text("in the way")
    writer = CheckpointWriter(root)
    assert writer.fault() is None
    writer.begin(state(1), copy=True)
    with pytest.raises(CheckpointError, match="free space"):
        writer.finish()
    writer.begin(state(2), copy=True)
    writer.begin(state(3), copy=True)  # waits for the second, and keeps what it says
    root.unlink()
    assert "free space" in (writer.fault() or "")
    assert writer.begin(state(4), copy=True).name == state(4).name
    writer.finish()
    assert newest_valid(root) == root / state(4).name
    writer.close()


def test_a_failed_write_is_told_also_when_no_other_follows(tmp_path: Path) -> None:
    root = tmp_path / "checkpoints"
    root.write_text("in the way")
    writer = CheckpointWriter(root)
    writer.begin(state(), copy=True)
    writer.close()
    assert "free space" in (writer.fault() or "")
    assert writer.fault() is None


def test_a_copy_without_memory_costs_the_checkpoint_only(tmp_path: Path) -> None:
    writer = CheckpointWriter(tmp_path, free=lambda: 1 << 60)
    huge = torch.zeros(1).expand(1 << 50)  # takes memory only as a copy
    writer.begin(replace(state(), weights={"w": huge}), copy=True)
    with pytest.raises(CheckpointError, match="be copied"):
        writer.finish()
    writer.wait_for_copy()
    writer.begin(state(2), copy=True)
    writer.finish()
    assert newest_valid(tmp_path) == tmp_path / state(2).name
    writer.close()


def test_an_error_that_is_a_bug_is_not_swallowed(tmp_path: Path) -> None:
    writer = CheckpointWriter(tmp_path)
    broken = replace(state(), weights={"w": torch.zeros(3, 4).T})
    writer.begin(broken, copy=False)
    with pytest.raises(ValueError, match="non contiguous"):
        writer.finish()
    writer.close()
