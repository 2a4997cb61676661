"""Judgement of answers, the node's own and those of peers, in the environment's process."""

from __future__ import annotations

from collections.abc import Sequence

import structlog

from swarm_node.clock import Clock
from swarm_node.environments.host import EnvironmentHost, Judgement, Whose
from swarm_node.errors import SlowTaskError
from swarm_node.node.loops.parts import Tally
from swarm_node.p2p.limits.budgets import Effort
from swarm_node.rollout import TaskRef

_log = structlog.get_logger(__name__)


class Judging:
    """Has texts judged, counts the scorer's faults, and charges the time to the texts' author."""

    def __init__(
        self, environment: EnvironmentHost, tally: Tally, effort: Effort, clock: Clock
    ) -> None:
        self._environment = environment
        self._tally = tally
        self._effort = effort
        self._clock = clock
        self._told_of_raising = False

    async def own(self, ref: TaskRef, texts: Sequence[str]) -> Judgement:
        """Judge this node's own texts.

        Raises:
            ChildError: the environment's process cannot be kept alive.
        """
        judged = await self._judge(ref, texts, "own")
        self._effort.judged_own(judged.seconds, self._clock.now())
        return judged

    async def of_peer(self, ref: TaskRef, texts: Sequence[str], author: str) -> Judgement:
        """Judge the texts of the peer `author`.

        Raises:
            SlowTaskError: they took too long, which counts against their author.
            ChildError: the environment's process cannot be kept alive.
        """
        try:
            judged = await self._judge(ref, texts, "peers")
        except SlowTaskError as slow:
            self._effort.judged(author, slow.seconds, self._clock.now())
            raise
        # Several groups are judged at once. The time that one waits for others is not counted.
        self._tally.judging.add(judged.seconds, 1)
        self._effort.judged(author, judged.seconds, self._clock.now())
        if judged.unjudged:
            self._tally.faults[f"judge_{judged.unjudged}"] += 1
        return judged

    async def _judge(self, ref: TaskRef, texts: Sequence[str], whose: Whose) -> Judgement:
        judged = await self._environment.judge(ref, texts, whose)
        if judged.faults:
            self._tally.faults[f"scorer_{judged.fault_reason}"] += judged.faults
        if judged.raised and not self._told_of_raising:
            self._told_of_raising = True
            _log.warning(
                "the environment's score() raised on an answer, which counts as wrong (told once)",
                family=ref.family,
                raised=judged.raised,
            )
        return judged
