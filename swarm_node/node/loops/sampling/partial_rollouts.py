"""Partial rollouts: groups from an engine that interleaves many, each delivered when complete.

A sampling batch begins more groups than its target (`OVER_PROVISION`) and ends when the
target is complete. It keeps the tokens, log-probs and versions of the interrupted groups, and the
next sampling batch resumes them first (APRIL, arXiv 2509.18521). So no place in the engine idles
until the longest answer of a batch has ended.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

from swarm_node.policy.experience.slots import OVER_PROVISION, provision
from swarm_node.policy.sampling.sampler import InterruptibleSampler, Row, SampleRequest
from swarm_node.rollout import TaskRef


@dataclass(slots=True, eq=False)
class PendingGroup:
    """A group whose sampling has begun; `rows` are its completions so far, empty at first."""

    ref: TaskRef
    prompt: str
    request: SampleRequest
    rows: list[Row] = field(default_factory=list)

    @property
    def complete(self) -> bool:
        return bool(self.rows) and all(row.finish is not None for row in self.rows)

    @property
    def version(self) -> int:
        """Return the policy version of its oldest token."""
        return min((span.version for row in self.rows for span in row.spans), default=0)


class PartialRollouts:
    """Runs sampling batches and keeps the groups that they interrupt."""

    def __init__(
        self,
        sampler: InterruptibleSampler,
        max_staleness: int,
        over_provision: float = OVER_PROVISION,
    ) -> None:
        """A row with a token more than `max_staleness` policy versions old is sampled again."""
        self._sampler = sampler
        self._over_provision = over_provision
        self._max_staleness = max_staleness
        self._waiting: list[PendingGroup] = []

    @property
    def interrupted_groups(self) -> tuple[PendingGroup, ...]:
        """Return the groups that the next sampling batch resumes."""
        return tuple(self._waiting)

    async def gather(
        self,
        target: int,
        begin_groups: Callable[[int], Awaitable[list[PendingGroup]]],
        deliver: Callable[[PendingGroup], Awaitable[None]],
    ) -> None:
        """Complete `target` groups, or a few more. `begin_groups(n)` returns up to n new groups.
        `deliver` takes the complete ones, one at a time.

        Raises:
            SwarmNodeError: from the sampler, `begin_groups` or `deliver`.
        """
        new = await begin_groups(provision(target, self._over_provision, len(self._waiting)))
        resumed, self._waiting = self._waiting, []
        for group in resumed:
            group.rows = still_fresh(group.rows, self._sampler.version, self._max_staleness)
        stop_event, one_at_a_time = asyncio.Event(), asyncio.Lock()
        left = target

        async def finish(group: PendingGroup) -> None:
            nonlocal left
            group.rows = await self._sampler.complete(group.request, group.rows, stop_event)
            if not group.complete:
                self._waiting.append(group)
                return
            left -= 1
            if left <= 0:
                stop_event.set()
            async with one_at_a_time:
                await deliver(group)

        # When one group fails, the others still run to their end before the error is raised.
        results = await asyncio.gather(
            *(finish(group) for group in (*resumed, *new)), return_exceptions=True
        )
        for error in results:
            if error is not None:
                raise error


def still_fresh(rows: Sequence[Row], version: int, max_staleness: int) -> list[Row]:
    """Return the rows to resume at policy `version`. A row starts again from nothing if its oldest
    token is more than `max_staleness` versions old: its group would be too stale to train on."""
    return [
        Row.empty() if row.spans and version - row.spans[0].version > max_staleness else row
        for row in rows
    ]
