"""The first program of every child: it ties a process group to the parent, then becomes the child.

    python -I -S leader.py PARENT ARGUMENT...

PARENT is the parent's process id. The program forks a guard, then replaces itself with the
interpreter and the ARGUMENTs. The kernel kills the child when the parent dies, but not what the
child started: an engine's core would keep the memory of the GPU. So the guard kills the child's
group when the child has ended. This module imports nothing of the package, so that it starts in
milliseconds.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import time
from contextlib import suppress

#: The environment variable with the child's process id, for what the child starts.
LEADER = "SWARM_CHILD_LEADER"
#: Parts of the command lines of processes that exit by themselves once the rest of the group is
#: gone: Python's resource tracker, which removes leaked shared memory, and the guard.
_ENDING = b"multiprocessing.resource_tracker", os.path.abspath(__file__).encode()
#: Seconds until they are killed too: code that a child runs may give itself such a command line.
_ENDING_SECONDS = 5.0
_PR_SET_PDEATHSIG = 1


def child_command(*arguments: str) -> list[str]:
    """Return the command of a child of this process: the interpreter's `arguments`, tied to it."""
    return [sys.executable, "-I", "-S", os.path.abspath(__file__), str(os.getpid()), *arguments]


def die_with_parent(parent: int) -> None:
    """Let the kernel kill this process when its parent, the process `parent`, dies; end it now if
    that has happened. Ignore Ctrl-C, which is for the node. A fork inherits only the last."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _on_parents_death(signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def kill_group(leader: int) -> None:
    """Kill what is in the process group `leader`, except the guard and Python's resource trackers.
    A tracker ends when those whose shared memory it tracks have: then it removes what they left,
    for which nobody else knows the names. The guard kills one that does not.

    Raises:
        ProcessLookupError, PermissionError: as `os.killpg`, where there is no /proc.
    """
    if not os.path.exists("/proc/self"):
        os.killpg(leader, signal.SIGKILL)
        return
    victims: set[int] = set()
    # Before it is the child, the leader has the guard's command.
    while members := {pid for pid in _members(leader) if pid == leader or not _ends(pid)} - victims:
        for pid in members:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        victims |= members  # others may have been forked meanwhile


def _members(leader: int) -> set[int]:
    """Process ids of the group."""
    pids = set()
    for pid in (int(name) for name in os.listdir("/proc") if name.isdigit()):
        with suppress(ProcessLookupError):
            if os.getpgid(pid) == leader:
                pids.add(pid)
    return pids


def _ends(pid: int) -> bool:
    """Check that a process exits by itself, by its command line."""
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as command:
            text = command.read()
    except OSError:  # it has ended
        return False
    return any(part in text for part in _ENDING)


def _on_parents_death(number: signal.Signals) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, number)


def _leave_guard() -> None:
    """Fork a process that waits for this one to end, and then kills the group."""
    leader = os.getpid()
    if os.fork():
        return
    # Only SIGKILL ends the guard: a signal to the whole group must not make it act too early.
    signal.pthread_sigmask(signal.SIG_SETMASK, signal.valid_signals())
    # An open pipe in the guard would keep the parent from seeing that the child has closed it.
    for descriptor in os.listdir("/proc/self/fd"):
        with suppress(OSError):  # the one of the listing itself is closed already
            os.close(int(descriptor))
    _on_parents_death(signal.SIGUSR1)
    while os.getppid() == leader:  # the child may have ended before the line above
        signal.sigwait({signal.SIGUSR1})
    kill_group(leader)
    deadline = time.monotonic() + _ENDING_SECONDS
    other_pids = _members(leader) - {os.getpid()}
    while any(map(_ends, other_pids)) and time.monotonic() < deadline:
        time.sleep(0.02)
    os.killpg(leader, signal.SIGKILL)


def _main(parent: int, arguments: list[str]) -> None:
    die_with_parent(parent)
    os.environ[LEADER] = str(os.getpid())
    if sys.platform == "linux":
        _leave_guard()
    os.execv(sys.executable, [sys.executable, *arguments])  # noqa: S606 - the parent chose them


if __name__ == "__main__":
    _main(int(sys.argv[1]), sys.argv[2:])
