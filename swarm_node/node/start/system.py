"""Exchanges of a start with the operating system.

SIGHUP is a request to read the settings again, or the loss of this node's terminal. A service
manager is told by the protocol of sd_notify(3): one datagram to a Unix socket.
"""

from __future__ import annotations

import os
import socket
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


def notify(state: str) -> None:
    """Send `state`, such as "READY=1", to the socket in NOTIFY_SOCKET. Without one, do nothing.

    A failure to send is logged and does not stop the node: the manager decides what follows.
    """
    path = os.environ.get("NOTIFY_SOCKET", "")
    if not path.startswith(("/", "@")):
        return
    address = "\0" + path[1:] if path.startswith("@") else path  # Linux's abstract names
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as client:
            client.sendto(state.encode(), address)
    except OSError as error:
        _log.warning("the service manager does not listen", socket=path, error=str(error))
