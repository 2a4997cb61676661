"""Sampling with plain torch: batched, in a worker thread, reproducible row by row.

A token is drawn by inverting the cumulative distribution at a uniform number. All numbers of a
request come from a counter-based generator keyed by its seed. So a request gives the same
completions whatever else is in the batch, up to float rounding, which depends on batch shapes.

An inline sampler computes in the calling thread, because a virtual clock allows no other threads.
"""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import CancelledError, ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import NamedTuple, ParamSpec, Self, TypeVar

import numpy as np
import structlog
import torch
from numpy.typing import NDArray
from torch import Tensor

from swarm_node.errors import ModelError
from swarm_node.policy.memory.shortage import out_of_memory
from swarm_node.policy.models.codec import Codec
from swarm_node.policy.models.config import Qwen2Config
from swarm_node.policy.models.lora import ADAPTER_FILE, PublishedAdapter
from swarm_node.policy.models.qwen2 import Qwen2
from swarm_node.policy.models.tensors import header, load_safetensors
from swarm_node.policy.placement import ON_CPU, Placement
from swarm_node.policy.sampling.decoding import CacheShape, Decoder, batch_size
from swarm_node.policy.sampling.sampler import MAX_ROWS, SampleRequest, check_request
from swarm_node.policy.weights.base import base_index, map_base
from swarm_node.policy.weights.device import is_on_device, read_device
from swarm_node.rollout import Completion, Finish, VersionSpan

#: Finished rows leave the batch once they are this share of it: copying the cache costs about as
#: much as a few steps of those rows.
_COMPACT_SHARE = 0.25
_COMPACT_ROWS = 8
_P = ParamSpec("_P")
_Result = TypeVar("_Result")
_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class _SeededRow:
    """A completion to sample; `uniforms` f64[max_new_tokens] in [0, 1) determine its tokens."""

    prompt_ids: tuple[int, ...]
    uniforms: NDArray[np.float64]
    temperature: float


class _Sampled(NamedTuple):
    """Token ids u32[T] and log-probs f32[T]; the end token, if drawn, is among them."""

    token_ids: NDArray[np.uint32]
    logprobs: NDArray[np.float32]


class TorchSampler:
    """The built-in `Sampler`. Sampling and loading run one after another in one thread, so every
    completion has a single policy version.

    Where memory runs out, it halves the number of rows that it samples at once, and goes on."""

    def __init__(
        self,
        model: Qwen2,
        codec: Codec,
        *,
        version: int = 0,
        max_rows: int = MAX_ROWS,
        shape: CacheShape | None = None,
        threads: int | None = None,
        inline: bool = False,
    ) -> None:
        """The sampler takes over `model`, which stays on its device. At most `max_rows` completions
        are sampled at once, and no more than fit a cache of `shape`. `threads` is torch's number of
        threads, None for its default. An `inline` sampler computes in the calling thread, with that
        thread's settings, and blocks it; it is for simulations on a virtual clock."""
        if max_rows < 1:
            raise ValueError("max_rows must be positive")
        self._model = model.eval()
        self._codec = codec
        self._version = version
        #: The index of the trainer's base, if the model is that; else empty.
        self._base = ""
        self._max_rows = max_rows
        self._shape = shape
        self._decoder = Decoder(self._model, shape)
        self._adapter = PublishedAdapter(self._model)
        self._faults: Counter[str] = Counter()
        self._worker = (
            None if inline else ThreadPoolExecutor(max_workers=1, thread_name_prefix="sampler")
        )
        if self._worker is not None and threads is not None:
            # Set in the worker, because each thread has its own number of OpenMP threads.
            self._worker.submit(torch.set_num_threads, threads)

    @classmethod
    def from_directory(
        cls,
        path: Path,
        placement: Placement = ON_CPU,
        *,
        codec: Codec | None = None,
        max_rows: int = MAX_ROWS,
        shape: CacheShape | None = None,
        threads: int | None = None,
        shares: bool = False,
    ) -> Self:
        """A sampler of the model in a directory, as policy version 0; in `half`, its weights are
        bfloat16, and log-probs are made from its logits in float32. `codec` is the directory's, if
        it was read already. One that `shares` the trainer's base has no weights before the first
        `load`.

        Raises:
            ModelError: model or tokenizer cannot be used, or there is no memory for the weights.
        """
        try:
            if shares:
                model = Qwen2(Qwen2Config.from_directory(path), draw=False)
            else:
                dtype = torch.bfloat16 if placement.half else torch.float32
                model = Qwen2.from_directory(path, dtype).to(placement.device)
        except (RuntimeError, MemoryError) as error:
            if not out_of_memory(error):
                raise
            raise ModelError(
                f"not enough memory on {placement.device} for the sampler's weights: take a "
                "smaller model"
            ) from error
        codec = codec or Codec.from_directory(path)
        return cls(model, codec, max_rows=max_rows, shape=shape, threads=threads)

    @property
    def version(self) -> int:
        return self._version

    @property
    def positions(self) -> int:
        return self._model.config.max_position_embeddings

    @property
    def faults(self) -> Mapping[str, int]:
        return self._faults + self._decoder.faults

    async def sample(self, requests: Sequence[SampleRequest]) -> list[tuple[Completion, ...]]:
        """See `Sampler.sample`. Cancelling it stops the worker after the current token.

        Raises:
            ModelError: a prompt and its answer do not fit the model's positions, or memory.
            ValueError: an impossible request (empty prompt, unknown token, temperature of 0).
        """
        config = self._model.config
        for request in requests:
            check_request(request, config.vocab_size, config.max_position_embeddings)
        abandoned = threading.Event()
        try:
            return await self._call(self._sample, tuple(requests), abandoned)
        finally:
            abandoned.set()

    async def load(self, weights: Path, version: int) -> None:
        """See `Sampler.load`; waits for earlier sampling. A directory is taken as a LoRA adapter on
        top of the newest file, or of the model that the sampler was made for.

        Raises:
            ModelError: the file does not fit the model; the old weights stay in use.
        """
        await self._call(self._load, weights, version)

    async def close(self) -> None:
        """Wait for running work, and cancel pending work."""
        if self._worker is not None:
            await asyncio.to_thread(self._worker.shutdown, cancel_futures=True)

    async def _call(
        self, function: Callable[_P, _Result], *args: _P.args, **kwargs: _P.kwargs
    ) -> _Result:
        if self._worker is None:
            return function(*args, **kwargs)
        call = partial(function, *args, **kwargs)
        return await asyncio.get_running_loop().run_in_executor(self._worker, call)

    def _load(self, weights: Path, version: int) -> None:
        if weights.is_dir():
            self._share(weights.parent)
            changed = self._adapter.load(load_safetensors(weights / ADAPTER_FILE))
        else:
            self._model.load_hf_state(_read(weights, self._model.embedding.device))
            changed = self._adapter.remove()
        if changed:
            self._decoder.forget()
        self._version = version

    def _share(self, directory: Path) -> None:
        """Compute with the base that the trainer shares in `directory`, if it does."""
        if base_index(directory) == self._base:
            return
        model, self._base = map_base(directory, self._model.config)
        self._model = model.eval()
        self._decoder = Decoder(self._model, self._shape)
        self._adapter = PublishedAdapter(self._model)

    def _sample(
        self, requests: tuple[SampleRequest, ...], abandoned: threading.Event
    ) -> list[tuple[Completion, ...]]:
        rows = [row for request in requests for row in _rows_of(request)]
        # In this order neighbours share prompts, and batches need little padding.
        order = sorted(
            range(len(rows)), key=lambda i: (len(rows[i].prompt_ids), rows[i].prompt_ids)
        )
        done: dict[int, Completion] = {}
        while len(done) < len(rows):
            left = [rows[i] for i in order[len(done) :]]
            sizes = [(len(row.prompt_ids), len(row.uniforms)) for row in left]
            count = batch_size(sizes, self._max_rows, self._decoder.shape)
            sampled = self._attempt(left[:count], abandoned)
            if sampled is None:
                self._halve(left[:count])
                continue
            chosen = order[len(done) : len(done) + count]
            done |= dict(zip(chosen, map(self._completion, sampled), strict=True))
        in_order = iter(done[i] for i in range(len(rows)))
        return [tuple(islice(in_order, request.n)) for request in requests]

    def _attempt(
        self, rows: Sequence[_SeededRow], abandoned: threading.Event
    ) -> list[_Sampled] | None:
        """None when memory ran out."""
        device = self._model.embedding.device
        try:
            with torch.cuda.device(device) if device.type == "cuda" else nullcontext():
                return _generate(self._decoder, rows, self._codec.eos_ids, abandoned)
        except (RuntimeError, MemoryError) as error:
            if not out_of_memory(error):
                raise
            return None

    def _halve(self, tried: Sequence[_SeededRow]) -> None:
        """
        Raises:
            ModelError: `tried` is a single row.
        """
        # Not in an exception handler: there the traceback would keep the tensors alive.
        self._decoder.shrink(max(1, len(tried) // 2))
        if len(tried) == 1:
            tokens = len(tried[0].prompt_ids) + len(tried[0].uniforms)
            raise ModelError(
                f"not enough memory to sample one answer at a time, of {tokens} tokens with its "
                "prompt: lower sampling.max_new_tokens, or take a smaller model"
            )
        self._max_rows = len(tried) // 2
        self._faults["sampler_memory"] += 1
        _log.warning("out of memory: the sampler samples fewer rows at once", rows=self._max_rows)

    def _completion(self, sampled: _Sampled) -> Completion:
        ids = sampled.token_ids
        stopped = int(ids[-1]) in self._codec.eos_ids
        return Completion(
            text=self._codec.decode(ids[:-1].tolist() if stopped else ids.tolist()),
            token_ids=ids,
            logprobs=sampled.logprobs,
            spans=(VersionSpan(self._version, 0, len(ids)),),
            finish=Finish.STOP if stopped else Finish.LENGTH,
        )


def _rows_of(request: SampleRequest) -> Iterator[_SeededRow]:
    generator = np.random.Generator(np.random.Philox(key=request.seed))
    for uniforms in generator.random((request.n, request.max_new_tokens)):
        yield _SeededRow(request.prompt_ids, uniforms, request.temperature)


def _read(weights: Path, device: torch.device) -> Mapping[str, Tensor]:
    """The tensors of a file, which may only say where they are on the GPU."""
    metadata = header(weights)
    if is_on_device(metadata):
        return dict(read_device(metadata, device.index or 0))
    return load_safetensors(weights)


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

    def __init__(self, rows: Sequence[_SeededRow], eos_ids: frozenset[int], model: Qwen2) -> None:
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

    def results(self) -> list[_Sampled]:
        lengths = self._lengths.tolist()
        tokens = self._tokens.cpu().numpy().astype(np.uint32)
        logprobs = self._logprobs.cpu().numpy()
        return [
            _Sampled(ids[:length].copy(), values[:length].copy())
            for ids, values, length in zip(tokens, logprobs, lengths, strict=True)
        ]


@torch.inference_mode()
def _generate(
    decoder: Decoder,
    rows: Sequence[_SeededRow],
    eos_ids: frozenset[int],
    abandoned: threading.Event,
) -> list[_Sampled]:
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
