"""Completes prompts with a decoder: a batch at once, in which waiting rows take the places of those
that ended (continuous batching).

A token is drawn by inverting the cumulative distribution at a uniform number. All numbers of a
request come from a counter-based generator keyed by its seed, so they are the same in any place and
at any time.
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

from swarm_node.policy.models.loading import PolicyModel
from swarm_node.policy.sampling.decoding import BatchDecoder, Decoder, Prompts
from swarm_node.policy.sampling.sampler import Progress, SampleRequest
from swarm_node.rollout import Ranking

#: Finished rows leave the batch once they are this share of it: copying the cache costs about as
#: much as a few steps of those rows.
_COMPACT_SHARE = 0.25
_COMPACT_ROWS = 8
#: The price of a refill in steps of no rows: it reads all weights once, and moves the cache now and
#: then.
_STEPS_OF_A_REFILL = 2.0
#: A step of no rows costs as much as this many rows add to it. On a CPU it was 31 in the shape of
#: Qwen2.5 0.5B, in either number type, and 45 in the tiny model.
_ROWS_OF_A_STEP = 32
#: Vocabularies up to this size are summed in float64 throughout, larger ones by such blocks.
_BLOCK = 1024
_BELOW_ONE = 1.0 - 2.0**-52
#: Instead of a temperature of 0. Logits that differ by more than 1e-4 have one likeliest token.
_COLDEST = 1e-6


@dataclass(frozen=True, slots=True)
class SeededRow:
    """A completion to sample; `uniforms` f64[max_new_tokens] in [0, 1) determine its tokens. The
    rest is as in `SampleRequest`."""

    prompt_ids: tuple[int, ...]
    uniforms: NDArray[np.float64]
    temperature: float
    top_p: float = 1.0
    top_logprobs: int | None = None


class Sampled(NamedTuple):
    """Token ids u32[T] and log-probs f32[T]; the end token, if drawn, is among them."""

    token_ids: NDArray[np.uint32]
    logprobs: NDArray[np.float32]
    ranking: Ranking | None


def rows_of(request: SampleRequest) -> Iterator[SeededRow]:
    """The completions that are asked for."""
    generator = np.random.Generator(np.random.Philox(key=request.seed))
    for uniforms in generator.random((request.n, request.max_new_tokens)):
        yield SeededRow(
            *(
                request.prompt_ids,
                uniforms,
                request.temperature,
                request.top_p,
                request.top_logprobs,
            )
        )


def _left_padded(prompts: Sequence[tuple[int, ...]]) -> tuple[Tensor, Tensor]:
    """Ids i64[B, T] and bool[B, T], True at tokens."""
    width = max(map(len, prompts))
    ids = torch.tensor([(0,) * (width - len(prompt)) + prompt for prompt in prompts])
    lengths = torch.tensor([[len(prompt)] for prompt in prompts])
    return ids, torch.arange(width) >= width - lengths


def _prompts(rows: Sequence[SeededRow], device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    """Every prompt of `rows` once, left-padded: ids i64[B, T], mask bool[B, T], and the prompt
    i64[N] of each row."""
    unique = {prompt: n for n, prompt in enumerate(dict.fromkeys(row.prompt_ids for row in rows))}
    ids, mask = _left_padded(tuple(unique))
    origin = torch.tensor([unique[row.prompt_ids] for row in rows], device=device)
    return ids.to(device), mask.to(device), origin


def draw(logprobs: Tensor, uniforms: Tensor) -> Tensor:
    """Tokens i64[N] distributed as exp(logprobs[N, V]), by inversion at uniforms f64[N] in [0, 1).

    Summed in float64: in float32 the sum's rounding exceeds the probability of rare tokens."""
    return _sample_by_inversion(logprobs.exp(), uniforms)


def draw_by_blocks(probabilities: Tensor, uniforms: Tensor) -> Tensor:
    """Tokens i64[N] distributed as probabilities[N, V], by inversion at uniforms f64[N] in [0, 1):
    first a block of tokens, then one of it. Only blocks are summed in float32, in which a sum of
    all tokens in float64 takes ten times as long; each token of the block keeps its share of it."""
    size = probabilities.shape[1]
    full_size = size - size % _BLOCK
    sums = probabilities[:, :full_size].view(len(probabilities), -1, _BLOCK).sum(-1)
    if full_size < size:
        sums = torch.cat([sums, probabilities[:, full_size:].sum(-1, keepdim=True)], 1)
    sums = sums.double()
    ends = sums.cumsum(-1)
    target = torch.minimum(uniforms[:, None], uniforms.new_tensor(_BELOW_ONE)) * ends[:, -1:]
    block = torch.searchsorted(ends, target, right=True).clamp_(max=sums.shape[1] - 1)
    mass = sums.gather(1, block)
    fraction = ((target - ends.gather(1, block) + mass) / mass)[:, 0].clamp_(0.0, _BELOW_ONE)
    tokens = block * _BLOCK + torch.arange(_BLOCK, device=block.device)
    is_padding = tokens >= size
    shares = probabilities.gather(1, tokens.clamp_(max=size - 1)).masked_fill_(is_padding, 0.0)
    return tokens.gather(1, _sample_by_inversion(shares, fraction)[:, None])[:, 0]


def _sample_by_inversion(shares: Tensor, uniforms: Tensor) -> Tensor:
    cumulative = shares.cumsum(-1, dtype=torch.float64)
    target = (uniforms * cumulative[:, -1])[:, None]
    # The first entry above the target: a token of probability zero never is.
    return torch.searchsorted(cumulative, target, right=True)[:, 0].clamp_(max=shares.shape[1] - 1)


def nucleus(logits: Tensor, top_p: Tensor) -> Tensor:
    """logits [N, V] with -inf for every token outside the nucleus. A token is outside if the tokens
    that are more likely have at least the probability top_p[N, 1] together."""
    sorted_logits, tokens = logits.sort(-1, descending=True)
    shares = sorted_logits.softmax(-1)
    outside = (shares.cumsum(-1) - shares >= top_p) & (top_p < 1)
    outside[:, 0] = False
    return logits.masked_fill(torch.zeros_like(outside).scatter_(1, tokens, outside), -torch.inf)


class _Rankings:
    """Rankings of rows [N] while they grow, at places [N, steps + 1]."""

    def __init__(self, rows: Sequence[SeededRow], steps: int, device: torch.device) -> None:
        self._top_counts = [row.top_logprobs for row in rows]
        shape = len(rows), steps + 1, max(count or 0 for count in self._top_counts)
        self._sampled_logprobs = torch.zeros(shape[:2], device=device)
        self._ids = torch.zeros(shape, dtype=torch.int64, device=device)
        self._logprobs = torch.zeros(shape, device=device)

    def note(self, logits: Tensor, tokens: Tensor, row: Tensor, at: Tensor) -> None:
        """Keep what logits [K, V] say of token number `at` of each `row`, which is `tokens`."""
        logprobs = logits.float().log_softmax(-1)
        self._sampled_logprobs[row, at] = logprobs.gather(1, tokens[:, None])[:, 0]
        self._logprobs[row, at], self._ids[row, at] = logprobs.topk(self._ids.shape[2], -1)

    def of(self, row: int, length: int) -> Ranking | None:
        """The ranking of one row, None if it did not request one."""
        count = self._top_counts[row]
        if count is None:
            return None
        return Ranking(
            self._sampled_logprobs[row, :length].cpu().numpy(),
            self._ids[row, :length, :count].cpu().numpy().astype(np.uint32),
            self._logprobs[row, :length, :count].cpu().numpy(),
        )


class _Batch:
    """N rows, of which the first M are begun at once, and the others in places of rows that ended.
    The state of rows is in tensors [N] or [N, steps + 1], that of places in tensors [M]. Rows that
    ended stay in their place until another is begun there, or `compact`; what is drawn for them
    goes to the last columns and is cut off by `_lengths`."""

    def __init__(
        self, rows: Sequence[SeededRow], places: int, eos_ids: frozenset[int], model: PolicyModel
    ) -> None:
        device, vocab_size = model.embedding.device, model.config.vocab_size
        steps = max(len(row.uniforms) for row in rows)
        uniforms = np.zeros((len(rows), steps + 1))
        for place, row in zip(uniforms, rows, strict=True):
            place[: len(row.uniforms)] = row.uniforms
        self._uniforms = torch.from_numpy(uniforms).to(device)
        self._temperatures: Tensor | None = None
        if any(row.temperature != 1.0 for row in rows):
            heats = [[max(row.temperature, _COLDEST)] for row in rows]
            self._temperatures = torch.tensor(heats, device=device)
        self._top_p: Tensor | None = None
        if any(row.top_p < 1.0 for row in rows):
            self._top_p = torch.tensor([[row.top_p] for row in rows], device=device)
        self._rankings: _Rankings | None = None
        if any(row.top_logprobs is not None for row in rows):
            self._rankings = _Rankings(rows, steps, device)
        self._is_eos = torch.zeros(vocab_size, dtype=torch.bool, device=device)
        self._is_eos[sorted(eos_ids)] = True
        self._tokens = torch.zeros(len(rows), steps + 1, dtype=torch.int64, device=device)
        self._logprobs = torch.zeros(len(rows), steps + 1, device=device)
        self._lengths = torch.tensor([len(row.uniforms) for row in rows], device=device)
        # The row in each place, the number of its next token, and its end.
        self._row = torch.arange(places, device=device)
        self._at = torch.zeros(places, dtype=torch.int64, device=device)
        self._ended_mask = torch.zeros(places, dtype=torch.bool, device=device)
        self._begun_count = places
        self._space: Tensor | None = None

    @property
    def begun_count(self) -> int:
        """Number of rows that have begun."""
        return self._begun_count

    @property
    def places(self) -> int:
        """Number of places, M."""
        return len(self._ended_mask)

    @property
    def ended_count(self) -> int:
        """Number of places whose row has ended."""
        return int(self._ended_mask.sum())

    @property
    def alive(self) -> Tensor:
        """bool[M]: the places whose row has not ended."""
        return ~self._ended_mask

    @property
    def free(self) -> Tensor:
        """The places whose row has ended, in i64."""
        return self._ended_mask.nonzero()[:, 0]

    def draw(self, logits: Tensor) -> Tensor:
        """Draw the next token of the row in each place from logits [M, V]; returns the tokens
        i64[M]."""
        tokens, self._at, self._ended_mask = self._advance(
            logits, self._row, self._at, self._ended_mask
        )
        return tokens

    def begin(self, places: Tensor, logits: Tensor) -> Tensor:
        """Begin the next rows in `places` and draw their first tokens i64[K] from logits [K, V]."""
        end = self._begun_count + len(places)
        self._row[places] = torch.arange(self._begun_count, end, device=places.device)
        self._begun_count = end
        row, none = self._row[places], torch.zeros_like(places)
        tokens, at, is_ended = self._advance(logits, row, none, none.bool())
        self._at[places], self._ended_mask[places] = at, is_ended
        return tokens

    def compact(self, ended_count: int) -> Tensor | None:
        """Drop the rows that ended; returns the indices of the places left, i64[M']. Returns None,
        and drops nothing, while too few rows have ended."""
        if ended_count < len(self._ended_mask) and ended_count < max(
            _COMPACT_ROWS, _COMPACT_SHARE * len(self._ended_mask)
        ):
            return None
        indices = (~self._ended_mask).nonzero()[:, 0]
        self._row, self._at, self._ended_mask = (
            self._row[indices],
            self._at[indices],
            self._ended_mask[indices],
        )
        return indices

    def results(self) -> list[Sampled]:
        lengths = self._lengths.tolist()
        tokens = self._tokens.cpu().numpy().astype(np.uint32)
        logprobs = self._logprobs.cpu().numpy()
        return [
            Sampled(
                ids[:length].copy(),
                values[:length].copy(),
                self._rankings.of(row, length) if self._rankings else None,
            )
            for row, (ids, values, length) in enumerate(zip(tokens, logprobs, lengths, strict=True))
        ]

    def _advance(
        self, logits: Tensor, row: Tensor, at: Tensor, is_ended: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Draw token number `at` of each `row`, some of which have ended (`is_ended`); returns the
        tokens, and the new `at` and `is_ended`."""
        tokens, logprobs = self._draw_tokens(logits, row, self._uniforms[row, at])
        self._tokens[row, at] = tokens
        self._logprobs[row, at] = logprobs
        if self._rankings is not None:
            self._rankings.note(logits, tokens, row, at)
        next_at = at + 1
        lengths = torch.where(self._is_eos[tokens] & ~is_ended, next_at, self._lengths[row])
        self._lengths[row] = lengths
        return tokens, torch.minimum(next_at, lengths), lengths <= next_at

    def _draw_tokens(self, logits: Tensor, row: Tensor, uniforms: Tensor) -> tuple[Tensor, Tensor]:
        """Tokens i64[K] and their log-probs f32[K]."""
        scaled_logits = logits.float()
        if self._temperatures is not None:
            scaled_logits = scaled_logits / self._temperatures[row]
        if self._top_p is not None:
            scaled_logits = nucleus(scaled_logits, self._top_p[row])
        if scaled_logits.shape[1] <= _BLOCK:
            logprobs = scaled_logits.log_softmax(-1)
            tokens = draw(logprobs, uniforms)
            return tokens, logprobs.gather(1, tokens[:, None])[:, 0]
        # In memory that was used before: fresh memory of this size takes as long as the rest.
        if self._space is None or len(self._space) < len(scaled_logits):
            self._space = torch.empty_like(scaled_logits)
        shares = torch.softmax(scaled_logits, -1, out=self._space[: len(scaled_logits)])
        tokens = draw_by_blocks(shares, uniforms)
        return tokens, shares.gather(1, tokens[:, None])[:, 0].log()


class IdlePlaces:
    """Decides when waiting rows take the places of those that ended, by what both cost.

    A row that ended is still computed, and its share of what a step costs without rows is wasted.
    The cheapest moment for a refill is when the waste since the last refill adds up to the price of
    one (as with orders of a store). Both sides are modelled and not measured, so that the same
    requests make the same batches."""

    def __init__(self, places: int) -> None:
        self._waste = 1 / places + 1 / _ROWS_OF_A_STEP
        self._total_waste = 0.0

    def due(self, ended_count: int, places: int) -> bool:
        """Count a step in which `ended_count` of the `places` served no row. Return True if waiting
        rows take these places now."""
        self._total_waste += ended_count * self._waste
        if ended_count < places and self._total_waste < _STEPS_OF_A_REFILL:
            return False
        self._total_waste = 0.0
        return True


class _Waiting:
    """Rows that wait for a place, in order. A prompt that neighbours share runs once, also where
    they are begun at different times."""

    def __init__(self, rows: Sequence[SeededRow], decoder: Decoder) -> None:
        self._rows, self._decoder = rows, decoder
        self._next_index = 0
        self._last: tuple[tuple[int, ...], Prompts] | None = None

    def __len__(self) -> int:
        return len(self._rows) - self._next_index

    @property
    def longest(self) -> int | None:
        """The most tokens that one of them needs slots for; None without rows."""
        return max(
            (len(row.prompt_ids) + len(row.uniforms) - 1 for row in self._rows), default=None
        )

    def take(self, count: int) -> Iterator[tuple[Prompts, Tensor]]:
        """The next `count` rows: prompts, and the prompt i64[K] of each of the next K rows."""
        rows = self._rows[self._next_index : self._next_index + count]
        self._next_index += len(rows)
        repeats = 0
        if self._last is not None:
            repeats = sum(1 for row in rows if row.prompt_ids == self._last[0])
            if repeats:
                device = self._decoder.model.embedding.device
                yield self._last[1], torch.zeros(repeats, dtype=torch.int64, device=device)
        if repeats < len(rows):
            ids, mask, origin = _prompts(rows[repeats:], self._decoder.model.embedding.device)
            prompts = self._decoder.read(ids, mask)
            self._last = rows[-1].prompt_ids, prompts.last()
            yield prompts, origin


@torch.inference_mode()
def generate(
    decoder: BatchDecoder,
    rows: Sequence[SeededRow],
    eos_ids: frozenset[int],
    cancel_event: threading.Event,
    places: int | None = None,
    progress: Progress | None = None,
) -> list[Sampled]:
    """Sample every row until its end token or its last uniform number: `places` rows at once, None
    for all. Only the native `Decoder` takes fewer than all. Rows of one prompt should be
    neighbours, and prompts of one length. Tokens and ended rows are added to `progress` at every
    step.

    Raises:
        CancelledError: `cancel_event` was set.
    """
    model, places = decoder.model, min(places or len(rows), len(rows))
    native_decoder = decoder if isinstance(decoder, Decoder) else None
    first, waiting = (
        rows[:places],
        _Waiting(rows[places:], native_decoder) if native_decoder else None,
    )
    assert native_decoder or places == len(rows), "only the native decoder begins rows later"
    batch, idle = _Batch(rows, places, eos_ids, model), IdlePlaces(places)
    ids, mask, origin = _prompts(first, model.embedding.device)
    steps = max(len(row.uniforms) for row in first)
    refill_length = waiting.longest if waiting is not None else None
    logits = decoder.begin(ids, mask, origin, steps, refill_length)
    progress, active_count = progress or Progress(), places
    while True:
        if cancel_event.is_set():
            raise CancelledError
        tokens = batch.draw(logits)
        ended_count = batch.ended_count
        progress.add(active_count, active_count - (batch.places - ended_count))
        active_count = batch.places - ended_count
        if native_decoder and waiting:
            if idle.due(ended_count, places):
                new_rows = _refill(batch, waiting, native_decoder, tokens)
                progress.add(new_rows, new_rows - (ended_count - batch.ended_count))
                active_count = batch.places - batch.ended_count
        else:
            indices = batch.compact(ended_count)
            if indices is not None:
                if not len(indices):
                    return batch.results()
                tokens = tokens[indices]
                decoder.keep(indices)
        if native_decoder and native_decoder.full:
            native_decoder.make_room(batch.alive)
        logits = decoder.step(tokens)


def _refill(batch: _Batch, waiting: _Waiting, decoder: Decoder, tokens: Tensor) -> int:
    """Begin waiting rows in the free places; their first tokens go to `tokens`. Returns the number
    of rows that began."""
    free, start = batch.free, batch.begun_count
    for prompts, rows in waiting.take(len(free)):
        places, free = free[: len(rows)], free[len(rows) :]
        logits = decoder.replace(prompts, rows, places, batch.alive)
        tokens[places] = batch.begin(places, logits)
    return batch.begun_count - start
