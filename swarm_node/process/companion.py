"""A program that runs beside this one. Whoever runs it starts it again when it ends."""

from __future__ import annotations

import asyncio
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final

from swarm_node.errors import SwarmNodeError
from swarm_node.process.leader import child_command

#: Seconds before one that ended is started again. It costs seconds of CPU time to start, and one
#: that needs the network may be without it for hours.
RESTART_SECONDS: Final = 60.0
#: It finishes what it does, such as an upload.
_END_SECONDS: Final = 20.0
_TAIL_BYTES: Final = 1 << 12


class Companion:
    """The interpreter with `arguments`, as a child process without a terminal. `failure` makes the
    error of its end, of the exit code and the last line that it wrote on stderr."""

    def __init__(
        self, arguments: Sequence[str], failure: Callable[[int, str], SwarmNodeError]
    ) -> None:
        self._arguments = arguments
        self._failure = failure
        self._process: Process | None = None

    async def step(self) -> None:
        """Start the program, after `RESTART_SECONDS` if it has run before, and wait until it ends.
        A cancelled step leaves it running.

        Raises:
            SwarmNodeError: it ended; see `failure`.
        """
        if self._process is not None:
            await asyncio.sleep(RESTART_SECONDS)
        self._process = process = await asyncio.create_subprocess_exec(
            *child_command(*self._arguments), stdin=DEVNULL, stdout=DEVNULL, stderr=PIPE
        )
        assert process.stderr is not None, "a pipe was asked for"
        tail = b""
        while chunk := await process.stderr.read(1 << 16):
            tail = (tail + chunk)[-_TAIL_BYTES:]
        code = await process.wait()
        lines = [line for line in tail.decode(errors="replace").splitlines() if line.strip()]
        raise self._failure(code, lines[-1] if lines else "")

    async def close(self) -> None:
        """End the program by SIGTERM, or kill it if it takes too long."""
        process, self._process = self._process, None
        if process is None or process.returncode is not None:
            return
        with suppress(ProcessLookupError):
            process.terminate()
        try:
            # It could not end while it waits for somebody to read what it writes.
            await asyncio.wait_for(process.communicate(), _END_SECONDS)
        except TimeoutError:
            with suppress(ProcessLookupError):
                process.kill()
            await process.wait()
