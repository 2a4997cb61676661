"""A trainer without a process, for simulations."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from swarm_node.clock import SYSTEM_CLOCK, Clock
from swarm_node.policy.experience.batch import Batch
from swarm_node.policy.training.processes.messages import UpdateResult
from swarm_node.policy.training.processes.worker import TrainerHost
from swarm_node.policy.training.update.settings import TrainerSettings
from swarm_node.policy.weights.store import WeightStore


class InlineTrainer:
    """The same trainer in the calling thread, for simulations on a virtual clock; it blocks."""

    def __init__(
        self,
        model_dir: Path,
        checkpoints: Path,
        weights: Path,
        settings: TrainerSettings,
        *,
        digest: bytes | None = None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        """`digest` as in `ProcessTrainer`."""
        self._places = (model_dir, checkpoints, weights)
        self._settings = settings
        self._digest = digest
        self._clock = clock
        self._version = 0
        self._host: TrainerHost | None = None

    @property
    def version(self) -> int:
        return self._version

    @property
    def extra(self) -> Mapping[str, Any]:
        return self._running.extra

    async def start(self) -> tuple[Path, int]:
        self._end()
        self._host = TrainerHost(
            *self._places,
            self._settings,
            digest=self._digest,
            at_least=self._version,
            clock=self._clock,
        )
        self._version = self._host.core.version
        return self._host.weights_path, self._version

    async def update(self, batch: Batch) -> UpdateResult:
        result = self._running.update(batch)
        self._version = result.stats.version
        return result

    async def checkpoint(self, extra: Mapping[str, Any], *, wait: bool = True) -> Path:
        return self._running.checkpoint(extra, wait=wait)

    async def close(self) -> None:
        self._end()
        WeightStore(self._places[2]).close()

    def _end(self) -> None:
        if self._host is not None:
            self._host.close()
        self._host = None

    @property
    def _running(self) -> TrainerHost:
        if self._host is None:
            raise RuntimeError("start the trainer first")
        return self._host
