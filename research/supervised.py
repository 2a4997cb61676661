"""The reference line of every experiment: a node that is told right answers.

It takes the same optimizer steps on as many rows as the others. Each row is the right answer to a
fresh task. No arm that finds its answers by sampling can be expected above it for long. A node can
also be told for its first updates only, and then learn from rollouts.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from swarm_node.policy.experience.batch import Batch, TrainRow
from swarm_node.policy.models.build_tiny import CorpusItem
from swarm_node.policy.models.text.codec import Codec
from swarm_node.policy.training.processes.messages import UpdateResult
from swarm_node.policy.training.processes.process import Trainer
from swarm_node.rollout import Provenance

#: Right answers per update: as many as a batch of eight groups of eight has answers.
ROWS = 64


class Lesson(NamedTuple):
    """Right `answers`, without an end, and how many updates take them."""

    answers: Iterator[CorpusItem]
    updates: float = math.inf


class SupervisedTrainer:
    """A `Trainer` around another one, which it gives ROWS right answers of a `lesson` in place of
    each batch, while the lesson lasts. Their ratio and advantage are 1, which is supervised
    learning."""

    def __init__(self, trainer: Trainer, codec: Codec, lesson: Lesson) -> None:
        self._trainer = trainer
        self._codec = codec
        self._lesson = lesson

    @property
    def version(self) -> int:
        return self._trainer.version

    @property
    def extra(self) -> Mapping[str, Any]:
        return self._trainer.extra

    async def start(self) -> tuple[Path, int]:
        return await self._trainer.start()

    async def update(self, batch: Batch) -> UpdateResult:
        if self.version >= self._lesson.updates:
            return await self._trainer.update(batch)
        return await self._trainer.update(Batch(tuple(self._row() for _ in range(ROWS))))

    async def checkpoint(self, extra: Mapping[str, Any], *, wait: bool = True) -> Path:
        return await self._trainer.checkpoint(extra, wait=wait)

    async def close(self) -> None:
        await self._trainer.close()

    def _row(self) -> TrainRow:
        item, codec = next(self._lesson.answers), self._codec
        answer = (*codec.encode_answer(item.answer), codec.eos_id)
        return TrainRow(
            np.asarray(codec.encode_prompt(item.question), np.uint32),
            np.asarray(answer, np.uint32),
            None,
            1.0,
            Provenance.LOCAL,  # nothing of a peer's that could be left out for being unlikely
            None,
            0,
        )
