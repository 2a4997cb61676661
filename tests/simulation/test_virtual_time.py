"""The virtual clock: order by time, no waiting, no standing still, CPU time to whom it belongs."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swarm_node.errors import SwarmNodeError
from swarm_node.simulation.virtual_time import ACCOUNT, ChargingLoop, VirtualTimeLoop, run_virtual


@given(st.lists(st.floats(0.0, 1e6), max_size=20))
def test_sleepers_wake_in_the_order_of_their_times(delays: list[float]) -> None:
    woken: list[float] = []

    async def sleep(delay: float) -> None:
        await asyncio.sleep(delay)
        woken.append(delay)

    async def main(loop: VirtualTimeLoop) -> float:
        await asyncio.gather(*map(sleep, delays))
        return loop.time()

    end = run_virtual(main)
    assert woken == sorted(delays)
    assert end == pytest.approx(max(delays, default=0.0))


def test_a_timeout_ends_what_never_happens() -> None:
    async def main(loop: VirtualTimeLoop) -> float:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(3600):
                await asyncio.Event().wait()
        return loop.time()

    assert run_virtual(main) == pytest.approx(3600)


def test_a_deadlock_is_an_error_and_not_a_hang() -> None:
    async def main(loop: VirtualTimeLoop) -> None:
        await asyncio.Event().wait()

    with pytest.raises(SwarmNodeError, match="stands still"):
        run_virtual(main)


def test_cpu_time_is_charged_to_the_account_of_a_task_and_its_children() -> None:
    ticks = iter(range(10**9))  # a CPU clock on which every look takes a second

    async def spend(account: str, looks: int) -> float:
        ACCOUNT.set(account)

        async def child() -> None:
            for _ in range(looks):
                next(ticks)

        await asyncio.gather(child(), child())
        return loop.spent_seconds()

    loop = ChargingLoop(cpu=lambda: float(next(ticks)))
    try:

        async def both() -> list[float]:
            return await asyncio.gather(spend("busy", 1000), spend("idle", 0))

        busy, idle = loop.run_until_complete(both())
    finally:
        loop.close()
    assert 2000 <= busy < 2100
    assert idle < 100
