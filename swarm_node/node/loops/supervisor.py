"""The supervisor of a node's loops. A fault that is not the end is counted, logged, and the loop
goes on after a pause. `faults.py` decides."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Final

import structlog

from swarm_node.clock import Clock
from swarm_node.errors import words_of
from swarm_node.node.loops.faults import GoOn, Told, decide

#: One round of a loop, with the pause after it.
Step = Callable[[], Awaitable[object]]
#: Failures in a row after which the owner is told.
ALARMING: Final = 3
_log = structlog.get_logger(__name__)


class Supervisor:
    """Runs the steps of loops. `faults` gets the counts by part, `alarms` a sentence on a loop that
    failed `ALARMING` times in a row, until a step of it succeeds."""

    def __init__(self, faults: Counter[str], alarms: dict[str, str], clock: Clock) -> None:
        self._faults = faults
        self._alarms = alarms
        self._clock = clock
        self._failures: Counter[str] = Counter()
        self._fault_log = Told()

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
            decision = decide(error, self._failures[loop])
            if decision is None:
                raise
            self._failures[loop] += 1
            self._note(loop, decision, error)
            await asyncio.sleep(decision.pause)
        else:
            self._failures.pop(loop, None)
            self._alarms.pop(f"loop {loop}", None)

    def _note(self, loop: str, decision: GoOn, error: Exception) -> None:
        self._faults[decision.part] += 1
        if self._failures[loop] >= ALARMING:
            reason = words_of(error).replace(": ", "; ")  # ": " begins the remedy of an alarm
            self._alarms[f"loop {loop}"] = (
                f"{loop} fails again and again ({reason}): {decision.remedy}"
            )
        count = self._fault_log.due(loop, decision.part, self._clock.now())
        if count is not None:
            _log.warning(
                "a loop failed and continues",
                loop=loop,
                error=words_of(error),
                outcome=decision.outcome,
                times=count,
            )
