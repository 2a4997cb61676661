"""Training state on disk. A kill at any moment leaves a state to resume from.

A checkpoint is a directory such as `v0000000042` with four files; the manifest holds the size and
the sha256 of the other three. The directory is written under a temporary name, synced and renamed,
so a directory with the final name was once complete. The digests reveal later damage.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import msgpack
import msgspec
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from swarm_node.durable import make_private, sync
from swarm_node.errors import CheckpointError, words_of
from swarm_node.policy.memory.footprint import KEPT_CHECKPOINTS
from swarm_node.policy.memory.free import free_disk
from swarm_node.policy.models.tensors import on_host
from swarm_node.policy.training.checkpoints.stored import (
    FILES,
    FORMAT,
    MANIFEST,
    MAX_STATE_BYTES,
    MODEL,
    OPTIMIZER,
    STATE,
    checkpoints,
    read_state,
    sha256,
)

_WRITING, _REPLACED = ".writing-", ".replaced-"


@dataclass(frozen=True, slots=True, eq=False)
class TrainingState:
    """The state that a trainer resumes from.

    `version` labels the policy; `updates` counts its optimizer steps. `weights` have transformers'
    names, or peft's where only an adapter is trained. `optimizer` holds the moments by parameter.
    `rng` is the state of torch's generator. `settings` are the trainer's, as plain values by name.
    `model` is the sha256 digest of the base model. `extra` is the caller's small map of plain
    values. `own_answers` says how likely own answers were (`plausible.OwnAnswers`).
    """

    version: int
    updates: int
    weights: Mapping[str, torch.Tensor]
    optimizer: Mapping[str, torch.Tensor]
    rng: bytes
    settings: Mapping[str, Any]
    model: bytes
    extra: Mapping[str, Any] = field(default_factory=dict)
    own_answers: bytes = b""

    @property
    def name(self) -> str:
        """Name of the checkpoint's directory."""
        return f"v{self.version:010d}"

    @property
    def bytes(self) -> int:
        """Bytes of the tensors."""
        return sum(
            tensor.nbytes for part in (self.weights, self.optimizer) for tensor in part.values()
        )

    def copy_to_host(self) -> TrainingState:
        """The same state with copies of the tensors in main memory."""
        weights = {name: on_host(tensor) for name, tensor in self.weights.items()}
        optimizer = {name: on_host(tensor) for name, tensor in self.optimizer.items()}
        return replace(self, weights=weights, optimizer=optimizer)


def save(
    root: Path,
    state: TrainingState,
    limit: int = KEPT_CHECKPOINTS,
    free: Callable[[Path], int] = free_disk,
) -> Path:
    """Save `state` under `root` and keep the newest `limit` checkpoints, the new one included. If
    `free` shows too little room for that, fewer are kept: at least the one before it.

    Only one thread at a time may write under `root`.

    Raises:
        CheckpointError: `state.extra` is too large, or the disk refused. The newest checkpoint
            before it is still there.
    """
    staging = root / (_WRITING + state.name)
    try:
        make_private(root)
        remove_leftovers(root)
        _make_room(root, limit, lambda: free(root) < state.bytes)
        staging.mkdir(mode=0o700)
        _write_files(staging, state)
        _move_into_place(staging, root / state.name)
    except (OSError, SafetensorError) as error:
        # safetensors gives what the disk says in an error of its own.
        raise CheckpointError(
            f"cannot write a checkpoint of {state.bytes / 1e6:,.1f} MB under {root}: "
            f"{words_of(error)}",
            "free space there",
        ) from error
    finally:
        shutil.rmtree(staging, ignore_errors=True)  # half a checkpoint would fill the disk
    return root / state.name


def read(path: Path) -> TrainingState:
    """Read the checkpoint `path`, which `newest_valid` returned.

    Raises:
        CheckpointError: `path` cannot be read as a checkpoint.
    """
    try:
        state = read_state(path)
        return TrainingState(
            weights=load_file(path / MODEL),
            optimizer=load_file(path / OPTIMIZER),
            **msgspec.structs.asdict(state),
        )
    except (OSError, SafetensorError, ValueError) as error:
        raise CheckpointError(
            f"{path} cannot be read as a checkpoint ({words_of(error)})",
            "move it away to use an older one",
        ) from error


def remove_leftovers(root: Path) -> None:
    """Finish or undo what a killed writer left under `root`."""
    for path in root.glob(_REPLACED + "*"):
        target = root / path.name.removeprefix(_REPLACED)
        if target.exists():
            shutil.rmtree(path)
        else:
            path.rename(target)
    for path in root.glob(_WRITING + "*"):
        shutil.rmtree(path)


def _make_room(root: Path, limit: int, is_short: Callable[[], bool]) -> None:
    """Remove the checkpoints that a new one replaces. While the disk is short of room (`is_short`),
    remove further old ones, but never the newest."""
    old_paths = checkpoints(root)[1:]
    for age, path in reversed(list(enumerate(old_paths, start=2))):
        if age >= limit or is_short():
            shutil.rmtree(path)


def _write_files(directory: Path, state: TrainingState) -> None:
    rest = {
        "version": state.version,
        "updates": state.updates,
        "rng": state.rng,
        "settings": dict(state.settings),
        "model": state.model,
        "extra": dict(state.extra),
        "own_answers": state.own_answers,
    }
    payload = msgpack.packb(rest)
    if len(payload) > MAX_STATE_BYTES:
        raise CheckpointError(f"the extra state must stay below {MAX_STATE_BYTES} bytes: shrink it")
    save_file(dict(state.weights), directory / MODEL)
    save_file(dict(state.optimizer), directory / OPTIMIZER)
    (directory / STATE).write_bytes(payload)
    files = {
        name: {"size": (directory / name).stat().st_size, "sha256": sha256(directory / name)}
        for name in FILES
    }
    (directory / MANIFEST).write_bytes(msgpack.packb({"format": FORMAT, "files": files}))
    for name in (*FILES, MANIFEST):
        sync(directory / name)
    sync(directory)


def _move_into_place(staging: Path, target: Path) -> None:
    """Rename `staging` to `target`. A checkpoint of the same version is renamed first, because a
    directory cannot be replaced in one step. If the process is killed in between,
    `remove_leftovers` restores it."""
    aside = target.with_name(_REPLACED + target.name)
    if target.exists():
        target.rename(aside)
    staging.rename(target)
    sync(target.parent)
    if aside.exists():
        shutil.rmtree(aside)
