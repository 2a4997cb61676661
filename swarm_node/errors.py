"""The exception tree. A peer's fault is a value (`Rejected`), never an exception.

SwarmNodeError               every error this program raises on purpose
├── ConfigError              a flag, variable or TOML key is unknown or impossible
├── MachineError             this machine lacks what a start needs: disk, driver, port, clock
├── HomeError                the node's directory is missing, unreadable or readable by others
│   └── StorageError         a call to the database or the home failed; a later one may succeed
│   └── OtherSwarmError      it belongs to another swarm than the ticket
├── TicketError              a ticket cannot be used: malformed, expired, for another swarm
│   └── TicketExpiredError   a valid ticket whose time is over
├── MembershipError          the swarm admits this node no more, or never did
├── CompletionError              answers of a program that cannot be published or scored as given
├── NotRunningError          no node answers on the control API of this home
├── SlowNodeError            a running node did not answer, or get anywhere, in time
├── TransportError           the network layer failed to start, or a peer did not answer properly
│   ├── OversizeError        a message over its limit
│   ├── SlowStartError       the network daemon did not start in time
│   └── RefusedError         the peer refused the request
├── CoordinatorError         a coordinator did not answer, or refused
├── ChildError               a supervised child process died, hung or answered with an error
├── EngineError              the inference engine cannot be kept running
├── CheckpointError          no stored state verifies, or it belongs to another model
├── WeightsError             a policy version cannot be written for the sampler
├── ModelError               a model or tokenizer cannot be used as asked
│   └── UnmappedError        memory of a GPU cannot be shared with another process
└── UnknownTaskError         a task reference that this environment cannot derive
    └── SlowTaskError        making the task takes longer than this machine allows

Every message says what to do next: as its remedies, or in its sentence.
"""

from __future__ import annotations

import difflib
import errno
import os
import re
import socket
import ssl
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import ClassVar, Final

#: Exit code of a node that its swarm does not admit: to start it again changes nothing.
NOT_ADMITTED: Final = 3
#: The number of an error of the operating system in a library's words: Python's, and Rust's.
_NUMBER: Final = re.compile(r"\[Errno -?\d+\] | \(os error \d+\)")


class SwarmNodeError(Exception):
    """Base of everything raised on purpose. The CLI prints the `cause`, then each of the `remedies`
    on a line of its own, and ends with `exit_code`. As text, they are one sentence."""

    exit_code: ClassVar[int] = 1

    def __init__(self, cause: str = "", *remedies: str) -> None:
        remedies = tuple(filter(None, remedies))
        advice = " ".join(remedy if remedy.endswith("?") else f"{remedy};" for remedy in remedies)
        super().__init__(f"{cause}: {advice.removesuffix(';')}" if advice else cause)
        self.cause, self.remedies = cause, remedies

    def split_remedies(self) -> tuple[str, str]:
        """The cause, and the remedies in one line: those given apart, or else what follows the last
        colon. "" without any."""
        text = str(self)
        if self.remedies:
            return self.cause, text.removeprefix(f"{self.cause}: ")
        cause, colon, remedy = text.rpartition(": ")
        return (cause, remedy) if colon else (text, "")


class ConfigError(SwarmNodeError):
    """A setting is unknown or impossible; the message names the key."""


class MachineError(SwarmNodeError):
    """This machine cannot run the node that its settings describe."""


class HomeError(SwarmNodeError):
    """The node's home directory cannot be used."""


class StorageError(HomeError):
    """The database or a file of the home failed, and stored nothing of the call. A later call may
    succeed: the file was locked, or the disk was full or had an error."""


class OtherSwarmError(HomeError):
    """The home belongs to another swarm than the ticket."""

    exit_code = NOT_ADMITTED


class TicketError(SwarmNodeError):
    """A ticket cannot be used."""


class TicketExpiredError(TicketError):
    """A ticket for the swarm `swarm_id` (32 bytes) that admits nobody any more."""

    exit_code = NOT_ADMITTED

    def __init__(self, message: str, swarm_id: bytes) -> None:
        super().__init__(message)
        self.swarm_id = swarm_id


class MembershipError(SwarmNodeError):
    """The swarm refuses this node for certain: its membership was revoked or ended, or its ticket
    is used up. It would train alone for ever."""

    exit_code = NOT_ADMITTED


class CompletionError(SwarmNodeError):
    """Answers of this program cannot be published or scored as they were given."""


class NotRunningError(SwarmNodeError):
    """No running node answers for this home."""


class SlowNodeError(SwarmNodeError):
    """A node runs, and did not answer or reach in time what a program waited for."""


class TransportError(SwarmNodeError):
    """The network layer failed, or a peer did not answer as the protocol says."""


class OversizeError(TransportError):
    """A request or reply is over its limit."""


class NotServedError(TransportError):
    """The peer answers, and does not serve the protocol: it may be of another version."""


class SlowStartError(TransportError):
    """The network daemon did not start in time. With more time it may."""


class RefusedError(TransportError):
    """The peer refused the request. The message is the peer's and decides nothing. `code` is that
    of the refusal (p2p/wire/reasons.py), "" for words that are none, and `detail` the reason or
    protocol that it names. `clock_skew` are the seconds between the time that decided and the
    peer's clock, None if it names none."""

    def __init__(
        self, message: str, code: str = "", detail: str = "", clock_skew: int | None = None
    ) -> None:
        super().__init__(message)
        self.code = code
        self.detail = detail
        self.clock_skew = clock_skew


class CoordinatorError(SwarmNodeError):
    """A coordinator did not answer as its API says, or refused the request."""


class TrackerError(SwarmNodeError):
    """The tracker beside a node ended. Nothing else needs it."""


class ChildError(SwarmNodeError):
    """A supervised child process died, hung or reported an error."""


class EngineError(SwarmNodeError):
    """The inference engine died or failed its checks more often than it may."""


class CheckpointError(SwarmNodeError):
    """Stored training state cannot be used."""


class WeightsError(SwarmNodeError):
    """A policy version cannot be written where the sampler reads it. A restart would not help."""


class ModelError(SwarmNodeError):
    """A model or its tokenizer cannot be used as asked."""


class UnmappedError(ModelError):
    """Memory of a GPU that another process exported cannot be mapped. Without sharing it works."""


class UnknownTaskError(SwarmNodeError):
    """A task reference that this environment cannot derive."""


class SlowTaskError(UnknownTaskError):
    """Making the task used up `seconds` of processor time; a faster machine may make it."""

    def __init__(self, message: str, seconds: float) -> None:
        super().__init__(message)
        self.seconds = seconds


@dataclass(frozen=True, slots=True)
class Rejected:
    """Refusal of a message from outside; `reason` is a metric label. `seconds` is the lead of the
    message's times over this clock, negative if they are behind, 0 if they are not the reason."""

    reason: str
    detail: str = ""
    seconds: float = field(default=0.0, compare=False)


def meant(name: str, candidates: Iterable[str], limit: int = 1) -> list[str]:
    """Return the remedy that asks for those of the `candidates` that `name` looks like, at most
    `limit` of them: "did you mean X or Y?". Empty if it looks like none."""
    close = difflib.get_close_matches(name.lower(), list(candidates), n=limit)
    *names, last = close or [""]
    return [f"did you mean {' or '.join(filter(None, [', '.join(names), last]))}?"] * bool(close)


def instead(name: str, candidates: Iterable[str], use: str = "use one of") -> list[str]:
    """Return the remedies for a `name` that is not among the `candidates`: the one that it
    looks like, and all that there are."""
    names = list(candidates)
    return [*meant(name, names), f"{use} {', '.join(names)}"]


def extra_of(name: str) -> str:
    """Return the words for installing an extra of this program. No package index has a release."""
    return f"`pip install '.[{name}]'` in a checkout"


def words_of(error: BaseException) -> str:
    """Return an error's message for people, or the name of its class where it has none."""
    if isinstance(error, OSError):
        return reason_of(error)
    return _plain(error)


def reason_of(error: OSError) -> str:
    """Return the operating system's reason in words, without its number or a library's prefix."""
    inner = getattr(error, "os_error", None)  # of aiohttp's errors
    error = inner if isinstance(inner, OSError) else error
    has_text = isinstance(error, (ssl.SSLError, socket.gaierror))  # which have numbers of their own
    has_text = has_text or error.errno == errno.EINVAL  # which alone says nothing
    if error.errno is not None and not has_text:
        return os.strerror(error.errno).lower()
    return error.strerror or _plain(error)


def _plain(error: BaseException) -> str:
    return _NUMBER.sub("", str(error)) or type(error).__name__


def first_of(group: BaseExceptionGroup[SwarmNodeError]) -> SwarmNodeError:
    """The first leaf of a group: the error that ended the others."""
    error = group.exceptions[0]
    return first_of(error) if isinstance(error, BaseExceptionGroup) else error
