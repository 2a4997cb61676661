"""Decoding step by step: eagerly, or on a GPU by CUDA graphs.

A decode step of a small model launches hundreds of short kernels, and launching them takes longer
than they run. A CUDA graph launches all of them at once, but only with the shapes and addresses of
its capture. So on a GPU the cache lies at fixed addresses, rows are rounded up to a bucket, and
attention sees a fixed window of slots. Each bucket and window has a graph, captured when it is
first needed. New weights are copied into the old ones' places, so graphs stay good.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple, Protocol

import structlog
import torch
from torch import Tensor

from swarm_node.policy.memory.footprint import LEAST_BUCKET, bucket_sizes
from swarm_node.policy.memory.out_of_memory import free_caches, out_of_memory
from swarm_node.policy.models.decoder.cache import KeyValueCache, KeyValueMemory
from swarm_node.policy.models.decoder.causal_lm import CausalLM
from swarm_node.policy.models.loading import PolicyModel

#: Sequences move to the begin of the cache when it is full, or when new ones come and this share of
#: the slots in use serves none: every step reads them.
_WASTE = 0.25
_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class CacheShape:
    """The cache that a plan of the memory grants: `rows` sequences of `context` slots, or fewer
    longer ones."""

    rows: int
    context: int

    def capacity(self, slots: int) -> int:
        """Slots for each sequence where the longest needs `slots`: one of a few numbers, because
        each has graphs of its own."""
        capacity = self.context
        while capacity < slots:
            capacity *= 2
        if capacity <= self.rows * self.context:
            return capacity
        return -(-slots // self.context) * self.context

    def max_sequences(self, capacity: int) -> int:
        """Number of sequences of `capacity` slots that there is room for, at least one."""
        return max(1, min(self.rows, self.rows * self.context // capacity))


def batch_size(rows: Sequence[tuple[int, int]], cap: int, shape: CacheShape | None) -> int:
    """Count the first `rows` that can be sampled at once: at most `cap`, as many as fit a cache of
    `shape`, and at least one. A row is a pair of lengths in tokens: of its prompt and of its
    longest answer."""
    if shape is None:
        return min(cap, len(rows))
    prompt = answer = 0
    for count, row in enumerate(rows):
        prompt, answer = max(prompt, row[0]), max(answer, row[1])
        if count >= min(cap, shape.max_sequences(shape.capacity(prompt + answer))):
            return max(1, count)
    return len(rows)


def run_size(rows: Sequence[tuple[int, int]], places: int, shape: CacheShape | None) -> int:
    """Count the first `rows` that can be sampled in one run. The run begins `places` of them at
    once. On a GPU all rows of a run take a cache of one capacity, because each capacity has graphs
    of its own."""
    if shape is None:
        return len(rows)
    prompt, answer = (max(sizes) for sizes in zip(*rows[:places], strict=True))
    capacity = shape.capacity(prompt + answer)
    for count, row in enumerate(rows[places:], places):
        prompt, answer = max(prompt, row[0]), max(answer, row[1])
        if shape.capacity(prompt + answer) > capacity:
            return count
    return len(rows)


def bucket(rows: int, limit: int) -> int:
    """Number of rows that are computed for `rows`, which are at most `limit`."""
    return next(size for size in bucket_sizes(limit) if size >= rows)


def window_of(slots: int, capacity: int) -> int:
    """Number of slots that a step attends to when `slots` are in use after it: half of the
    capacity, or all of it."""
    window = capacity // 2
    return window if slots <= window else capacity


class Prompts(NamedTuple):
    """Prompts that were run: `kv_pairs` and `mask` as `KeyValueCache.fill` takes them, and the
    logits [B, V] of the tokens that follow them."""

    kv_pairs: list[tuple[Tensor, Tensor]]
    mask: Tensor
    logits: Tensor

    def last(self) -> Prompts:
        """A copy of the last prompt alone, without padding."""
        mask = self.mask[-1:]
        begin = self.mask.shape[1] - int(mask.sum())
        return Prompts(
            [
                (key[-1:, begin:].clone(), value[-1:, begin:].clone())
                for key, value in self.kv_pairs
            ],
            mask[:, begin:].clone(),
            self.logits[-1:].clone(),
        )


class BatchDecoder(Protocol):
    """What a sampler needs of a model: batches of sequences that grow by a token each. Methods are
    described at `Decoder`."""

    shape: CacheShape | None

    @property
    def model(self) -> PolicyModel: ...

    def begin(
        self, ids: Tensor, mask: Tensor, rows: Tensor, steps: int, refill_length: int | None = None
    ) -> Tensor: ...

    def step(self, tokens: Tensor) -> Tensor: ...

    def keep(self, rows: Tensor) -> None: ...

    def forget(self) -> None: ...

    def shrink(self, rows: int) -> None: ...


class Decoder:
    """Decodes the batches of one model, one batch at a time."""

    def __init__(
        self, model: CausalLM, shape: CacheShape | None = None, faults: Counter[str] | None = None
    ) -> None:
        """With a `shape`, rows and windows are rounded up, and on a GPU steps are graphs. Without
        one, the cache has the size of the largest batch, and rows and windows are exact. `faults`
        counts captures of a graph that failed; decoding is eager then."""
        self.model = model
        self.shape = shape
        self._memory = KeyValueMemory(model.config)
        self._cache: KeyValueCache | None = None
        self._rows = self._max_rows = 0
        self._replaces = False
        self._captures = shape is not None and model.embedding.is_cuda
        self._graphs: _Graphs | None = None
        self._runs: dict[tuple[int, int, int], Callable[[], Tensor]] = {}
        self._faults = Counter[str]() if faults is None else faults

    def begin(
        self, ids: Tensor, mask: Tensor, rows: Tensor, steps: int, refill_length: int | None = None
    ) -> Tensor:
        """Run left-padded prompts once and begin N sequences, n after prompt `rows[n]`; each will
        get up to `steps` tokens. Sequences of up to `refill_length` tokens may take their places;
        None says that none will.

        ids i64[B, T], mask bool[B, T], rows i64[N] below B. Returns the logits [N, V] of the first
        tokens."""
        n, required_slots, embedding = len(rows), ids.shape[1] + steps - 1, self.model.embedding
        self._rows, self._cache = n, None  # the cache holds the memory of before
        self._replaces = refill_length is not None
        if refill_length is not None:
            required_slots = max(required_slots, refill_length)
        if self.shape is None:
            self._memory.reserve(n, n * required_slots, embedding)
            self._cache = self._memory.view(n, required_slots)
        else:
            capacity = self.shape.capacity(required_slots)
            self._max_rows = max(n, self.shape.max_sequences(capacity))
            slots = max(self.shape.rows * self.shape.context, self._max_rows * capacity)
            max_rows = max(n, self.shape.rows)
            if not self._memory.holds(max_rows, slots):
                self.forget()  # first, because what was captured holds the memory of before
            self._memory.reserve(max_rows, slots, embedding)
            self._memory.clear()
            self._cache = self._memory.view(n, capacity, capacity)
        hidden_states = self.model.prefill(ids, mask, rows, self._cache)
        return self.model.logits(hidden_states)

    def read(self, ids: Tensor, mask: Tensor) -> Prompts:
        """Run left-padded prompts, as `begin` takes them, for sequences that come later."""
        hidden_states, key_values = self.model.read(ids, mask)
        return Prompts(key_values, mask, self.model.logits(hidden_states))

    def replace(self, prompts: Prompts, rows: Tensor, places: Tensor, alive: Tensor) -> Tensor:
        """Begin M sequences, m after prompt `rows[m]`, in the place of sequences `places` (i64[M]).
        Those of `alive` (bool[N]) go on. Returns the logits [M, V] of the first tokens."""
        cache, width = self._current_cache, prompts.mask.shape[1]
        slots = max(self._used_slots(alive), width)
        if width > cache.length or cache.length - slots > _WASTE * cache.length:
            cache.move(min(slots, cache.length), slots)
        cache.replace(prompts.kv_pairs, prompts.mask, rows, places)
        return prompts.logits.index_select(0, rows)

    @property
    def full(self) -> bool:
        """Check that there is no slot for another step before `make_room`."""
        return self._current_cache.length == self._current_cache.capacity

    def make_room(self, alive: Tensor) -> None:
        """Have a slot for the next step of the sequences `alive` (bool[N])."""
        slots = self._used_slots(alive)
        self._current_cache.move(slots, slots)

    def _used_slots(self, alive: Tensor) -> int:
        """Number of slots that the longest of these sequences has."""
        positions = self._current_cache.positions[alive]
        return int(positions.max()) if len(positions) else 0

    def step(self, tokens: Tensor) -> Tensor:
        """Append tokens i64[N] to the sequences; the logits [N, V] of the next ones, which the next
        call overwrites."""
        cache = self._current_cache
        if self._replaces:
            cache.clamp_positions()
        cache.unmask()
        if cache.window is None:
            logits = _compute(tokens, cache, self.model)
        else:
            logits = self._run_padded_step(tokens, cache)[: len(tokens)]
        cache.advance()
        return logits

    def keep(self, rows: Tensor) -> None:
        """Drop every sequence but `rows` (i64[M])."""
        self._current_cache.keep(rows)

    def forget(self) -> None:
        """Drop the graphs. Later steps capture new ones: other kernels will run, or at other
        addresses."""
        self._runs = {}
        if self._graphs is not None:
            self._graphs.forget()

    def shrink(self, rows: int) -> None:
        """Give all memory back, and let the cache have `rows` sequences at most from now on. No
        batch is under way then."""
        self.forget()
        self._cache = self._graphs = None
        self._memory.release()
        if self.shape is not None:
            self.shape = replace(self.shape, rows=min(rows, self.shape.rows))
        free_caches()

    @property
    def _current_cache(self) -> KeyValueCache:
        assert self._cache is not None, "a batch begins with `begin`"
        return self._cache

    def _run_padded_step(self, tokens: Tensor, cache: KeyValueCache) -> Tensor:
        """A step with the rows and slots that there is a graph for."""
        self._memory.tokens[: len(tokens)] = tokens
        rows = bucket(len(tokens), self._max_rows)
        key = (rows, cache.capacity, window_of(cache.length + 1, cache.capacity))
        if key not in self._runs:
            self._runs[key] = self._prepare_step(*key)
        return self._runs[key]()

    def _prepare_step(self, rows: int, capacity: int, window: int) -> Callable[[], Tensor]:
        """A step of the first `rows` sequences, whose tokens are in the memory."""
        cache = self._memory.view(rows, capacity, window)
        # It does not refer to this object: a cycle would keep old weights, and unmap them when
        # garbage is collected, perhaps in the middle of a capture.
        compute = partial(_compute, self._memory.tokens[:rows], cache, self.model)
        if not self._captures:
            return compute
        try:
            self._graphs = self._graphs or _Graphs()
            # The rotary tables are read by address, and the model may take longer ones some day.
            graph = self._graphs.capture(compute, self.model.rotary(capacity, cache.bias))
        except RuntimeError as error:
            if self._rows > LEAST_BUCKET and out_of_memory(error):
                raise  # fewer rows at once take smaller graphs, and are faster than eager ones
            self._faults["cuda_graph"] += 1
            _log.warning("decoding without CUDA graphs, which is slower", error=str(error))
            self._captures = False
            return compute
        _log.debug("CUDA graph captured", rows=rows, capacity=capacity, window=window)
        return graph


def _compute(tokens: Tensor, cache: KeyValueCache, model: CausalLM) -> Tensor:
    return model.logits(model.step(tokens, cache))


class _Graph:
    """A captured computation. Its result is always the same tensor."""

    def __init__(self, graph: torch.cuda.CUDAGraph, output: Tensor, reads: object) -> None:
        """`reads` holds what it reads by address."""
        self._graph, self._output, self._reads = graph, output, reads

    def __call__(self) -> Tensor:
        self._graph.replay()
        return self._output


class _Graphs:
    """Captures graphs on the current GPU whose temporary memory is shared: one runs at a time, and
    its result is used before the next one runs."""

    def __init__(self) -> None:
        self._pool = torch.cuda.graph_pool_handle()
        self._stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]

    def forget(self) -> None:
        """Drop all graphs. torch refuses a pool that only such graphs have used, while a result of
        theirs exists."""
        self._pool = torch.cuda.graph_pool_handle()

    def capture(self, compute: Callable[[], Tensor], reads: object) -> _Graph:
        """Capture `compute` as a graph, with the present shapes and addresses.

        Raises:
            RuntimeError: it cannot be captured.
        """
        graph, main_stream = torch.cuda.CUDAGraph(), torch.cuda.current_stream()
        self._stream.wait_stream(main_stream)
        try:
            with torch.cuda.stream(self._stream):
                # The first call of a library sets it up, which cannot be captured.
                for _ in range(2):
                    compute()
                with torch.cuda.graph(
                    graph, self._pool, self._stream, capture_error_mode="thread_local"
                ):
                    output = compute()
        except RuntimeError:
            self._abandon()
            raise
        finally:
            main_stream.wait_stream(self._stream)
        return _Graph(graph, output, (compute, reads))

    def _abandon(self) -> None:
        """End a failed capture. If memory ran out, torch has ended it. If a kernel could not be
        captured, the driver refuses to end it, and `CUDAGraph.capture_end` raises before it tells
        the allocator. The allocator would then free no memory and fail in `empty_cache`."""
        device = torch.cuda.current_device()
        with suppress(RuntimeError):  # "not currently recording": the capture has ended
            torch._C._cuda_endAllocateToPool(device, self._pool)
            torch._C._cuda_releasePool(device, self._pool)
        self.forget()
