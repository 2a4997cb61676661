"""Messages through a relay: requests sealed by the asker, and replies sealed by the target.

The relay can read and withhold them. It cannot alter them, send them twice, or pass them on to
another peer: a request names its target, its time and a nonce, and a reply repeats the nonce.
"""

from __future__ import annotations

import hashlib
import re
import struct
from collections import OrderedDict
from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass
from typing import Annotated, Final

import structlog
from msgspec import Meta

from swarm_node.clock import Clock
from swarm_node.durable import Journal
from swarm_node.errors import Rejected, TransportError, reason_of
from swarm_node.p2p.limits.admission import BusyError, PeerSlots
from swarm_node.p2p.limits.gates import PeerGates
from swarm_node.p2p.membership.membership import CLOCK_SKEW_SECONDS
from swarm_node.p2p.wire import wire
from swarm_node.p2p.wire.envelope import SEALED_BYTES, Kind, open_sealed, seal
from swarm_node.p2p.wire.frames import MAX_REASON_BYTES, Reply, answer, check_size
from swarm_node.p2p.wire.identity import Identity, peer_id_of, public_key_of
from swarm_node.p2p.wire.protocols import RELAY, RELAYED
from swarm_node.p2p.wire.reasons import (
    BAD_REQUEST,
    CUT_OFF,
    NOT_SERVED,
    RATE,
    REFUSED,
    UNKNOWN_MEMBER,
)
from swarm_node.p2p.wire.transport import MAX_REPLY_BYTES, MAX_REQUEST_BYTES, Handler
from swarm_node.recent import Recent

NONCE_BYTES: Final = 16
#: Largest overhead of a sealed request over its payload, and of a sealed reply.
REQUEST_ROOM: Final = 512
REPLY_ROOM: Final = SEALED_BYTES[Kind.REPLY]
MAX_PAYLOAD_BYTES: Final = MAX_REQUEST_BYTES - REQUEST_ROOM
#: Rate and burst of requests that a relay passes on to one target. A target cuts the link of a
#: relay that passes on twice as many, because the relay may invent their askers.
PASSED, PASSED_AT_ONCE = 64.0, 640.0
#: Concurrent requests of one asker, as for one link.
PER_ASKER: Final = 8
#: Nonces that are remembered per asker, and askers.
_NONCES, _ASKERS = 256, 1024
#: Nonces that are remembered for all non-members together: they may only greet.
_STRANGERS_NONCES = 4096
_LENGTH = struct.Struct(">H")
#: A line of a journal: the asker if it was a member, nonce, Unix ms. Two files of this size hold
#: more requests than one relay can pass on while they are valid.
_NOTED = re.compile(rb"(\w*) ([0-9a-f]{32}) ([0-9]{1,15})\n")
JOURNAL_BYTES: Final = 4_000_000
_log = structlog.get_logger(__name__)

_CARRIED = r"\A/swarm-node/[a-z]{1,24}/[0-9]{1,3}\Z"
Nonce = Annotated[bytes, Meta(min_length=NONCE_BYTES, max_length=NONCE_BYTES)]
Protocol = Annotated[str, Meta(pattern=_CARRIED)]
Size = Annotated[int, Meta(ge=0, le=MAX_REPLY_BYTES)]


class Request(wire.Body, frozen=True):
    """`/swarm-node/relay/1` (Kind.RELAY), sealed by the asker: a request to the owner of the key
    `target` for a reply of at most `most` bytes."""

    v: wire.Version1
    target: wire.Digest
    protocol: Protocol
    nonce: Nonce
    issued_ms: wire.Milliseconds
    most: Size
    payload: Annotated[bytes, Meta(max_length=MAX_PAYLOAD_BYTES)]


class ReplyHead(wire.Body, frozen=True):
    """The head of a reply, sealed by the target (Kind.REPLY): `size` and sha256 of the bytes that
    follow. No bytes follow if the size exceeds the asker's limit."""

    v: wire.Version1
    nonce: Nonce
    refused: bool
    size: Size
    digest: wire.Digest


@dataclass(frozen=True, slots=True)
class Asked:
    """A request with a valid seal: the peer ids of both ends, and its body."""

    asker: str
    target: str
    body: Request


def request_to(
    target: str, protocol: str, payload: bytes, max_reply: int, *, nonce: bytes, wall: float
) -> Request:
    """Make a request at the Unix second `wall`, with a fresh `nonce`.

    Raises:
        TransportError: the payload is too large to be relayed, or `protocol` is asked over links
            only, as `probe-for` is.
    """
    if not re.match(_CARRIED, protocol):
        raise TransportError(f"no relay carries {protocol}: it needs a link to the peer")
    check_size("relayed request", len(payload), MAX_PAYLOAD_BYTES)
    return Request(
        v=1,
        target=public_key_of(target),
        protocol=protocol,
        nonce=nonce,
        issued_ms=int(wall * 1000),
        most=min(max_reply, MAX_REPLY_BYTES - REPLY_ROOM),
        payload=payload,
    )


def seal_request(identity: Identity, swarm_id: bytes, body: Request) -> bytes:
    """Seal a request: the bytes that a relay passes on."""
    return seal(identity, swarm_id, Kind.RELAY, wire.pack(body))


def open_request(data: bytes, swarm_id: bytes) -> Asked | Rejected:
    """Check a sealed request. Reasons besides those of `open_sealed`: "schema", and "route" for one
    that must not be forwarded, because it is for its asker or leads to a second relay."""
    envelope = open_sealed(data, swarm_id, Kind.RELAY)
    if isinstance(envelope, Rejected):
        return envelope
    body = wire.unpack(Request, envelope.body, max_bytes=MAX_REQUEST_BYTES)
    if isinstance(body, Rejected):
        return body
    if body.protocol in (RELAY, RELAYED) or body.target == envelope.author_key:
        return Rejected("route", "a request that no relay forwards")
    return Asked(envelope.author, peer_id_of(body.target), body)


def seal_reply(identity: Identity, swarm_id: bytes, request: Request, reply: Reply) -> bytes:
    """Seal a reply: `u16be length of the sealed head || sealed head || payload`."""
    limit = MAX_REASON_BYTES if reply.is_refusal else request.most
    head = ReplyHead(
        v=1,
        nonce=request.nonce,
        refused=reply.is_refusal,
        size=len(reply.payload),
        digest=hashlib.sha256(reply.payload).digest(),
    )
    envelope = seal(identity, swarm_id, Kind.REPLY, wire.pack(head))
    payload = reply.payload if len(reply.payload) <= limit else b""
    return _LENGTH.pack(len(envelope)) + envelope + payload


def open_reply(data: bytes, swarm_id: bytes, target: str, request: Request) -> Reply | Rejected:
    """Check a reply of `target`. The only reason is "altered": the relay or the target broke the
    protocol, and nobody can tell which.

    Raises:
        OversizeError: the target says that its reply is over the limit.
    """
    length = int.from_bytes(data[: _LENGTH.size], "big")
    raw_head, payload = data[_LENGTH.size :][:length], data[_LENGTH.size + length :]
    envelope = open_sealed(raw_head, swarm_id, Kind.REPLY, max_bytes=REPLY_ROOM)
    if isinstance(envelope, Rejected) or envelope.author != target:
        return Rejected("altered", "a relayed reply without the seal of its author")
    head = wire.unpack(ReplyHead, envelope.body, max_bytes=REPLY_ROOM)
    if isinstance(head, Rejected) or head.nonce != request.nonce:
        return Rejected("altered", "a relayed reply to another request")
    # A refusal is shown and logged, so its limit does not depend on the request.
    check_size("reply", head.size, MAX_REASON_BYTES if head.refused else request.most)
    if hashlib.sha256(payload).digest() != head.digest or len(payload) != head.size:
        return Rejected("altered", "a relayed reply with other bytes than its author sealed")
    return Reply(payload, head.refused)


class Replays:
    """Record of earlier requests: the newest nonces of each asker, and the time before which none
    of its requests is accepted, because their nonces may be forgotten. Pure."""

    def __init__(self) -> None:
        self._askers: Recent[str, tuple[OrderedDict[bytes, int], int]] = Recent(_ASKERS)
        self._strangers: Recent[bytes, None] = Recent(_STRANGERS_NONCES)

    def admit_request(
        self, asker: str, member: bool, body: Request, wall: float
    ) -> Rejected | None:
        """Check a request at the Unix second `wall`, and remember it if it is new. Return the
        reason of a refusal, None for a new one: "not_yet_valid" and "outdated" for other clocks,
        "duplicate"."""
        age = wall - body.issued_ms / 1000
        if age < -CLOCK_SKEW_SECONDS:
            return Rejected("not_yet_valid", f"sealed {-age:.0f} s ahead")
        if age > CLOCK_SKEW_SECONDS:
            return Rejected("outdated", f"sealed {age:.0f} s ago")
        nonces, floor = self._askers.get(asker) or (OrderedDict(), -1)
        if body.nonce in (nonces if member else self._strangers):
            return Rejected("duplicate", "the same request a second time")
        if body.issued_ms <= floor:
            return Rejected("outdated", "older than many requests that came before it")
        self.remember(asker if member else "", body.nonce, body.issued_ms)
        return None

    def remember(self, member: str, nonce: bytes, issued_ms: int) -> None:
        """Record an answered request of a `member`, "" for a non-member."""
        if not member:
            self._strangers[nonce] = None
            return
        nonces, floor = self._askers.get(member) or (OrderedDict(), -1)
        nonces[nonce] = issued_ms
        if len(nonces) > _NONCES:
            floor = max(floor, nonces.popitem(last=False)[1])
        self._askers[member] = nonces, floor


class Answered:
    """Replays that outlast a restart. Answered requests are written to `journal`, if there is one.
    A crash loses none of them. A power cut may."""

    def __init__(self, journal: Journal | None) -> None:
        self._replays = Replays()
        self._journal = journal
        for line in journal.lines() if journal is not None else ():
            if match := _NOTED.fullmatch(line):
                member, nonce, issued_ms = match.groups()
                self._replays.remember(
                    member.decode(), bytes.fromhex(nonce.decode()), int(issued_ms)
                )

    def admit_request(
        self, asker: str, member: bool, body: Request, wall: float
    ) -> Rejected | None:
        """See `Replays.admit_request`."""
        rejection = self._replays.admit_request(asker, member, body, wall)
        if rejection is None and self._journal is not None:
            author = asker if member else ""
            try:
                self._journal.append(f"{author} {body.nonce.hex()} {body.issued_ms}".encode())
            except OSError as error:
                _log.warning(
                    "a restart forgets which requests were answered",
                    error=reason_of(error),
                )
                self._journal = None
        return rejection


class Target:
    """Answers relayed requests with this node's `handlers`, as if the asker itself had a link."""

    def __init__(
        self,
        identity: Identity,
        swarm_id: bytes,
        handlers: Mapping[str, Handler],
        *,
        is_member: Callable[[str], bool],
        severed_peers: Container[str],
        refuse: Callable[[str, Rejected], None],
        came_by: Callable[[str, str], None],
        clock: Clock,
        journal: Journal | None = None,
    ) -> None:
        """`refuse` counts requests that a relay should not have passed on. `came_by` is called with
        the asker and the relay of a request. `journal` outlasts the process."""
        self._identity = identity
        self._swarm_id = swarm_id
        self._handlers = handlers
        self._is_member = is_member
        self._severed_peers = severed_peers
        self._refuse = refuse
        self._came_by = came_by
        self._clock = clock
        self._pace = PeerGates(2.0 * PASSED, 2.0 * PASSED_AT_ONCE)
        self._replays = Answered(journal)
        self._slots = PeerSlots()

    async def answer(self, relay: str, payload: bytes) -> bytes:
        """Answer a sealed request with a sealed reply. A fault of the request itself is blamed on
        the relay, which runs the same checks. A fault of its asker is not."""
        if not self._pace.take(relay, self._clock.now()):
            self._refuse(relay, Rejected("flood", "it passes on more than any relay does"))
            raise RATE.error()
        if not self._is_member(relay):
            raise UNKNOWN_MEMBER.error()
        request = open_request(payload, self._swarm_id)
        if isinstance(request, Asked) and request.body.target != self._identity.public_key:
            request = Rejected("route", "a request for another peer")
        if isinstance(request, Rejected):
            self._refuse(relay, request)
            raise BAD_REQUEST.error(request.reason)
        asker, body = request.asker, request.body
        if asker in self._severed_peers:
            raise CUT_OFF.error()
        rejection = self._replays.admit_request(
            asker, self._is_member(asker), body, self._clock.wall()
        )
        if rejection is not None:
            raise REFUSED.error(rejection.reason)
        handler = self._handlers.get(body.protocol)
        if handler is None:
            reply = Reply.refusal(NOT_SERVED.words(body.protocol))
        else:
            try:
                async with self._slots.hold(asker, PER_ASKER):
                    reply = await answer(handler, asker, body.protocol, body.payload)
            except BusyError as error:
                reply = Reply.refusal(str(error))
        if self._is_member(asker):
            self._came_by(asker, relay)
        return seal_reply(self._identity, self._swarm_id, body, reply)
