"""Tells a scoring worker that sleeps of its own will from one that this machine does not run.

A text can make its scoring worker sleep, which uses no processor time. The kernel tells the state
of each thread: one that starves is runnable, one that waits for a disk or was stopped has other
states. Elsewhere than on Linux no scoring worker is known to sleep."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path
from typing import Final, Self

_SLEEPING, _ENDED = b"S", b"Z"
#: Seconds between two looks are drawn, so that a text cannot be awake for just those moments.
_PAUSE: Final = (0.1, 0.4)


def asleep(pid: int) -> bool:
    """Check that every thread of a process that has not ended sleeps, until something happens."""
    states = set()
    try:
        for thread in Path(f"/proc/{pid}/task").iterdir():
            # The name before the last bracket is the process's own choice.
            states.add((thread / "stat").read_bytes().rpartition(b")")[2].split()[0])
    except (OSError, IndexError):  # it ended meanwhile, or this is not Linux
        return False
    return _SLEEPING in states and states <= {_SLEEPING, _ENDED}


class SleepLimit:
    """Ends the timeout `deadline` early, once the process has slept for `max_seconds` of it."""

    def __init__(self, pid: int, max_seconds: float, deadline: asyncio.Timeout) -> None:
        self._pid, self._left, self._deadline = pid, max_seconds, deadline
        self._rng = random.SystemRandom()
        self._loop = asyncio.get_running_loop()

    @property
    def is_reached(self) -> bool:
        return self._left <= 0

    def __enter__(self) -> Self:
        self._wait()
        return self

    def __exit__(self, *_: object) -> None:
        self._timer.cancel()

    def _wait(self) -> None:
        pause = self._rng.uniform(*_PAUSE)
        self._timer = self._loop.call_later(pause, self._look, pause)

    def _look(self, pause: float) -> None:
        # A pause counts as it was planned: this node may have been stopped for longer.
        if asleep(self._pid):
            self._left -= pause
        if self.is_reached:
            self._deadline.reschedule(self._loop.time())
        else:
            self._wait()
