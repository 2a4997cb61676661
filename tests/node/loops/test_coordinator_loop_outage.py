"""Whole nodes on a virtual clock, and a real coordinator that is killed for an hour of it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from in_memory import Sampler, World, small_settings, tiny
from light_nodes import heartbeat

from coordinator.server import Options, serve
from swarm_node.node.loops.node import Node
from swarm_node.node.loops.peers.coordinator_client import CoordinatorClient
from swarm_node.p2p.coordinator import coordinator_api as api
from swarm_node.simulation.virtual_time import VirtualTimeLoop, run_virtual

_NODES = 3
_WARM, _OUTAGE, _BACK = 400.0, 3600.0, 60.0


class Outside:
    """A thread on the real clock that speaks HTTP. Virtual time stands while it is asked."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever)
        self._thread.start()

    def run(self, coroutine: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result(120)

    def close(self) -> None:
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(60)
        self.loop.close()


class Coordinator:
    """A real one, whose clock is that of the nodes. It keeps its port over a restart."""

    def __init__(self, outside: Outside, data: Path, world: World) -> None:
        self._outside, self._data, self._clock = outside, data, world.clock
        self.port = 0
        data.mkdir(mode=0o700)
        info = world.memberships[0].swarm
        self._swarm = data / "swarm.toml"
        self._swarm.write_text(f'name = "{info.name}"\nroot_key = "{info.root_key.hex()}"\n')

    def start(self) -> None:
        self._outside.run(self._start())

    def kill(self) -> None:
        self._outside.run(self._kill())

    async def _start(self) -> None:
        started: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        options = Options(self._swarm, self._data, ("127.0.0.1", self.port), clock=self._clock)
        running = serve(options, asyncio.Event(), lambda port, _: started.set_result(port))
        self._task = asyncio.create_task(running)
        self.port = await started

    async def _kill(self) -> None:
        self._task.cancel()
        await asyncio.wait({self._task})


@contextmanager
def _outside(monkeypatch: pytest.MonkeyPatch) -> Iterator[Outside]:
    """Nodes ask from there as long as this lasts."""
    outside = Outside()

    class Asking(CoordinatorClient):
        async def _call(self, *given: Any, **named: Any) -> Any:
            return outside.run(super()._call(*given, **named))

    monkeypatch.setattr("swarm_node.node.loops.peers.coordinator_loop.CoordinatorClient", Asking)
    try:
        yield outside
    finally:
        outside.close()


@dataclass(frozen=True)
class Seen:
    """What three nodes did in the hour, and what the coordinator shows a minute after it."""

    updates: list[int]
    received: list[int]
    rows: list[api.MemberRow]
    introduced: int
    back: float


def _live(place: Path, monkeypatch: pytest.MonkeyPatch, *, kill: bool) -> Seen:
    place.mkdir()

    async def scenario(loop: VirtualTimeLoop) -> Seen:
        world = World(place, loop, _NODES)
        coordinator = Coordinator(outside, place / "coordinator", world)
        coordinator.start()
        url = f"http://127.0.0.1:{coordinator.port}"
        settings = small_settings(
            network__coordinator=url, network__poll_seconds=10.0, experience__external=2
        )
        nodes = [_node(world, settings, index) for index in range(_NODES)]
        lives = [asyncio.create_task(node.run()) for node in nodes]
        await asyncio.sleep(_WARM)
        if kill:
            coordinator.kill()
        before = [_done(node) for node in nodes]
        await asyncio.sleep(_OUTAGE)
        after = [_done(node) for node in nodes]
        back = world.clock.wall()
        if kill:
            coordinator.start()
        await asyncio.sleep(_BACK)
        member = world.memberships[0]
        client = CoordinatorClient(
            url, (member.identity, member.swarm.swarm_id, lambda: member.chain), world.clock.wall
        )
        shown = outside.run(client._call("GET", "/members", api.MemberRows))
        presence = heartbeat(member, world.clock.wall(), f"/memory/p2p/{member.identity.peer_id}")
        others = outside.run(client.introduce(api.Introduction(presence))).peer_records
        for life in lives:
            life.cancel()
        await asyncio.wait(lives)
        coordinator.kill()
        return Seen(
            [b[0] - a[0] for a, b in zip(before, after, strict=True)],
            [b[1] - a[1] for a, b in zip(before, after, strict=True)],
            shown.rows,
            len(others),
            back,
        )

    with _outside(monkeypatch) as outside:
        return run_virtual(scenario)


def _node(world: World, settings: Any, index: int) -> Node:
    sampler = Sampler(tiny().sampler(), 2.0, 0, world.home(index))
    return world.node(settings, index, sampler=sampler)


def _done(node: Node) -> tuple[int, int]:
    """Updates and groups received, so far."""
    now = node.snapshot()
    return now.steps, now.groups.accepted


@pytest.mark.nightly(reason="test_coordinator_processes.py has a node do without it")
@pytest.mark.slow(reason="three whole nodes for two hours of virtual time")
def test_an_hour_without_the_coordinator_costs_no_update_and_a_minute_brings_the_picture_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = _live(tmp_path / "kept", monkeypatch, kill=False)
    killed = _live(tmp_path / "killed", monkeypatch, kill=True)
    for with_it, without in zip(kept.updates, killed.updates, strict=True):
        assert without >= 0.95 * with_it > 20
    assert min(killed.received) > 20, "they go on to share"
    for seen in (kept, killed):
        assert len(seen.rows) == _NODES
        assert seen.introduced == _NODES - 1
    for row in killed.rows:
        assert row.introduced
        assert row.reported >= killed.back
        assert row.steps > 20
