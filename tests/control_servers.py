"""A control API without a node behind it, for tests and the benchmark of the page."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from builders import quiet_snapshot

from swarm_node.node.control.control import ControlServer
from swarm_node.node.metrics.history import HistoryReport


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
