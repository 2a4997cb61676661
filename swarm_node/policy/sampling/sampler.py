"""The Sampler protocol: what the node needs from whatever generates tokens."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, runtime_checkable

from swarm_node.errors import ModelError
from swarm_node.policy.sampling.rows import Row
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


def check_request(request: SampleRequest, vocab_size: int, positions: int) -> None:
    """
    Raises:
        ModelError: prompt and answer do not fit `positions`.
        ValueError: an impossible request (empty prompt, unknown token, temperature of 0).
    """
    if request.n < 1 or request.max_new_tokens < 1 or request.seed < 0:
        raise ValueError("n and max_new_tokens must be positive, the seed not negative")
    if not request.temperature > 0:
        raise ValueError("the temperature must be positive")
    if not request.prompt_ids:
        raise ValueError("a prompt needs a token")
    if not all(0 <= token < vocab_size for token in request.prompt_ids):
        raise ValueError("a prompt token is outside the model's vocabulary")
    needed = len(request.prompt_ids) + request.max_new_tokens
    if needed > positions:
        raise ModelError(
            f"a prompt and its answer need {needed} positions, the model has "
            f"{positions}: lower max_new_tokens"
        )


class Sampler(Protocol):
    """Generates completions with the newest weights it was given; never blocks the event loop."""

    @property
    def version(self) -> int:
        """The policy version that the next token is sampled from."""
        ...

    @property
    def faults(self) -> Mapping[str, int]:
        """What went wrong and was repaired, by kind."""
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


@runtime_checkable
class RestingSampler(Sampler, Protocol):
    """A `Sampler` that can give back its device's memory while the policy is trained."""

    async def rest(self) -> bool:
        """Stop between two tokens and give the memory back until the next `load`, when what is
        under way goes on. False where that is not wanted: nothing changed then."""
        ...


@runtime_checkable
class InterruptibleSampler(Sampler, Protocol):
    """A `Sampler` that works on many requests at once and can give back unfinished rows."""

    async def complete(
        self, request: SampleRequest, begun: Sequence[Row] = (), cut: asyncio.Event | None = None
    ) -> list[Row]:
        """The rows of one request, going on from `begun` where given. When `cut` is set, it returns
        at once with what it has: rows whose `finish` is None can be given back as `begun`."""
        ...

    def completion(self, row: Row) -> Completion:
        """A finished row with its text."""
        ...
