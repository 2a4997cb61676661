"""Answers peers' requests: greeting, the own log, groups by hash, heartbeats of others.

Membership is checked before the request is parsed. A greeting carries the proof: the link
authenticates the caller's key, and a certificate chain must lead from the swarm's root to that key.
`budgets.py` limits the answers. A peer that breaks the protocol is cut off.
"""

from __future__ import annotations

import functools
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from types import MappingProxyType
from typing import TypeVar

from swarm_node.errors import Rejected
from swarm_node.p2p.addresses import circuit
from swarm_node.p2p.exchange.refusals import refused_caller
from swarm_node.p2p.limits.budgets import Traffic
from swarm_node.p2p.membership.credentials import Credentials
from swarm_node.p2p.membership.local_node import LocalNode
from swarm_node.p2p.membership.ticket_uses import digest
from swarm_node.p2p.peers.peers import Directory
from swarm_node.p2p.wire import wire
from swarm_node.p2p.wire.protocols import (
    CLAIMS,
    HELLO,
    LIST,
    PEERS,
    PULL,
    RENEW,
    REVOKED,
    SECRET,
)
from swarm_node.p2p.wire.reasons import (
    BAD_REQUEST,
    CUT_OFF,
    NO_MEMBER,
    NOT_HERE,
    RATE,
    REFUSED,
    UNKNOWN_MEMBER,
    Blame,
    blame_of,
    with_seconds,
)
from swarm_node.p2p.wire.transport import MAX_REQUEST_BYTES, Handler, Transport
from swarm_node.recent import Recent
from swarm_node.storage import Storage

#: Seconds for which the link of a stranger is cut after it broke the protocol.
_STRANGER_SECONDS = 60.0
#: Revoked callers that may still ask for the list that names them.
_MAX_REVOKED_CALLERS = 64

#: (caller, payload) -> the reply, or the fault of the request.
Answer = Callable[[str, bytes], Awaitable[bytes | Rejected]]
Hello = TypeVar("Hello", wire.HelloRequest, wire.HelloReply)
Body = TypeVar("Body", bound=wire.Body)


def hello_body(kind: type[Hello], credentials: Credentials, transport: Transport) -> Hello:
    """This node's greeting, with up to eight of its addresses that are short enough."""
    own_addresses = circuit.advertised_addresses(transport.addresses())
    addresses = [a for a in own_addresses if len(a) <= wire.MAX_ADDRESS_CHARS]
    return kind(
        chain=credentials.chain,
        agent="swarm-node",
        addresses=tuple(addresses[:8]),
        revoked=credentials.lists.number,
        secret=credentials.secrets.number,
    )


class Server:
    """Serves the protocols; the constructor registers the handlers."""

    def __init__(
        self,
        local: LocalNode,
        *,
        transport: Transport,
        credentials: Credentials,
        storage: Storage,
        traffic: Traffic,
        rng: random.Random,
        extra_handlers: Mapping[str, Answer] = MappingProxyType({}),
        on_pull: Callable[[], None] = lambda: None,
    ) -> None:
        """`extra_handlers` are handlers of more protocols for members. `on_pull` is called for
        every group that a peer pulls."""
        self._transport = transport
        self._credentials = credentials
        self._storage = storage
        self._members = local.members
        self._directory = local.directory
        self._traffic = traffic
        self._rejected = local.rejected
        self._clock = local.clock
        self._rng = rng
        self._on_pull = on_pull
        #: Callers whose valid chain is on the list: it may be shown to them.
        self._revoked_callers: Recent[str, None] = Recent(_MAX_REVOKED_CALLERS)
        for_members: dict[str, Handler] = {
            LIST: self._list,
            PULL: self._pull,
            PEERS: self._peers,
            SECRET: self._secret,
            RENEW: self._renew,
            CLAIMS: self._claims,
            **{
                name: functools.partial(self._further, answer)
                for name, answer in extra_handlers.items()
            },
        }
        transport.serve(HELLO, functools.partial(self._answer, self._hello))
        for protocol, handler in for_members.items():
            member_handler = functools.partial(self._admit, handler)
            transport.serve(protocol, functools.partial(self._answer, member_handler))
        transport.serve(REVOKED, functools.partial(self._answer, self._list_for))
        members = local.members
        transport.screen(members.proves_membership, members.is_member, members.issuer, gate=self)

    async def _answer(self, handler: Handler, caller: str, payload: bytes) -> bytes:
        """Answer a request if the caller's budget allows it, and charge the reply."""
        self._allow(caller)
        reply = await handler(caller, payload)
        self.charge_reply(caller, len(reply))
        return reply

    async def _hello(self, caller: str, payload: bytes) -> bytes:
        hello = self._parse(caller, wire.HelloRequest, payload)
        now = self._clock.now()
        member = self._members.admit(hello.chain, caller)
        if isinstance(member, Rejected):
            self._refuse(caller, member)
            if member.reason == "revoked":
                self._revoked_callers[caller] = None
            # A chain that begins later than now shows a caller's clock that is ahead.
            name = self._members.claimed_name(hello.chain, caller)
            self._directory.failures.refuse(
                refused_caller(caller, name, member, self._clock.wall()), now
            )
            raise NO_MEMBER.error(with_seconds(member.reason, member.seconds))
        self._directory.failures.forget_refused_caller(caller)
        self._revoked_callers.pop(caller, None)
        self._members.note(caller, hello.revoked, hello.secret)
        peer = self._directory.meet(caller, now)
        peer.last_seen = now
        peer.retry.record_greeting(now)
        # The reply is this node's greeting. A peer that missed it answers UNKNOWN_MEMBER.
        peer.is_greeted = True
        if hello.addresses:
            peer.addresses = hello.addresses
        return wire.pack(hello_body(wire.HelloReply, self._credentials, self._transport))

    async def _list(self, caller: str, payload: bytes) -> bytes:
        request = self._parse(caller, wire.ListRequest, payload)
        listing = await self._storage.run(
            self._storage.announcements, request.epoch, request.since, request.limit
        )
        return wire.pack(wire.ListReply(*listing))

    async def _pull(self, caller: str, payload: bytes) -> bytes:
        request = self._parse(caller, wire.PullRequest, payload)
        blob = await self._storage.run(self._storage.blob, request.id)
        if blob is None:
            raise NOT_HERE.error()
        self._directory.took(caller)
        self._on_pull()
        return blob

    async def _peers(self, caller: str, payload: bytes) -> bytes:
        request = self._parse(caller, wire.PeersRequest, payload)
        heartbeats = [
            peer.heartbeat
            for peer in self._directory.draw(self._rng, request.limit - 1, self._clock.now())
            if peer.heartbeat and peer.peer_id != caller and self._members.is_member(peer.peer_id)
        ]
        if self._directory.heartbeat:
            heartbeats.append(self._directory.heartbeat)
        return wire.pack(wire.PeersReply(presences=tuple(heartbeats)))

    async def _answer_revocations(self, caller: str, payload: bytes) -> bytes:
        return self._finish_exchange(caller, self._credentials.lists.exchange(payload))

    async def _list_for(self, caller: str, payload: bytes) -> bytes:
        """Exchange lists with a member. A caller that the list expelled is shown it, and nothing
        that it sends is read: the list proves to it that its owner ended the membership."""
        if caller in self._revoked_callers:
            return self._credentials.lists.raw
        return await self._admit(self._answer_revocations, caller, payload)

    async def _secret(self, caller: str, payload: bytes) -> bytes:
        return self._finish_exchange(caller, self._credentials.secrets.exchange(payload))

    async def _renew(self, caller: str, payload: bytes) -> bytes:
        chain = self._credentials.renewal_of(caller)
        if isinstance(chain, Rejected):
            raise REFUSED.error(chain.reason)
        return wire.pack(wire.RenewReply(*chain))

    async def _claims(self, caller: str, payload: bytes) -> bytes:
        request = self._parse(caller, wire.ClaimsRequest, payload)
        is_synced = request.known == digest(self._members.claims())
        claims = () if is_synced else self._members.told_claims(self._rng)
        return wire.pack(wire.ClaimsReply(claims))

    async def _further(self, answer: Answer, caller: str, payload: bytes) -> bytes:
        return self._finish_exchange(caller, await answer(caller, payload))

    def _finish_exchange(self, caller: str, answer: bytes | Rejected) -> bytes:
        """Return the answer if the request is valid. An invalid statement counts against its
        caller, because nodes check each that they pass on."""
        if isinstance(answer, Rejected):
            self._refuse(caller, answer)
            raise REFUSED.error(answer.reason)
        return answer

    async def _admit(self, handler: Handler, caller: str, payload: bytes) -> bytes:
        """Answer a request if its caller has greeted this node and is a member now."""
        peer = self._directory.get(caller)
        if peer is None or not self._members.is_member(caller):
            raise UNKNOWN_MEMBER.error()
        peer.record_request(self._clock.now())
        return await handler(caller, payload)

    def _allow(self, caller: str) -> None:
        now = self._clock.now()
        peer = self._directory.get(caller)
        if self._is_cut(caller):
            raise CUT_OFF.error()
        if not self._traffic.asks(
            caller, now, guest=peer is None or peer.standing.useful_count < 1.0
        ):
            self._turn_away(caller, "rate")
            raise RATE.error()

    def _is_cut(self, caller: str) -> bool:
        """Check that the caller is cut off, and cut its link again: it may have been cut before a
        restart."""
        seconds = self._directory.cut(caller, self._clock.now())
        if seconds:
            self._transport.sever(caller, seconds)
        return bool(seconds)

    def asks(self, caller: str) -> bool:
        """See `TableGate`."""
        now, peer = self._clock.now(), self._directory.get(caller)
        guest = peer is None or peer.standing.useful_count < 1.0
        if self._is_cut(caller):
            return False
        if not self._traffic.looks_up(caller, now, guest=guest):
            self._turn_away(caller, "rate")
            return False
        return True

    def charge_reply(self, caller: str, size: int) -> None:
        """See `TableGate`."""
        self._traffic.charge_reply(caller, self._clock.now(), size)

    def count_refusal(self, caller: str) -> None:
        """See `TableGate`."""
        self._turn_away(caller, "unknown_member")

    def broke(self, caller: str, rejection: Rejected) -> None:
        """See `TableGate`."""
        self._refuse(caller, rejection)

    def over(self, reason: str, count: int) -> None:
        """See `TableGate`."""
        self._rejected[reason] += count

    def _turn_away(self, caller: str, reason: str) -> None:
        """Count a refused request. A caller that goes on after many refusals is cut off."""
        self._rejected[reason] += 1
        if self._traffic.floods(caller, self._clock.now()):
            self._refuse(caller, Rejected("flood", "it goes on after many refusals"))

    def _parse(self, caller: str, kind: type[Body], payload: bytes) -> Body:
        body = wire.unpack(kind, payload, max_bytes=MAX_REQUEST_BYTES)
        if isinstance(body, Rejected):
            self._refuse(caller, body)
            raise BAD_REQUEST.error(body.reason)
        return body

    def _refuse(self, caller: str, rejection: Rejected) -> None:
        refuse(
            caller,
            rejection,
            self._clock.now(),
            transport=self._transport,
            directory=self._directory,
            counts=self._rejected,
        )


def refuse(
    caller: str,
    rejection: Rejected,
    now: float,
    *,
    transport: Transport,
    directory: Directory,
    counts: Counter[str],
) -> None:
    """Count a fault of a request, in total and against the caller. Cut the caller's link if no
    honest program sends such a request."""
    counts[rejection.reason] += 1
    seconds = directory.record_rejection(caller, rejection.reason, now)
    if blame_of(rejection.reason) is Blame.VIOLATION:
        transport.sever(caller, seconds or _STRANGER_SECONDS)
