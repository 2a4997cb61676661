"""Exchanges of a start with the operating system.

SIGHUP is a request to read the settings again, or the loss of this node's terminal. A service
manager is told by the protocol of sd_notify(3): one datagram to a Unix socket.

Threads of the loop are started at the beginning. Later memory may be short, and then `Thread.start`
can wait for ever for a thread that has died (https://github.com/python/cpython/issues/140746).
"""

from __future__ import annotations

import asyncio
import os
import socket
import sys
import threading
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import Any

import structlog

from swarm_node.config.reloading import Reloaded
from swarm_node.errors import ConfigError, reason_of

_STREAMS = (0, 1, 2)
#: Threads of the loop's default executor: as many as its own would have on a small machine.
_THREADS = 8
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
            if number:  # a read of stdin ends by itself
                os.dup2(null, number)
        os.close(null)
        _log.info("stopping: the terminal was closed")
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
        _log.warning("the service manager cannot be notified", socket=path, error=reason_of(error))


def run_loop(main: Coroutine[Any, Any, None]) -> None:
    """Run `main` as `asyncio.run` does, in a loop that starts no further thread."""
    with _no_thread_per_child(), asyncio.Runner() as runner:
        runner.get_loop().set_default_executor(_start_executor(_THREADS))
        runner.run(main)


@contextmanager
def _no_thread_per_child() -> Iterator[None]:
    if sys.version_info >= (3, 12) or not _has_pidfd():  # later versions do this by themselves
        yield
        return
    watcher = asyncio.get_child_watcher()
    asyncio.set_child_watcher(asyncio.PidfdChildWatcher())
    try:
        yield
    finally:
        asyncio.set_child_watcher(watcher)


def _has_pidfd() -> bool:
    if sys.platform != "linux":
        return False
    try:
        os.close(os.pidfd_open(os.getpid()))
    except (AttributeError, OSError):  # an older kernel, or a sandbox that forbids it
        return False
    return True


def _start_executor(threads: int) -> ThreadPoolExecutor:
    """Make an executor whose threads all run."""
    pool, all_run = ThreadPoolExecutor(threads, "asyncio"), threading.Barrier(threads + 1)
    for _ in range(threads):
        pool.submit(all_run.wait)
    all_run.wait()
    return pool
