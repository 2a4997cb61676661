from __future__ import annotations

import os
import resource
import stat
from pathlib import Path

import pytest
import torch
from builders import printed_by
from safetensors.torch import load_file, save_file

from swarm_node.errors import WeightsError
from swarm_node.policy.weights import store
from swarm_node.policy.weights.store import WeightStore, shared_memory_dir


def weights(value: float) -> dict[str, torch.Tensor]:
    return {"w": torch.full((2,), value)}


def test_published_weights_can_be_loaded_and_only_two_remain(tmp_path: Path) -> None:
    held = WeightStore(tmp_path)
    paths = [held.publish(version, weights(version)) for version in (9, 10, 11)]
    assert held.versions() == [10, 11]
    assert sorted(tmp_path.iterdir()) == sorted(paths[1:])
    assert torch.equal(load_file(paths[2])["w"], weights(11)["w"])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_version_is_the_bytes_that_safetensors_writes_of_tensors(
    tmp_path: Path, dtype: torch.dtype
) -> None:
    version = {name: torch.randn(3, len(name)).to(dtype) for name in ("b", "aa", "ccc")}
    save_file(version, tmp_path / "expected", {"canary": "1"})
    path = WeightStore(tmp_path).publish(1, version, {"canary": "1"})
    assert path.read_bytes() == (tmp_path / "expected").read_bytes()


def test_a_replaced_version_does_not_disturb_who_has_it_mapped(tmp_path: Path) -> None:
    held = WeightStore(tmp_path)
    mapped = load_file(held.publish(1, weights(1)))
    held.publish(1, weights(2))
    assert torch.equal(mapped["w"], weights(1)["w"])
    assert torch.equal(load_file(held.path(1))["w"], weights(2)["w"])


def test_half_written_files_are_removed_and_foreign_names_ignored(tmp_path: Path) -> None:
    (tmp_path / "weights-3.tmp").write_bytes(b"half")
    (tmp_path / "weights-x.safetensors").write_bytes(b"")
    held = WeightStore(tmp_path)
    assert not (tmp_path / "weights-3.tmp").exists()
    assert held.versions() == []


def test_closing_removes_the_directory(tmp_path: Path) -> None:
    held = WeightStore(tmp_path)
    held.publish(1, weights(1))
    held.close()
    assert not tmp_path.exists()


def test_the_directory_is_private_and_new_each_time() -> None:
    first, second = shared_memory_dir("alice", 1), shared_memory_dir("alice", 1)
    try:
        assert first != second
        assert first.is_dir()  # our own process is alive: the second call left it alone
        assert stat.S_IMODE(first.stat().st_mode) == 0o700
    finally:
        WeightStore(first).close()
        WeightStore(second).close()


@pytest.mark.slow(reason="starts a process that imports torch")
def test_directories_of_dead_processes_are_removed() -> None:
    program = (
        "from swarm_node.policy.weights.store import shared_memory_dir as d; print(d('bob', 1))"
    )
    abandoned = Path(printed_by(program).strip())
    elsewhere = abandoned.with_name(abandoned.name.replace("swarm-node-", "swarm-node-1", 1))
    elsewhere.mkdir()
    assert abandoned.is_dir()
    mine = shared_memory_dir("alice", 1)
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
    monkeypatch.setattr(store, "_SHARED_MEMORY", tmp_path / "absent")
    path = shared_memory_dir("alice", need=1)
    assert path.parent == tmp_path
    assert path.stat().st_uid == os.getuid()


def test_too_little_room_everywhere_is_refused_with_both_places_and_the_bytes() -> None:
    with pytest.raises(WeightsError, match=r"4611686018\.427.*/dev/shm.*TMPDIR"):
        shared_memory_dir("alice", need=1 << 62)


def test_weights_that_do_not_fit_are_refused_before_they_are_written(tmp_path: Path) -> None:
    held = WeightStore(tmp_path)
    first = held.publish(1, weights(1))
    huge = {"w": torch.zeros(1).expand(1 << 60)}  # one element in memory
    with pytest.raises(WeightsError, match=r"4611686018\.427 GB .*: \d+\.\d{3} GB"):
        held.publish(2, huge)
    with pytest.raises(WeightsError, match="are free"):
        held.publish_adapter(2, 1 << 62, lambda path: None)
    assert list(tmp_path.iterdir()) == [first]


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    gone = WeightStore(tmp_path / "gone")
    with pytest.raises(WeightsError, match=r"gone: .*TMPDIR"):
        gone.publish(1, weights(1))
    with pytest.raises(WeightsError, match=r"gone: .*TMPDIR"):
        gone.publish_adapter(1, 1, lambda path: None)


def test_a_process_without_descriptors_fails_for_now(tmp_path: Path) -> None:
    store = WeightStore(tmp_path)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (1, hard))
    try:
        with pytest.raises(OSError, match=r"(?i)open files"):
            store.publish(1, weights(1))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    store.publish(1, weights(1))
    assert store.versions() == [1]


@pytest.mark.parametrize("owner", ["", "a/b", "..", "a-b", "x" * 65])
def test_an_owner_that_could_leave_the_directory_is_refused(owner: str) -> None:
    with pytest.raises(ValueError, match="owner"):
        shared_memory_dir(owner, 1)
