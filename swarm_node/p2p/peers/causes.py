"""Causes for which a node is alone, or a newcomer is not admitted. Pure state, no I/O.

Each refusal and each failed dial is one of CAUSES. Both ends count it: `FailureLog` keeps failures
of this node, by peer and address, and callers that this node refused. node/metrics/health.py makes
the sentences that every view shows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, Literal, TypeVar

import msgspec

from swarm_node.p2p.wire.identity import short_id
from swarm_node.recent import Recent

#: Entries that are kept: of peers and addresses that failed, and of keys that were refused.
MAX_FAILED: Final = 256
MAX_REFUSED: Final = 64
#: Seconds after which an entry that was not renewed says nothing about now.
FRESH_SECONDS: Final = 900.0

#: The detail of a clock's difference of which only the least is known.
AT_LEAST: Final = "at least"

_K = TypeVar("_K")
Level = Literal["bad", "warning", "good"]
#: The subject of a cause: this node's membership, its clock, its own link, the program and the
#: swarm at the other end, one address, or what the other end trains.
Subject = Literal["membership", "clock", "link", "other", "address", "training"]


class Cause(msgspec.Struct, frozen=True):
    """One cause now. `peer` is the other end's peer id, and `name` its name for people, if known.
    `where` is the address (host:port). It happened `tries` times, and `seconds_since` ago last.
    `seconds` is the time that one try took or, of clocks, the difference: positive if this node's
    clock is ahead. `detail` completes the sentence: a date, a quota or a reason."""

    code: str
    peer: str = ""
    name: str = ""
    where: str = ""
    detail: str = ""
    seconds: float = 0.0
    tries: int = 1
    seconds_since: float = 0.0


@dataclass(frozen=True, slots=True)
class CauseKind:
    """A row of the table. `text` is the sentence for the refused node. `host_text` is the one for
    the node that refuses it, "" if there is none. `advice` is the remedy. `host_advice` is the
    remedy at the refusing node, if it differs. The fields are those of `_words`."""

    code: str
    subject: Subject
    level: Level
    text: str
    host_text: str
    advice: str
    host_advice: str = ""


def _rows(*rows: CauseKind) -> dict[str, CauseKind]:
    return {row.code: row for row in rows}


#: All causes, the most serious first.
CAUSES: Final = _rows(
    CauseKind(
        "revoked", "membership", "bad",
        "the owner revoked this node's membership{listed}, says {who}",
        "{who} was revoked{listed} and asks again",
        "ask the owner of the swarm; a new ticket admits you again: start with --ticket-file",
        "nothing, if it is meant to stay out; else give it a new ticket: `swarm-node invite`",
    ),
    CauseKind(
        "expired", "membership", "bad",
        "this node's membership ended{on}, says {who}",
        "the membership of {who} ended{on}",
        "ask for a new ticket, and start this node with --ticket-file",
        "if it belongs here, give it a new ticket: `swarm-node invite`",
    ),
    CauseKind(
        "used_up", "membership", "bad",
        "this ticket has admitted {quota}, says {who}",
        "the ticket of {who} is used up, and another machine ({id}) tried it",
        "ask for another ticket, and start this node with --ticket-file",
        "`swarm-node members` lists who holds it; each machine needs a ticket of its own",
    ),
    CauseKind(
        "blocked", "membership", "bad",
        "the owner of {who} blocked this node",
        "{who} is blocked here and asks again",
        "ask the owner of that node",
        "nothing, or `swarm-node unblock` it",
    ),
    CauseKind(
        "clock", "clock", "bad",
        "this clock is {offset} that of {who}",
        "the clock of {who} is {offset} this one",
        "set both clocks by the network: timedatectl set-ntp true",
    ),
    CauseKind(
        "link_down", "link", "bad",
        "no network interface is up",
        "",
        "plug in the cable, or switch the network on",
    ),
    CauseKind(
        "other_swarm", "other", "warning",
        "{who} belongs to another swarm",
        "{who} is of another swarm",
        "take the ticket and the addresses of one swarm: `swarm-node config` shows both",
        "nothing here: its owner took a ticket or an address of another swarm",
    ),
    CauseKind(
        "wire_version", "other", "warning",
        "{who} speaks another version of the protocol",
        "{who} speaks another version of the protocol",
        "upgrade the older of both nodes",
    ),
    CauseKind(
        "refused", "other", "warning",
        "{who} refuses this node ({detail})",
        "{who} was refused ({detail})",
        "tell its owner the reason in brackets",
    ),
    CauseKind(
        "no_greeting", "other", "warning",
        "{who} at {where} answers, but not a greeting of this swarm",
        "",
        "it may be of another version or very busy: compare `swarm-node --version` of both",
    ),
    CauseKind(
        "other_node", "address", "warning",
        "{where} is another node than {who}",
        "",
        "another machine took that address: ask for a new ticket or for its address now",
    ),
    CauseKind(
        "nobody_listens", "address", "warning",
        "{where} refuses connections{effort}",
        "",
        "is the node there running, on that port? Ask its owner",
    ),
    CauseKind(
        "silent", "address", "warning",
        "{where} accepts connections and says nothing{effort}",
        "",
        "another program may use that port: ask the owner of the node there",
    ),
    CauseKind(
        "no_answer", "address", "warning",
        "{where} does not answer{effort}",
        "",
        "a firewall may be between, or it is in another network: ask for a public address or a "
        "relay (docs/networking.md)",
    ),
    CauseKind(
        "out_of_range", "address", "warning",
        "{where} is in no address range that this node connects to",
        "",
        "give both nodes addresses of one private network or of the Internet, and name them: "
        "`swarm-node join --advertise`",
    ),
    CauseKind(
        "no_peer_id", "address", "warning",
        "{where} cannot be connected to: it does not end in /p2p/ID, or its name has no address",
        "",
        "write it as /ip4/HOST/tcp/PORT/p2p/ID; that node shows it in its status",
    ),
    CauseKind(
        "no_address", "address", "warning",
        "{where} leads to no address: {detail}",
        "",
        "check the name in it, and the name servers of this machine",
    ),
    CauseKind(
        "no_coordinator", "address", "warning",
        "{where} answers, but not as a coordinator of this version",
        "",
        "check the URL: another program may use that port",
    ),
    CauseKind(
        "environment", "training", "warning",
        "{who} {uses} {detail}: they exchange nothing",
        "{who} {uses} {detail}: they exchange nothing",
        "give all nodes the same environment.name, files, packages and options",
    ),
    CauseKind(
        "model", "training", "good",
        "{who} {uses} another model ({detail}): their groups count here as text alone",
        "{who} {uses} another model ({detail}): their groups count here as text alone",
        "nothing is wrong; with the same --model they could be weighted by their log-probs too",
    ),
)  # fmt: skip

_ORDER: Final = {code: place for place, code in enumerate(CAUSES)}
#: The cause that follows from a refusal of a chain, by its reason. All others are "refused".
_OF_REASON: Final = {
    "revoked": "revoked",
    "expired": "expired",
    "used_up": "used_up",
    "blocked": "blocked",
    "not_yet_valid": "clock",
    "wrong_root": "other_swarm",
    "signature": "other_swarm",
    "schema": "wire_version",
}
#: The cause of each outcome of a dial (p2p/reach/reachability.py); "open" is none.
OF_OUTCOME: Final = {
    "refused": "nobody_listens",
    "timeout": "no_answer",
    "silent": "silent",
    "other": "other_node",
    "untried": "no_peer_id",
}


def of_reason(reason: str) -> str:
    """Return the cause of a refusal for this reason."""
    return _OF_REASON.get(reason, "refused")


def severity(cause: Cause) -> tuple[int, float]:
    """A key that sorts the most serious cause first, then the newest."""
    return _ORDER[cause.code], cause.seconds_since


def text_here(cause: Cause) -> str:
    """Return the sentence for the refused node."""
    return CAUSES[cause.code].text.format_map(_words(cause))


def text_there(cause: Cause) -> str:
    """Return the sentence for the node that refuses, "" for a cause without one."""
    return CAUSES[cause.code].host_text.format_map(_words(cause))


def advice(cause: Cause) -> str:
    return CAUSES[cause.code].advice


def advice_there(cause: Cause) -> str:
    """Return the remedy at the node that refuses."""
    return CAUSES[cause.code].host_advice or advice(cause)


def _words(cause: Cause) -> dict[str, str]:
    name = cause.name or (short_id(cause.peer) if cause.peer else "a node")
    on, effort = f" on {cause.detail}" if cause.detail else "", ""
    if cause.tries > 1:
        effort = f" ({cause.tries} tries, {cause.seconds * cause.tries:.0f} s)"
    way = "ahead of" if cause.seconds > 0 else "behind"
    difference = f"{abs(cause.seconds):,.0f} s"
    return {
        "who": name,
        "where": cause.where or name,
        "uses": "use" if ", " in name else "uses",  # no name has a comma
        "id": short_id(cause.peer),
        "on": on,
        "listed": on and f" (list of {cause.detail})",
        "quota": f"{cause.detail} of {cause.detail} nodes"
        if cause.detail
        else "as many nodes as it may",
        "detail": cause.detail or "no reason given",
        "effort": effort,
        "offset": f"{cause.detail + ' ' if cause.detail == AT_LEAST else ''}{difference} {way}",
    }


@dataclass(slots=True)
class _Counted:
    cause: Cause
    tries: int
    last: float


class FailureLog:
    """Failed tries by peer and address, and refused callers. Bounded: the entries set longest ago
    go first. Times are seconds of the node's monotonic clock."""

    def __init__(self) -> None:
        #: Addresses in settings and ticket, and what the last look at this machine's link found.
        self.configured_count = 0
        self.link_down = False
        #: Refused callers by cause.
        self.refusals: Counter[str] = Counter()
        self._failures: Recent[tuple[str, str], _Counted] = Recent(MAX_FAILED)
        self._refused_callers: Recent[str, _Counted] = Recent(MAX_REFUSED)

    def record_failure(self, cause: Cause, now: float) -> None:
        """Record that a try failed, or that the peer refused this node, for this cause. Tries of
        the same peer and address are counted while the cause stays the same."""
        _count(self._failures, (cause.peer, cause.where), cause, now)

    def admitted_here(self, peer_id: str) -> None:
        """Forget all refusals by this peer, which admits this node now."""
        for key in [key for key in self._failures if key[0] == peer_id]:
            del self._failures[key]

    def forget_refusals(self, peer_id: str) -> None:
        """Forget the refusals of a peer that answers a request. Its clock may still differ: the
        times that it signs tell that."""
        for key in [key for key in self._failures if key[0] == peer_id]:
            if self._failures[key].cause.code != "clock":
                del self._failures[key]

    def in_time(self, peer_id: str) -> None:
        """Forget that the clock of this peer differs: it signed a time of now."""
        for key in [key for key in self._failures if key[0] == peer_id]:
            if self._failures[key].cause.code == "clock":
                del self._failures[key]

    def forget_address_failures(self, peer_id: str, address: str) -> None:
        """Forget the failures of this address."""
        self._failures.pop((peer_id, address), None)

    def refuse(self, cause: Cause, now: float) -> None:
        """Record that this node refused the caller `cause.peer`."""
        self.refusals[cause.code] += 1
        _count(self._refused_callers, cause.peer, cause, now)

    def forget_refused_caller(self, peer_id: str) -> None:
        """Forget that this caller was refused."""
        self._refused_callers.pop(peer_id, None)

    def causes(self, now: float) -> list[Cause]:
        """Return the causes that isolate this node now, the most serious first."""
        current_causes = _fresh(self._failures.values(), now)
        if self.link_down:
            current_causes.append(Cause("link_down"))
        return sorted(current_causes, key=severity)

    def recent_refusals(self, now: float) -> list[Cause]:
        """Return whom this node refused lately, the most serious first."""
        return sorted(_fresh(self._refused_callers.values(), now), key=severity)


def _count(entries: Recent[_K, _Counted], key: _K, cause: Cause, now: float) -> None:
    old_entry = entries.get(key)
    tries = 1
    if old_entry is not None and old_entry.cause.code == cause.code:
        tries += old_entry.tries
        if cause.detail == AT_LEAST:  # a clock's difference stays, so the largest bound is known
            cause = max(cause, old_entry.cause, key=lambda candidate: abs(candidate.seconds))
    entries[key] = _Counted(cause, tries, now)


def _fresh(entries: Iterable[_Counted], now: float) -> list[Cause]:
    return [
        msgspec.structs.replace(entry.cause, tries=entry.tries, seconds_since=now - entry.last)
        for entry in entries
        if now - entry.last <= FRESH_SECONDS
    ]
