"""A program that runs beside this one, and is started again when it ends."""

from __future__ import annotations

import asyncio
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Final

from swarm_node.process.leader import led

#: One that needs the network may be without it for hours.
RESTART_SECONDS: Final = 60.0
#: It finishes what it does, such as an upload.
_END_SECONDS: Final = 20.0
_TAIL_BYTES: Final = 1 << 12


@asynccontextmanager
async def companion(
    arguments: Sequence[str], on_exit: Callable[[int, str], object]
) -> AsyncIterator[None]:
    """Run the interpreter with `arguments` until the block ends; then the program gets SIGTERM.
    When it ends before that, `on_exit` gets its exit code and the last line that it wrote on
    stderr, and it is started again after `RESTART_SECONDS`."""
    stopping = asyncio.Event()
    # No task group: it would wrap what the block raises.
    task = asyncio.create_task(_keep_running(arguments, on_exit, stopping))
    try:
        yield
    finally:
        stopping.set()
        await task


async def _keep_running(
    arguments: Sequence[str], on_exit: Callable[[int, str], object], stopping: asyncio.Event
) -> None:
    while not stopping.is_set():
        # No terminal: it could ask there for a password, beside the node's own lines.
        process = await asyncio.create_subprocess_exec(
            *led(*arguments), stdin=DEVNULL, stdout=DEVNULL, stderr=PIPE
        )
        line = await _wait(process, stopping)
        if not stopping.is_set():
            on_exit(process.returncode or 0, line)
            with suppress(TimeoutError):
                await asyncio.wait_for(stopping.wait(), RESTART_SECONDS)


async def _wait(process: Process, stopping: asyncio.Event) -> str:
    """Wait until a program ends, and end it once `stopping` is set. Return its last line."""
    reading = asyncio.create_task(_last_line(process))
    stop = asyncio.create_task(stopping.wait())
    try:
        await asyncio.wait({reading, stop}, return_when=asyncio.FIRST_COMPLETED)
        if not reading.done():
            process.terminate()
            await asyncio.wait({reading}, timeout=_END_SECONDS)
    finally:
        stop.cancel()
        with suppress(ProcessLookupError):
            process.kill()
        await process.wait()
        # What it started may hold the pipe open where no guard ends it.
        await asyncio.wait({reading}, timeout=1.0)
        reading.cancel()
    return reading.result() if reading.done() and not reading.cancelled() else ""


async def _last_line(process: Process) -> str:
    """Read what a program writes on stderr to its end, and keep the last line that has text."""
    assert process.stderr is not None, "a pipe was asked for"
    tail = b""
    while chunk := await process.stderr.read(1 << 16):
        tail = (tail + chunk)[-_TAIL_BYTES:]
    lines = [line for line in tail.decode(errors="replace").splitlines() if line.strip()]
    return lines[-1] if lines else ""
