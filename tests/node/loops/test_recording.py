"""The lines that a node logs about its work."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import groupby
from pathlib import Path
from typing import Any

import msgspec
import pytest
from in_memory import Sampler, World, living, small_settings, tiny
from structlog.testing import capture_logs
from virtual import virtual_time

from swarm_node.errors import HomeError
from swarm_node.node.loops.node import Node
from swarm_node.node.loops.reporting.recording import Recorder
from swarm_node.node.metrics.history import HistoryRow, MetricsFile
from swarm_node.node.metrics.snapshot import EvalPoint
from swarm_node.p2p.peers.causes import Cause, advice, text_here

REVOKED = Cause("revoked", "12D3KooWalice", "alice")


@virtual_time
async def test_the_log_tells_the_verdict_once_it_is_another_one(world: World) -> None:
    settings = small_settings()
    slow = Sampler(tiny().sampler(), 5.0, 0, world.home())
    node = world.node(settings, sampler=slow)
    with capture_logs() as lines:
        async with living(node):
            await asyncio.sleep(60)
            node._tally.groups.sampled += 7  # it samples slowly, and has made none
            node._tally.groups.announced += 3
            node._shared_state.directory.failures.record_failure(REVOKED, world.clock.now())
            node._tally.rejected.update({"rerun_mismatch": 2, "unreachable": 1, "window": 1})
            await asyncio.sleep(60)
            latest = node.snapshot().latest
    assert (latest.rejected, latest.rerun_mismatch, latest.turns) == (3, 2, None)
    alone, revoked = [line for line in lines if line["event"] == "health"]
    assert (alone["kind"], alone["log_level"]) == ("unvisited", "info")
    assert (revoked["kind"], revoked["log_level"]) == ("revoked", "warning")
    assert revoked["sentence"] == f"{text_here(REVOKED)} → {advice(REVOKED)}"
    progress = [line for line in lines if line["event"] == "progress"]
    verdicts = [(line["health"], line["health_level"]) for line in progress]
    assert [each for each, _ in groupby(verdicts)] == [("unvisited", "good"), ("revoked", "bad")]
    assert (progress[-1]["sampled"], progress[-1]["announced"]) == (7, 3)
    assert progress[-1]["sentence"].endswith("revoked (bad)")


@virtual_time
async def test_what_happens_to_peers_is_logged_for_the_page(world: World) -> None:
    settings = small_settings()
    slow = [Sampler(tiny().sampler(), 5.0, 0, world.home(n)) for n in range(2)]
    one, other = (world.node(settings, n, sampler=slow[n]) for n in range(2))
    async with living(one):
        async with living(other):
            await asyncio.sleep(30)
        await asyncio.sleep(80)
        seen = one.events().rows
    assert [row.kind for row in seen] == ["left", "joined"]
    assert {row.peer_id for row in seen} == {world.memberships[1].identity.peer_id}


@asynccontextmanager
async def recording(world: World, **changes: Any) -> AsyncIterator[tuple[Node, Recorder]]:
    """A node that does not run, and what records it."""
    node = world.node(small_settings(), **changes)
    yield node, Recorder(node._parts, node._shared_state, node.snapshot)
    await node.close()


POINT = EvalPoint(1.0, 3, 0.5, 0.5, None, {"gcd": 0.5}, train=0.75, split_version=1)


@virtual_time
async def test_a_measurement_makes_one_row_and_is_logged_until_the_next(world: World) -> None:
    points = [POINT, msgspec.structs.replace(POINT, train=None)]
    async with recording(world) as (node, recorder):
        with capture_logs() as lines:
            for point in points:
                node._tally.evals.append(point)
                for _ in range(16):
                    await recorder.step()
        rows = node._parts.history.since(0.0)
    assert [(row.eval_reward, row.eval_reward_train) for row in rows] == [
        ({"gcd": 0.5}, 0.75),
        ({"gcd": 0.5}, None),
    ]
    assert [line["eval_reward_train"] for line in lines if line["event"] == "progress"] == [
        0.75,
        None,
    ]


async def test_a_disk_that_is_full_is_counted_and_ends_no_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Full(MetricsFile):
        def append(self, row: HistoryRow) -> None:
            raise HomeError("the disk is full")

    monkeypatch.setattr("swarm_node.node.loops.reporting.recording._TICK_SECONDS", 0.0)
    world = World(tmp_path, asyncio.get_running_loop())  # threads do not run on a virtual clock
    async with recording(world, metrics=Full(tmp_path / "metrics.jsonl")) as (node, recorder):
        for number in (1, 2):
            node._tally.evals.append(msgspec.structs.replace(POINT, version=number))
            await recorder.step()
        assert node.snapshot().faults["metrics"] == 2
