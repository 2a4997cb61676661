"""A control API without a node behind it, for tests and the benchmark of the page."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from builders import quiet_snapshot

from swarm_node.node.control.control import ControlServer
from swarm_node.node.metrics.history import HistoryReport

if TYPE_CHECKING:
    from swarm_node.node.loops.openai_requests import OpenAIRequests


def control_server(file: Path, **changes: Any) -> ControlServer:
    """A server with its address in `file`. It answers as `changes` say, and what they leave out as
    a node without history that nobody may ask for anything."""

    def unasked(*_: object) -> Any:
        raise AssertionError("nobody asks for this")

    known: dict[str, Any] = {
        "snapshot": quiet_snapshot,
        "history": lambda since: HistoryReport(1, []),
        "network": unasked,
        "evaluate": unasked,
        "ping": unasked,
        "stop": unasked,
        "reload": unasked,
    }
    return ControlServer(file, **{**known, **changes})


@asynccontextmanager
async def serving(place: Path, **changes: Any) -> AsyncIterator[ControlServer]:
    """The same, started, in `control.json` of a directory."""
    server = control_server(place / "control.json", **changes)
    await server.start()
    try:
        yield server
    finally:
        await server.close()


@asynccontextmanager
async def serving_openai(place: Path, sampled: bool = True) -> AsyncIterator[OpenAIRequests]:
    """A started server that answers OpenAI's clients as a node does with the tiny model. Unless it
    is `sampled`, requests wait."""
    from trained_homes import TINY

    from swarm_node.node.control.openai import OpenAIServer
    from swarm_node.node.loops.openai_requests import OpenAIRequests
    from swarm_node.policy.models.text.codec import Codec
    from swarm_node.policy.sampling.torch_sampler import TorchSampler  # imports torch

    codec = Codec.from_directory(TINY)
    sampler = TorchSampler.from_directory(TINY, codec=codec, threads=1)
    guests = OpenAIRequests(sampler, share=1.0)
    server = OpenAIServer(guests, codec, model="tiny", token_limit=lambda: 24)

    async def loop() -> None:
        while sampled:
            await guests.step()

    async with asyncio.TaskGroup() as group, serving(place, openai=server):
        task = group.create_task(loop())
        yield guests
        task.cancel()
    await sampler.close()
