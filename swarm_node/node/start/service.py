"""Notifications to a service manager: the protocol of sd_notify(3), one datagram to a Unix
socket."""

from __future__ import annotations

import os
import socket

import structlog

_log = structlog.get_logger(__name__)


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
