"""The supervisor of a node's loops. A fault that is not the end is counted, logged, and the loop
goes on after a pause. `faults.py` decides."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable

import structlog

from swarm_node.clock import Clock
from swarm_node.node.loops.faults import GoOn, Told, decide

#: One round of a loop, with the pause after it.
Step = Callable[[], Awaitable[object]]
_log = structlog.get_logger(__name__)


class Supervisor:
    """Runs the steps of loops. `faults` gets the counts by part."""

    def __init__(self, faults: Counter[str], clock: Clock) -> None:
        self._faults = faults
        self._clock = clock
        self._failures: Counter[str] = Counter()
        self._told = Told()

    async def repeat(self, loop: str, step: Step) -> None:
        """Take one step after the other until cancelled, or until an error that is final."""
        while True:
            await self.attempt(loop, step)

    async def attempt(self, loop: str, step: Step) -> None:
        """Take one step of a loop. After a fault that is not the end, pause.

        Raises:
            Exception: the step's, if no loop can go on after it.
        """
        try:
            await step()
        except Exception as error:
            decided = decide(error, self._failures[loop])
            if not isinstance(decided, GoOn):
                if decided is error:
                    raise
                raise decided from error
            self._failures[loop] += 1
            self._note(loop, decided, error)
            await asyncio.sleep(decided.pause)
        else:
            self._failures.pop(loop, None)

    def _note(self, loop: str, decided: GoOn, error: Exception) -> None:
        self._faults[decided.part] += 1
        count = self._told.due(loop, decided.part, self._clock.now())
        if count is not None:
            _log.warning(
                "a loop of this node failed and goes on",
                loop=loop,
                error=str(error) or type(error).__name__,
                then=decided.then,
                times=count,
            )
