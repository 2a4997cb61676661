"""A checkpoint of any number of processes, number type, optimizer and device resumes in any other.

The next update after the resumption is compared with the one that the writer itself makes: its
loss, and how far all weights move. Weights are float32 in every checkpoint, so two that compute in
float32 differ by rounding only, and products in bfloat16 or moments in eight bits by what these
lose. Without the moments, the first step goes elsewhere by more than any of these.
"""

from __future__ import annotations

import importlib.util
import shutil
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
import torch
from builders import train_rows, trainer_settings, write_model
from trainers import closing

from swarm_node.policy.experience.batch import Batch
from swarm_node.policy.placement import DtypeName, OptimizerName
from swarm_node.policy.training.checkpoints.checkpoint import TrainingState, read, save
from swarm_node.policy.training.processes.inline import InlineTrainer
from swarm_node.policy.training.processes.process import ProcessTrainer
from swarm_node.policy.training.update.settings import TrainerSettings

pytestmark = pytest.mark.slow(reason="trains a model for each pair of writer and reader")

torch.set_num_threads(1)
UPDATES = 4
needs_eight_bits = pytest.mark.skipif(
    not importlib.util.find_spec("bitsandbytes"), reason="needs bitsandbytes"
)
slow = pytest.mark.slow(reason="starts processes that import torch and train together")


@dataclass(frozen=True)
class Kind:
    """How a trainer works."""

    processes: int = 1
    dtype: DtypeName = "float32"
    optimizer: OptimizerName = "adamw"
    device: str = "cpu"

    @property
    def settings(self) -> TrainerSettings:
        return trainer_settings(
            warmup_updates=0,
            learning_rate=1e-3,
            processes=self.processes,
            dtype=self.dtype,
            optimizer=self.optimizer,
            device=self.device,
        )

    @property
    def marks(self) -> list[pytest.MarkDecorator]:
        eight = [needs_eight_bits] * (self.optimizer == "adamw8bit")
        several = [slow] * (self.processes > 1)
        return [*eight, *several, *[pytest.mark.gpu] * (self.device == "cuda")]

    def __str__(self) -> str:
        return f"{self.processes} {self.device} {self.dtype} {self.optimizer}"


#: adamw8bit works in one process only.
ALONE = [
    Kind(1, dtype, name) for dtype in ("float32", "bfloat16") for name in ("adamw", "adamw8bit")
]
TWO = [Kind(2, dtype) for dtype in ("float32", "bfloat16")]
ON_GPU = [replace(kind, device="cuda") for kind in ALONE]


#: One pair for each thing that a checkpoint is carried over: each kind of trainer itself, the
#: number type, the moments in eight bits and in full, and from one process to two and back.
EVERY_CHANGE = {
    (Kind(), Kind()),
    (Kind(), Kind(processes=2)),
    (Kind(processes=2), Kind()),
    (Kind(), Kind(dtype="bfloat16")),
    (Kind(dtype="bfloat16"), Kind()),
    (Kind(), Kind(optimizer="adamw8bit")),
    (Kind(optimizer="adamw8bit"), Kind()),
    (Kind(optimizer="adamw8bit"), Kind(optimizer="adamw8bit")),
    (Kind(dtype="bfloat16"), Kind(dtype="bfloat16")),
    (Kind(processes=2), Kind(processes=2)),
}
nightly = pytest.mark.nightly(reason="two changes at once, each of which has its own case")


def pair(writer: Kind, reader: Kind) -> object:
    marks = {str(mark): mark for mark in (*writer.marks, *reader.marks)}
    if "cpu" == writer.device == reader.device and (writer, reader) not in EVERY_CHANGE:
        marks["nightly"] = nightly
    return pytest.param(writer, reader, id=f"{writer} to {reader}", marks=list(marks.values()))


#: All pairs that one process writes or reads. Two processes read what every kind wrote, each in
#: one of their number types.
PAIRS = [
    *(pair(writer, reader) for writer in [*ALONE, *TWO] for reader in ALONE),
    *(pair(writer, TWO[n % 2]) for n, writer in enumerate(ALONE)),
    *(pair(writer, reader) for writer in TWO for reader in TWO),
    *(pair(writer, reader) for writer in ON_GPU for reader in [*ON_GPU, *ALONE]),
    *(pair(writer, reader) for writer in ALONE for reader in ON_GPU),
]


@dataclass(frozen=True)
class Run:
    """A checkpoint, and the loss and the state after the next update."""

    checkpoint: Path
    loss: float
    after: TrainingState

    @property
    def moved(self) -> torch.Tensor:
        before = read(self.checkpoint)
        return torch.cat(
            [(self.after.weights[name] - old).flatten() for name, old in before.weights.items()]
        )


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Large enough for moments in eight bits; an odd vocabulary, which two cannot halve."""
    return write_model(tmp_path_factory.mktemp("model"), hidden_size=96, intermediate_size=160)


#: What a kind of trainer wrote.
Wrote = Callable[[Kind], Awaitable[Run]]


@pytest.fixture(scope="module")
def wrote(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Wrote:
    """What a kind of trainer wrote, which trains once only."""
    runs: dict[Kind, Run] = {}

    async def of(kind: Kind) -> Run:
        if kind not in runs:
            runs[kind] = await go(kind, model, tmp_path_factory.mktemp("writer"), None)
        return runs[kind]

    return of


async def go(kind: Kind, model: Path, home: Path, start: Path | None) -> Run:
    """Resume from the checkpoint `start` and train once more; or begin, train and write one."""
    stored = home / "checkpoints"
    weights = home / "weights"
    weights.mkdir(mode=0o700)
    if start is not None:
        shutil.copytree(start, stored / start.name)
    made = ProcessTrainer if kind.processes > 1 else InlineTrainer
    rng = np.random.default_rng(1)
    rows = [
        replace(row, logprobs=rng.normal(-4, 0.3, row.completion_ids.size).astype(np.float32))
        for row in train_rows()
    ]
    batch = Batch(tuple(rows))

    async with closing(made(model, stored, weights, kind.settings)) as trainer:
        await trainer.start()
        began = start
        if began is None:
            for _ in range(UPDATES):
                await trainer.update(batch)
            began = await trainer.checkpoint({})
        loss = (await trainer.update(batch)).stats.loss
        return Run(began, loss, read(await trainer.checkpoint({})))


def away(one: torch.Tensor, other: torch.Tensor) -> float:
    return float((one - other).norm() / other.norm())


@pytest.mark.parametrize(("writer", "reader"), PAIRS)
async def test_the_next_update_is_the_writers(
    model: Path, tmp_path: Path, wrote: Wrote, writer: Kind, reader: Kind
) -> None:
    straight = await wrote(writer)
    resumed = await go(reader, model, tmp_path, straight.checkpoint)
    assert resumed.after.version == straight.after.version == UPDATES + 1
    half = "bfloat16" in (writer.dtype, reader.dtype)
    eight = writer.optimizer != reader.optimizer
    assert resumed.loss == pytest.approx(straight.loss, abs=5e-3 if half else 1e-5)
    assert away(resumed.moved, straight.moved) < 0.3 * half + 0.05 * eight + 1e-3


async def test_without_the_moments_the_next_update_is_another(
    model: Path, tmp_path: Path, wrote: Wrote
) -> None:
    straight = await wrote(Kind())
    bare = save(tmp_path / "bare", replace(read(straight.checkpoint), optimizer={}))
    lost = await go(Kind(), model, tmp_path, bare)
    assert lost.loss == pytest.approx(straight.loss, abs=1e-5)
    assert away(lost.moved, straight.moved) > 0.5
