"""Progress of a node's start, run and end; this implementation writes log lines."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path

import msgspec
import structlog

from swarm_node.node.metrics.snapshot import Ended, Snapshot
from swarm_node.node.preflight.first_lines import Line
from swarm_node.program.commands import with_home
from swarm_node.program.logs import SENTENCE

_log = structlog.get_logger(__name__)


def end_text(end: Ended, home: Path | None = None) -> str:
    """Describe the end of a node for its owner, with the next command, in a `home` or the usual
    one."""
    if not end.stored:
        return (
            f"step {end.steps:,} finished, but the checkpoint could not be stored: the next "
            "start continues from the one before"
        )
    commands = with_home("Go on: swarm-node join · Take it: swarm-node export DIR", home)
    return f"step {end.steps:,} finished, checkpoint stored ({end.seconds:.1f} s). {commands}"


class NodeProgress(AbstractContextManager[None]):
    """Shows progress as log lines. `cli/views/live.py` draws on a terminal instead."""

    #: True if it draws: then only warnings are worth a log line beside it.
    draws = False
    #: The node's home, if commands have to name it.
    home: Path | None = None

    def __enter__(self) -> None:
        return None

    def __exit__(self, *_: object) -> None:
        return None

    def step(self, name: str) -> None:
        """Show that the start has come to this part."""
        _log.info("starting", part=name)

    def show_complete(self) -> None:
        """Show that the start is complete."""

    def naming_home(self, lines: Sequence[Line]) -> list[Line]:
        """The lines with `home` in their commands."""
        return [line._replace(text=with_home(line.text, self.home)) for line in lines]

    def tell(self, lines: Sequence[Line]) -> None:
        """Show lines about the start."""
        for line in self.naming_home(lines):
            fields = {SENTENCE: " ".join(line.text.split("\n"))}
            (_log.warning if line.warning else _log.info)(line.event, **line.fields, **fields)

    def attach(
        self,
        loop: asyncio.AbstractEventLoop,
        snapshot: Callable[[], Snapshot],
        stop: Callable[[], None],
    ) -> None:
        """Show a node that runs in `loop`; `stop` ends it."""

    def detach(self) -> None:
        """Show the node no more."""

    def show_end(self, end: Ended) -> None:
        """Show that the node ended as it should."""
        _log.info("stopped", **msgspec.structs.asdict(end), sentence=end_text(end, self.home))
