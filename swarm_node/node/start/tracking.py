"""The tracker of a node (`run.track`): `swarm-node track` in a process beside it."""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING, Final

from swarm_node.errors import ConfigError, TrackerError, extra_of
from swarm_node.node.home.home import Home
from swarm_node.program.commands import printable

if TYPE_CHECKING:
    from swarm_node.process.companion import Companion

_MESSAGE_CHARS: Final = 300


def require_tracker(tracker: str, setting: str = "") -> None:
    """Check that the package of `tracker` is installed; "": none is used. Imports nothing. The
    message begins with the `setting` that names the tracker, if one does.

    Raises:
        ConfigError: it is not.
    """
    if tracker and find_spec(tracker) is None:
        text = f"{tracker} is not installed"
        raise ConfigError(f"{setting}: {text}" if setting else text, f"run {extra_of(tracker)}")


def make_tracker(tracker: str, home: Home) -> Companion | None:
    """Make the process that logs the node's metrics to `tracker`, None for "". Rows that it has
    not logged when it ends are logged by the next one."""
    if not tracker:
        return None
    from swarm_node.process.companion import Companion

    command = ["-m", "swarm_node", "track", tracker, f"--home={home.path}", f"--into={home.runs}"]
    return Companion(
        command,
        lambda code, line: TrackerError(
            f"{tracker} ended with exit code {code}: {printable(line)[:_MESSAGE_CHARS]}"
        ),
    )
