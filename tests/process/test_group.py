"""Whatever ends a child ends all that it started: real processes, killed in every way."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from obedient import Echo, Echoed, Helper, Named, Share, Started

from swarm_node.errors import ChildError
from swarm_node.process import LEADER, Child
from swarm_node.process import leader as leader_program

CONCURRENT = True

#: A node that starts a child, has it start a helper, and asks it for what blocks it.
NODE = """
import asyncio, os
import obedient
from obedient import Helper, Started, Wait, Waited
from swarm_node.process import Child

async def main():
    child = Child("engine", "obedient", obedient.Reply)
    await child.start("in-order")
    helper = (await child.call(Helper(), Started, patience=60)).pid
    print(child.pid, helper, flush=True)
    await child.call(Wait(600), Waited, patience=600)

asyncio.run(main())
"""
ENDS = ["stopped", "killed from outside"]
LINUX = pytest.mark.skipif(sys.platform != "linux", reason="other kernels tell nobody of a death")

pytestmark = pytest.mark.slow(reason="processes are killed and waited for")


def ended(*pids: int) -> bool:
    """Whether all of these processes end soon; one that waits for init to take note has ended."""
    deadline = time.monotonic() + 20
    while any(map(_runs, pids)) and time.monotonic() < deadline:
        time.sleep(0.02)
    return not any(map(_runs, pids))


def _runs(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def group_of(leader: int) -> list[int]:
    return [pid for pid in psutil.pids() if _group(pid) == leader]


def tracked_group(leader: int) -> list[int]:
    """The group once Python's tracker of shared memory, which was forked, is what it will be."""
    while True:
        group = group_of(leader)
        parts = [part for pid in group for part in psutil.Process(pid).cmdline()]
        if any("resource_tracker" in part for part in parts):
            return group
        time.sleep(0.01)


def in_shared_memory(name: str) -> bool:
    return Path("/dev/shm", name).exists()


def _group(pid: int) -> int | None:
    try:
        return os.getpgid(pid)
    except ProcessLookupError:
        return None


async def end(child: Child, how: str, grace: float = 3.0) -> None:
    """End a child in one of the `ENDS`."""
    if how == "stopped":
        await child.stop(grace)
    else:
        os.kill(child.pid, signal.SIGKILL)


def test_a_silent_child_is_killed_with_its_helpers(with_child) -> None:
    async def body(child: Child) -> None:
        helper = psutil.Process((await child.call(Helper(), Started, patience=20)).pid)
        pid = child.pid
        os.kill(pid, signal.SIGSTOP)
        with pytest.raises(ChildError, match="not answer"):
            await child.call(Echo(), Echoed, patience=0.5)
        assert child.pid is None
        assert not psutil.pid_exists(pid)
        gone, _ = psutil.wait_procs([helper], timeout=5)
        assert gone or helper.status() == psutil.STATUS_ZOMBIE

    with_child(body)


@pytest.mark.parametrize("how", ENDS)
def test_a_child_that_ends_leaves_nothing_of_its_group(with_child, how: str) -> None:
    async def body(child: Child) -> None:
        helper = (await child.call(Helper(), Started, patience=20)).pid
        leader = child.pid
        group = group_of(leader)
        assert {leader, helper} <= set(group)
        await end(child, how)
        assert await asyncio.to_thread(ended, *group)

    with_child(body)


@LINUX
@pytest.mark.parametrize("how", ENDS)
def test_a_killed_child_leaves_no_shared_memory(with_child, how: str) -> None:
    """An engine of several processes has 250 MB of it."""

    async def body(child: Child) -> None:
        name = (await child.call(Share(), Named, patience=20)).name
        assert in_shared_memory(name)
        leader = child.pid
        group = await asyncio.to_thread(tracked_group, leader)
        await end(child, how, grace=0.0)
        assert await asyncio.to_thread(ended, *group)
        assert not in_shared_memory(name)

    with_child(body)


@LINUX
@pytest.mark.parametrize("how", ENDS)
def test_a_process_with_the_command_of_a_tracker_is_killed_after_all(with_child, how: str) -> None:
    async def body(child: Child) -> None:
        asked = Helper("multiprocessing.resource_tracker")
        helper = (await child.call(asked, Started, patience=20)).pid
        leader = child.pid
        await end(child, how, grace=0.0)
        assert await asyncio.to_thread(ended, leader, helper)

    with_child(body)


@LINUX
def test_a_signal_to_the_guard_alone_ends_nothing(with_child) -> None:
    async def body(child: Child) -> None:
        await child.call(Echo(1), Echoed, patience=20)
        leader = child.pid
        (guard,) = set(group_of(leader)) - {leader}
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGUSR1):
            os.kill(guard, number)
        assert (await child.call(Echo(1), Echoed, patience=20)).value == 1
        assert psutil.pid_exists(guard)

    with_child(body)


def test_a_child_whose_parent_is_gone_does_not_begin() -> None:
    """It may have died while the child's first program started."""
    leader = [sys.executable, "-I", "-S", leader_program.__file__]
    program = ["-c", f"import os; print('ran', os.environ['{LEADER}'] == str(os.getpid()))"]
    for parent, said in ((os.getpid(), "ran True\n"), (1 << 30, "")):
        done = subprocess.run([*leader, str(parent), *program], stdout=subprocess.PIPE, text=True)
        assert (done.stdout, done.returncode) == (said, 0 if said else 1)


@LINUX
def test_a_killed_node_leaves_nothing_that_its_children_started() -> None:
    """The child is blocked meanwhile, as an engine is that waits for its core to start."""
    search = os.pathsep.join(filter(None, sys.path))
    with subprocess.Popen(
        [sys.executable, "-c", NODE],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": search},
        text=True,
    ) as node:
        child, helper = map(int, node.stdout.readline().split())
        group = group_of(child)
        assert {child, helper} <= set(group)
        node.kill()
    assert ended(*group)
