"""Faults of every class in every loop of a node: each is counted and told, and all loops go on."""

from __future__ import annotations

import asyncio
import errno
import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest
from builders import quiet_snapshot
from in_memory import Sampler, World, small_settings, tiny
from structlog.testing import capture_logs
from virtual import virtual_time

from swarm_node.clock import Clock
from swarm_node.errors import (
    CheckpointError,
    ChildError,
    ConfigError,
    CoordinatorError,
    EngineError,
    HomeError,
    ModelError,
    RefusedError,
    StorageError,
    TrackerError,
    TransportError,
    WeightsError,
)
from swarm_node.node.loops import faults
from swarm_node.node.loops.faults import TOLD_SECONDS, GoOn, Told, decide
from swarm_node.node.loops.node import Node
from swarm_node.node.loops.supervisor import ALARMING, Supervisor
from swarm_node.node.loops.workers import Workers
from swarm_node.node.metrics.health import findings
from swarm_node.p2p.exchange.discovery import FEW
from swarm_node.p2p.reach.reachability import Outcome
from swarm_node.simulation.virtual_time import VirtualTimeLoop

#: The errors that end no loop, and the part that each counts against.
PASSING = {
    TransportError("the network daemon died"): "network",
    RefusedError("no"): "network",
    CoordinatorError("it does not answer"): "coordinator",
    TrackerError("it ended"): "tracker",
    ChildError("the environment process died"): "environment",
    StorageError("node.db is in use by another process"): "storage",
    ModelError("another tokenizer"): "model",
    MemoryError(): "system",
    TimeoutError(): "timeout",
    OSError(errno.EMFILE, "Too many open files"): "system",
    OSError(errno.ENOSPC, "No space left on device"): "system",
    ConnectionResetError(): "system",
}
FINAL = (
    HomeError("node.db is damaged"),
    EngineError("it failed four times"),
    WeightsError("they cannot be written"),
    CheckpointError("damaged"),
    ConfigError("experience.local"),
    ValueError("a bug"),
    AssertionError(),
    KeyError("a bug"),
)
#: The errors that the loops get here, one of each class that ends none. The first two classes are
#: taken in different ways; all others as the second.
OTHER_CLASS = pytest.mark.nightly(reason="test_a_class_of_errors_passes_or_is_final has each class")
INJECTED = [
    pytest.param(
        kind("a fault"),
        marks=() if kind in (CoordinatorError, TransportError) else OTHER_CLASS,
        id=kind.__name__,
    )
    for kinds, *_ in faults.PASSING
    for kind in (kinds if isinstance(kinds, tuple) else (kinds,))
]

#: Loops that take an error as no fault of this node.
TAKEN = {CoordinatorError: {"coordinate"}}

PARTS = {type(error): part for error, part in PASSING.items()}


@dataclass(frozen=True)
class Place:
    """The call of a loop that fails: a method of the object that `of` returns. A step makes
    `at_once` of these calls at once."""

    of: Callable[[Node, Workers], Any]
    method: str
    at_once: int = 1


#: Each loop, and the call in it that reaches outside.
LOOPS = {
    "sample": Place(lambda node, work: work.maker, "make"),
    "train": Place(lambda node, work: node._parts.storage, "record_use"),
    "list": Place(lambda node, work: node._parts.storage, "prune"),
    "pull": Place(lambda node, work: work.exchange.puller, "pull"),
    "meet": Place(lambda node, work: work.connectivity._discovery, "send_heartbeat"),
    "repair": Place(lambda node, work: node._reaching, "heal"),
    "try": Place(lambda node, work: work.connectivity._discovery, "try_peer", FEW),
    "probe": Place(lambda node, work: node._parts.transport, "observed_address"),
    "relay": Place(lambda node, work: node._reaching, "keep"),
    "dial": Place(lambda node, work: node._dials, "check"),
    "link": Place(lambda node, work: node._reaching, "upgrade"),
    "punch": Place(lambda node, work: work.puncher, "_serve"),
    "coordinate": Place(lambda node, work: work.coordinator_loop, "_round"),
    "evaluate": Place(lambda node, work: work.evaluator, "measure"),
    "record": Place(lambda node, work: node._parts.history, "add"),
}


class Calls:
    """The calls of one method. From `fail` on, the next `left` raise `error`; `worked` counts the
    others."""

    def __init__(self, owner: Any, method: str) -> None:
        self._real = getattr(owner, method)
        self.error: Exception | None = None
        self.left = self.worked = 0
        is_async = asyncio.iscoroutinefunction(self._real)
        setattr(owner, method, self._later if is_async else self._now)

    def fail(self, error: Exception, times: int) -> None:
        self.error, self.left, self.worked = error, times, 0

    def _raise(self) -> None:
        if self.left:
            self.left -= 1
            raise self.error
        self.worked += 1

    def _now(self, *args: Any, **kwargs: Any) -> Any:
        self._raise()
        return self._real(*args, **kwargs)

    async def _later(self, *args: Any, **kwargs: Any) -> Any:
        self._raise()
        return await self._real(*args, **kwargs)


async def no_knock(host: str, port: int, source: str) -> Outcome:
    return "refused"


async def started(world: World) -> tuple[Node, list[asyncio.Task[Any]], dict[str, Calls]]:
    """A node that has every loop, beside a peer that shares groups, and the calls of its loops."""
    changes = {"experience__external": 1, "run__eval_seconds": 10.0}
    settings = small_settings(**changes, network__coordinator="http://127.0.0.1:9")
    # Hardly any work, because all that counts here is that it goes on.
    slow = [Sampler(tiny().sampler(), 0.1, 0, world.home(index)) for index in range(2)]
    node = world.node(settings, knock=no_knock, sampler=slow[0])
    quiet = small_settings(**changes)
    other = world.node(quiet, 1, sampler=slow[1])
    lives = [asyncio.create_task(each.run()) for each in (node, other)]
    while node._workers is None:  # noqa: ASYNC110 - its loops begin a moment later
        await asyncio.sleep(0)
    work = node._workers

    async def answer(snapshot: object) -> None:
        """A round with a coordinator that answers."""

    async def serve() -> None:
        """A connection that was passed on for a second."""
        await asyncio.sleep(1.0)

    work.coordinator_loop._round = answer  # type: ignore[method-assign]
    work.puncher._serve = serve  # type: ignore[method-assign]
    work.evaluator.rest = partial(asyncio.sleep, 5.0)  # type: ignore[method-assign]
    return node, lives, {name: Calls(at.of(node, work), at.method) for name, at in LOOPS.items()}


@pytest.mark.slow(reason="two nodes that learn for fifty virtual seconds, eight times")
@pytest.mark.parametrize("error", INJECTED)
@virtual_time
async def test_faults_of_every_loop_are_counted_and_told_and_all_loops_go_on(
    world: World, error: Exception, loop: VirtualTimeLoop
) -> None:
    part, hit = PARTS[type(error)], LOOPS.keys() - TAKEN.get(type(error), set())
    node, lives, calls = await started(world)
    assert LOOPS.keys() == node._loops().keys()
    await asyncio.sleep(10.0)
    before = node.snapshot().faults.get(part, 0)
    for name, each in calls.items():
        each.fail(error, 2 * LOOPS[name].at_once)
    with capture_logs() as told:
        await asyncio.sleep(40.0)
    assert not any(life.done() for life in lives)
    assert [name for name, each in calls.items() if each.left] == []
    assert [name for name, each in calls.items() if not each.worked] == []
    assert node.snapshot().faults[part] - before == 2 * len(hit)
    lines = [line for line in told if line["event"].startswith("a loop failed")]
    assert sorted(line["loop"] for line in lines) == sorted(hit)
    assert all("in 1 s" in line["outcome"] for line in lines)
    node.stop()
    await lives[0]
    lives[1].cancel()
    await asyncio.wait(lives)


@pytest.mark.parametrize("error", [HomeError("node.db is damaged"), ValueError("a bug")])
@virtual_time
async def test_an_error_that_is_final_ends_the_node(world: World, error: Exception) -> None:
    _, lives, calls = await started(world)
    await asyncio.sleep(5.0)
    calls["repair"].fail(error, 1)
    await asyncio.wait({lives[0]}, timeout=60.0)
    lives[1].cancel()
    await asyncio.wait(lives)
    raised = lives[0].exception()
    leaves = raised.exceptions if isinstance(raised, ExceptionGroup) else [raised]
    assert list(leaves) == [error]


def test_a_class_of_errors_passes_or_is_final() -> None:
    for error, part in PASSING.items():
        decided = decide(error, 0)
        assert isinstance(decided, GoOn), error
        assert decided.part == part
    for final in FINAL:
        assert not isinstance(decide(final, 0), GoOn), final
    assert decide(FINAL[0], 0) is None


def test_the_pause_grows_with_the_failures_in_a_row() -> None:
    pauses = [decide(TransportError("dead"), failures) for failures in range(6)]
    assert [each.pause for each in pauses if isinstance(each, GoOn)] == [1, 2, 4, 8, 15, 15]


@virtual_time
async def test_success_ends_the_row_and_a_cancelled_step_is_no_fault(loop: VirtualTimeLoop) -> None:
    outcomes: list[Exception | None] = [OSError(), OSError(), None, OSError()]
    counts: Counter[str] = Counter()
    alarms: dict[str, str] = {}
    begun: list[float] = []

    async def step() -> None:
        begun.append(loop.time())
        if not outcomes:
            await asyncio.sleep(math.inf)
        if (error := outcomes.pop(0)) is not None:
            raise error

    supervisor = Supervisor(counts, alarms, Clock(now=loop.time, wall=loop.time))
    living = asyncio.create_task(supervisor.repeat("feel", step))
    await asyncio.sleep(30.0)
    assert begun == [0.0, 1.0, 3.0, 3.0, 4.0]
    living.cancel()
    await asyncio.wait({living})
    assert living.cancelled()
    assert counts == {"system": 3}


@virtual_time
async def test_a_loop_that_fails_again_and_again_is_an_alarm_until_it_works() -> None:
    alarms: dict[str, str] = {}
    supervisor = Supervisor(Counter(), alarms, Clock(now=lambda: 0.0, wall=lambda: 0.0))

    async def fails() -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    async def works() -> None:
        pass

    for _ in range(ALARMING - 1):
        await supervisor.attempt("record", fails)
    assert alarms == {}
    await supervisor.attempt("record", fails)
    await supervisor.attempt("feel", works)
    assert "space left" in alarms["loop record"]
    assert "ulimit -n" in alarms["loop record"]
    await supervisor.attempt("record", works)
    assert alarms == {}


@virtual_time
async def test_the_words_of_an_alarm_are_not_taken_for_its_remedy() -> None:
    alarms: dict[str, str] = {}
    supervisor = Supervisor(Counter(), alarms, Clock(now=lambda: 0.0, wall=lambda: 0.0))

    async def fails() -> None:
        raise StorageError("cannot write node.db: the disk is full")

    for _ in range(ALARMING):
        await supervisor.attempt("record", fails)
    (said,) = [
        each for each in findings(quiet_snapshot(alarms=[*alarms.values()])) if each.kind == "alarm"
    ]
    assert said.text.endswith("is full)")
    assert said.remedy.startswith("free disk")


def test_a_cause_is_told_once_and_then_once_a_minute_with_its_count() -> None:
    told = Told()
    lines = [told.due("probe", "network", second) for second in range(0, 130, 10)]
    assert lines == [1, *[None] * 5, 6, *[None] * 5, 6]
    assert told.due("probe", "storage", 121.0) == 1
    assert told.due("mend", "network", 121.0) == 1
    assert TOLD_SECONDS == 60.0
