"""SIGHUP: a request to read the settings again, or the loss of this node's terminal."""

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
    """Return the handler of a node that is starting now. When a terminal hangs up, the kernel makes
    its descriptors fail before it sends the signal. A node that has lost its terminal stops."""
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
