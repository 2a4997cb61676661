from __future__ import annotations

import os
import resource
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import msgpack
import pytest
import torch

from swarm_node.errors import CheckpointError
from swarm_node.policy.training.checkpoints.checkpoint import (
    TrainingState,
    read,
    remove_leftovers,
    save,
)
from swarm_node.policy.training.checkpoints.stored import (
    MANIFEST,
    MODEL,
    STATE,
    fault_of,
    head,
    newest_valid,
    sha256,
    stored_rank,
)


def state(version: int = 1, value: float = 1.0) -> TrainingState:
    return TrainingState(
        version=version,
        updates=version,
        weights={"w": torch.full((4, 3), value)},
        optimizer={"step:w": torch.tensor(2.0), "exp_avg:w": torch.full((4, 3), value / 2)},
        rng=b"\1\2\3",
        settings={"loss": "dapo", "betas": [0.9, 0.99]},
        model=b"m" * 32,
        extra={"drawn": 7, "names": ["a"]},
    )


def damaged(root: Path) -> tuple[Path | None, list[str]]:
    reports: list[str] = []
    found = newest_valid(root, lambda path, fault: reports.append(f"{path.name}: {fault}"))
    return found, reports


def flip_a_byte(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def rewrite_manifest(path: Path, change: Callable[[dict], object]) -> None:  # type: ignore[type-arg]
    manifest = msgpack.unpackb(path.read_bytes())
    change(manifest)
    path.write_bytes(msgpack.packb(manifest))


def test_what_was_saved_is_read_back(tmp_path: Path) -> None:
    written = state(42, 3.25)
    path = save(tmp_path / "new", written)
    assert path.name == "v0000000042"
    assert newest_valid(tmp_path / "new") == path
    copy = read(path)
    assert torch.equal(copy.weights["w"], written.weights["w"])
    assert copy.optimizer.keys() == written.optimizer.keys()
    assert torch.equal(copy.optimizer["step:w"], written.optimizer["step:w"])
    assert replace(copy, weights={}, optimizer={}).__repr__() == (
        replace(written, weights={}, optimizer={}).__repr__()
    )


def test_a_state_before_the_first_update_can_be_saved(tmp_path: Path) -> None:
    path = save(tmp_path, replace(state(0), optimizer={}))
    assert newest_valid(tmp_path) == path
    assert read(path).optimizer == {}


def test_only_the_newest_three_are_kept(tmp_path: Path) -> None:
    for version in (1, 2, 9, 10, 11):
        save(tmp_path, state(version))
    assert sorted(p.name for p in tmp_path.iterdir()) == [f"v{v:010d}" for v in (9, 10, 11)]


def test_a_full_disk_keeps_fewer_but_never_loses_the_newest(tmp_path: Path) -> None:
    for version in (1, 2, 3):
        save(tmp_path, state(version))
    size = state().bytes
    asked: list[int] = []

    def free(root: Path) -> int:
        asked.append(len(list(root.iterdir())))
        return size if asked[-1] == 1 else size - 1

    save(tmp_path, state(4), free=free)
    assert asked == [2]  # the third went without a question
    assert sorted(path.name for path in tmp_path.iterdir()) == ["v0000000003", "v0000000004"]


def test_a_disk_that_fills_while_it_is_written_leaves_the_checkpoint_before(tmp_path: Path) -> None:
    kept = save(tmp_path, state(1))
    large = replace(state(2), weights={"w": torch.zeros(1 << 16)})
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, before[1]))
    try:
        with pytest.raises(CheckpointError, match=r"0\.3 MB.*space"):
            save(tmp_path, large)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert list(tmp_path.iterdir()) == [kept]
    assert newest_valid(tmp_path) == kept


def test_no_checkpoints_is_not_an_error(tmp_path: Path) -> None:
    assert newest_valid(tmp_path) is None
    assert newest_valid(tmp_path / "missing") is None
    remove_leftovers(tmp_path / "missing")


@pytest.mark.parametrize(
    "name", ["model.safetensors", "optimizer.safetensors", "state.msgpack", "manifest.msgpack"]
)
@pytest.mark.parametrize("damage", [flip_a_byte, truncate, Path.unlink])
def test_a_damaged_file_falls_back_to_the_checkpoint_before(
    tmp_path: Path, name: str, damage: Callable[[Path], None]
) -> None:
    before, newest = save(tmp_path, state(1)), save(tmp_path, state(2))
    damage(newest / name)
    found, reports = damaged(tmp_path)
    assert found == before
    assert len(reports) == 1
    assert reports[0].startswith("v0000000002: ")


@pytest.mark.parametrize(
    "change",
    [
        lambda manifest: manifest.update(format=1),
        lambda manifest: manifest["files"].pop("state.msgpack"),
        lambda manifest: manifest["files"].update({"../x": {}}),
        lambda manifest: manifest.update(files=3),
        lambda manifest: manifest["files"]["state.msgpack"].pop("size"),
        lambda manifest: manifest["files"].update({"state.msgpack": 1}),
        lambda manifest: manifest.update(padding=b"x" * (1 << 17)),
    ],
)
def test_a_strange_manifest_falls_back_too(
    tmp_path: Path,
    change: Callable[[dict], object],  # type: ignore[type-arg]
) -> None:
    before, newest = save(tmp_path, state(1)), save(tmp_path, state(2))
    rewrite_manifest(newest / "manifest.msgpack", change)
    found, reports = damaged(tmp_path)
    assert found == before
    assert len(reports) == 1


def test_when_nothing_verifies_it_says_so(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for version in (1, 2):
        truncate(save(tmp_path, state(version)) / "model.safetensors")
    with pytest.raises(CheckpointError, match="no checkpoint"):
        newest_valid(tmp_path)
    assert caplog.text.count("damaged checkpoint") == 2


def test_what_a_killed_writer_left_is_ignored_and_cleaned(tmp_path: Path) -> None:
    kept = save(tmp_path, state(1))
    shutil.copytree(kept, tmp_path / ".writing-v0000000002")
    assert damaged(tmp_path) == (kept, [])
    following = save(tmp_path, state(2))
    assert sorted(tmp_path.iterdir()) == [kept, following]


def test_a_version_can_be_saved_again(tmp_path: Path) -> None:
    save(tmp_path, state(1, 1.0))
    path = save(tmp_path, state(1, 2.0))
    assert list(tmp_path.iterdir()) == [path]
    assert float(read(path).weights["w"][0, 0]) == 2.0


def test_a_replacement_killed_half_way_is_undone(tmp_path: Path) -> None:
    path = save(tmp_path, state(1, 1.0))
    path.rename(tmp_path / ".replaced-v0000000001")
    remove_leftovers(tmp_path)
    assert newest_valid(tmp_path) == path


def test_a_replacement_killed_at_its_end_is_finished(tmp_path: Path) -> None:
    path = save(tmp_path, state(1, 2.0))
    shutil.copytree(path, tmp_path / ".replaced-v0000000001")
    remove_leftovers(tmp_path)
    assert list(tmp_path.iterdir()) == [path]


def test_too_much_extra_is_refused_and_leaves_nothing_behind(tmp_path: Path) -> None:
    kept = save(tmp_path, state(1))
    with pytest.raises(CheckpointError, match="extra"):
        save(tmp_path, replace(state(2), extra={"blob": b"x" * (1 << 20)}))
    assert newest_valid(tmp_path) == kept
    remove_leftovers(tmp_path)
    assert list(tmp_path.iterdir()) == [kept]


def test_a_disk_that_refuses_is_reported(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("in the way")
    with pytest.raises(CheckpointError, match="free space"):
        save(blocked / "checkpoints", state())


def test_a_directory_that_is_no_checkpoint_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="be read"):
        read(tmp_path)


@pytest.mark.parametrize(
    "change",
    [
        {"version": "1"},
        {"version": -1},
        {"version": 1 << 63},
        {"updates": 1e300},
        {"model": 1 << 40},  # bytes(model) would take as much memory
        {"settings": [1]},
        {"settings": {"lora_rank": 10**9}},
        {"settings": {"lora_rank": "4"}},
        {"settings": {"lora_rank": -3}},
        {"extra": "text"},
        {"rng": 5},
        {"other": 1},
    ],
)
def test_a_state_of_other_types_is_refused_although_its_digests_are_right(
    tmp_path: Path, change: dict[str, object]
) -> None:
    path = save(tmp_path, state())
    raw = msgpack.unpackb((path / STATE).read_bytes())
    _replace(path, STATE, msgpack.packb({**raw, **change}))
    assert newest_valid(tmp_path) == path
    for reader in (head, read):
        with pytest.raises(CheckpointError, match="a checkpoint"):
            reader(path)
    assert stored_rank(tmp_path) is None


def test_a_deep_state_is_refused(tmp_path: Path) -> None:
    path = save(tmp_path, state())
    _replace(path, STATE, b"\x91" * 100_000)
    with pytest.raises(CheckpointError, match="a checkpoint"):
        head(path)


@pytest.mark.timeout(60)
@pytest.mark.parametrize("name", [MODEL, STATE, MANIFEST])
def test_what_is_no_regular_file_is_a_fault_and_nothing_waits_for_it(
    tmp_path: Path, name: str
) -> None:
    for kind in ("pipe", "device"):
        path = save(tmp_path / kind, state())
        if name != MANIFEST:
            _replace(path, name, b"")
        (path / name).unlink()
        if kind == "pipe":
            os.mkfifo(path / name)
        else:
            (path / name).symlink_to("/dev/zero")
        assert "regular file" in (fault_of(path) or "")


def _replace(path: Path, name: str, data: bytes) -> None:
    """Write a file of a checkpoint, and its size and digest into the manifest."""
    (path / name).write_bytes(data)
    stated = {"size": len(data), "sha256": sha256(path / name)}
    rewrite_manifest(path / MANIFEST, lambda manifest: manifest["files"].update({name: stated}))
