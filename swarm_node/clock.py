"""Time as an object that components are given, so a swarm can run on a virtual clock."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Clock:
    """`now` is monotonic seconds, for timers. `wall` is Unix seconds, for times that people and
    certificates state. To wait, use `asyncio.sleep`, which follows the loop's time."""

    now: Callable[[], float]
    wall: Callable[[], float]


SYSTEM_CLOCK = Clock(now=time.monotonic, wall=time.time)
