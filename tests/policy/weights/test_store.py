from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from swarm_node.policy.weights.store import WeightStore, shared_memory_dir


def weights(value: float) -> dict[str, torch.Tensor]:
    return {"w": torch.full((2,), value)}


def test_published_weights_can_be_loaded_and_only_two_remain(tmp_path: Path) -> None:
    store = WeightStore(tmp_path)
    paths = [store.publish(version, weights(version)) for version in (9, 10, 11)]
    assert store.versions() == [10, 11]
    assert sorted(tmp_path.iterdir()) == sorted(paths[1:])
    assert torch.equal(load_file(paths[2])["w"], weights(11)["w"])


def test_a_replaced_version_does_not_disturb_who_has_it_mapped(tmp_path: Path) -> None:
    store = WeightStore(tmp_path)
    mapped = load_file(store.publish(1, weights(1)))
    store.publish(1, weights(2))
    assert torch.equal(mapped["w"], weights(1)["w"])
    assert torch.equal(load_file(store.path(1))["w"], weights(2)["w"])


def test_half_written_files_are_removed_and_foreign_names_ignored(tmp_path: Path) -> None:
    (tmp_path / "weights-3.tmp").write_bytes(b"half")
    (tmp_path / "weights-x.safetensors").write_bytes(b"")
    store = WeightStore(tmp_path)
    assert not (tmp_path / "weights-3.tmp").exists()
    assert store.versions() == []


def test_closing_removes_the_directory(tmp_path: Path) -> None:
    store = WeightStore(tmp_path)
    store.publish(1, weights(1))
    store.close()
    assert not tmp_path.exists()


def test_the_directory_is_private_and_new_each_time() -> None:
    first, second = shared_memory_dir("alice"), shared_memory_dir("alice")
    try:
        assert first != second
        assert first.is_dir()  # our own process is alive: the second call left it alone
        assert stat.S_IMODE(first.stat().st_mode) == 0o700
    finally:
        WeightStore(first).close()
        WeightStore(second).close()


@pytest.mark.slow(reason="starts a process that imports torch")
def test_directories_of_dead_processes_are_removed() -> None:
    program = "from swarm_node.policy.weights.store import shared_memory_dir as d; print(d('bob'))"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    abandoned = Path(done.stdout.strip())
    elsewhere = abandoned.with_name(abandoned.name.replace("swarm-node-", "swarm-node-1", 1))
    elsewhere.mkdir()
    assert abandoned.is_dir()
    mine = shared_memory_dir("alice")
    try:
        assert not abandoned.exists()
        assert elsewhere.exists()  # another namespace: its process ids mean nothing here
    finally:
        elsewhere.rmdir()
        WeightStore(mine).close()


def test_too_little_shared_memory_means_the_temporary_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    path = shared_memory_dir("alice", need=1 << 62)
    assert path.parent == tmp_path
    assert path.stat().st_uid == os.getuid()


@pytest.mark.parametrize("owner", ["", "a/b", "..", "a-b", "x" * 65])
def test_an_owner_that_could_leave_the_directory_is_refused(owner: str) -> None:
    with pytest.raises(ValueError, match="owner"):
        shared_memory_dir(owner)
