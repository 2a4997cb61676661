"""Time as an object made in one place, so that a whole swarm can run on a virtual clock."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Clock:
    """`now` is monotonic seconds for every timer; `wall` is Unix seconds, only for what people and
    certificates state. Sleeping is `asyncio.sleep`, which follows the running loop's own time."""

    now: Callable[[], float]
    wall: Callable[[], float]


SYSTEM_CLOCK = Clock(now=time.monotonic, wall=time.time)
