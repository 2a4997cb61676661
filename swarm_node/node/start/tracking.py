"""The tracker of a node (`run.track`): `swarm-node track` in a process beside it."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager, nullcontext
from importlib.util import find_spec
from pathlib import Path
from typing import Final

import structlog

from swarm_node.errors import ConfigError, extra_of
from swarm_node.program.commands import printable

_MESSAGE_CHARS: Final = 300
_log = structlog.get_logger(__name__)


def require_tracker(tracker: str) -> None:
    """Check that the package of `tracker` is installed; "": none is used. Imports nothing.

    Raises:
        ConfigError: it is not.
    """
    if tracker and find_spec(tracker) is None:
        raise ConfigError(f"run.track: {tracker} is not installed", f"run {extra_of(tracker)}")


def tracker_directory(home: Path) -> Path:
    """Return the directory of the tracker's files in the data directory `home`."""
    return home / "runs"


def tracking(tracker: str, home: Path) -> AbstractAsyncContextManager[None]:
    """Run the tracker, if any, until the block ends. What it has not logged by then is logged at
    the next start. Its failures delay nothing."""
    if not tracker:
        return nullcontext()
    from swarm_node.process.companion import RESTART_SECONDS, companion

    def on_exit(code: int, line: str) -> None:
        _log.warning(
            "the tracker ended and will be started again",
            tracker=tracker,
            code=code,
            message=printable(line)[:_MESSAGE_CHARS],
            seconds=RESTART_SECONDS,
        )

    command = ["-m", "swarm_node", "track", tracker, f"--home={home}"]
    return companion([*command, f"--into={tracker_directory(home)}"], on_exit)
