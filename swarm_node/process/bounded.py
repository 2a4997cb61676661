"""Run a program for its output, within bounds of time and size."""

from __future__ import annotations

import os
import selectors
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import IO, cast

MOST_BYTES = 1 << 20


def bounded_run(
    command: Sequence[str],
    seconds: float,
    env: Mapping[str, str] | None = None,
    max_bytes: int = MOST_BYTES,
) -> subprocess.CompletedProcess[bytes]:
    """`subprocess.run` with output captured, for a program that may hang or never stop printing. It
    and its descendants are killed after `seconds` at the latest. It gets the variables `env`, by
    default this process's.

    Raises:
        OSError: it cannot be run.
        subprocess.SubprocessError: it took too long, or printed more than `max_bytes`.
    """
    deadline = time.monotonic() + seconds
    with subprocess.Popen(  # noqa: S603 - no shell
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
        env=env,
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        try:
            output, complaint = _read(
                (process.stdout, process.stderr), deadline, command[0], max_bytes
            )
            process.wait(max(deadline - time.monotonic(), 0.1))
        finally:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
    return subprocess.CompletedProcess(command, process.returncode, output, complaint)


def _read(pipes: Sequence[IO[bytes]], deadline: float, name: str, max_bytes: int) -> list[bytes]:
    """All that comes from the pipes until they are closed."""
    parts = {pipe: bytearray() for pipe in pipes}
    with selectors.DefaultSelector() as selector:
        for pipe in pipes:
            selector.register(pipe, selectors.EVENT_READ)
        while selector.get_map():
            events = selector.select(max(deadline - time.monotonic(), 0.0))
            if not events:
                raise subprocess.SubprocessError(f"{name} does not answer")
            for key, _ in events:
                pipe, data = cast(IO[bytes], key.fileobj), os.read(key.fd, 1 << 16)
                parts[pipe] += data
                if not data:
                    selector.unregister(pipe)
                elif len(parts[pipe]) > max_bytes:
                    raise subprocess.SubprocessError(f"{name} prints without end")
    return [bytes(part) for part in parts.values()]
