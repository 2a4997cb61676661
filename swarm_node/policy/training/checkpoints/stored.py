"""Checkpoints as they lie on the disk: their names, their files, and whether those are whole.

Cheap to import, so that a look at a home needs no torch. `checkpoint.py` reads and writes them.
"""

from __future__ import annotations

import hashlib
import logging
import re
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import msgpack
import msgspec

from swarm_node.durable import open_regular
from swarm_node.errors import CheckpointError, words_of

MAX_MANIFEST_BYTES, MAX_STATE_BYTES = 1 << 16, 1 << 20
#: Of adapters, as `training.lora_rank` has it.
MAX_RANK = 1024
MODEL, OPTIMIZER, STATE = "model.safetensors", "optimizer.safetensors", "state.msgpack"
FILES = (MODEL, OPTIMIZER, STATE)
MANIFEST = "manifest.msgpack"
#: The version of checkpoints, which is read before the rest.
FORMAT = 2
#: The refusal of a checkpoint that was made from another model.
OTHER_BASE = (
    "the checkpoints were made from another base model: start with that one (--model), or move "
    "them away to start anew"
)
_NAME = re.compile(r"v\d{10,19}")

_log = logging.getLogger(__name__)


def no_checkpoint(root: Path, *remedies: str) -> CheckpointError:
    """Make the error that there is none under `root` yet. `remedies` come after the usual one."""
    advice = "run the node first; it stores one every run.save_steps steps, and when it stops"
    return CheckpointError(f"no checkpoint under {root}", advice, *remedies)


def newest_valid(root: Path, on_damaged: Callable[[Path, str], None] | None = None) -> Path | None:
    """The newest checkpoint under `root` whose files all match its manifest; None without any
    checkpoint. Damaged ones are skipped and given to `on_damaged`, which logs them by default.

    Raises:
        CheckpointError: checkpoints exist, but none verifies.
    """
    report = on_damaged or _log_damaged
    faults = []
    for path in checkpoints(root):
        fault = fault_of(path)
        if fault is None:
            return path
        report(path, fault)
        faults.append(f"{path.name}: {fault}")
    if faults:
        raise CheckpointError(
            f"no checkpoint under {root} verifies ({faults[0]})",
            "restore a backup, or move the directory away to start from the base",
        )
    return None


def checkpoints(root: Path) -> list[Path]:
    """The checkpoints under `root`, newest first."""
    if not root.is_dir():
        return []
    paths = [path for path in root.iterdir() if _NAME.fullmatch(path.name) and path.is_dir()]
    return sorted(paths, key=lambda path: int(path.name[1:]), reverse=True)


def fault_of(path: Path, *, digests: bool = True) -> str | None:
    """Describe the fault of a checkpoint; None when it verifies. Without `digests`, the contents of
    its files are not read."""
    try:
        manifest = msgpack.unpackb(read_bounded(path / MANIFEST, MAX_MANIFEST_BYTES))
        version = manifest.get("format") if isinstance(manifest, dict) else None
        if not isinstance(version, int):
            return "the manifest has no version"
        if version > FORMAT:
            return "a newer swarm-node wrote it: upgrade this one"
        if version < FORMAT:
            return f"the manifest has version {version}"
        files = manifest.get("files")
        if not isinstance(files, dict) or set(files) != set(FILES):
            return "the manifest does not list the files of a checkpoint"
        for name, entry in files.items():
            if (path / name).stat().st_size != entry["size"]:
                return f"{name} has another size"
            if digests and sha256(path / name) != entry["sha256"]:
                return f"{name} has another digest"
    except OSError as error:
        return f"{error.filename}: {error.strerror}"
    except (ValueError, TypeError, KeyError) as error:
        return f"the manifest is malformed ({type(error).__name__})"
    return None


class StoredState(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The content of `state.msgpack`; see `TrainingState`."""

    version: Annotated[int, msgspec.Meta(ge=0, lt=1 << 62)]
    updates: Annotated[int, msgspec.Meta(ge=0, lt=1 << 62)]
    rng: bytes
    settings: dict[str, Any]
    model: bytes
    extra: dict[str, Any] = {}
    own_answers: bytes = b""

    @property
    def rank(self) -> Any:
        return self.settings.get("lora_rank", 0)

    def require(self, rank: int, base: bytes) -> None:
        """See `require_same`."""
        require_same((self.rank, self.model), (rank, base))


def require_same(origin: tuple[Any, bytes], current: tuple[int, bytes]) -> None:
    """Refuse to go on from a checkpoint whose rank and base model are not the `current` ones.

    Raises:
        CheckpointError: they differ.
    """
    if origin[0] != current[0]:
        raise CheckpointError(
            f"the checkpoint was made with training.lora_rank = {origin[0]}, not {current[0]}",
            "set "
            "that again, or move the checkpoints away to start anew (`swarm-node export` keeps "
            "what was learnt)",
        )
    if origin[1] != current[1]:
        raise CheckpointError(OTHER_BASE)


class CheckpointHead(NamedTuple):
    """Facts of a checkpoint that are known without its tensors. `model` is the digest of its base.
    `weights` is the digest of the file of its weights, and `bytes` the size of this file. `rank` is
    that of its adapter, 0 for all weights."""

    version: int
    model: bytes
    rank: int
    weights: bytes
    bytes: int


def head(path: Path) -> CheckpointHead:
    """Read the facts of the checkpoint `path`. Nothing is verified.

    Raises:
        CheckpointError: `path` cannot be read as a checkpoint.
    """
    try:
        state = read_state(path)
        manifest = read_bounded(path / MANIFEST, MAX_MANIFEST_BYTES)
        entry = msgpack.unpackb(manifest)["files"][MODEL]
        digest, size = bytes(entry["sha256"]), int(entry["size"])
        return CheckpointHead(state.version, state.model, state.rank, digest, size)
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise CheckpointError(
            f"{path} cannot be read as a checkpoint ({words_of(error)})", "take another one"
        ) from error


def read_state(path: Path) -> StoredState:
    """
    Raises:
        OSError: the file cannot be read.
        ValueError: it is no state of a trainer.
    """
    raw = read_bounded(path / STATE, MAX_STATE_BYTES)
    try:
        state = msgspec.msgpack.decode(raw, type=StoredState)
    except RecursionError as error:
        raise ValueError("its state is too deep") from error
    if not (isinstance(state.rank, int) and 0 <= state.rank <= MAX_RANK):
        raise ValueError(f"a lora_rank of {state.rank!r:.40}")
    return state


def newest_readable(root: Path) -> StoredState | None:
    """The state of the newest checkpoint under `root` whose files are all there; None without one.
    Their contents are not verified, which takes half a second a GB: restoring one does it."""
    for path in checkpoints(root):
        try:
            if fault_of(path, digests=False) is None:
                return read_state(path)
        except (OSError, ValueError):
            continue  # an older one may be readable
    return None


def stored_rank(root: Path) -> int | None:
    """The rank of the adapters (0: all weights) in the newest readable checkpoint; None without
    one. This verifies nothing; restoring the checkpoint does."""
    state = newest_readable(root)
    return None if state is None else int(state.rank)


def _log_damaged(path: Path, fault: str) -> None:
    _log.warning("skipping the damaged checkpoint %s: %s", path, fault)


def read_bounded(path: Path, limit: int) -> bytes:
    with open_regular(path) as file:
        data = file.read(limit + 1)
    if len(data) > limit:
        raise ValueError(f"{path.name} is larger than {limit} bytes")
    return data


def sha256(path: Path) -> bytes:
    with open_regular(path) as file:
        return hashlib.file_digest(file, "sha256").digest()
