"""A swarm of a few exchanges on the in-memory network."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from exchange_sides import Side

from swarm_node.clock import SYSTEM_CLOCK
from swarm_node.node.home.home import Home
from swarm_node.p2p.membership.ticket import parse_ticket
from swarm_node.p2p.transports.memory import MemoryNetwork


@pytest.fixture
def in_swarm(tmp_path: Path) -> Callable[..., None]:
    """Run a coroutine function with `count` started sides of one swarm."""

    def run(body: Callable[..., Awaitable[None]], count: int = 2) -> None:
        owner, now = Home(tmp_path / "0"), SYSTEM_CLOCK.wall()
        memberships = [owner.found_swarm("test", now)]
        ticket = owner.invite([], now=now, valid_seconds=3600, member_seconds=3600)
        homes = [owner, *(Home(tmp_path / str(index)) for index in range(1, count))]
        memberships += [home.join_swarm(parse_ticket(ticket, now), now) for home in homes[1:]]

        async def main() -> None:
            network = MemoryNetwork(random.Random(1), patience=0.1)
            sides = [Side(h, network, m) for h, m in zip(homes, memberships, strict=True)]
            for side in sides:
                await side.start()
            for side in sides:
                await side.exchange.meeting.beat(0, 20.0)
            await body(network, *sides)
            for side in sides:
                await side.stop()

        asyncio.run(main())

    return run
