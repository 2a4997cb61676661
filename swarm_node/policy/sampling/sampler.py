"""The Sampler protocol: what the node needs from whatever generates tokens."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, Self, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from swarm_node.errors import ModelError
from swarm_node.rollout import Completion, Finish, VersionSpan


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


@dataclass(frozen=True, slots=True, eq=False)
class Row:
    """Tokens so far, u32[T] and their log-probs f32[T], by which versions; `finish` is None while
    there are more to come."""

    token_ids: NDArray[np.uint32]
    logprobs: NDArray[np.float32]
    spans: tuple[VersionSpan, ...]
    finish: Finish | None

    @classmethod
    def empty(cls) -> Self:
        return cls(np.zeros(0, np.uint32), np.zeros(0, np.float32), (), None)


def extended(
    row: Row,
    token_ids: NDArray[np.uint32],
    logprobs: NDArray[np.float32],
    spans: Sequence[Sequence[int]],
    finish: str,
) -> Row:
    """`row` with what an engine sampled after it. `spans` are (version, start, end) from the first
    new token on; `finish` is the engine's word: stop, length or abort.

    Raises:
        ValueError: the parts do not fit each other.
    """
    before, count = len(row.token_ids), len(token_ids)
    if len(logprobs) != count:
        raise ValueError("an engine must give one log-prob per token")
    joined = list(row.spans)
    reached = 0
    for version, start, end in spans:
        if start != reached or end < start:
            raise ValueError("version spans must tile the tokens")
        reached = end
        if end == start:
            continue
        if joined and joined[-1].version == version and joined[-1].end == before + start:
            joined[-1] = VersionSpan(version, joined[-1].start, before + end)
        else:
            joined.append(VersionSpan(version, before + start, before + end))
    if reached != count:
        raise ValueError("version spans must tile the tokens")
    return Row(
        np.concatenate([row.token_ids, token_ids]),
        np.concatenate([row.logprobs, logprobs]),
        tuple(joined),
        Finish(finish) if finish in tuple(Finish) else None,
    )


def finished(row: Row, decode: Callable[[list[int]], str]) -> Completion:
    """The completion of a row that ended; the end token, if one was drawn, is not part of the text.

    Raises:
        ValueError: it has not ended.
    """
    if row.finish is None:
        raise ValueError("the row has not ended")
    ids = row.token_ids.tolist()
    text = decode(ids[:-1] if row.finish is Finish.STOP else ids)
    return Completion(text, row.token_ids, row.logprobs, row.spans, row.finish)


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
