"""Messages between a node and its trainer, and the result of an update. No torch."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from swarm_node.policy.training.update.stats import UpdateStats


class StartTrainer(msgspec.Struct, frozen=True, tag="Start"):
    """Load the newest checkpoint, or the base model. The version will be `at_least` this one.
    `digest` is the sha256 of the base model; without one, the trainer hashes the files."""

    model_dir: str
    checkpoints: str
    weights: str
    settings: dict[str, Any]
    threads: int
    digest: bytes | None = None
    at_least: int = 0


class Update(msgspec.Struct, frozen=True, tag=True):
    """Train on a batch, as `pack_batch` packs it."""

    batch: dict[str, Any]


class StoreCheckpoint(msgspec.Struct, frozen=True, tag="Store"):
    """Write a checkpoint with `extra` in it, and `wait` for the disk."""

    extra: dict[str, Any]
    wait: bool


class TrainerStarted(msgspec.Struct, frozen=True, tag="Started"):
    """The state that was loaded: its version, its published weights and its `extra`."""

    version: int
    weights: str
    extra: dict[str, Any]


class Updated(msgspec.Struct, frozen=True, tag=True):
    """See `UpdateResult`."""

    stats: UpdateStats
    weights: str
    unstored: str | None


class Stored(msgspec.Struct, frozen=True, tag=True):
    """Directory of the checkpoint, which may still be written."""

    path: str


Request = StartTrainer | Update | StoreCheckpoint
Reply = TrainerStarted | Updated | Stored


@dataclass(frozen=True, slots=True)
class UpdateResult:
    """Result of an update, and the path of the weights after it: a file, or the directory of an
    adapter (`TrainerSettings.published`). Both may carry a canary. `checkpoint_fault` says why a
    checkpoint that was begun before is not on the disk; None if there is nothing new to say."""

    stats: UpdateStats
    weights: Path
    checkpoint_fault: str | None = None
