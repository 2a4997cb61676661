"""A process that sleeps of its own will is told from one that the machine does not run."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import psutil
import pytest

from swarm_node.environments.workers.sleep_detection import SleepLimit, asleep

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="states of threads are Linux's")

SLEEPS = "import time; print(flush=True); time.sleep(60)"
SPINS = "print(flush=True)\nwhile True: pass"
WAITS_FOR_A_THREAD = """
import threading
thread = threading.Thread(target=lambda: exec("while True: pass"), daemon=True)
thread.start()
print(flush=True)
thread.join()
"""
#: The state of a program's first thread while it does what it is for.
STATES = {
    SLEEPS: psutil.STATUS_SLEEPING,
    SPINS: psutil.STATUS_RUNNING,
    WAITS_FOR_A_THREAD: psutil.STATUS_SLEEPING,
}


@contextmanager
def running(code: str) -> Iterator[int]:
    child = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    assert child.stdout is not None
    try:
        child.stdout.readline()
        deadline = time.monotonic() + 60
        while psutil.Process(child.pid).status() != STATES[code]:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        yield child.pid
    finally:
        child.kill()
        child.wait()
        child.stdout.close()


@pytest.mark.slow(reason="starts processes")
@pytest.mark.parametrize(
    ("code", "expected"), [(SLEEPS, True), (SPINS, False), (WAITS_FOR_A_THREAD, False)]
)
def test_only_a_process_of_which_every_thread_sleeps_is_asleep(code: str, expected: bool) -> None:
    with running(code) as pid:
        assert {asleep(pid) for _ in range(20)} == {expected}


def test_a_stopped_process_and_one_that_ended_do_not_sleep() -> None:
    with running(SLEEPS) as pid:
        os.kill(pid, signal.SIGSTOP)
        os.waitid(os.P_PID, pid, os.WSTOPPED)
        assert not asleep(pid)
        os.kill(pid, signal.SIGKILL)
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        assert not asleep(pid)
    assert not asleep(pid)


@pytest.mark.slow(reason="waits for a process that sleeps")
@pytest.mark.parametrize(
    ("code", "patience", "slept"), [(SLEEPS, 600.0, True), (SPINS, 0.8, False)]
)
def test_the_limit_ends_the_patience_with_who_sleeps(
    code: str, patience: float, slept: bool
) -> None:
    async def main(pid: int) -> bool:
        ending = asyncio.timeout(patience)
        limit = SleepLimit(pid, 0.5, ending)

        async def wait() -> None:
            async with ending:
                with limit:
                    await asyncio.Event().wait()

        with pytest.raises(TimeoutError):
            await wait()
        return limit.is_reached

    with running(code) as pid:
        assert asyncio.run(main(pid)) == slept


@pytest.mark.slow(reason="stands still for most of a second")
def test_no_sleep_counts_while_the_node_itself_did_not_run() -> None:
    async def main(pid: int) -> bool:
        ending = asyncio.timeout(60.0)
        with SleepLimit(pid, 0.5, ending) as limit:
            await asyncio.sleep(0)
            time.sleep(0.8)  # noqa: ASYNC251 - as a node that was stopped
            await asyncio.sleep(0.05)
            return limit.is_reached

    with running(SLEEPS) as pid:
        assert not asyncio.run(main(pid))
