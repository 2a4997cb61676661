"""Blame for a scoring worker that ended before it answered: the text's, nobody's or this node's.
Pure.

A scoring worker dies of many things that no text did: the kernel needs memory and takes scoring
workers first, a busy machine does not run it, somebody kills or stops it. So one end is evidence
against nobody. A text is blamed if it ends a second scoring worker, which no other text has
touched, while a control text is scored there. In the same way a text is known to make its scoring
worker sleep, which is a lesser fault."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import Final, Literal

from swarm_node.environments.workers.messages import FROM_OUTSIDE
from swarm_node.environments.workers.scoring_worker import DERIVING_TOO_LONG, SCORING_TOO_LONG

#: "timeout" and "derive": it used up its own processor time for scoring, or for making the task.
#: "crashed": it ended by an exit or by a signal that code brings on itself. "memory": it was killed
#: after it had grown much. "forged": its reply does not answer the request. "unknown": it cannot
#: make the task. "starved": the scorer ran out of memory or descriptors. "killed": somebody ended
#: it. "stuck": it did not answer, and had not used its time. "asleep": so too, and of its own will.
#: "own": this node could not run it.
Reason = Literal[
    "timeout",
    "derive",
    "crashed",
    "memory",
    "forged",
    "unknown",
    "starved",
    "killed",
    "stuck",
    "asleep",
    "own",
]
#: Ends that a text or its task may have caused; all others blame nobody, however often.
SUSPECT: Final[frozenset[Reason]] = frozenset(
    {"timeout", "derive", "crashed", "memory", "forged", "unknown"}
)
#: Ends for which the patience with a scoring worker was waited out.
WAITED: Final[frozenset[Reason]] = frozenset({"stuck", "asleep"})
#: A scoring worker that was killed after it had grown by this was, if it happens twice, killed for
#: that. It is half of what its own limit allows.
MUCH_MEMORY: Final = 1 << 29
#: A timer counts ticks, and a process's time is exact: on a busy virtual machine they differ.
_USED_UP: Final = 0.5
#: Scoring workers that a group is given before it is left unscored, and those that may be waited
#: for.
TRIES: Final = 6
WAITED_TRIES: Final = 2


@dataclass(frozen=True, slots=True)
class WorkerEnd:
    """The end of a scoring worker: its status in the form of `Popen.returncode`, None if the
    environment's process died with it; its processor time, and the memory by which it grew."""

    status: int | None
    processor_seconds: float = 0.0
    grown_bytes: int = 0


class Step(Enum):
    """A next step, or a finding."""

    AGAIN = auto()  # score the texts in a fresh scoring worker
    CONTROL = auto()  # score a control text in a fresh scoring worker
    BLAME = auto()  # the texts did it
    ASLEEP = auto()  # the texts make scoring workers sleep
    NOBODY = auto()  # something outside did it
    OWN_FAULT = auto()  # this node cannot run a scoring worker


@dataclass(frozen=True, slots=True)
class Attempt:
    """An attempt at a group that gave no rewards. `is_fresh` is true if the scoring worker had seen
    no other group."""

    reason: Reason
    is_fresh: bool


def reason_of(end: WorkerEnd, limit_seconds: float) -> Reason:
    """The reason of an end, for a request that had `limit_seconds` of processor time."""
    if end.status is None:
        return "own"
    number = -end.status
    if number in FROM_OUTSIDE:
        has_grown = number == signal.SIGKILL and end.grown_bytes >= MUCH_MEMORY
        return "memory" if has_grown else "killed"
    if end.processor_seconds >= _USED_UP * limit_seconds:
        if number == SCORING_TOO_LONG:
            return "timeout"
        if number == DERIVING_TOO_LONG:
            return "derive"
    return "crashed"


def next_step(attempts: Sequence[Attempt], control: bool | None = None) -> Step:
    """The step after these attempts, of which none gave rewards. `control` tells, once it was
    tried, that a fresh scoring worker scored the control text."""
    last = attempts[-1]
    suspects = sum(attempt.reason in SUSPECT for attempt in attempts)
    if suspects >= 2 and last.is_fresh and last.reason in SUSPECT:
        if control is None:
            return Step.CONTROL
        return Step.BLAME if control else Step.OWN_FAULT
    wait_reasons = [attempt.reason for attempt in attempts if attempt.reason in WAITED]
    if wait_reasons == ["asleep"] * WAITED_TRIES and last.is_fresh:
        if control is None:
            return Step.CONTROL
        return Step.ASLEEP if control else Step.OWN_FAULT
    if len(wait_reasons) < WAITED_TRIES and len(attempts) < TRIES:
        return Step.AGAIN
    return Step.OWN_FAULT if last.reason in ("own", "starved") else Step.NOBODY
