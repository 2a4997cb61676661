"""Answers peers' requests: greeting, the own log, groups by hash, heartbeats of others.

Membership is checked before the request is parsed; a greeting brings the proof. The link
authenticates the caller's key, and a certificate chain must lead from the swarm's root to that
key. Each peer has a token bucket.
"""

from __future__ import annotations

import random
from collections import Counter
from typing import TypeVar

from swarm_node.clock import Clock
from swarm_node.errors import Rejected, TransportError
from swarm_node.p2p import wire
from swarm_node.p2p.gates import PeerGates
from swarm_node.p2p.members import Members
from swarm_node.p2p.peers import Directory
from swarm_node.p2p.transport import MAX_REQUEST_BYTES, Transport
from swarm_node.storage import Storage

HELLO = "/swarm-node/hello/1"
LIST = "/swarm-node/list/1"
PULL = "/swarm-node/pull/1"
PEERS = "/swarm-node/peers/1"
UNKNOWN_MEMBER = "say hello first"
NOT_HERE = "not here (any more)"

Hello = TypeVar("Hello", wire.HelloRequest, wire.HelloReply)


def hello_body(kind: type[Hello], chain: tuple[bytes, bytes], transport: Transport) -> Hello:
    """This node's greeting, with up to eight of its addresses that are short enough."""
    stated = [a for a in transport.addresses() if len(a) <= wire.MAX_ADDRESS_CHARS]
    return kind(chain=chain, agent="swarm-node", addresses=tuple(stated[:8]))


class Server:
    """Serves the four protocols; the constructor registers the handlers."""

    def __init__(
        self,
        *,
        transport: Transport,
        chain: tuple[bytes, bytes],
        storage: Storage,
        members: Members,
        directory: Directory,
        gates: PeerGates,
        rejected: Counter[str],
        clock: Clock,
        rng: random.Random,
    ) -> None:
        self._transport = transport
        self._chain = chain
        self._storage = storage
        self._members = members
        self._directory = directory
        self._gates = gates
        self._rejected = rejected
        self._clock = clock
        self._rng = rng
        transport.serve(HELLO, self._hello)
        transport.serve(LIST, self._list)
        transport.serve(PULL, self._pull)
        transport.serve(PEERS, self._peers)

    async def _hello(self, caller: str, payload: bytes) -> bytes:
        self._allow(caller)
        hello = _parse(wire.HelloRequest, payload)
        now = self._clock.now()
        member = self._members.admit(hello.chain, caller)
        if isinstance(member, Rejected):
            self._rejected[member.reason] += 1
            raise TransportError(f"no member of this swarm: {member.reason}")
        peer = self._directory.meet(caller, now)
        peer.last_seen = peer.failed_until = now
        # The reply is this node's greeting. A peer that did not get it answers UNKNOWN_MEMBER.
        peer.greeted = True
        if hello.addresses:
            peer.addresses = hello.addresses
        return wire.pack(hello_body(wire.HelloReply, self._chain, self._transport))

    async def _list(self, caller: str, payload: bytes) -> bytes:
        self._admit(caller)
        request = _parse(wire.ListRequest, payload)
        listed = await self._storage.run(
            self._storage.announcements, request.epoch, request.since, request.limit
        )
        return wire.pack(wire.ListReply(*listed))

    async def _pull(self, caller: str, payload: bytes) -> bytes:
        self._admit(caller)
        request = _parse(wire.PullRequest, payload)
        sealed = await self._storage.run(self._storage.blob, request.id)
        if sealed is None:
            raise TransportError(NOT_HERE)
        return sealed

    async def _peers(self, caller: str, payload: bytes) -> bytes:
        self._admit(caller)
        request = _parse(wire.PeersRequest, payload)
        known = [
            peer.heartbeat
            for peer in self._directory.draw(self._rng, request.limit - 1, self._clock.now())
            if peer.heartbeat and peer.peer_id != caller
        ]
        if self._directory.heartbeat:
            known.append(self._directory.heartbeat)
        return wire.pack(wire.PeersReply(heartbeats=tuple(known)))

    def _admit(self, caller: str) -> None:
        peer = self._directory.get(caller)
        if peer is None or not self._members.is_member(caller):
            raise TransportError(UNKNOWN_MEMBER)
        peer.last_seen = self._clock.now()
        self._allow(caller)

    def _allow(self, caller: str) -> None:
        if not self._gates.take(caller, self._clock.now()):
            self._rejected["rate"] += 1
            raise TransportError("too many requests; slow down")


Body = TypeVar("Body", bound=wire.Body)


def _parse(kind: type[Body], payload: bytes) -> Body:
    body = wire.unpack(kind, payload, max_bytes=MAX_REQUEST_BYTES)
    if isinstance(body, Rejected):
        raise TransportError(f"bad request: {body.reason}")
    return body
