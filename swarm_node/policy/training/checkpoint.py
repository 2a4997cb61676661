"""Training state on disk. A kill at any moment leaves a state to resume from.

A checkpoint is a directory such as `v0000000042` with four files; the manifest holds the size and
the sha256 of the other three. The directory is written under a temporary name, synced and renamed,
so a directory with the final name was once complete. The digests reveal later damage.
"""

from __future__ import annotations

import hashlib
import logging
import re
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import msgpack
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from swarm_node.durable import make_private, sync
from swarm_node.errors import CheckpointError
from swarm_node.policy.memory.footprint import KEPT_CHECKPOINTS
from swarm_node.policy.memory.free import free_disk
from swarm_node.policy.models.tensors import on_host

MAX_MANIFEST_BYTES = 1 << 16
MAX_STATE_BYTES = 1 << 20
_MODEL, _OPTIMIZER, _STATE = "model.safetensors", "optimizer.safetensors", "state.msgpack"
_FILES = (_MODEL, _OPTIMIZER, _STATE)
_MANIFEST = "manifest.msgpack"
_FORMAT = 2
_NAME = re.compile(r"v\d{10,19}")
_WRITING, _REPLACED = ".writing-", ".replaced-"

_log = logging.getLogger(__name__)


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

    def copied(self) -> TrainingState:
        """The same state with copies of the tensors in main memory."""
        weights = {name: on_host(tensor) for name, tensor in self.weights.items()}
        optimizer = {name: on_host(tensor) for name, tensor in self.optimizer.items()}
        return replace(self, weights=weights, optimizer=optimizer)


def save(
    root: Path,
    state: TrainingState,
    keep: int = KEPT_CHECKPOINTS,
    free: Callable[[Path], int] = free_disk,
) -> Path:
    """Save `state` under `root` and keep the newest `keep` checkpoints, the new one included. If
    `free` shows too little room for that, fewer are kept: at least the one before it.

    Only one thread at a time may write under `root`.

    Raises:
        CheckpointError: `state.extra` is too large, or the disk refused. The newest checkpoint
            before it is still there.
    """
    temporary = root / (_WRITING + state.name)
    try:
        make_private(root)
        remove_leftovers(root)
        _make_room(root, keep, lambda: free(root) < state.bytes)
        temporary.mkdir(mode=0o700)
        _write_files(temporary, state)
        _move_into_place(temporary, root / state.name)
    except (OSError, SafetensorError) as error:
        # safetensors gives what the disk says in an error of its own.
        reason = error.strerror if isinstance(error, OSError) else error
        raise CheckpointError(
            f"cannot write a checkpoint of {state.bytes / 1e6:,.1f} MB under {root}: {reason}; "
            "free space there"
        ) from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)  # half a checkpoint would fill the disk
    return root / state.name


def newest_valid(root: Path, on_damaged: Callable[[Path, str], None] | None = None) -> Path | None:
    """The newest checkpoint under `root` whose files all match its manifest; None without any
    checkpoint. Damaged ones are skipped and given to `on_damaged`, which logs them by default.

    Raises:
        CheckpointError: checkpoints exist, but none verifies.
    """
    report = on_damaged or _log_damaged
    found = _checkpoints(root)
    for path in found:
        fault = _fault(path)
        if fault is None:
            return path
        report(path, fault)
    if found:
        raise CheckpointError(
            f"no checkpoint under {root} verifies; move the directory away to start from the base"
        )
    return None


def stored_rank(root: Path) -> int | None:
    """The rank of the adapters (0: all weights) in the newest readable checkpoint; None without
    one. This verifies nothing; restoring the checkpoint does."""
    for path in _checkpoints(root):
        try:
            raw = msgpack.unpackb(_read_bounded(path / _STATE, MAX_STATE_BYTES))
            rank = raw["settings"]["lora_rank"]
        except (OSError, ValueError, TypeError, KeyError):
            continue  # an older one may be readable
        if isinstance(rank, int):
            return rank
    return None


def read(path: Path) -> TrainingState:
    """Read the checkpoint `path`, which `newest_valid` returned.

    Raises:
        CheckpointError: `path` cannot be read as a checkpoint.
    """
    try:
        raw = msgpack.unpackb(_read_bounded(path / _STATE, MAX_STATE_BYTES))
        return TrainingState(
            weights=load_file(path / _MODEL), optimizer=load_file(path / _OPTIMIZER), **raw
        )
    except (OSError, SafetensorError, ValueError, TypeError) as error:
        raise CheckpointError(
            f"{path} cannot be read as a checkpoint ({error}); move it away to use an older one"
        ) from error


def remove_leftovers(root: Path) -> None:
    """Finish or undo what a killed writer left under `root`."""
    for path in root.glob(_REPLACED + "*"):
        original = root / path.name.removeprefix(_REPLACED)
        if original.exists():
            shutil.rmtree(path)
        else:
            path.rename(original)
    for path in root.glob(_WRITING + "*"):
        shutil.rmtree(path)


def _make_room(root: Path, keep: int, short: Callable[[], bool]) -> None:
    """Remove the checkpoints that a new one replaces. While the disk is `short` of room, remove
    further old ones, but never the newest."""
    older = _checkpoints(root)[1:]
    for age, path in reversed(list(enumerate(older, start=2))):
        if age >= keep or short():
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
    packed = msgpack.packb(rest)
    if len(packed) > MAX_STATE_BYTES:
        raise CheckpointError(f"the extra state must stay below {MAX_STATE_BYTES} bytes: shrink it")
    save_file(dict(state.weights), directory / _MODEL)
    save_file(dict(state.optimizer), directory / _OPTIMIZER)
    (directory / _STATE).write_bytes(packed)
    files = {
        name: {"size": (directory / name).stat().st_size, "sha256": _sha256(directory / name)}
        for name in _FILES
    }
    (directory / _MANIFEST).write_bytes(msgpack.packb({"format": _FORMAT, "files": files}))
    for name in (*_FILES, _MANIFEST):
        sync(directory / name)
    sync(directory)


def _move_into_place(temporary: Path, target: Path) -> None:
    """Rename `temporary` to `target`. A checkpoint of the same version is renamed first, because a
    directory cannot be replaced in one step. If the process is killed in between,
    `remove_leftovers` restores it."""
    aside = target.with_name(_REPLACED + target.name)
    if target.exists():
        target.rename(aside)
    temporary.rename(target)
    sync(target.parent)
    if aside.exists():
        shutil.rmtree(aside)


def _checkpoints(root: Path) -> list[Path]:
    """The checkpoints under `root`, newest first."""
    if not root.is_dir():
        return []
    found = [path for path in root.iterdir() if _NAME.fullmatch(path.name) and path.is_dir()]
    return sorted(found, key=lambda path: int(path.name[1:]), reverse=True)


def _fault(path: Path) -> str | None:
    """Describe the fault of a checkpoint; None when it verifies."""
    try:
        manifest = msgpack.unpackb(_read_bounded(path / _MANIFEST, MAX_MANIFEST_BYTES))
        if not isinstance(manifest, dict) or manifest.get("format") != _FORMAT:
            return "the manifest has another format"
        files = manifest.get("files")
        if not isinstance(files, dict) or set(files) != set(_FILES):
            return "the manifest does not list the files of a checkpoint"
        for name, stated in files.items():
            if (path / name).stat().st_size != stated["size"]:
                return f"{name} has another size"
            if _sha256(path / name) != stated["sha256"]:
                return f"{name} has another digest"
    except OSError as error:
        return f"{error.filename}: {error.strerror}"
    except (ValueError, TypeError, KeyError) as error:
        return f"the manifest is malformed ({type(error).__name__})"
    return None


def _log_damaged(path: Path, fault: str) -> None:
    _log.warning("skipping the damaged checkpoint %s: %s", path, fault)


def _read_bounded(path: Path, limit: int) -> bytes:
    with path.open("rb") as file:
        data = file.read(limit + 1)
    if len(data) > limit:
        raise ValueError(f"{path.name} is larger than {limit} bytes")
    return data


def _sha256(path: Path) -> bytes:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").digest()
