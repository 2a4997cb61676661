"""Asks peers: one request with a deadline, after a greeting if needed. Every failure is counted."""

from __future__ import annotations

import asyncio
import functools
from typing import TypeVar

import structlog
from msgspec import Struct

from swarm_node.errors import (
    NotServedError,
    OversizeError,
    RefusedError,
    Rejected,
    TransportError,
)
from swarm_node.p2p.addresses import circuit
from swarm_node.p2p.exchange.refusals import refused_by
from swarm_node.p2p.exchange.serving import hello_body
from swarm_node.p2p.membership.credentials import Credentials
from swarm_node.p2p.membership.local_node import LocalNode
from swarm_node.p2p.membership.members import Member
from swarm_node.p2p.membership.statements import MAX_STATEMENT_BYTES
from swarm_node.p2p.peers.causes import AT_LEAST, Cause, of_reason
from swarm_node.p2p.peers.peers import Peer
from swarm_node.p2p.wire import wire
from swarm_node.p2p.wire.envelope import Kind, Opened, open_sealed
from swarm_node.p2p.wire.protocols import HELLO, REVOKED
from swarm_node.p2p.wire.reasons import (
    BAD_REQUEST,
    NO_MEMBER,
    NOT_HERE,
    NOT_SERVED,
    UNKNOWN_MEMBER,
)
from swarm_node.p2p.wire.transport import Transport

MAX_SMALL_REPLY = 64 * 1024
_REQUEST_SECONDS = 10.0
#: Deadline for a new or a lost peer. TCP, Noise and the greeting take six round trips.
_FEEL_SECONDS = 5.0
_log = structlog.get_logger(__name__)
_Reply = TypeVar("_Reply", bound=Struct)


class Asker:
    """Sends this node's requests to members, and counts refusals of their answers."""

    def __init__(
        self,
        local: LocalNode,
        *,
        transport: Transport,
        credentials: Credentials,
    ) -> None:
        self._transport = transport
        self._swarm_id = local.swarm_id
        self._credentials = credentials
        self._members = local.members
        self._directory = local.directory
        self._rejected = local.rejected
        self._clock = local.clock

    async def ask(
        self,
        peer: Peer,
        protocol: str,
        payload: bytes,
        *,
        max_reply: int,
        seconds: float = _REQUEST_SECONDS,
        stated_by: str | None = None,
    ) -> bytes | None:
        """Send one request to a member, after a greeting if needed. A failure is counted, and None
        is returned. `stated_by` is the peer that stated `max_reply`, None if the protocol sets
        it."""
        if self.reject_former_member(peer.peer_id):
            return None
        try:
            async with asyncio.timeout(seconds if peer.is_greeted else seconds + _REQUEST_SECONDS):
                if not peer.is_greeted:
                    await self._greet(peer)
                reply = await self._send(peer, protocol, payload, max_reply)
        except (TransportError, TimeoutError) as error:
            if isinstance(error, RefusedError) and error.code == NOT_HERE.code:
                peer.record_answer(self._clock.now())  # no failure: a peer need not hold a group
                self._rejected["not_here"] += 1
                return None
            if isinstance(error, NotServedError):  # a program of another version
                peer.record_answer(self._clock.now())
                self._rejected["not_served"] += 1
                return None
            if isinstance(error, OversizeError):  # a holder may be honest where the author is not
                at_fault = peer.peer_id if stated_by in (None, peer.peer_id) else None
                self.reject(Rejected("size", str(error)), at_fault)
                return None
            self._note_failure(peer, error)
            peer.record_miss(self._clock.now())
            self._rejected["unreachable"] += 1
            _log.debug("unreachable", peer=peer.peer_id, protocol=protocol, error=str(error))
            return None
        peer.record_answer(self._clock.now())
        self._directory.failures.forget_refusals(peer.peer_id)
        return reply

    async def _send(self, peer: Peer, protocol: str, payload: bytes, max_reply: int) -> bytes:
        """Send one request. A peer that forgot this node is greeted and asked once more."""
        ask = functools.partial(
            self._transport.request, peer.peer_id, protocol, payload, max_reply=max_reply
        )
        try:
            try:
                return await ask()
            except RefusedError as error:
                if error.code != UNKNOWN_MEMBER.code:
                    raise
                await self._greet(peer)  # it restarted and forgot us
                return await ask()
        except RefusedError as error:
            if error.code != NOT_SERVED.code:
                raise
            raise NotServedError(str(error)) from error  # through a relay, these are its words

    async def ask_for(
        self,
        kind: type[_Reply],
        peer: Peer,
        protocol: str,
        payload: bytes,
        *,
        max_reply: int = MAX_SMALL_REPLY,
    ) -> _Reply | None:
        """Send one request as `ask` does, and read the reply. A malformed one is rejected and
        returned as None."""
        raw = await self.ask(peer, protocol, payload, max_reply=max_reply)
        if raw is None:
            return None
        reply = wire.unpack(kind, raw, max_bytes=max_reply)
        if isinstance(reply, Rejected):
            self.reject(reply, peer.peer_id)
            return None
        return reply

    async def greet(self, peer: Peer) -> bool:
        """Greet a new or a lost peer. Return True if it answers as a member. A failure is
        counted."""
        try:
            async with asyncio.timeout(_FEEL_SECONDS):
                await self._greet(peer)
        except (TransportError, TimeoutError) as error:
            self._note_failure(peer, error)
            peer.record_failure(self._clock.now())
            self._rejected["unreachable"] += 1
            _log.debug("unreachable", peer=peer.peer_id, protocol=HELLO, error=str(error))
            return False
        peer.record_answer(self._clock.now())
        self._directory.failures.admitted_here(peer.peer_id)
        return True

    async def introduce(self, peer_id: str) -> bool:
        """Greet a connected peer. Return True if it answers as a member."""
        now = self._clock.now()
        return await self.greet(self._directory.get(peer_id) or Peer(peer_id, now))

    def reject_former_member(self, peer_id: str) -> bool:
        """Check for a former member, and count it."""
        result = self._members.check(peer_id)
        if isinstance(result, Member) or result.reason == "unknown_member":
            return False
        self.reject(result, None)
        return True

    def reject(self, rejection: Rejected, peer_id: str | None) -> None:
        """Count a refusal, in total and for the peer that sent the message. The peer's penalty
        follows."""
        self._rejected[rejection.reason] += 1
        _log.debug("rejected", reason=rejection.reason, detail=rejection.detail, peer=peer_id)
        if peer_id is None:
            return
        seconds = self._directory.record_rejection(peer_id, rejection.reason, self._clock.now())
        if seconds:
            self._transport.sever(peer_id, seconds)

    def open_envelope(
        self, raw: bytes, kind: Kind, max_bytes: int, author: str | None
    ) -> Opened | None:
        """Open an envelope of at most `max_bytes` bytes by `author`, or by anybody if None. A
        refusal is counted."""
        envelope = open_sealed(raw, self._swarm_id, kind, max_bytes=max_bytes)
        if isinstance(envelope, Opened) and author not in (None, envelope.author):
            envelope = Rejected("author", f"a {kind.name} envelope of another peer")
        if isinstance(envelope, Opened):
            return envelope
        self.reject(envelope, author)
        return None

    def _note_failure(self, peer: Peer, error: TransportError | TimeoutError) -> None:
        """Record why a peer refuses this node. For a silent peer, node/loops/peers/dialing.py finds
        the cause."""
        if not isinstance(error, RefusedError):
            return
        if error.code == NO_MEMBER.code:
            self._refused_by(peer.peer_id, error.detail, error.clock_skew)
        elif error.code == BAD_REQUEST.code and error.detail == "schema":
            self._refused_by(peer.peer_id, "schema")

    def _refused_by(self, peer_id: str, reason: str, offset: int | None = None) -> None:
        membership = self._members.presented_membership(self._transport.peer_id)
        me, wall = membership[0] if membership else None, self._clock.wall()
        cause = refused_by(peer_id, self._members.name(peer_id), reason, offset, me, wall)
        self._directory.failures.record_failure(cause, self._clock.now())

    def note_clock(self, peer_id: str, rejection: Rejected, *, told_itself: bool = False) -> None:
        """Record that this peer's clock differs from this node's. A time in the past counts only if
        the peer `told_itself`: other peers may pass on an old one."""
        reasons = ("not_yet_valid", *(("outdated",) if told_itself else ()))
        if rejection.reason in reasons and rejection.seconds:
            detail = "" if told_itself else AT_LEAST  # others may keep an older one
            seconds, name = -rejection.seconds, self._members.name(peer_id)
            cause = Cause("clock", peer_id, name, detail=detail, seconds=seconds)
            self._directory.failures.record_failure(cause, self._clock.now())

    async def _ask_for_list(self, peer: Peer) -> None:
        """Ask a peer that calls this node revoked for the list that names it. The owner or a
        delegate signed it, so it proves what the peer only says."""
        me = self._credentials.me()
        if isinstance(me, Rejected) and me.reason == "revoked":
            return
        try:
            raw = await self._transport.request(
                peer.peer_id, REVOKED, b"", max_reply=MAX_STATEMENT_BYTES
            )
        except (RefusedError, NotServedError):  # a program of an earlier version shows it to nobody
            return
        rejection = self._credentials.lists.offer(raw) if raw else None
        if rejection is not None:
            self.reject(rejection, peer.peer_id)

    async def _greet(self, peer: Peer) -> None:
        """Exchange certificate chains. Raise TransportError if the peer is no member."""
        is_reachable = not peer.addresses or await self._transport.dial(
            circuit.complete_circuits(peer.addresses, peer.peer_id)
        )
        # A request would dial the same addresses again. Members that missed a change of the secret
        # do not answer a dial, but are connected all the same.
        if not is_reachable and not await self._transport.is_connected(peer.peer_id):
            raise TransportError(f"{peer.peer_id} answers at none of its addresses")
        body = wire.pack(hello_body(wire.HelloRequest, self._credentials, self._transport))
        try:
            raw = await self._transport.request(
                peer.peer_id, HELLO, body, max_reply=MAX_SMALL_REPLY
            )
        except RefusedError as error:
            if error.code == NO_MEMBER.code and error.detail == "revoked":
                await self._ask_for_list(peer)
            raise
        hello = wire.unpack(wire.HelloReply, raw, max_bytes=MAX_SMALL_REPLY)
        if isinstance(hello, Rejected):
            self.reject(hello, peer.peer_id)
            self._refused_by(peer.peer_id, hello.reason)
            raise TransportError(f"{peer.peer_id} sent a malformed greeting: {hello.detail}")
        member = self._members.admit(hello.chain, peer.peer_id)
        if isinstance(member, Rejected):
            self.reject(member, peer.peer_id)
            self.note_clock(peer.peer_id, member)
            if of_reason(member.reason) == "other_swarm":
                self._refused_by(peer.peer_id, member.reason)
            raise TransportError(f"{peer.peer_id} is no member of this swarm: {member.reason}")
        self._members.note(peer.peer_id, hello.revoked, hello.secret)
        peer.is_greeted = True
        if hello.addresses:
            peer.addresses = hello.addresses
