"""Sets the wall clock of nodes ahead or back while they share groups, and puts it right again.

    PYTHONPATH=tests python -m campaigns.clocks

Two nodes of real parts run on the in-memory network. A clock jumps for fifteen seconds, of one node
or of both. No node may end, none may lose a stored group, and afterwards both must go on to take
groups of the other.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import logging
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import structlog
from in_memory import World, small_settings

from swarm_node.clock import Clock
from swarm_node.node.loops.node import Node
from swarm_node.node.start.assembly import assemble
from swarm_node.simulation.seeded import EPOCH
from swarm_node.simulation.virtual_time import VirtualTimeLoop, run_virtual
from swarm_node.storage import Storage

HOUR, YEAR = 3600.0, 365.25 * 86_400
JUMPS = {"+1 h": HOUR, "-1 h": -HOUR, "+10 y": 10 * YEAR, "-10 y": -10 * YEAR, "-60 s": -60.0}
#: Virtual seconds.
_BEFORE, _WRONG, _UNDER_WAY, _AFTER = 12, 15, 4, 60


class Pair:
    """Two nodes, each with a clock that can be set."""

    def __init__(self, place: Path, loop: VirtualTimeLoop) -> None:
        self._loop = loop
        self._world = World(place, loop, members=2)
        self._settings = small_settings(experience__external=1)
        self.ahead = [0.0, 0.0]
        self.lives = [self._begin(index) for index in range(2)]

    def _begin(self, index: int) -> tuple[Node, asyncio.Task[None]]:
        def wall() -> float:
            return EPOCH + self._loop.time() + self.ahead[index]

        world = self._world
        storage = Storage(world.home(index) / "node.db", wall=wall, threads=False)
        storage.begin_epoch()
        parts = world.parts(self._settings, index, storage=storage)
        parts = replace(parts, clock=Clock(now=self._loop.time, wall=wall))
        node = assemble(self._settings, world.memberships[index], parts)
        return node, asyncio.create_task(node.run())

    async def set(self, index: int, ahead: float, *, start_anew: bool) -> None:
        """Set one clock. With `start_anew`, its node is stopped and started with it."""
        self.ahead[index] = ahead
        if start_anew:
            await _end(*self.lives[index])
            self.lives[index] = self._begin(index)

    def taken(self) -> list[int]:
        """Groups that each node has taken of the other in its life."""
        return [node.snapshot().groups.accepted for node, _ in self.lives]

    async def wait(self, seconds: int, until: list[int] | None = None) -> list[int]:
        """Live on, at most until both have taken more than `until`. Return what they have taken."""
        for _ in range(seconds):
            await asyncio.sleep(1)
            for _, life in self.lives:
                if life.done():
                    life.result()
                    raise AssertionError("a node ended")
            if until is not None and all(a > b for a, b in zip(self.taken(), until, strict=True)):
                break
        return self.taken()


def jump(
    place: Path, seconds: float, nodes: tuple[int, ...], *, start_anew: bool = False
) -> list[tuple[int, int, int]]:
    """Let the clocks of `nodes` jump, and jump back. For each node the groups that it had taken
    before, at the end of the wrong time, and at the end; a node that starts anew counts anew."""

    async def scenario(loop: VirtualTimeLoop) -> list[tuple[int, int, int]]:
        pair = Pair(place, loop)
        before = await pair.wait(_BEFORE)
        for index in nodes:
            await pair.set(index, seconds, start_anew=start_anew)
        wrong = await pair.wait(_WRONG)
        for index in nodes:
            await pair.set(index, 0.0, start_anew=start_anew)
        then = await pair.wait(_UNDER_WAY)
        after = await pair.wait(_AFTER, until=then)
        for node, life in pair.lives:
            await _end(node, life)
        if any(last <= earlier for last, earlier in zip(after, then, strict=True)):
            raise AssertionError(f"sharing does not go on: {before}, {wrong}, {then}, {after}")
        return list(zip(before, wrong, after, strict=True))

    return run_virtual(scenario)


async def _end(node: Node, life: asyncio.Task[None]) -> None:
    node.stop()
    await life


def main() -> int:
    argparse.ArgumentParser(description=__doc__).parse_args()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    defects = 0
    ways = itertools.product(JUMPS.items(), ((0,), (0, 1)), (False, True))
    for (name, seconds), nodes, start_anew in ways:
        how = f"{name:6} {'both' if len(nodes) == 2 else 'one node'}{', restarted' * start_anew}"
        try:
            with tempfile.TemporaryDirectory() as place:
                told = str(jump(Path(place), seconds, nodes, start_anew=start_anew))
        except Exception as error:  # noqa: BLE001 - every one is what this program looks for
            defects, told = defects + 1, f"DEFECT {type(error).__name__}: {error}"
        print(f"{how:28} {told}", flush=True)
    print(f"{4 * len(JUMPS)} jumps, {defects} defects")
    return min(1, defects)


if __name__ == "__main__":
    sys.exit(main())
