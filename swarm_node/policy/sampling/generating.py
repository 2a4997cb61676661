"""Completes a batch of prompts with a decoder.

A token is drawn by inverting the cumulative distribution at a uniform number. All numbers of a
request come from a counter-based generator keyed by its seed.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import CancelledError
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from swarm_node.policy.models.qwen2 import Qwen2
from swarm_node.policy.sampling.decoding import Decoder
from swarm_node.policy.sampling.sampler import SampleRequest

#: Finished rows leave the batch once they are this share of it: copying the cache costs about as
#: much as a few steps of those rows.
_COMPACT_SHARE = 0.25
_COMPACT_ROWS = 8


@dataclass(frozen=True, slots=True)
class SeededRow:
    """A completion to sample; `uniforms` f64[max_new_tokens] in [0, 1) determine its tokens."""

    prompt_ids: tuple[int, ...]
    uniforms: NDArray[np.float64]
    temperature: float


class Sampled(NamedTuple):
    """Token ids u32[T] and log-probs f32[T]; the end token, if drawn, is among them."""

    token_ids: NDArray[np.uint32]
    logprobs: NDArray[np.float32]


def rows_of(request: SampleRequest) -> Iterator[SeededRow]:
    """The completions that are asked for."""
    generator = np.random.Generator(np.random.Philox(key=request.seed))
    for uniforms in generator.random((request.n, request.max_new_tokens)):
        yield SeededRow(request.prompt_ids, uniforms, request.temperature)


def _left_padded(prompts: Sequence[tuple[int, ...]]) -> tuple[Tensor, Tensor]:
    """Ids i64[B, T] and bool[B, T], True at tokens."""
    width = max(map(len, prompts))
    ids = torch.tensor([(0,) * (width - len(prompt)) + prompt for prompt in prompts])
    lengths = torch.tensor([[len(prompt)] for prompt in prompts])
    return ids, torch.arange(width) >= width - lengths


def draw(logprobs: Tensor, uniforms: Tensor) -> Tensor:
    """Tokens i64[N] distributed as exp(logprobs[N, V]), by inversion at uniforms f64[N] in [0, 1).

    Summed in float64: in float32 the sum's rounding exceeds the probability of rare tokens."""
    cumulative = logprobs.exp().cumsum(-1, dtype=torch.float64)
    target = (uniforms * cumulative[:, -1])[:, None]
    # The first entry above the target: a token of probability zero never is.
    return torch.searchsorted(cumulative, target, right=True)[:, 0].clamp_(
        max=logprobs.shape[1] - 1
    )


class _Batch:
    """The state of one batch of N rows, as tensors [N] or [N, steps]. Rows that ended stay in the
    batch until `compact`; their tokens after the end are cut off by `lengths`."""

    def __init__(self, rows: Sequence[SeededRow], eos_ids: frozenset[int], model: Qwen2) -> None:
        device, vocab_size = model.embedding.device, model.config.vocab_size
        self.steps = max(len(row.uniforms) for row in rows)
        uniforms = np.zeros((len(rows), self.steps))
        for place, row in zip(uniforms, rows, strict=True):
            place[: len(row.uniforms)] = row.uniforms
        self._uniforms = torch.from_numpy(uniforms).to(device)
        self._temperatures = torch.tensor([[row.temperature] for row in rows], device=device)
        self._is_eos = torch.zeros(vocab_size, dtype=torch.bool, device=device)
        self._is_eos[sorted(eos_ids)] = True
        self._tokens = torch.zeros(len(rows), self.steps, dtype=torch.int64, device=device)
        self._logprobs = torch.zeros(len(rows), self.steps, device=device)
        self._lengths = torch.tensor([len(row.uniforms) for row in rows], device=device)
        # The indices of the rows that are still in the batch.
        self._alive = torch.arange(len(rows), device=device)
        self._ended = torch.zeros(len(rows), dtype=torch.bool, device=device)

    def draw(self, step: int, logits: Tensor) -> Tensor:
        """Draw token number `step` of each row from logits [M, V]; returns the tokens i64[M]."""
        alive = self._alive
        logprobs = (logits.float() / self._temperatures).log_softmax(-1)
        drawn = draw(logprobs, self._uniforms[alive, step])
        self._tokens[alive, step] = drawn
        self._logprobs[alive, step] = logprobs.gather(1, drawn[:, None])[:, 0]
        stopped = self._is_eos[drawn] & ~self._ended
        self._lengths[alive[stopped]] = step + 1
        self._ended |= stopped | (self._lengths[alive] <= step + 1)
        return drawn

    def compact(self) -> Tensor | None:
        """Drop the rows that ended; returns the indices of those left, i64[M']. Returns None, and
        drops nothing, while too few rows have ended."""
        ended = int(self._ended.sum())
        if ended < len(self._ended) and ended < max(
            _COMPACT_ROWS, _COMPACT_SHARE * len(self._ended)
        ):
            return None
        keep = (~self._ended).nonzero()[:, 0]
        self._alive, self._ended = self._alive[keep], self._ended[keep]
        self._temperatures = self._temperatures[keep]
        return keep

    def results(self) -> list[Sampled]:
        lengths = self._lengths.tolist()
        tokens = self._tokens.cpu().numpy().astype(np.uint32)
        logprobs = self._logprobs.cpu().numpy()
        return [
            Sampled(ids[:length].copy(), values[:length].copy())
            for ids, values, length in zip(tokens, logprobs, lengths, strict=True)
        ]


@torch.inference_mode()
def generate(
    decoder: Decoder,
    rows: Sequence[SeededRow],
    eos_ids: frozenset[int],
    abandoned: threading.Event,
) -> list[Sampled]:
    """Sample every row until its end token or its last uniform number.

    Raises:
        CancelledError: `abandoned` was set.
    """
    model = decoder.model
    device = model.embedding.device
    # Every prompt runs once, however many rows continue it.
    unique = {prompt: n for n, prompt in enumerate(dict.fromkeys(row.prompt_ids for row in rows))}
    ids, mask = _left_padded(tuple(unique))
    origin = torch.tensor([unique[row.prompt_ids] for row in rows], device=device)
    batch = _Batch(rows, eos_ids, model)
    logits = decoder.begin(ids.to(device), mask.to(device), origin, batch.steps)
    for step in range(batch.steps):
        if abandoned.is_set():
            raise CancelledError
        drawn = batch.draw(step, logits)
        keep = batch.compact()
        if keep is not None:
            if not len(keep):
                break
            drawn = drawn[keep]
            decoder.keep(keep)
        logits = decoder.step(drawn)
    return batch.results()
