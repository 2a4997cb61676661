"""Transports that tests start, and what they are asked."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncGenerator, Callable
from pathlib import Path
from typing import Any

from swarm_node.p2p.addresses import circuit
from swarm_node.p2p.reach.transport import ReachingTransport
from swarm_node.p2p.transports.hivemind.transport import HivemindTransport
from swarm_node.p2p.wire.identity import Identity
from swarm_node.p2p.wire.transport import Transport

ECHO = "/swarm-node/echo/1"
SIZED = "/swarm-node/sized/1"
#: Seconds for what must succeed: beside much other work the usual patience may not do.
PATIENT = 60.0
#: The first start of all imports the stack, too.
_START_SECONDS = 240.0


async def echo(peer: str, payload: bytes) -> bytes:
    return payload


async def sized(peer: str, payload: bytes) -> bytes:
    """As many bytes as the request says."""
    return bytes(int(payload))


async def dial_stated(one: ReachingTransport, other: ReachingTransport) -> int:
    """Let `one` dial `other` at what it states of itself, as a greeting does."""
    return await one.dial(
        circuit.complete_circuits(circuit.advertised_addresses(other.addresses()), other.peer_id)
    )


def hivemind(place: Path, identity: Identity | None = None, **settings: Any) -> HivemindTransport:
    """A transport on loopback with `settings`. All that name none are of one swarm."""
    identity = identity or Identity.generate()
    usual: dict[str, Any] = {
        "swarm_id": bytes(32),
        "secret": b"the secret of this swarm",
        "listen": ["/ip4/127.0.0.1/tcp/0"],
        "state_dir": place / identity.peer_id,
        "rng": random.Random(0),
    }
    return HivemindTransport(identity, **{**usual, **settings})


@contextlib.asynccontextmanager
async def running(*transports: Transport) -> AsyncGenerator[None]:
    try:
        async with asyncio.timeout(_START_SECONDS):
            for one in transports:
                await one.start()
        yield
    finally:
        for one in transports:
            await one.stop()


async def until(holds: Callable[[], bool]) -> None:
    """Wait for what comes in its own time; the test's limit ends a wait in vain."""
    while not holds():  # noqa: ASYNC110 - there is no event for it
        await asyncio.sleep(0.01)
