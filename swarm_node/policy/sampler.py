"""The Sampler protocol: what the node needs from whatever generates tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from swarm_node.rollout import Completion


@dataclass(frozen=True, slots=True)
class SampleRequest:
    """`n` completions of one prompt. The same request and weights give the same completions:
    `seed` alone decides, not what else is in the batch."""

    prompt_ids: tuple[int, ...]
    n: int
    seed: int
    max_new_tokens: int
    temperature: float = 1.0


class Sampler(Protocol):
    """Generates completions with the newest weights it was given; never blocks the event loop."""

    @property
    def version(self) -> int:
        """The policy version that the next token is sampled from."""
        ...

    async def sample(self, requests: Sequence[SampleRequest]) -> list[tuple[Completion, ...]]:
        """One tuple of `n` completions per request, in the order of the requests."""
        ...

    async def load(self, weights: Path, version: int) -> None:
        """Take `weights` as policy `version` from the next call on: a safetensors file with all of
        them, or what `TrainerSettings.published` named for this sampler."""
        ...

    async def close(self) -> None:
        """Release what it holds."""
        ...
