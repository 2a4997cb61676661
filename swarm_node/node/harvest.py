"""Groups from an engine that works on many at once: each handed on as soon as it is whole.

A call starts more groups than it needs (`sampling.over_provision`), ends when it has its target,
and keeps what the others have so far: tokens, log-probs and versions. Those go on first in the next
call. No place in the engine waits for the longest answer of a call.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from swarm_node.node.dispatch import LengthRanker, provision, still_fresh
from swarm_node.policy.sampling.rows import Row
from swarm_node.policy.sampling.sampler import InterruptibleSampler, SampleRequest
from swarm_node.rollout import TaskRef


@dataclass(slots=True, eq=False)
class Job:
    """One group under way: `rows` are what it has so far, none before it was started."""

    ref: TaskRef
    prompt: str
    request: SampleRequest
    rows: list[Row] = field(default_factory=list)

    @property
    def whole(self) -> bool:
        return bool(self.rows) and all(row.finish is not None for row in self.rows)

    @property
    def version(self) -> int:
        """The policy version of its oldest token."""
        return min((span.version for row in self.rows for span in row.spans), default=0)


class Harvest:
    """Keeps the interrupted groups of one node, and what its families' answers take."""

    def __init__(
        self,
        sampler: InterruptibleSampler,
        *,
        over_provision: float,
        max_lag: int,
        ranked: bool = True,
    ) -> None:
        """`max_lag` in policy versions: tokens that are older are sampled again. Without `ranked`,
        new groups are started in the order they come."""
        self._sampler = sampler
        self._over_provision = over_provision
        self._max_lag = max_lag
        self._ranker = LengthRanker() if ranked else None
        self._waiting: list[Job] = []

    @property
    def interrupted(self) -> tuple[Job, ...]:
        """Groups that go on with the next call."""
        return tuple(self._waiting)

    async def gather(
        self,
        target: int,
        fresh: Callable[[int], Awaitable[list[Job]]],
        deliver: Callable[[Job], Awaitable[None]],
    ) -> None:
        """Have `target` groups or a few more made; `fresh` gives new jobs, `deliver` takes each
        that is whole, one at a time.

        Raises:
            SwarmNodeError: from the sampler, `fresh` or `deliver`.
        """
        jobs, self._waiting = self._waiting, []
        for job in jobs:
            job.rows = still_fresh(job.rows, self._sampler.version, self._max_lag)
        new = await fresh(provision(target, self._over_provision, len(jobs)))
        if self._ranker is not None:
            new = [new[place] for place in self._ranker.order([job.ref.family for job in new])]
        cut, one_at_a_time = asyncio.Event(), asyncio.Lock()
        left = target

        async def finish(job: Job) -> None:
            nonlocal left
            job.rows = await self._sampler.complete(job.request, job.rows, cut)
            if not job.whole:
                self._waiting.append(job)
                return
            left -= 1
            if left <= 0:
                cut.set()
            if self._ranker is not None:
                self._ranker.observe(job.ref.family, max(len(row.token_ids) for row in job.rows))
            async with one_at_a_time:
                await deliver(job)

        # One that fails must not leave the others running behind our back.
        ended = await asyncio.gather(
            *(finish(job) for job in (*jobs, *new)), return_exceptions=True
        )
        for error in ended:
            if error is not None:
                raise error
