"""An event loop that never sleeps: when nothing is ready, its clock jumps to the next timer.

A simulated hour takes only the time to compute its events. The order of events depends on their
times alone. Without threads and input from outside, every run is the same.
"""

from __future__ import annotations

import asyncio
import selectors
import time
from collections import defaultdict
from collections.abc import Callable, Coroutine
from contextvars import Context, ContextVar
from typing import Any, TypeVar, TypeVarTuple

from swarm_node.errors import SwarmNodeError

_Arguments = TypeVarTuple("_Arguments")
_Loop = TypeVar("_Loop", bound="VirtualTimeLoop")
_Result = TypeVar("_Result")

#: The account that pays for the CPU time of the current task. A task that is started inherits it.
ACCOUNT: ContextVar[str] = ContextVar("swarm_node.simulation.account", default="")


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """`time()` starts at 0 and is virtual."""

    def __init__(self) -> None:
        self._now = 0.0
        super().__init__(_NeverSleeps(self._advance))

    def time(self) -> float:
        """Virtual seconds since the loop was made."""
        return self._now

    def _advance(self, seconds: float) -> None:
        self._now += seconds


class ChargingLoop(VirtualTimeLoop):
    """A virtual clock whose `spent_seconds()` is the CPU time of one account's callbacks.

    A request over the in-memory network is answered in the caller's task, so the caller pays for
    serving it. In a swarm of equal nodes each node pays the same in the end."""

    def __init__(self, cpu: Callable[[], float] = time.thread_time) -> None:
        self._cpu = cpu
        self._callback_start = cpu()
        self._account_seconds: defaultdict[str, float] = defaultdict(float)
        super().__init__()

    def spent_seconds(self) -> float:
        """CPU seconds charged to the current account, up to now; for use in a callback or task."""
        return self._account_seconds[ACCOUNT.get()] + self._cpu() - self._callback_start

    def call_soon(
        self,
        callback: Callable[[*_Arguments], object],
        *args: *_Arguments,
        context: Context | None = None,
    ) -> asyncio.Handle:
        """Schedule a callback. The ACCOUNT of its context pays for its CPU time."""

        def run_charged() -> None:
            self._callback_start = self._cpu()
            callback(*args)
            self._account_seconds[ACCOUNT.get()] += self._cpu() - self._callback_start

        return super().call_soon(run_charged, context=context)


class _NeverSleeps(selectors.DefaultSelector):
    def __init__(self, advance: Callable[[float], None]) -> None:
        super().__init__()
        self._advance = advance

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            raise SwarmNodeError(
                "the simulation stands still: every task waits for something that cannot happen"
            )
        if timeout > 0:
            self._advance(timeout)
        return super().select(0)


def run_virtual(main: Callable[[VirtualTimeLoop], Coroutine[Any, Any, _Result]]) -> _Result:
    """Run `main` to its end on a new virtual clock, as `asyncio.run` does on the real one.

    Raises:
        SwarmNodeError: `main` waits for something that no timer and no task can bring about.
    """
    return _run(VirtualTimeLoop, main)


def run_charging(main: Callable[[ChargingLoop], Coroutine[Any, Any, _Result]]) -> _Result:
    """Run `main` as `run_virtual` does, and charge CPU time to accounts."""
    return _run(ChargingLoop, main)


def _run(kind: type[_Loop], main: Callable[[_Loop], Coroutine[Any, Any, _Result]]) -> _Result:
    with asyncio.Runner(loop_factory=kind) as runner:
        loop = runner.get_loop()
        assert isinstance(loop, kind)
        return runner.run(main(loop))
