"""Homes with a checkpoint of the tiny model, for what reads checkpoints."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import numpy as np
from builders import trainer_settings

from swarm_node.node.metrics.history import GroupCounts
from swarm_node.node.metrics.snapshot import EvalPoint, Saved
from swarm_node.policy.experience.batch import Batch, TrainRow
from swarm_node.policy.models.model import resolve
from swarm_node.policy.models.text.codec import Codec
from swarm_node.rollout import Provenance

if TYPE_CHECKING:
    from swarm_node.policy.training.processes.worker import TrainerHost

TINY = resolve("tiny")


def rows() -> Batch:
    codec, rng = Codec.from_directory(TINY), np.random.default_rng(1)
    prompt = np.array(codec.encode_prompt("What is 1 + 1?"), np.uint32)
    return Batch(
        tuple(
            TrainRow(
                prompt, rng.integers(4, 270, 6).astype(np.uint32), None, sign, Provenance.LOCAL
            )
            for sign in (1.0, -1.0, 1.0)
        )
    )


def trained_home(place: Path, rank: int, model: Path = TINY) -> TrainerHost:
    """A home with a checkpoint of two updates of a model, and its trainer."""
    from swarm_node.policy.training.processes.worker import TrainerHost  # imports torch

    (place / "weights").mkdir(parents=True)
    settings = trainer_settings(warmup_updates=0, learning_rate=3e-3, lora_rank=rank)
    host = TrainerHost(model, place / "checkpoints", place / "weights", settings)
    for _ in range(2):
        assert host.update(rows()).stats.skipped is None
    saved = Saved(2, GroupCounts(trained_local=9, trained_external=7), [point(0.125), point(0.5)])
    host.checkpoint(msgspec.to_builtins(saved))
    return host


def point(reward: float) -> EvalPoint:
    return EvalPoint(0.0, 0, reward, reward, None, {}, train=2 * reward, split_version=1)
