"""SIGHUP: somebody wants the settings read again, or the terminal of this node is gone."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress

import structlog

from swarm_node.config.reloading import Reloaded
from swarm_node.errors import ConfigError

_STREAMS = (0, 1, 2)
_log = structlog.get_logger(__name__)


def on_hangup(reload: Callable[[], Reloaded], stop: Callable[[], None]) -> Callable[[], None]:
    """The handler of a node that is starting now. A kernel that hangs a terminal up makes its
    descriptors fail before it sends the signal; a node without its terminal stops."""
    terminals = [number for number in _STREAMS if os.isatty(number)]

    def hung_up() -> None:
        if all(map(os.isatty, terminals)):
            with suppress(ConfigError):  # `reload` logged it
                reload()
            return
        null = os.open(os.devnull, os.O_RDWR)
        for number in terminals:
            if number:  # who reads from it is told of the end by the kernel
                os.dup2(null, number)
        os.close(null)
        _log.info("stopping: the terminal is gone")
        stop()

    return hung_up
