"""Patience with the network daemon: the seconds that it has to start, and those of silence after
which it counts as stuck.

On a starved machine a live daemon is slow, and killing it makes it start again, slower still. So
both limits double with every start that is too slow and every false alarm. They shrink again while
the daemon answers:

| event | limits |
| --- | --- |
| `record_failure`: a start did not end in time | double |
| `record_false_alarm`: a daemon was silent, and its process lived | double: it may not be stuck |
| `record_answer`: quick, HEALTHY_SECONDS after the last change | half, at least the first ones |

Silence counts only while this node's own timers fire in time (`on_time`). A node that was stopped,
or that gets no processor, cannot tell that others are silent.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable
from typing import Final

from swarm_node.p2p.peers.liveness import DAEMON_SILENCE, DAEMON_START

#: Seconds of answers after which the limits may be halved.
HEALTHY_SECONDS: Final = 60.0
#: More doublings would change neither limit.
_MOST: Final = 7
#: Seconds between two looks at the delay of this node's timers.
TICK_SECONDS: Final = 0.25


class Patience:
    """The limits for one daemon, in seconds. Pure: callers pass the time."""

    def __init__(self) -> None:
        self._doublings = 0
        self._changed_at = 0.0

    @property
    def start(self) -> float:
        """The seconds for a start."""
        return DAEMON_START.after(self._doublings)

    @property
    def silence(self) -> float:
        """The seconds of silence after which a running daemon counts as stuck."""
        return DAEMON_SILENCE.after(self._doublings)

    def record_failure(self, now: float) -> None:
        """Note a start that did not end in time."""
        self._doublings = min(self._doublings + 1, _MOST)
        self._changed_at = now

    def record_false_alarm(self, now: float) -> None:
        """Note that a daemon whose process lived was given up."""
        self.record_failure(now)

    def record_answer(self, now: float, seconds: float) -> None:
        """Note an answer. A limit is not lowered below twice the time that the answer took."""
        if not self._doublings or now < self._changed_at + HEALTHY_SECONDS:
            return
        if 2.0 * seconds <= DAEMON_SILENCE.after(self._doublings - 1):
            self._doublings -= 1
            self._changed_at = now


@contextlib.asynccontextmanager
async def on_time(seconds: float, now: Callable[[], float]) -> AsyncGenerator[None]:
    """Limit a block as `asyncio.timeout` does, to `seconds` in which this node's timers fire in
    time: the limit moves by the delay of each.

    Raises:
        TimeoutError: the block took longer.
    """
    loop = asyncio.get_running_loop()
    async with asyncio.timeout(seconds) as limit:
        due_at = now() + TICK_SECONDS
        ticking: asyncio.TimerHandle

        def tick() -> None:
            nonlocal due_at, ticking
            delay, deadline = now() - due_at, limit.when()
            if deadline is not None and not limit.expired():
                limit.reschedule(deadline + max(0.0, delay))
            due_at = now() + TICK_SECONDS
            ticking = loop.call_later(TICK_SECONDS, tick)

        ticking = loop.call_later(TICK_SECONDS, tick)
        try:
            yield
        finally:
            ticking.cancel()
