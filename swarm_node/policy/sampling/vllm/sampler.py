"""Sampling with vLLM, in a process of its own that may die.

The engine gets every policy version through the trainer's file in shared memory. It must then
reproduce the log-probs of the canary in that file. Every fault (death, silence, a second wrong
canary in a row) has the same remedy: the engine is killed with all its helper processes, a new one
starts with the newest weights, and the running requests are sent again. After a start that failed
with async scheduling, the next one is without it. After TRIES failures in a row, `EngineError` is
raised.

A completion depends on its request's seed and its number in the group, and not on the rest of the
batch (up to float rounding). New weights do not interrupt running requests: their later tokens come
from the new version, as their spans say.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

import numpy as np
import structlog
from msgspec.structs import asdict

from swarm_node.errors import ChildError, EngineError, ModelError
from swarm_node.policy.models.config import ModelConfig
from swarm_node.policy.models.decoder.lora import ADAPTER_FILE
from swarm_node.policy.models.text.codec import Codec
from swarm_node.policy.sampling.sampler import (
    Progress,
    Row,
    SampleRequest,
    check_request,
    extend_row,
    finish_row,
)
from swarm_node.policy.sampling.vllm.engine import (
    MAX_TEMPERATURE,
    Deadlines,
    EnginePlan,
    engine_arguments,
    engine_environment,
    require_vllm,
)
from swarm_node.policy.sampling.vllm.messages import (
    Count,
    Counted,
    EngineStarted,
    Load,
    Loaded,
    Reply,
    Rest,
    Rested,
    SampledRows,
    StartEngine,
    ranking_of,
    remaining_request,
)
from swarm_node.policy.sampling.vllm.view import HeadPadding, write_view
from swarm_node.policy.weights.base import base_index
from swarm_node.policy.weights.canary import Canary, difference, read_canary, verdict
from swarm_node.process import Child, ReportedError
from swarm_node.rollout import Completion

TRIES = 3
_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Sync:
    """The newest weight sync: its duration, the seconds for which generation paused, and the
    canary's `difference`."""

    version: int
    seconds: float
    pause_seconds: float
    difference: float


@dataclass(frozen=True, slots=True)
class _Weights:
    """A file with all weights, or the directory of an adapter. Without a canary it is the base
    model of adapters, which the first adapter proves."""

    path: Path
    version: int
    canary: Canary | None
    is_adapter: bool = False


class VllmSampler:
    """A `Sampler`. The engine starts with the first `load`, which gives it weights."""

    def __init__(
        self,
        model: ModelConfig,
        codec: Codec,
        plan: EnginePlan,
        *,
        base: Path | None = None,
        deadlines: Deadlines | None = None,
    ) -> None:
        """`base` is the directory of the adapters' base model, where the trainer publishes adapters
        only; an engine of four bits cannot do without.

        Raises:
            ModelError: vLLM is not installed, or built for another device.
        """
        require_vllm(plan.device, nf4=plan.nf4)
        self._codec = codec
        self._model = model
        self._plan = plan
        self._deadlines = deadlines or Deadlines()
        self._padding = HeadPadding(model.head_dim, plan.head_size)
        self._child = Child(
            "vLLM", "swarm_node.policy.sampling.vllm.worker", Reply, concurrent=True
        )
        self._scratch = Path(tempfile.mkdtemp(prefix="swarm-node-engine-"))
        self._base = _Weights(base, 0, None) if base and plan.lora_rank else None
        self._adapter: _Weights | None = None
        self._version = 0
        self._in_turn = ""  # why async scheduling is off, where the plan has it on
        self._base_index = ""  # the index of the trainer's base that the engine maps
        # The first call that finds the engine dead starts it. The number tells the others.
        self._repairing = asyncio.Lock()
        self._life = 0
        self._awake = asyncio.Event()
        self._awake.set()
        self._failures = 0
        self._rows = 0
        self._faults: Counter[str] = Counter()
        self._progress = Progress()
        self.last_sync: Sync | None = None
        self.last_start: EngineStarted | None = None  # what the newest start said

    @classmethod
    def from_directory(
        cls,
        path: Path,
        plan: EnginePlan,
        *,
        codec: Codec | None = None,
        deadlines: Deadlines | None = None,
    ) -> Self:
        """A sampler for the model in a directory; its weights come by `load`. `codec` is the
        directory's, if it was read already.

        Raises:
            ModelError: model or tokenizer cannot be used, or vLLM is not installed.
        """
        model = ModelConfig.from_directory(path)
        codec = codec or Codec.from_directory(path)
        return cls(model, codec, plan, base=path, deadlines=deadlines)

    @property
    def version(self) -> int:
        return self._version

    @property
    def description(self) -> str:
        """The engine's name, with the differences from its plan."""
        return f"vllm (async scheduling off: {self._in_turn})" if self._in_turn else "vllm"

    @property
    def positions(self) -> int:
        """The longest prompt with its answer that the engine takes, in tokens."""
        return self._plan.max_model_len

    @property
    def faults(self) -> Mapping[str, int]:
        return self._faults

    @property
    def progress(self) -> Progress:
        """See `CountingSampler.progress`. The engine reports a request when all its rows ended."""
        return self._progress

    @property
    def pid(self) -> int | None:
        """The engine's process id; None when it is not running."""
        return self._child.pid

    async def sample(self, requests: Sequence[SampleRequest]) -> list[tuple[Completion, ...]]:
        """See `Sampler.sample`. Cancelling it ends its requests in the engine.

        Raises:
            ModelError: a request does not fit the model, or no weights were loaded.
            ValueError: an impossible request.
            EngineError: the engine cannot be kept running.
        """
        for request in requests:
            self.check(request)
        groups = await asyncio.gather(*(self.complete(request) for request in requests))
        return [tuple(map(self.completion, rows)) for rows in groups]

    def check(self, request: SampleRequest) -> None:
        """See `check_request`; vLLM must not refuse it either."""
        check_request(request, self._model.vocab_size, self._plan.max_model_len)
        reason = self.refusal(request)
        if reason:
            raise ModelError(reason)

    def refusal(self, request: SampleRequest) -> str:
        """See `SelectiveSampler.refusal`. The engine's log-probs are those of the distribution that
        it samples from, which is the policy's own at a temperature of 1. At 0 it takes the
        likeliest token and states log-probs at 1."""
        if request.temperature > MAX_TEMPERATURE:
            return f"vLLM takes a temperature of {MAX_TEMPERATURE:g} at most"
        is_supported = request.temperature == 0 or (request.temperature == 1 and request.top_p == 1)
        if request.top_logprobs is None or is_supported:
            return ""
        return "vLLM gives log-probs at a temperature of 0, or of 1 with a top_p of 1"

    def completion(self, row: Row) -> Completion:
        """A finished row with its text."""
        return finish_row(row, self._codec.decode)

    async def complete(
        self,
        request: SampleRequest,
        partial_rows: Sequence[Row] = (),
        stop_event: asyncio.Event | None = None,
    ) -> list[Row]:
        """The rows of one request, going on from `partial_rows` where given. When `stop_event` is
        set, it returns at once with what it has: rows whose `finish` is None can be given back as
        `partial_rows`.

        Raises:
            ModelError, EngineError: see `sample`.
        """
        rows = list(partial_rows) or [Row.empty() for _ in range(request.n)]
        if not self._life:
            raise ModelError("the sampler has no weights yet: load them first")
        while any(row.finish is None for row in rows) and not (stop_event and stop_event.is_set()):
            life = self._life
            try:
                rows = await self._attempt(request, rows, stop_event)
            except ChildError as error:
                if isinstance(error, ReportedError) and self._child.alive:
                    raise ModelError(str(error)) from error  # a restart would not help
                await self._repair(life, error)
                continue
            self._failures = 0
        return rows

    async def load(self, weights: Path, version: int) -> None:
        """See `Sampler.load`. A directory is taken as a LoRA adapter on top of the newest file, or
        of the model that the sampler was made for.

        Raises:
            ModelError: the file carries no canary, or is not there; the old weights stay in use.
            EngineError: the engine cannot be kept running.
        """
        is_adapter = await asyncio.to_thread(weights.is_dir)
        if is_adapter and (self._base is None or not self._plan.lora_rank):
            raise ModelError("an adapter needs base weights and an engine with lora_rank set")
        if self._plan.shares_base and not is_adapter:
            raise ModelError("whole weights would overwrite the base that the trainer shares")
        canary = read_canary(weights / ADAPTER_FILE if is_adapter else weights)
        new_weights = _Weights(weights, version, canary, is_adapter)
        if is_adapter:
            self._adapter = new_weights
        else:
            self._base, self._adapter = new_weights, None
        life = self._life
        self._awake.set()
        if self._plan.shares_base and base_index(weights.parent) != self._base_index:
            await self._child.stop(grace=0.0)  # it maps another base, which may be gone
        if not life or self._child.pid is None:
            await self._repair(life, None)
            return
        try:
            await self._take(new_weights, first=False)
        except ChildError as error:
            await self._repair(life, error)

    async def rest(self) -> bool:
        """See `RestingSampler.rest`. An engine that dies asleep is started anew by `load`."""
        if not self._plan.sleep_level or self._child.pid is None:
            return False
        self._awake.clear()
        try:
            request = Rest(self._plan.sleep_level)
            await self._child.call(request, Rested, patience=self._deadlines.sync)
        except ChildError as error:
            _log.warning("the inference engine cannot be paused", error=str(error))
            await self._child.stop(grace=0.0)
        return True

    async def let_go(self) -> None:
        """See `SharingSampler.let_go`. The engine ends, and what was under way is sent again."""
        if self._plan.shares_base:
            self._awake.clear()
            self._base_index = ""
            await self._child.stop(grace=0.0)

    async def stats(self) -> dict[str, int]:
        """The engine's counters, by the names of `Counted`.

        Raises:
            ChildError: it is not running.
        """
        counters = await self._child.call(Count(), Counted, patience=self._deadlines.sync)
        return asdict(counters)

    async def close(self) -> None:
        """Kill the engine; nothing in it is worth keeping."""
        await self._child.stop(grace=0.0)
        shutil.rmtree(self._scratch, ignore_errors=True)

    async def _attempt(
        self, request: SampleRequest, rows: list[Row], stop_event: asyncio.Event | None
    ) -> list[Row]:
        message, places = remaining_request(request, rows)
        self._rows += len(places)
        patience = None  # own rows come first, however long that takes
        if not request.guest:
            patience = self._deadlines.of_group(self._rows, self._plan.max_rows)
        try:
            reply = await self._child.call(
                message, SampledRows, patience=patience, stop_event=stop_event
            )
        finally:
            self._rows -= len(places)
        rows, lengths = list(rows), [len(row.token_ids) for row in rows]
        for place, new in zip(places, reply.rows, strict=True):
            rows[place] = extend_row(
                rows[place],
                np.frombuffer(new.ids, np.uint32),
                np.frombuffer(new.logprobs, np.float32),
                new.spans,
                new.finish,
                ranking_of(new),
            )
            if not request.guest:
                is_ended = rows[place].finish is not None
                self._progress.add(len(rows[place].token_ids) - lengths[place], int(is_ended))
        return rows

    async def _take(self, weights: _Weights, *, first: bool) -> None:
        """Hand over weights, the `first` after a start or later ones, and compare the engine's
        canary with the trainer's.

        Raises:
            ChildError: it failed in any way; the engine's state is unknown.
        """
        loop, canary = asyncio.get_running_loop(), weights.canary
        patience = self._deadlines.of_sync(first=first, on_gpu=self._plan.on_gpu)
        request = Load(
            str(weights.path),
            weights.is_adapter,
            weights.version,
            canary=list(canary.token_ids) if canary else [],
            expected=list(canary.logprobs) if canary else [],
            tolerance=self._plan.tolerance,
        )
        differences: list[float] = []
        while True:
            start = loop.time()
            reply = await self._child.call(request, Loaded, patience=patience)
            if canary is None:
                return
            differences.append(difference(canary.logprobs, reply.measured))
            decision = verdict(differences, self._plan.tolerance)
            if decision == "taken":
                break
            self._faults["canary"] += 1
            reason = (
                f"the engine says something else than the trainer of version {weights.version}: "
                f"mean difference of log-probs {differences[-1]:.2g}, "
                f"allowed {self._plan.tolerance:g}"
            )
            if decision == "restart":
                raise ChildError(reason)
            _log.warning("loading the weights again", error=reason)
        self._version = weights.version
        duration = loop.time() - start
        self.last_sync = Sync(weights.version, duration, reply.paused, differences[-1])

    async def _repair(self, life: int, error: ChildError | None) -> None:
        """Start the engine anew with the newest weights, unless another call did since `life`.

        Raises:
            EngineError: it failed TRIES times without a good answer in between.
        """
        async with self._repairing:
            while True:
                await self._awake.wait()
                if self._life != life:
                    return
                if self._plan.shares_base and not self._base_index:
                    error = None  # `let_go` ended it
                # After a final failure, calls that still wait restart nothing.
                if error is not None and self._failures <= TRIES:
                    self._failures += 1
                    self._faults["engine"] += 1
                    _log.warning("restarting the inference engine", error=str(error))
                if self._failures > TRIES:
                    raise EngineError(
                        f"the inference engine failed {self._failures} times in a row, last: "
                        f"{error}",
                        f"see the log above, {self._plan.ways_out}",
                    )
                try:
                    await self._start()
                except ChildError as failure:
                    error = failure
                    if self._plan.overlaps:  # whatever starts stays
                        self._in_turn = "" if self._in_turn else str(failure)
                    continue
                if self._in_turn:
                    _log.warning("vLLM runs without async scheduling", reason=self._in_turn)
                self._life += 1
                return

    async def _start(self) -> None:
        assert self._base is not None
        weights, base_dir = self._base.path if self._plan.nf4 else None, None
        write_view(self._model, self._padding, self._scratch, weights)
        if self._plan.shares_base:
            assert self._adapter is not None
            base_dir = self._adapter.path.parent
            self._base_index = base_index(base_dir)
            if not self._base_index:
                raise ModelError(f"the trainer shares no base in {base_dir}")
        visible_gpus = os.environ.get("CUDA_VISIBLE_DEVICES")
        await self._child.start(env=engine_environment(self._plan, visible_gpus))
        plan = replace(self._plan, async_scheduling=False) if self._in_turn else self._plan
        start = StartEngine(
            engine_arguments(plan, self._scratch, base=base_dir),
            heads=(self._padding.head_size, self._padding.padded_size),
            scratch=str(self._scratch),
            stop_ids=sorted(self._codec.eos_ids),
        )
        self.last_start = await self._child.call(
            start, EngineStarted, patience=self._deadlines.start
        )
        if self.last_start.copied:
            self._faults["base_copied"] += 1
            message = "vLLM holds copies of weights that it cannot share with the trainer"
            _log.warning(message, **asdict(self.last_start))
        if not (self._plan.nf4 or base_dir):
            await self._take(self._base, first=True)
        if self._adapter is not None:
            await self._take(self._adapter, first=True)
