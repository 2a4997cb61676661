"""The program of the engine's process: vLLM's AsyncLLM, which answers `messages`.

Rows that finish while weights are loaded are held back until the canary was right.
"""

from __future__ import annotations

import asyncio
import itertools
import math
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from msgspec.structs import replace
from vllm import SamplingParams
from vllm.config import WeightTransferConfig
from vllm.distributed.weight_transfer.base import (
    WeightTransferInitRequest,
    WeightTransferUpdateRequest,
)
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.exceptions import VLLMValidationError
from vllm.lora.request import LoRARequest
from vllm.outputs import CompletionOutput, RequestOutput
from vllm.sampling_params import RequestOutputKind
from vllm.v1.engine.async_llm import AsyncLLM
from vllm.v1.engine.output_processor import RequestOutputCollector

from swarm_node.errors import ModelError
from swarm_node.policy.sampling.vllm.backend import BACKEND, WorkerExtension
from swarm_node.policy.sampling.vllm.messages import (
    Count,
    Counted,
    EngineStarted,
    Load,
    Loaded,
    Reply,
    Request,
    Rest,
    Rested,
    RowEnd,
    RowStart,
    Sample,
    SampledRows,
    StartEngine,
)
from swarm_node.policy.sampling.vllm.view import HeadPadding, pad_adapter
from swarm_node.policy.weights.canary import difference
from swarm_node.process import serve_concurrently

_ADAPTER = 1
#: The canary's rows are scheduled before all others, whose priority is 0.
_FIRST = -1


class EngineWorker:
    def __init__(self) -> None:
        self._engine: AsyncLLM | None = None
        self._padding = HeadPadding(1, 1)
        self._scratch = Path()
        self._lora: LoRARequest | None = None
        self._stop_ids: list[int] = []
        self._loading = asyncio.Lock()
        self._trust_event = asyncio.Event()
        self._is_asleep = False
        self._samples = itertools.count(1)
        self._counts = {"prompt_tokens": 0, "cached_tokens": 0, "sampled_tokens": 0}

    async def handle(self, request: Request, stop_event: asyncio.Event) -> Reply:
        """The reply to one request.

        Raises:
            ModelError, ValueError: it cannot be done; the next one may be.
        """
        if isinstance(request, StartEngine):
            return await self._start(request)
        if self._engine is None:
            raise ValueError("the first request must be Start")
        match request:
            case Sample():
                return await self._sample(self._engine, request, stop_event)
            case Load():
                return await self._load(self._engine, request)
            case Rest():
                async with self._loading:
                    await self._engine.sleep(request.level, mode="keep")
                    self._is_asleep = True
                return Rested()
            case Count():
                core, *_ = await self._engine.collective_rpc("swarm_pid")
                pending_count = self._engine.get_num_unfinished_requests()
                return Counted(core, pending_count, **self._counts)

    async def _start(self, request: StartEngine) -> EngineStarted:
        self._padding = HeadPadding(*request.heads)
        self._scratch = Path(request.scratch)
        self._stop_ids = request.stop_ids
        extension = f"{WorkerExtension.__module__}.{WorkerExtension.__qualname__}"
        self._engine = AsyncLLM.from_engine_args(
            AsyncEngineArgs(
                **request.arguments,
                weight_transfer_config=WeightTransferConfig(backend=BACKEND),
                worker_extension_cls=extension,
            )
        )
        heads = {"own_head": self._padding.head_size, "padded_head": self._padding.padded_size}
        await self._engine.init_weight_transfer_engine(WeightTransferInitRequest(init_info=heads))
        return EngineStarted(*(await self._engine.collective_rpc("swarm_base"))[0])

    async def _load(self, engine: AsyncLLM, request: Load) -> Loaded:
        """Pause between two steps, replace the weights, drop every cached key and value, and go on.
        Requests under way keep their tokens; their keys and values are computed anew with the new
        weights."""
        async with self._loading:
            self._trust_event.clear()
            version, path = str(request.version), Path(request.path)
            adapter = None
            if request.is_adapter:
                adapter = pad_adapter(path, self._padding, self._scratch / "adapter")
            start = time.monotonic()
            # A request names its adapter for good: with another or none, it must be asked again.
            is_switched = (adapter is None) != (self._lora is None)
            await engine.pause_generation(mode="abort" if is_switched else "keep", clear_cache=True)
            if self._is_asleep:
                await engine.wake_up(["weights"])
            if adapter is None:
                await engine.start_weight_update()
                await engine.update_weights(
                    WeightTransferUpdateRequest(update_info={"path": str(path)})
                )
                await engine.finish_weight_update(version)
                self._lora = None
            else:
                self._lora = LoRARequest("policy", _ADAPTER, str(adapter), load_inplace=True)
                await engine.add_lora(self._lora)
                # Later requests name the adapter that is there; they must not load it each time.
                self._lora = LoRARequest("policy", _ADAPTER, str(adapter))
                await engine.update_weight_version(version)
            cleared = await engine.reset_prefix_cache(reset_running_requests=True)
            # Nothing runs now, so the canary waits for no place. Interrupted rows are back in the
            # queue, where the canary's priority is higher.
            canary_rows = await self._ask(engine, request.canary)
            if self._is_asleep:
                await engine.wake_up(["kv_cache"])
                self._is_asleep = False
            await engine.resume_generation()
            pause_seconds = time.monotonic() - start
            logprobs = [await _logprob(row, token) for token, row in canary_rows]
            if not cleared:
                logprobs = []
            if difference(request.expected, logprobs) <= request.tolerance:
                self._trust_event.set()
            return Loaded(logprobs, pause_seconds)

    async def _ask(
        self, engine: AsyncLLM, ids: list[int]
    ) -> list[tuple[int, RequestOutputCollector]]:
        """Queue a row for each of `ids` after the first, with the tokens before it as its prompt.
        One row for all, with the log-probs of its prompt, would end vLLM 0.32: with LoRA on a CPU
        it fails if such a row runs beside rows that are sampled."""
        name = f"canary-{time.monotonic_ns()}"
        return [
            (
                token,
                await engine.add_request(
                    f"{name}-{place}",
                    {"prompt_token_ids": ids[:place]},
                    SamplingParams(
                        max_tokens=1,
                        temperature=1.0,
                        logprob_token_ids=[token],
                        detokenize=False,
                        ignore_eos=True,
                        output_kind=RequestOutputKind.FINAL_ONLY,
                    ),
                    lora_request=self._lora,
                    priority=_FIRST,
                ),
            )
            for place, token in enumerate(ids)
            if place
        ]

    async def _sample(
        self, engine: AsyncLLM, request: Sample, stop_event: asyncio.Event
    ) -> SampledRows:
        number = next(self._samples)
        names = [f"{number}-{index}" for index in range(len(request.rows))]

        async def complete() -> Sequence[RowEnd]:
            try:
                return await asyncio.gather(
                    *(
                        self._row(engine, name, request, row)
                        for name, row in zip(names, request.rows, strict=True)
                    )
                )
            finally:
                stop_event.set()  # ends `_abort_when`, which then has nothing to abort

        row_ends, _ = await asyncio.gather(complete(), _abort_when(stop_event, engine, names))
        await self._trust_event.wait()
        return SampledRows(list(row_ends))

    async def _row(self, engine: AsyncLLM, name: str, request: Sample, row: RowStart) -> RowEnd:
        prefix_ids = np.frombuffer(row.begun, np.uint32).tolist()
        try:
            parameters = SamplingParams(
                max_tokens=row.room,
                temperature=request.temperature,
                top_p=request.top_p,
                seed=row.seed,
                logprobs=request.ranked or 0,
                flat_logprobs=True,
                detokenize=False,
                ignore_eos=True,
                stop_token_ids=self._stop_ids,
                output_kind=RequestOutputKind.FINAL_ONLY,
            )
        except VLLMValidationError as error:
            raise ModelError(f"vLLM refuses the request: {error}") from error
        ids = [*request.prompt, *prefix_ids]
        output = await self._generate(engine, ids, parameters, name, request.priority)
        (completion,) = output.outputs
        self._counts["prompt_tokens"] += len(output.prompt_token_ids or [])
        self._counts["cached_tokens"] += output.num_cached_tokens or 0
        self._counts["sampled_tokens"] += len(completion.token_ids)
        logprobs = np.asarray(_sampled_logprobs(completion), np.float32)
        if not np.isfinite(logprobs).all():
            raise ModelError("the engine gave a log-prob that is not finite")
        end = RowEnd(
            np.asarray(completion.token_ids, np.uint32).tobytes(),
            logprobs.tobytes(),
            [
                (int(span.version), span.start, span.end)
                for span in completion.weight_versions or []
            ],
            completion.finish_reason or "",
        )
        if request.ranked is not None:
            end = _with_rankings(end, completion, request.ranked)
        if request.temperature == 0:  # vLLM states them at a temperature of 1
            end = replace(end, logprobs=bytes(len(end.logprobs)))
        return end

    async def _generate(
        self, engine: AsyncLLM, ids: list[int], parameters: SamplingParams, name: str, priority: int
    ) -> RequestOutput:
        last: RequestOutput | None = None
        async for output in engine.generate(
            {"prompt_token_ids": ids},
            parameters,
            name,
            lora_request=self._lora,
            priority=priority,
        ):
            last = output
        if last is None:
            raise ModelError("the engine gave no answer")
        return last


async def _abort_when(stop_event: asyncio.Event, engine: AsyncLLM, names: list[str]) -> None:
    """End these rows of the engine once `stop_event` is set."""
    await stop_event.wait()
    await engine.abort(names)


async def _logprob(row: RequestOutputCollector, token: int) -> float:
    """The log-prob of `token`, which was requested by name, at the one position of a row."""
    output = await row.get()
    assert isinstance(output, RequestOutput)
    (completion,) = output.outputs
    assert completion.logprobs is not None
    return float(completion.logprobs[0][token].logprob)


def _with_rankings(row: RowEnd, completion: CompletionOutput, count: int) -> RowEnd:
    """`row` with the `count` likeliest tokens of each place. It is cut, as if it was interrupted,
    where they are missing: in a step that has a row of the canary, vLLM's sampler for CPUs ranks
    for nobody."""
    entries, ids, logprobs, places = completion.logprobs, list[int](), list[float](), 0
    for start, end in (
        zip(entries.start_indices, entries.end_indices, strict=True) if entries else ()
    ):
        window = slice(start + 1, min(end, start + 1 + count))
        if len(entries.token_ids[window]) < count or not all(
            map(math.isfinite, entries.logprobs[window])
        ):
            break
        ids += entries.token_ids[window]
        logprobs += entries.logprobs[window]
        places += 1
    spans = [(version, start, min(end, places)) for version, start, end in row.spans]
    return RowEnd(
        row.ids[: 4 * places],
        row.logprobs[: 4 * places],
        [span for span in spans if span[1] < span[2]],
        row.finish if places == len(completion.token_ids) else "abort",
        (
            row.logprobs[: 4 * places],
            np.asarray(ids, np.uint32).tobytes(),
            np.asarray(logprobs, np.float32).tobytes(),
        ),
    )


def _sampled_logprobs(completion: CompletionOutput) -> list[float]:
    """Log-probs of the sampled tokens alone: each is the first of its position. Padding may follow
    it if a canary's row was in the same batch."""
    entries = completion.logprobs
    return [] if entries is None else [entries.logprobs[start] for start in entries.start_indices]


if __name__ == "__main__":
    asyncio.run(serve_concurrently(EngineWorker().handle, Request))
