"""A sampler and a trainer that compute at once and then let virtual time pass.

Asynchrony, lag and unequal machines are therefore properties of the simulated swarm, and not of the
machine that simulates it.
"""

from __future__ import annotations

import asyncio
import hashlib
import shutil
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from swarm_node.errors import ConfigError
from swarm_node.policy.experience.batch import Batch
from swarm_node.policy.sampling.sampler import Sampler, SampleRequest
from swarm_node.policy.training.processes.messages import UpdateResult
from swarm_node.policy.training.processes.process import Trainer
from swarm_node.rollout import Completion


@dataclass(frozen=True, slots=True)
class Pace:
    """Virtual seconds that a node of speed 1 needs for a generated token and for an update. As with
    large language models, generating a batch takes longer than learning from it.

    Raises:
        ConfigError: a duration is not positive, so that time would stand still.
    """

    token_seconds: float = 0.01
    update_seconds: float = 1.0

    def __post_init__(self) -> None:
        if not (self.token_seconds > 0 and self.update_seconds > 0):
            raise ConfigError("simulated tokens and updates must take more than 0 seconds")


class PacedSampler:
    """A `Sampler` around another one that computes inline.

    It serves one call at a time, as in a real node, so new weights wait for the call under way. It
    loads weights `delay_steps` updates late and keeps copies of the later ones in `place`. Up to
    version `delay_steps` it samples with the weights of the start.
    """

    def __init__(
        self, sampler: Sampler, token_seconds: float, delay_steps: int, place: Path
    ) -> None:
        self._sampler = sampler
        self._token_seconds = token_seconds
        self._delay_steps = delay_steps
        self._place = place
        self._late_weights: deque[tuple[Path, int]] = deque()
        self._lock = asyncio.Lock()

    @property
    def version(self) -> int:
        return self._sampler.version

    @property
    def faults(self) -> Mapping[str, int]:
        return self._sampler.faults

    async def sample(self, requests: Sequence[SampleRequest]) -> list[tuple[Completion, ...]]:
        async with self._lock:
            groups = await self._sampler.sample(requests)
            tokens = sum(completion.token_ids.size for group in groups for completion in group)
            await asyncio.sleep(tokens * self._token_seconds)
            return groups

    async def load(self, weights: Path, version: int) -> None:
        async with self._lock:
            if self._delay_steps:
                weights, version = self._late_by_now(weights, version)
            await self._sampler.load(weights, version)

    async def close(self) -> None:
        await self._sampler.close()

    def _late_by_now(self, weights: Path, version: int) -> tuple[Path, int]:
        copy = self._place / f"late-{version}.safetensors"  # the trainer keeps only two
        shutil.copyfile(weights, copy)
        self._late_weights.append((copy, version))
        if len(self._late_weights) > self._delay_steps + 1:
            self._late_weights.popleft()[0].unlink()
        return self._late_weights[0]


class PacedTrainer:
    """A `Trainer` around another one that computes inline.

    After each batch it calls `on_round` with the file of the new weights. After `rounds` batches it
    trains no more, while its node goes on serving peers.
    """

    def __init__(
        self,
        trainer: Trainer,
        update_seconds: float,
        rounds: int,
        on_round: Callable[[Path], Awaitable[None]],
    ) -> None:
        self._trainer = trainer
        self._update_seconds = update_seconds
        self._left = rounds
        self._on_round = on_round
        self._weights: Path | None = None
        #: sha256 of the last weights. It is "" until `close`, and if there never were any.
        self.digest = ""

    @property
    def version(self) -> int:
        return self._trainer.version

    @property
    def extra(self) -> Mapping[str, Any]:
        return self._trainer.extra

    async def start(self) -> tuple[Path, int]:
        self._weights, version = await self._trainer.start()
        return self._weights, version

    async def update(self, batch: Batch) -> UpdateResult:
        if self._left == 0:
            await asyncio.Event().wait()  # the whole swarm's stop cancels it
        # The version changes when the time is over, not when the work begins.
        await asyncio.sleep(self._update_seconds)
        result = await self._trainer.update(batch)
        # The mixture compares the time of an update with that of a group, so it needs the virtual
        # time.
        stats = replace(result.stats, seconds=self._update_seconds)
        self._weights = result.weights
        self._left -= 1
        await self._on_round(result.weights)
        return replace(result, stats=stats)

    async def checkpoint(self, extra: Mapping[str, Any], *, wait: bool = True) -> Path:
        return await self._trainer.checkpoint(extra, wait=wait)

    async def close(self) -> None:
        if self._weights is not None and self._weights.exists():
            files = sorted(self._weights.rglob("*")) or [self._weights]  # an adapter's directory
            self.digest = hashlib.sha256(b"".join(map(Path.read_bytes, files))).hexdigest()
        await self._trainer.close()
