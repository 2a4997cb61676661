"""An inference engine, and the built-in sampler in its place once the engine failed for good."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

import structlog

from swarm_node.errors import EngineError
from swarm_node.policy.sampling.sampler import (
    CountingSampler,
    InterruptibleSampler,
    MeteredSampler,
    Progress,
    RestingSampler,
    Row,
    Sampler,
    SampleRequest,
    SelectiveSampler,
    SharingSampler,
    continue_request,
    extend_row,
)
from swarm_node.rollout import Completion

_log = structlog.get_logger(__name__)


class Engine(InterruptibleSampler, RestingSampler, SelectiveSampler, SharingSampler, Protocol):
    """A sampler in a process of its own."""

    @property
    def description(self) -> str:
        """The engine's name, with the differences from its plan."""
        ...

    @property
    def positions(self) -> int:
        """The longest prompt with its answer that it takes, in tokens."""
        ...

    @property
    def pid(self) -> int | None:
        """The process; None when it is not running."""
        ...


class _Asked(NamedTuple):
    """Requests that wait for the built-in sampler, and where their completions go."""

    requests: list[SampleRequest]
    answer: asyncio.Future[list[Completion]]


class FallbackSampler:
    """A `Sampler` that is an engine until the engine raises `EngineError`. From then on it is the
    built-in sampler, with the newest weights; requests under way are sampled there."""

    def __init__(self, engine: Engine, make_built_in: Callable[[], Sampler]) -> None:
        """`make_built_in` loads the model, in a thread, once the engine has freed its memory. The
        sampler that it makes takes the same published weights."""
        self._engine = engine
        self._make_built_in = make_built_in
        self._built_in: Sampler | None = None
        self._newest_weights: tuple[Path, int] | None = None
        self._reason = ""
        self._replacing, self._one_at_a_time = asyncio.Lock(), asyncio.Lock()
        self._waiting: list[_Asked] = []

    @property
    def description(self) -> str:
        """Name of the sampler at work, with the reason if it was not chosen."""
        if self._built_in is not None:
            return f"torch (vLLM failed: {self._reason})"
        return self._engine.description

    @property
    def version(self) -> int:
        return (self._built_in or self._engine).version

    @property
    def faults(self) -> Mapping[str, int]:
        if self._built_in is None:
            return self._engine.faults
        replacements = Counter({"engine_replaced": 1})
        return replacements + Counter(self._engine.faults) + Counter(self._built_in.faults)

    @property
    def progress(self) -> Progress:
        """See `CountingSampler.progress`."""
        total = Progress()
        for sampler in (self._engine, self._built_in):
            if isinstance(sampler, CountingSampler):
                total.add(sampler.progress.tokens, sampler.progress.answers)
        return total

    @property
    def positions(self) -> int:
        """The longest prompt with its answer, in tokens. The built-in sampler takes as much."""
        return self._engine.positions

    def refusal(self, request: SampleRequest) -> str:
        """See `SelectiveSampler.refusal`. The built-in sampler can do all."""
        return "" if self._built_in else self._engine.refusal(request)

    @property
    def guest_seconds(self) -> float:
        """Seconds that the built-in sampler has computed for guests. An engine computes for all at
        once."""
        built_in = self._built_in
        return built_in.guest_seconds if isinstance(built_in, MeteredSampler) else 0.0

    @property
    def pid(self) -> int | None:
        """The engine's process id; None when it is not running."""
        return self._engine.pid

    async def sample(self, requests: Sequence[SampleRequest]) -> list[tuple[Completion, ...]]:
        """See `Sampler.sample`."""
        if self._built_in is None:
            try:
                return await self._engine.sample(requests)
            except EngineError as error:
                await self._replace(error)
        return await self._replacement.sample(requests)

    async def complete(
        self,
        request: SampleRequest,
        partial_rows: Sequence[Row] = (),
        stop_event: asyncio.Event | None = None,
    ) -> list[Row]:
        """See `InterruptibleSampler.complete`. The built-in sampler finishes what it began."""
        if self._built_in is None:
            try:
                return await self._engine.complete(request, partial_rows, stop_event)
            except EngineError as error:
                await self._replace(error)
        rows = list(partial_rows) or [Row.empty() for _ in range(request.n)]
        places = [place for place, row in enumerate(rows) if row.finish is None]
        if not places or (stop_event is not None and stop_event.is_set()):
            return rows
        if any(len(row.token_ids) for row in rows):
            requests = [
                continue_request(request, place, rows[place].token_ids.tolist()) for place in places
            ]
        else:
            requests = [request]
        for place, completion in zip(places, await self._ask(requests), strict=True):
            spans = [(span.version, span.start, span.end) for span in completion.spans]
            new = (
                completion.token_ids,
                completion.logprobs,
                spans,
                completion.finish,
                completion.ranking,
            )
            rows[place] = extend_row(rows[place], *new)
        return rows

    def completion(self, row: Row) -> Completion:
        """See `InterruptibleSampler.completion`."""
        return self._engine.completion(row)

    async def load(self, weights: Path, version: int) -> None:
        """See `Sampler.load`."""
        if self._built_in is None:
            try:
                await self._engine.load(weights, version)
                self._newest_weights = weights, version
                return
            except EngineError as error:
                self._newest_weights = weights, version
                await self._replace(error)
        await self._replacement.load(weights, version)

    async def rest(self) -> bool:
        """See `RestingSampler.rest`. The built-in sampler does not rest."""
        return self._built_in is None and await self._engine.rest()

    async def let_go(self) -> None:
        """See `SharingSampler.let_go`."""
        sampler = self._built_in or self._engine
        if isinstance(sampler, SharingSampler):
            await sampler.let_go()

    async def close(self) -> None:
        """Release all resources."""
        await self._engine.close()
        if self._built_in is not None:
            await self._built_in.close()

    @property
    def _replacement(self) -> Sampler:
        assert self._built_in is not None, "the engine is replaced first"
        return self._built_in

    async def _replace(self, error: EngineError) -> None:
        """Put the built-in sampler in the engine's place, unless another call did."""
        async with self._replacing:
            if self._built_in is not None:
                return
            await self._engine.close()
            built_in = await asyncio.to_thread(self._make_built_in)
            if self._newest_weights is not None:
                await built_in.load(*self._newest_weights)
            self._reason, self._built_in = str(error), built_in
            _log.error(
                "vLLM failed for good: the built-in sampler samples until the node restarts",
                version=built_in.version,
                reason=self._reason,
            )

    async def _ask(self, requests: list[SampleRequest]) -> list[Completion]:
        """The completions of all `requests` in one list. Requests that come while the built-in
        sampler works make one batch, as large batches take little longer than small ones."""
        own_job = _Asked(requests, asyncio.get_running_loop().create_future())
        self._waiting.append(own_job)
        await asyncio.sleep(0)  # the other groups of a sampling batch ask in the same moment
        async with self._one_at_a_time:
            if not own_job.answer.done():
                batch, self._waiting = self._waiting, []
                try:
                    groups = await self._replacement.sample(
                        [r for job in batch for r in job.requests]
                    )
                except BaseException:
                    # The others ask again: it may be this call alone that was cancelled or failed.
                    self._waiting = [job for job in batch if job is not own_job] + self._waiting
                    raise
                for job in batch:
                    job_groups, groups = groups[: len(job.requests)], groups[len(job.requests) :]
                    job.answer.set_result(
                        [completion for group in job_groups for completion in group]
                    )
        return own_job.answer.result()
