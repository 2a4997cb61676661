"""Messages between a node and the process of its environment, and how that confines its scoring
workers."""

from __future__ import annotations

import signal
from dataclasses import dataclass
from typing import Any

import msgspec

#: Signals that a scoring worker cannot send itself: somebody else ended a scoring worker that one
#: of them ended.
FROM_OUTSIDE = frozenset(
    {
        *(signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGKILL, signal.SIGTERM),
        *(signal.SIGSTOP, signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU),
    }
)


@dataclass(frozen=True, slots=True)
class Sandbox:
    """Confinement of a scoring worker: `files` (Landlock) and `system_calls` (seccomp).
    `is_cramped` is true if it inherited limits below its own, so that a text may run out of what
    every text is given."""

    files: bool
    system_calls: bool
    is_cramped: bool = False

    @property
    def complete(self) -> bool:
        """Check that code that a text injects can reach nothing outside its process."""
        return self.files and self.system_calls

    def describe(self) -> str:
        """`confined`, or what is missing and what it needs."""
        gaps = [
            *([] if self.files else ["files (needs Linux 5.13 with Landlock)"]),
            *([] if self.system_calls else ["system calls (needs Linux, x86-64 or arm64)"]),
        ]
        return f"not confined: {', '.join(gaps)}" if gaps else "confined"


class StartEnvironment(msgspec.Struct, frozen=True, tag="Start"):
    """Make the environment called `name`."""

    name: str
    options: dict[str, Any]


class Fork(msgspec.Struct, frozen=True, tag=True):
    """Start a scoring worker."""

    niceness: int


class End(msgspec.Struct, frozen=True, tag=True):
    """Kill a scoring worker, which may have ended already."""

    pid: int


class EnvironmentStarted(msgspec.Struct, frozen=True, tag="Started"):
    """The environment's description. `notes` and `warnings` are for its owner. `shares_memory` is
    true if scoring workers share writable memory with others. `score_seconds` is the least
    processor time for a group of eight. `sizes` has the numbers of its rows, if it is a list."""

    name: str
    version: str
    families: tuple[str, ...]
    shares_memory: bool
    notes: tuple[str, ...] = ()
    turns: int = 1
    score_seconds: float = 0.0
    sizes: dict[str, tuple[int, int]] = {}
    warnings: tuple[str, ...] = ()


class Forked(msgspec.Struct, frozen=True, tag=True):
    """The new scoring worker."""

    pid: int


class WorkerEnded(msgspec.Struct, frozen=True, tag="Ended"):
    """The end of a scoring worker, in the form of `Popen.returncode`; its processor time, and the
    memory by which it outgrew this process."""

    status: int
    processor_seconds: float
    grown_bytes: int


Request = StartEnvironment | Fork | End
Reply = EnvironmentStarted | Forked | WorkerEnded
