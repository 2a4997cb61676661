"""Meets peers: publishes this node's heartbeat, and learns of others from theirs."""

from __future__ import annotations

import random

from swarm_node.clock import Clock
from swarm_node.errors import Rejected
from swarm_node.p2p import wire
from swarm_node.p2p.affairs import Affairs
from swarm_node.p2p.asking import MAX_SMALL_REPLY, Asker
from swarm_node.p2p.credentials import Credentials
from swarm_node.p2p.envelope import Kind, seal
from swarm_node.p2p.identity import Identity
from swarm_node.p2p.members import Members
from swarm_node.p2p.peers import Directory, Peer
from swarm_node.p2p.serving import PEERS
from swarm_node.p2p.transport import Transport
from swarm_node.storage import Storage

_PEERS_LIMIT = 8
_HEARTBEATS_PER_BEAT = 8
_HEARTBEAT_LIVES = 3


class Meeting:
    """Makes this node known, and finds the others."""

    def __init__(
        self,
        asker: Asker,
        *,
        transport: Transport,
        identity: Identity,
        credentials: Credentials,
        members: Members,
        affairs: Affairs,
        swarm_id: bytes,
        storage: Storage,
        directory: Directory,
        clock: Clock,
        rng: random.Random,
    ) -> None:
        self._asker = asker
        self._transport = transport
        self._identity = identity
        self._credentials = credentials
        self._members = members
        self._affairs = affairs
        self._swarm_id = swarm_id
        self._storage = storage
        self._directory = directory
        self._clock = clock
        self._rng = rng
        self._unread = 0  # further beats before the next read of all heartbeats

    async def beat(self, version: int, seconds: float) -> None:
        """Publish this node's heartbeat, read those of all peers, and ask one peer for more.

        The larger the swarm, the fewer beats read all heartbeats, so the cost per beat does not
        grow with the swarm. Between two reads a node meets newcomers that greet it or whose
        heartbeats another peer sends.
        """
        await self._affairs.tend()
        own = self._credentials
        heartbeat = wire.pack(
            wire.Heartbeat(
                v=1,
                addresses=wire.fit_heartbeat(self._transport.addresses()),
                policy_version=version,
                epoch=self._storage.epoch,
                head=await self._storage.run(self._storage.head),
                issued_ms=int(self._clock.wall() * 1000),
                agent="swarm-node",
                revoked=own.lists.number,
                secret=own.secrets.number,
                steward=own.steward is not None,
            )
        )
        sealed = seal(self._identity, self._swarm_id, Kind.HEAD, heartbeat)
        presence = wire.pack(wire.Presence(sealed, *own.chain))
        await self._transport.publish_heartbeat(presence, seconds * _HEARTBEAT_LIVES)
        if self._unread:
            self._unread -= 1
        else:
            found = await self._transport.heartbeats()
            self._unread = len(found) // _HEARTBEATS_PER_BEAT
            for peer_id, raw in found.items():
                self._hear(raw, expected=peer_id, teller=None)
        for peer in self._directory.draw(self._rng, 1, self._clock.now()):
            await self._exchange_peers(peer)

    def _hear(self, raw: bytes, expected: str | None, teller: str | None) -> None:
        """Check a presence, from the DHT or from the peer `teller`, and note what it says. An
        honest peer has checked what it passes on, so it answers for all but times and lists."""
        heard = self._members.hear(raw, expected)
        if isinstance(heard, Rejected):
            return self._asker.reject(heard, teller)
        beat, peer_id, now = heard.head, heard.member.peer_id, self._clock.now()
        if peer_id == self._identity.peer_id:
            return
        peer = self._directory.meet(peer_id, now)
        if beat.issued_ms <= peer.issued_ms:
            return
        peer.issued_ms, peer.heartbeat, peer.last_seen = beat.issued_ms, raw, now
        peer.addresses, peer.version = beat.addresses, beat.policy_version
        peer.epoch, peer.head = beat.epoch, beat.head

    async def _exchange_peers(self, peer: Peer) -> None:
        request = wire.pack(wire.PeersRequest(limit=_PEERS_LIMIT))
        reply = await self._asker.ask(peer, PEERS, request, max_reply=MAX_SMALL_REPLY)
        if reply is None:
            return
        peers = wire.unpack(wire.PeersReply, reply, max_bytes=MAX_SMALL_REPLY)
        if isinstance(peers, Rejected):
            return self._asker.reject(peers, peer.peer_id)
        for raw in peers.presences[:_PEERS_LIMIT]:
            self._hear(raw, expected=None, teller=peer.peer_id)
