"""Sampling with plain torch: batched, in a worker thread, reproducible row by row.

A request gives the same completions whatever else is in the batch, up to float rounding, which
depends on batch shapes: its seed determines all random numbers (`generating.py`).

An inline sampler computes in the calling thread, because a virtual clock allows no other threads.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, ParamSpec, Self, TypeVar

import structlog
import torch
from torch import Tensor

from swarm_node.errors import ModelError
from swarm_node.policy.memory.out_of_memory import free_caches, out_of_memory
from swarm_node.policy.models.config import ModelConfig
from swarm_node.policy.models.decoder.causal_lm import CausalLM
from swarm_node.policy.models.decoder.lora import ADAPTER_FILE
from swarm_node.policy.models.loading import published_adapter
from swarm_node.policy.models.tensors import header, load_safetensors
from swarm_node.policy.models.text.codec import Codec
from swarm_node.policy.placement import ON_CPU, Placement
from swarm_node.policy.sampling.decoding import (
    BatchDecoder,
    CacheShape,
    Decoder,
    batch_size,
    run_size,
)
from swarm_node.policy.sampling.generating import Sampled, SeededRow, generate, rows_of
from swarm_node.policy.sampling.sampler import MAX_ROWS, Progress, SampleRequest, check_request
from swarm_node.policy.weights.base import base_index, make_base, map_base
from swarm_node.policy.weights.device import is_on_device, read_device
from swarm_node.rollout import Completion, Finish, VersionSpan

if TYPE_CHECKING:
    from swarm_node.policy.models.by_transformers.language_model import TransformersLM

_P = ParamSpec("_P")
_Result = TypeVar("_Result")
_log = structlog.get_logger(__name__)


class TorchSampler:
    """The built-in `Sampler`. Sampling and loading run one after another in one thread, so every
    completion has a single policy version.

    Where memory runs out, it halves the number of rows that it samples at once, and goes on."""

    def __init__(
        self,
        model: CausalLM | TransformersLM,
        codec: Codec,
        *,
        version: int = 0,
        max_rows: int = MAX_ROWS,
        shape: CacheShape | None = None,
        threads: int | None = None,
        inline: bool = False,
        shares: bool = False,
    ) -> None:
        """The sampler takes over `model`, which stays on its device. At most `max_rows` completions
        are sampled at once, and no more than fit a cache of `shape`. `threads` is torch's number of
        threads, None for its default. An `inline` sampler computes in the calling thread, with that
        thread's settings, and blocks it; it is for simulations on a virtual clock. A sampler that
        `shares` the trainer's base maps the base beside an adapter that it loads. Others look for
        none, because that directory may be anybody's."""
        if max_rows < 1:
            raise ValueError("max_rows must be positive")
        self._codec = codec
        self._version = version
        self._max_rows = max_rows
        self._shape = shape
        self._faults: Counter[str] = Counter()
        self._guest_seconds = 0.0
        self._progress = Progress()
        self._shares = shares
        self._take(model)
        self._ready_event = asyncio.Event()
        self._ready_event.set()
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
        nf4: bool = False,
    ) -> Self:
        """A sampler of the model in a directory, as policy version 0. Its weights have the type of
        the products, and log-probs are made from its logits in float32. With `nf4`, its matrices
        have four bits a weight, and it takes adapters only. `codec` is the directory's, if it was
        read already. One that `shares` the trainer's base has no weights before the first
        `load`, for which sampling waits.

        Raises:
            ModelError: model or tokenizer cannot be used, or there is no memory for the weights.
            ConfigError: bitsandbytes is needed and not installed.
        """
        try:
            model: CausalLM | TransformersLM
            if shares:
                model = CausalLM(ModelConfig.from_directory(path), draw=False)
            else:
                model = make_base(path, None, placement, four_bit=nf4)
        except (RuntimeError, MemoryError) as error:
            if not out_of_memory(error):
                raise
            raise ModelError(
                f"not enough memory on {placement.device} for the sampler's weights",
                "take a smaller model",
            ) from error
        codec = codec or Codec.from_directory(path)
        sampler = cls(model, codec, max_rows=max_rows, shape=shape, threads=threads, shares=shares)
        if shares:
            sampler._ready_event.clear()
        return sampler

    @property
    def description(self) -> str:
        """See `FallbackSampler.description`."""
        return "torch"

    @property
    def pid(self) -> None:
        """It has no process of its own."""
        return None

    @property
    def version(self) -> int:
        return self._version

    @property
    def positions(self) -> int:
        return self._model.config.max_position_embeddings

    @property
    def faults(self) -> Mapping[str, int]:
        return self._faults

    @property
    def progress(self) -> Progress:
        """See `CountingSampler.progress`. The sampler's thread writes it at every token."""
        return self._progress

    @property
    def guest_seconds(self) -> float:
        """Seconds that it has computed for guests."""
        return self._guest_seconds

    async def sample(self, requests: Sequence[SampleRequest]) -> list[tuple[Completion, ...]]:
        """See `Sampler.sample`. Cancelling it stops the worker after the current token.

        Raises:
            ModelError: a prompt and its answer do not fit the model's positions, or memory.
            ValueError: an impossible request (empty prompt, unknown token, temperature of 0).
        """
        config = self._model.config
        for request in requests:
            check_request(request, config.vocab_size, config.max_position_embeddings)
        cancel_event = threading.Event()
        await self._ready_event.wait()
        try:
            return await self._call(self._sample, tuple(requests), cancel_event)
        finally:
            cancel_event.set()

    async def load(self, weights: Path, version: int) -> None:
        """See `Sampler.load`; waits for earlier sampling. A directory is taken as a LoRA adapter on
        top of the newest file, or of the model that the sampler was made for.

        Raises:
            ModelError: the file does not fit the model; the old weights stay in use.
        """
        await self._call(self._load, weights, version)
        self._ready_event.set()

    async def let_go(self) -> None:
        """See `SharingSampler.let_go`."""
        if self._base:
            self._ready_event.clear()
            await self._call(self._unmap)

    async def close(self) -> None:
        """Wait for running work, and cancel pending work."""
        self._ready_event.set()
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
            if self._shares:
                self._share(weights.parent)
            is_replaced = self._adapter.load(load_safetensors(weights / ADAPTER_FILE))
        else:
            self._model.load_hf_state(_read(weights, self._model.embedding.device))
            is_replaced = self._adapter.remove()
        if is_replaced:
            self._decoder.forget()
        self._version = version

    def _share(self, directory: Path) -> None:
        """Compute with the base that the trainer shares in its `directory`, if it does."""
        if base_index(directory) == self._base:
            return
        self._take(*map_base(directory, self._model.config))

    def _unmap(self) -> None:
        self._take(CausalLM(self._model.config, draw=False))
        free_caches()

    def _take(self, model: CausalLM | TransformersLM, base: str = "") -> None:
        """Compute with `model` from now on. If the trainer shares it, `base` is its index."""
        self._model, self._base = model, base
        model.eval()
        self._decoder: BatchDecoder
        if isinstance(model, CausalLM):
            self._decoder = Decoder(model, self._shape, self._faults)
        else:
            from swarm_node.policy.sampling.transformers_decoder import TransformersDecoder

            self._decoder = TransformersDecoder(model, self._shape)
        self._adapter = published_adapter(model)

    def _sample(
        self, requests: tuple[SampleRequest, ...], cancel_event: threading.Event
    ) -> list[tuple[Completion, ...]]:
        start = time.monotonic()
        try:
            return self._sample_batch(requests, cancel_event)
        finally:
            if any(request.guest for request in requests):
                self._guest_seconds += time.monotonic() - start

    def _sample_batch(
        self, requests: tuple[SampleRequest, ...], cancel_event: threading.Event
    ) -> list[tuple[Completion, ...]]:
        rows = [row for request in requests for row in rows_of(request)]
        is_local = not any(request.guest for request in requests)
        # In this order neighbours share prompts, and batches need little padding.
        order = sorted(
            range(len(rows)), key=lambda i: (len(rows[i].prompt_ids), rows[i].prompt_ids)
        )
        completions: dict[int, Completion] = {}
        while len(completions) < len(rows):
            left = [rows[i] for i in order[len(completions) :]]
            sizes = [(len(row.prompt_ids), len(row.uniforms)) for row in left]
            places = batch_size(sizes, self._max_rows, self._decoder.shape)
            count = places  # rows that other decoders begin at once end before others begin
            if isinstance(self._decoder, Decoder):
                count = run_size(sizes, places, self._decoder.shape)
            saved_progress = replace(self._progress)
            progress = self._progress if is_local else Progress()
            samples = self._attempt(left[:count], places, cancel_event, progress)
            if samples is None:
                self._progress = saved_progress  # these rows are sampled again
                self._halve(left[:places])
                continue
            indices = order[len(completions) : len(completions) + count]
            completions |= dict(zip(indices, map(self._completion, samples), strict=True))
        in_order = iter(completions[i] for i in range(len(rows)))
        return [tuple(islice(in_order, request.n)) for request in requests]

    def _attempt(
        self,
        rows: Sequence[SeededRow],
        places: int,
        cancel_event: threading.Event,
        progress: Progress,
    ) -> list[Sampled] | None:
        """Sample `rows`, `places` of them at once. None when memory ran out."""
        device = self._model.embedding.device
        try:
            with torch.cuda.device(device) if device.type == "cuda" else nullcontext():
                eos_ids = self._codec.eos_ids
                return generate(self._decoder, rows, eos_ids, cancel_event, places, progress)
        except (RuntimeError, MemoryError) as error:
            if not out_of_memory(error):
                raise
            return None

    def _halve(self, rows: Sequence[SeededRow]) -> None:
        """
        Raises:
            ModelError: `rows` is a single row.
        """
        # Not in an exception handler: there the traceback would keep the tensors alive.
        self._decoder.shrink(max(1, len(rows) // 2))
        self._shape = self._decoder.shape
        if len(rows) == 1:
            tokens = len(rows[0].prompt_ids) + len(rows[0].uniforms)
            raise ModelError(
                f"not enough memory to sample one answer at a time, of {tokens} tokens with its "
                "prompt",
                "lower sampling.max_new_tokens, or take a smaller model",
            )
        self._max_rows = len(rows) // 2
        self._faults["sampler_memory"] += 1
        _log.warning("out of memory: the sampler uses a smaller batch", rows=self._max_rows)

    def _completion(self, sample: Sampled) -> Completion:
        ids = sample.token_ids
        has_end = int(ids[-1]) in self._codec.eos_ids
        return Completion(
            text=self._codec.decode(ids[:-1].tolist() if has_end else ids.tolist()),
            token_ids=ids,
            logprobs=sample.logprobs,
            spans=(VersionSpan(self._version, 0, len(ids)),),
            finish=Finish.STOP if has_end else Finish.LENGTH,
            ranking=sample.ranking,
        )


def _read(weights: Path, device: torch.device) -> Mapping[str, Tensor]:
    """The tensors of a file, which may only say where they are on the GPU."""
    metadata = header(weights)
    if is_on_device(metadata):
        return dict(read_device(metadata, device.index or 0))
    return load_safetensors(weights)
