"""The `Sampler` protocol, and completions that are sampled in several parts."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol, Self, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from swarm_node.errors import ModelError
from swarm_node.rollout import Completion, Finish, Ranking, VersionSpan

#: The most completions that are sampled at once, by any sampler.
MAX_ROWS = 256
#: The most likeliest tokens of a place that are reported; vLLM's own limit.
MAX_RANKED = 20


@dataclass(frozen=True, slots=True)
class SampleRequest:
    """`n` completions of one prompt. The same request and weights give the same completions: they
    depend on `seed`, and not on the rest of the batch. A `guest`'s come after the node's own.

    At a temperature of 0 each token is the likeliest. With `top_p` below 1 it is drawn from the
    fewest likeliest tokens that have this much probability together. `top_logprobs` requests a
    `Ranking` with that number of tokens at each place."""

    prompt_ids: tuple[int, ...]
    n: int
    seed: int
    max_new_tokens: int
    temperature: float = 1.0
    guest: bool = False
    top_p: float = 1.0
    top_logprobs: int | None = None


def check_request(request: SampleRequest, vocab_size: int, positions: int) -> None:
    """Check that a model with these limits can complete `request`.

    Raises:
        ModelError: prompt and answer do not fit `positions`.
        ValueError: an impossible request (empty prompt, unknown token, negative temperature).
    """
    if request.n < 1 or request.max_new_tokens < 1 or request.seed < 0:
        raise ValueError("n and max_new_tokens must be positive, the seed not negative")
    if not request.temperature >= 0:
        raise ValueError("the temperature must not be negative")
    if not 0 < request.top_p <= 1:
        raise ValueError("top_p must be above 0 and at most 1")
    if request.top_logprobs is not None and not 0 <= request.top_logprobs <= MAX_RANKED:
        raise ValueError(f"at most {MAX_RANKED} tokens can be ranked")
    if not request.prompt_ids:
        raise ValueError("a prompt needs a token")
    if not all(0 <= token < vocab_size for token in request.prompt_ids):
        raise ValueError("a prompt token is outside the model's vocabulary")
    length = len(request.prompt_ids) + request.max_new_tokens
    if length > positions:
        raise ModelError(
            f"a prompt and its answer need {length} positions, the model has {positions}",
            "lower max_new_tokens",
        )


@dataclass(slots=True)
class Progress:
    """Counts since a sampler was made, without what guests asked for: `tokens` that were drawn, and
    `answers` that are complete."""

    tokens: int = 0
    answers: int = 0

    def add(self, tokens: int, answers: int) -> None:
        """Count `tokens` more, with which `answers` ended."""
        self.tokens += tokens
        self.answers += answers


@dataclass(frozen=True, slots=True, eq=False)
class Row:
    """A completion so far: tokens u32[T], their log-probs f32[T], and the versions that sampled
    them. `finish` is None until the completion has ended. `ranking` is there if it was
    requested."""

    token_ids: NDArray[np.uint32]
    logprobs: NDArray[np.float32]
    spans: tuple[VersionSpan, ...]
    finish: Finish | None
    ranking: Ranking | None = None

    @classmethod
    def empty(cls) -> Self:
        return cls(np.zeros(0, np.uint32), np.zeros(0, np.float32), (), None)


def continued_seed(seed: int, place: int, token_count: int) -> int:
    """Seed (63 bits) for the rest of row `place` of a group after `token_count` tokens."""
    digest = hashlib.sha256(f"{seed}:{place}:{token_count}".encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1


def continue_request(
    request: SampleRequest, place: int, prefix_ids: Sequence[int], max_tokens: int | None = None
) -> SampleRequest:
    """The request for the rest of row number `place` of `request` after the tokens `prefix_ids`, or
    for `max_tokens` tokens of it. They depend on the request's seed, the row and the tokens
    before."""
    left = request.max_new_tokens - len(prefix_ids)
    return replace(
        request,
        prompt_ids=(*request.prompt_ids, *prefix_ids),
        n=1,
        seed=continued_seed(request.seed, place, len(prefix_ids)),
        max_new_tokens=left if max_tokens is None else min(max_tokens, left),
    )


def extend_row(
    row: Row,
    token_ids: NDArray[np.uint32],
    logprobs: NDArray[np.float32],
    spans: Sequence[Sequence[int]],
    finish: str,
    ranking: Ranking | None = None,
) -> Row:
    """`row` with the tokens that an engine sampled after it. `spans` are (version, start, end),
    counted from the first new token. `finish` is the engine's: stop, length or abort.

    Raises:
        ValueError: the parts do not match.
    """
    offset, count = len(row.token_ids), len(token_ids)
    if len(logprobs) != count:
        raise ValueError("an engine must give one log-prob per token")
    joined_spans = list(row.spans)
    position = 0
    for version, start, end in spans:
        if start != position or end < start:
            raise ValueError("version spans must tile the tokens")
        position = end
        if end == start:
            continue
        if (
            joined_spans
            and joined_spans[-1].version == version
            and joined_spans[-1].end == offset + start
        ):
            joined_spans[-1] = VersionSpan(version, joined_spans[-1].start, offset + end)
        else:
            joined_spans.append(VersionSpan(version, offset + start, offset + end))
    if position != count:
        raise ValueError("version spans must tile the tokens")
    return Row(
        np.concatenate([row.token_ids, token_ids]),
        np.concatenate([row.logprobs, logprobs]),
        tuple(joined_spans),
        Finish(finish) if finish in tuple(Finish) else None,
        _join_rankings(row.ranking, ranking),
    )


def _join_rankings(first: Ranking | None, second: Ranking | None) -> Ranking | None:
    if first is None or not first.sampled_logprobs.size:
        return second
    if second is None or not second.sampled_logprobs.size:
        return first
    return Ranking(
        np.concatenate([first.sampled_logprobs, second.sampled_logprobs]),
        np.concatenate([first.ids, second.ids]),
        np.concatenate([first.logprobs, second.logprobs]),
    )


def finish_row(row: Row, decode: Callable[[list[int]], str]) -> Completion:
    """The completion of a row that has ended. An end token is not part of the text.

    Raises:
        ValueError: it has not ended.
    """
    if row.finish is None:
        raise ValueError("the row has not ended")
    ids = row.token_ids.tolist()
    text = decode(ids[:-1] if row.finish is Finish.STOP else ids)
    return Completion(text, row.token_ids, row.logprobs, row.spans, row.finish, ranking=row.ranking)


class Sampler(Protocol):
    """Completes prompts with the newest weights loaded. It never blocks the event loop."""

    @property
    def version(self) -> int:
        """The policy version that the next token is sampled from."""
        ...

    @property
    def faults(self) -> Mapping[str, int]:
        """Counts of faults that were repaired, by kind."""
        ...

    async def sample(self, requests: Sequence[SampleRequest]) -> list[tuple[Completion, ...]]:
        """One tuple of `n` completions per request, in the order of the requests."""
        ...

    async def load(self, weights: Path, version: int) -> None:
        """Sample with `weights`, as policy `version`, from the next request on. `weights` is a
        safetensors file, or whatever `TrainerSettings.published` says for this sampler."""
        ...

    async def close(self) -> None:
        """Release all resources."""
        ...


@runtime_checkable
class RestingSampler(Sampler, Protocol):
    """A `Sampler` that can free its device's memory while the policy is trained."""

    async def rest(self) -> bool:
        """Stop between two tokens and free the memory until the next `load`, which resumes the
        running requests. Returns False, and changes nothing, where that is not configured."""
        ...


@runtime_checkable
class SharingSampler(Sampler, Protocol):
    """A `Sampler` that may compute with memory of the trainer."""

    async def let_go(self) -> None:
        """Give up what the trainer shares, after the sampling under way. Later requests wait for
        the next `load`. It changes nothing if nothing is shared."""
        ...


@runtime_checkable
class SelectiveSampler(Sampler, Protocol):
    """A `Sampler` that can do less than a `SampleRequest` can ask."""

    def refusal(self, request: SampleRequest) -> str:
        """The reason why it cannot; empty if it can."""
        ...


@runtime_checkable
class CountingSampler(Sampler, Protocol):
    """A `Sampler` that says how far it is, also in the middle of a call."""

    @property
    def progress(self) -> Progress:
        """Its counts now."""
        ...


@runtime_checkable
class MeteredSampler(Sampler, Protocol):
    """A `Sampler` that works on one call at a time."""

    @property
    def guest_seconds(self) -> float:
        """Seconds that it has computed for guests, without those that they waited."""
        ...


@runtime_checkable
class InterruptibleSampler(Sampler, Protocol):
    """A `Sampler` that interleaves many requests and can return unfinished rows."""

    async def complete(
        self,
        request: SampleRequest,
        partial_rows: Sequence[Row] = (),
        stop_event: asyncio.Event | None = None,
    ) -> list[Row]:
        """The rows of one request, resumed from `partial_rows` if given. When `stop_event` is set,
        the unfinished rows are returned at once; their `finish` is None, and they can be resumed as
        `partial_rows`."""
        ...

    def completion(self, row: Row) -> Completion:
        """The completion of a finished row."""
        ...
