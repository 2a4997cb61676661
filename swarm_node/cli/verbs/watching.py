"""`swarm-node samples`, `top` and `logs`: look at the running node."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import Generator
from contextlib import suppress
from pathlib import Path
from typing import IO, Annotated, Any

import typer

from swarm_node.cli.home import ask, chosen_home, require_running, show
from swarm_node.cli.options import HomeOption, JsonOption
from swarm_node.errors import HomeError, SwarmNodeError

_POLL_SECONDS = 0.3


def samples(home: HomeOption = None, json: JsonOption = False) -> None:
    """Show completions of the running node and its peers, with their rewards.

    For each family: the first local completion since the start, the newest one, and the newest
    correct one of a peer. Control characters in completions never reach the terminal.
    """

    async def both(client: Any) -> Any:
        return await client.samples(), await client.status()

    report, snapshot = ask(home, both)
    from swarm_node.cli.views.samples_view import samples_view

    show(json, report, lambda: samples_view(report.samples, snapshot.peers))


def top(home: HomeOption = None) -> None:
    """Watch the running node in the live view of `join`. q or Ctrl-C leaves it running."""
    from rich.console import Console

    console = Console(highlight=False)
    if not console.is_terminal:
        raise SwarmNodeError(
            "top draws on a terminal", "use `swarm-node status`, or `swarm-node logs --follow`"
        )
    require_running(home)
    from swarm_node.cli.views.live import watch
    from swarm_node.node.control.control import ControlClient

    client = ControlClient(chosen_home(home).control_file)
    try:
        asyncio.run(watch(console, client.status))
    except KeyboardInterrupt:
        return


def logs(
    home: HomeOption = None,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Go on with new lines until Ctrl-C.")
    ] = False,
    lines: Annotated[int, typer.Option("--lines", "-n", min=0, help="How many at first.")] = 50,
    json: JsonOption = False,
) -> None:
    """Show the log of this data directory's node, running or not."""
    from swarm_node.durable import Journal
    from swarm_node.program.logs import MAX_LOG_BYTES, line_of

    place = chosen_home(home)
    journal = Journal(place.log, MAX_LOG_BYTES)
    log_lines = [*journal.lines()]
    if not log_lines and not follow:
        raise HomeError(f"{place.path} has no log: `swarm-node join` writes it")
    try:
        for line in log_lines[len(log_lines) - min(lines, len(log_lines)) :]:
            typer.echo(line_of(line, json))
        for line in _newer(place.log) if follow else ():
            typer.echo(line_of(line, json))
            sys.stdout.flush()
    except KeyboardInterrupt:
        return


def _newer(path: Path) -> Generator[bytes]:
    """Yield the lines written into a log from now on. The log may be rotated at any time."""
    file: IO[bytes] | None = None
    with suppress(FileNotFoundError):
        file = path.open("rb")
        file.seek(0, os.SEEK_END)
    try:
        while True:
            line = file.readline() if file is not None else b""
            if line:
                yield line
                continue
            with suppress(FileNotFoundError):  # one log is moved away, and the next not there yet
                if file is None or _is_rotated(path, file):
                    next_file = path.open("rb")
                    if file is not None:
                        file.close()
                    file = next_file
                    continue
            time.sleep(_POLL_SECONDS)
    finally:
        if file is not None:
            file.close()


def _is_rotated(path: Path, file: IO[bytes]) -> bool:
    """Check that `path` is another file than `file`, or was cut.

    Raises:
        FileNotFoundError: there is no file at `path` now.
    """
    state = path.stat()
    return state.st_ino != os.fstat(file.fileno()).st_ino or state.st_size < file.tell()
