"""Faults of a loop: which of them end the node, and when the loop tries again. Pure, no I/O.

| error | counted as | what happens |
| --- | --- | --- |
| TransportError | network | the loop tries again; `repair` repairs the network meanwhile |
| CoordinatorError | coordinator | the loop tries again |
| TrackerError | tracker | the loop starts it again, a minute later |
| ChildError | environment | the loop tries again; the process is started again when it is asked |
| StorageError | storage | the loop tries again; nothing of its step was stored |
| ModelError | model | the loop tries again; the version before stays in use |
| TimeoutError | timeout | the loop tries again |
| MemoryError, another OSError | system | the loop tries again |
| every other error | – | the node ends with that error |
"""

from __future__ import annotations

from typing import Final, NamedTuple

from swarm_node.errors import (
    ChildError,
    CoordinatorError,
    ModelError,
    StorageError,
    TrackerError,
    TransportError,
)
from swarm_node.p2p.peers.liveness import LOOP

#: Seconds between two lines of the log about one fault of one loop.
TOLD_SECONDS: Final = 60.0
#: The classes that end nothing: the part that they count against, what mends it meanwhile, and
#: what the owner can do. The first that matches holds: a TimeoutError is an OSError.
PASSING: Final = (
    (
        TransportError,
        "network",
        "the network is repaired meanwhile",
        "check this machine's network; `swarm-node doctor` looks at it",
    ),
    (
        CoordinatorError,
        "coordinator",
        "nothing else waits for it",
        "check network.coordinator and ask who runs it",
    ),
    (
        TrackerError,
        "tracker",
        "the tracker is started again in a minute",
        "run `swarm-node track`, which says what it lacks",
    ),
    (
        ChildError,
        "environment",
        "the process is started again",
        "free memory, and read in the log what ends the process",
    ),
    (
        StorageError,
        "storage",
        "nothing of this step was stored",
        "free disk space, and let no other process use the data directory",
    ),
    (
        ModelError,
        "model",
        "the version before stays in use",
        "check the model; `swarm-node doctor` looks at it",
    ),
    (TimeoutError, "timeout", "nothing else waits for it", "give this machine less other work"),
    (
        (MemoryError, OSError),
        "system",
        "nothing else waits for it",
        "free memory and disk space, or allow more open files (ulimit -n)",
    ),
)


class GoOn(NamedTuple):
    """The decision to go on: the part that the fault counts against, the seconds until the loop
    tries again, a sentence on both, and what the owner can do if it happens again and again."""

    part: str
    pause: float
    outcome: str
    remedy: str


def decide(error: Exception, failures: int) -> GoOn | None:
    """Decide on the error of a loop that failed `failures` times in a row before. Return None if
    the node ends with it."""
    for kind, part, meanwhile, remedy in PASSING:
        if isinstance(error, kind):
            pause = LOOP.after(failures)
            outcome = f"{meanwhile}; this loop tries again in {pause:g} s"
            return GoOn(part, pause, outcome, remedy)
    return None


class Told:
    """Decides which faults are logged: the first of a cause in a loop, then one a minute."""

    def __init__(self) -> None:
        self._at: dict[tuple[str, str], float] = {}
        self._unlogged_counts: dict[tuple[str, str], int] = {}

    def due(self, loop: str, part: str, now: float) -> int | None:
        """Note a fault. Return the number of faults since the last line if this one is logged,
        None if it is not."""
        key = loop, part
        self._unlogged_counts[key] = self._unlogged_counts.get(key, 0) + 1
        if now < self._at.get(key, -TOLD_SECONDS) + TOLD_SECONDS:
            return None
        self._at[key] = now
        return self._unlogged_counts.pop(key)
