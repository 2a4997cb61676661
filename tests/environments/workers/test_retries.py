"""Faults of the own machine while honest texts of a peer are judged: real processes, real signals.

Nobody may be blamed for one, and every text is scored in the end.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import resource
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator, Sequence
from pathlib import Path

import psutil
import pytest
from lasting import started

from swarm_node.environments.host import ProcessEnvironmentHost
from swarm_node.environments.scores import GroupScores
from swarm_node.environments.splits.split import with_split
from swarm_node.environments.workers import processes
from swarm_node.errors import UnknownTaskError
from swarm_node.rollout import TaskRef

#: Takes a moment and some memory for each text, so that a fault comes in the middle.
HONEST = """
import os, time

from swarm_node.environments.base import Task


class Honest:
    name, version, families = "honest", "1", ("one",)

    def derive(self, ref):
        return Task(ref, ref.seed)

    def render(self, task):
        return f"say {task.payload}"

    def score(self, task, text):
        held = bytearray(16 << 20)
        time.sleep(0.01)
        return float(text == str(task.payload)) if len(held) else 0.0


def create(slow_start=""):
    if os.path.exists(slow_start):
        time.sleep(1.0)
    return Honest()
"""
REF = TaskRef("honest", with_split("1"), "one", 7)
TEXTS, REWARDS = ["7", "8", "7", ""], (1.0, 0.0, 1.0, 0.0)
LINUX = sys.platform == "linux"
pytestmark = pytest.mark.skipif(not LINUX, reason="limits of other processes are Linux's")


class Machine:
    """A host whose processes faults befall."""

    def __init__(self, directory: Path) -> None:
        self.slow = directory / "slow"
        self.host = ProcessEnvironmentHost(
            "honest_environment:create",
            {"slow_start": str(self.slow)},
            derive_seconds=0.3,
            score_seconds=0.3,
        )

    async def pid(self, part: str) -> int:
        """The process id of a part, as soon as it runs."""
        while (pid := self.host.pids[part]) is None:  # noqa: ASYNC110 - nothing tells of it
            await asyncio.sleep(0.001)
        return pid

    async def send(self, number: int, part: str = "scoring_peers") -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(await self.pid(part), number)

    async def limit(self, which: int, limit: int, part: str = "scoring_peers") -> None:
        with contextlib.suppress(ProcessLookupError):
            resource.prlimit(await self.pid(part), which, (limit, limit))

    async def killed(self) -> None:
        await self.send(signal.SIGKILL)

    async def ended(self) -> None:
        await self.send(signal.SIGTERM)

    async def crashed(self) -> None:
        await self.send(signal.SIGSEGV)

    async def timer(self) -> None:
        await self.send(signal.SIGPROF)

    async def other_timer(self) -> None:
        await self.send(signal.SIGVTALRM)

    async def stopped(self) -> None:
        await self.send(signal.SIGSTOP)

    async def stopped_for_a_moment(self) -> None:
        await self.send(signal.SIGSTOP)
        await asyncio.sleep(0.3)
        await self.send(signal.SIGCONT)

    async def environment_killed(self) -> None:
        await self.send(signal.SIGKILL, "environment")

    async def environment_stopped(self) -> None:
        await self.send(signal.SIGSTOP, "environment")
        await self.send(signal.SIGKILL)

    async def judge_without_memory(self) -> None:
        await self.limit(resource.RLIMIT_AS, 1 << 20)

    async def judge_without_descriptors(self) -> None:
        await self.limit(resource.RLIMIT_NOFILE, 1)

    async def parent_without_memory(self) -> None:
        """Its judges inherit the limit, so no fresh one has more."""
        room = psutil.Process(await self.pid("environment")).memory_info().vms + (8 << 20)
        await self.limit(resource.RLIMIT_AS, room, "environment")
        await self.killed()

    async def slow_start(self) -> None:
        self.slow.touch()
        await self.environment_killed()

    async def pipe_closed(self) -> None:
        await self.pid("scoring_peers")
        await asyncio.sleep(0)  # its streams are opened as soon as it is known
        if (streams := self.host._scoring_workers["peers"]._streams) is not None:
            streams[1].transport.abort()

    async def node_without_descriptors(self) -> None:
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (1, hard))
        try:
            await self.killed()
            await asyncio.sleep(0.3)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))

    async def mended(self) -> None:
        """End what a fault has left behind."""
        self.slow.unlink(missing_ok=True)
        await self.send(signal.SIGKILL, "environment")


FAULTS: Sequence[Callable[[Machine], Awaitable[None]]] = (
    *(Machine.killed, Machine.ended, Machine.crashed, Machine.timer, Machine.other_timer),
    *(Machine.stopped, Machine.stopped_for_a_moment, Machine.pipe_closed, Machine.slow_start),
    *(Machine.environment_killed, Machine.environment_stopped, Machine.parent_without_memory),
    *(Machine.judge_without_memory, Machine.judge_without_descriptors),
    Machine.node_without_descriptors,
)


@pytest.fixture
def machine(
    importable: Callable[[str, str], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Machine:
    importable("honest_environment", HONEST)
    monkeypatch.setattr(processes, "_FORK_SECONDS", 3.0)
    return Machine(tmp_path)


async def score(machine: Machine) -> GroupScores:
    return await machine.host.score(REF, TEXTS, "peers")


def blames(judged: GroupScores | BaseException) -> bool:
    """Check for anything that a peer would be refused for."""
    if isinstance(judged, BaseException):
        assert isinstance(judged, UnknownTaskError), judged
        return True
    return bool(judged.loss_reason) or (judged.rewards != REWARDS and not judged.unscored)


async def blamed_for(machine: Machine, count: int, seed: int) -> list[str]:
    """Names of the faults, of so many drawn ones, for which a peer was blamed."""
    rng, blamed = random.Random(seed), []
    async with started(machine.host):
        for index in range(count):
            # Every kind comes, and then any.
            fault = FAULTS[index] if index < len(FAULTS) else rng.choice(FAULTS)
            delay = rng.uniform(0.0, 0.05)
            if rng.random() < 0.5:
                await machine.host._scoring_workers["peers"].close()  # it befalls a fresh judge

            async def befall(
                fault: Callable[[Machine], Awaitable[None]] = fault, delay: float = delay
            ) -> None:
                await asyncio.sleep(delay)
                await fault(machine)

            judged, _ = await asyncio.gather(score(machine), befall(), return_exceptions=True)
            if blames(judged):
                blamed.append(fault.__name__)
            if isinstance(judged, BaseException) or judged.unscored:
                await machine.mended()
            machine.slow.unlink(missing_ok=True)
            after = await score(machine)
            if after.unscored:  # the fault came after the first one was judged
                await machine.mended()
                after = await score(machine)
            assert after.rewards == REWARDS, (fault.__name__, after, judged)
    return blamed


@pytest.mark.slow(reason="waits faults out")
def test_a_slice_of_single_faults_of_the_own_machine_blames_nobody(machine: Machine) -> None:
    assert asyncio.run(blamed_for(machine, len(FAULTS), seed=0)) == []


@pytest.mark.nightly(reason="a campaign, of which the test above is a slice")
@pytest.mark.slow(reason="a hundred faults, of which some are waited out")
@pytest.mark.timeout(1200)
def test_a_hundred_single_faults_of_the_own_machine_blame_nobody(machine: Machine) -> None:
    assert asyncio.run(blamed_for(machine, 100, seed=1)) == []


@pytest.mark.slow(reason="a judge is killed and forked again, eight times")
async def test_honest_texts_are_scored_although_their_judge_is_killed_again_and_again(
    machine: Machine,
) -> None:
    killed: set[int] = set()
    scored = 0

    async def kill() -> None:
        rng = random.Random(2)
        while len(killed) < 8:
            await asyncio.sleep(rng.uniform(0.02, 0.15))
            pid = await machine.pid("scoring_peers")
            await machine.send(signal.SIGKILL)
            killed.add(pid)

    async with started(machine.host):
        async with asyncio.TaskGroup() as group:
            killing = group.create_task(kill())
            while not killing.done():
                judged = await score(machine)
                assert judged.loss_reason == ""
                assert judged.rewards == REWARDS or judged.unscored == "killed"
                scored += not judged.unscored
        assert (await score(machine)).rewards == REWARDS
    assert len(killed) == 8
    assert scored > 0


@contextlib.contextmanager
def busy_core(loops: int) -> Iterator[int]:
    """A core with so many endless loops on it; its number."""
    core = min(os.sched_getaffinity(0))
    endless = [sys.executable, "-c", "while True: pass"]
    spinning = [subprocess.Popen(endless) for _ in range(loops)]
    try:
        for process in spinning:
            os.sched_setaffinity(process.pid, {core})
        yield core
    finally:
        for process in spinning:
            process.kill()
            process.wait()


@pytest.mark.nightly(reason="shares one core with endless loops; single faults are tried above")
@pytest.mark.slow(reason="shares one core with endless loops")
async def test_a_judge_on_a_starved_core_blames_nobody(machine: Machine) -> None:
    async with started(machine.host):
        with busy_core(3) as core:
            environment = await machine.pid("environment")
            os.sched_setaffinity(environment, {core})
            os.setpriority(os.PRIO_PROCESS, environment, 19)
            await machine.host._scoring_workers["peers"].close()
            for _ in range(3):
                judged = await score(machine)
                assert judged.loss_reason == ""
                assert judged.rewards == REWARDS or judged.unscored
        await machine.mended()
        assert (await score(machine)).rewards == REWARDS
