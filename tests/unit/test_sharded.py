"""Two real trainer processes that share one policy, launched as on a machine with two GPUs."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from swarm_node.policy.batch import Batch, TrainRow
from swarm_node.policy.trainer import TrainerSettings, UpdateStats
from swarm_node.policy.trainer_process import InlineTrainer, ProcessTrainer, Trainer
from swarm_node.rollout import Provenance

torch.set_num_threads(1)
#: Micro-batches so small that the two processes have several, and not equally many.
SETTINGS = TrainerSettings(warmup_updates=0, learning_rate=1e-2, micro_batch_tokens=40)
UPDATES = 5


def batch(seed: int) -> Batch:
    rng = np.random.default_rng(seed)
    rows = []
    for n in range(7):
        length = int(rng.integers(2, 20))
        own = n % 2 == 0
        rows.append(
            TrainRow(
                rng.integers(0, 63, int(rng.integers(1, 8))).astype(np.uint32),
                rng.integers(0, 63, length).astype(np.uint32),
                rng.normal(-4, 0.3, length).astype(np.float32) if own else None,
                float(rng.normal()),
                Provenance.OWN if own else Provenance.KIN,
                group=n // 3,
            )
        )
    return Batch(tuple(rows))


def trainer(model: Path, home: Path, name: str, settings: TrainerSettings) -> Trainer:
    weights = home / f"weights-of-{name}"
    weights.mkdir(mode=0o700)
    kind = ProcessTrainer if settings.processes > 1 else InlineTrainer
    return kind(model, home / "checkpoints", weights, settings)


def curve(of: Trainer, seeds: range, store: bool = False) -> tuple[list[UpdateStats], Path]:
    """The statistics of an update per seed, and a copy of the weights after them."""

    async def run() -> tuple[list[UpdateStats], Path]:
        try:
            path, _ = await of.start()
            done = []
            for seed in seeds:
                result = await of.update(batch(seed))
                done.append(result.stats)
                path = result.weights
            kept = path.parent.parent / f"{path.parent.name}.safetensors"
            kept.write_bytes(path.read_bytes())
            if store:
                await of.checkpoint({"seeds": len(seeds)})
            return done, kept
        finally:
            await of.close()

    return asyncio.run(run())


def assert_alike(
    ours: tuple[list[UpdateStats], Path], theirs: tuple[list[UpdateStats], Path]
) -> None:
    for one, other in zip(ours[0], theirs[0], strict=True):
        assert one.loss == pytest.approx(other.loss, abs=1e-5)
        assert one.grad_norm == pytest.approx(other.grad_norm, abs=1e-5, rel=1e-4)
        for name in ("version", "rows", "informative", "implausible", "masked", "skipped"):
            assert getattr(one, name) == getattr(other, name)
        assert one.kl == pytest.approx(other.kl, abs=1e-4)
    left, right = load_file(ours[1]), load_file(theirs[1])
    assert left.keys() == right.keys()
    for name, value in left.items():
        torch.testing.assert_close(value, right[name], atol=1e-4, rtol=1e-3)


@pytest.mark.parametrize(
    "changes",
    [{}, {"loss": "tba", "activation_checkpointing": True}, {"lora_rank": 4}],
    ids=["all weights", "with a reference", "an adapter"],
)
def test_two_processes_learn_as_one_does(
    random_qwen2: Path, tmp_path: Path, changes: dict[str, object]
) -> None:
    alone = replace(SETTINGS, **changes)  # type: ignore[arg-type]
    one = curve(trainer(random_qwen2, tmp_path, "one", alone), range(UPDATES))
    both = replace(alone, processes=2)
    two = curve(trainer(random_qwen2, tmp_path, "two", both), range(UPDATES))
    assert len(two[0]) == UPDATES
    assert_alike(two, one)
