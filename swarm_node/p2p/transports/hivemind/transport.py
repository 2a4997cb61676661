"""The hivemind transport: libp2p streams for requests, a Kademlia DHT for heartbeats.

A Go daemon (p2pd) carries TCP, Noise and the streams; hivemind's DHT node runs on this process's
own loop.
"""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from swarm_node.clock import SYSTEM_CLOCK, Clock
from swarm_node.p2p.addresses.addresses import require_free_ports, split_endpoint
from swarm_node.p2p.addresses.internet import site
from swarm_node.p2p.limits.links import (
    ASKED_SECONDS,
    BARRED_SECONDS,
    LINKS,
    P2PD_LINKS_PER_PEER,
    LinkPlace,
    surplus,
)
from swarm_node.p2p.transports.hivemind.calls import TableCalls
from swarm_node.p2p.transports.hivemind.daemon import DhtNode, new_store
from swarm_node.p2p.transports.hivemind.records import (
    MAX_TTL_SECONDS,
    HeartbeatRecords,
    HeartbeatStore,
    SwarmAuthorizer,
    heartbeat_key,
)
from swarm_node.p2p.transports.ping_rounds import PING_SECONDS, Rounds
from swarm_node.p2p.transports.streams import StreamTransport
from swarm_node.p2p.wire.frames import check_size
from swarm_node.p2p.wire.identity import Identity
from swarm_node.p2p.wire.wire import MAX_PRESENCE_BYTES


class HivemindTransport(StreamTransport[DhtNode]):
    """Transport on hivemind 1.1.12 (TCP only; p2pd's own relay and NAT help are off).

    `secret` is the swarm's, from its ticket. Without it nobody reads or writes the DHT. `state_dir`
    holds p2pd's copy of the key while p2pd starts. For the other arguments see `StreamTransport`.
    """

    has_table = True

    def __init__(
        self,
        identity: Identity,
        *,
        swarm_id: bytes,
        secret: bytes,
        listen: Sequence[str],
        state_dir: Path,
        rng: random.Random,
        announce: Sequence[str] = (),
        max_concurrent_per_peer: int = 8,
        clock: Clock = SYSTEM_CLOCK,
        bootstrap: Sequence[str] = (),
        seen_addresses: Callable[[], Sequence[str]] = tuple,
    ) -> None:
        super().__init__(
            identity,
            listen=listen,
            announce=announce,
            bootstrap=bootstrap,
            seen_addresses=seen_addresses,
            max_concurrent_per_peer=max_concurrent_per_peer,
            rng=rng,
            clock=clock,
        )
        self._state_dir = state_dir
        self._key = heartbeat_key(swarm_id)
        self._authorizer = SwarmAuthorizer(secret, swarm_id, clock.wall)
        self._records: tuple[HeartbeatRecords, HeartbeatStore] | None = None
        self._published_until = 0.0
        self._rounds = Rounds()
        #: The linked peers, with the addresses of each link, those known for longest first.
        self._peer_links: dict[str, Sequence[str]] = {}

    def use_secret(self, secret: bytes) -> None:
        self._authorizer.use(secret)

    async def dial(
        self, addresses: Sequence[str], patience: float = 4.0, *, is_punch: bool = False
    ) -> int:
        count = await super().dial(addresses, patience, is_punch=is_punch)
        if count:
            await self._running().fill_table(patience)
        return count

    async def publish_heartbeat(self, heartbeat: bytes, ttl: float) -> None:
        """See `Transport.publish_heartbeat`. The DHT keeps the record that expires last, so a newer
        heartbeat must not expire before the one it replaces. `ttl` is at most an hour."""
        node = self._running()
        check_size("heartbeat", len(heartbeat), MAX_PRESENCE_BYTES)
        if not 0.0 < ttl <= MAX_TTL_SECONDS / 2:  # the other half allows for wrong clocks
            raise ValueError("a heartbeat lives between 0 and 3600 seconds")
        expires = max(self._clock.wall() + ttl, self._published_until + 0.001)
        self._published_until = expires
        await node.store(self._key, self.peer_id, heartbeat, expires)

    async def heartbeats(self) -> dict[str, bytes]:
        records = await self._running().find(self._key)
        return {peer: heartbeat for peer, heartbeat in records.items() if peer != self.peer_id}

    async def _mend(self, links: Mapping[str, Sequence[str]], addresses: Sequence[str]) -> str:
        node = self._running()
        links = await self._thin(node, links)
        has_moved = await node.look()
        pinged = self._rounds.next(links, self._is_member)
        silent_peers = await cut_silent(node, pinged, has_moved)
        outcome = "moved" if has_moved else "cut" if silent_peers else "ok"
        if len(silent_peers) == len(links) or node.lonely:
            await node.ping_known()
            has_peers = not node.lonely or await self.dial(addresses) > 0
            outcome = outcome if outcome != "ok" else "healed" if has_peers else "alone"
        return outcome

    async def _thin(
        self, node: DhtNode, links: Mapping[str, Sequence[str]]
    ) -> dict[str, Sequence[str]]:
        """Cut links above the limits, and those of peers that are cut off. Return the links that
        stay. p2pd allows any number of links, and can only close all links of a peer together."""
        all_links = {peer: links[peer] for peer in self._peer_links if peer in links} | dict(links)
        for peer, at in all_links.items():
            if len(at) > P2PD_LINKS_PER_PEER and peer not in self._admission.severed_peers:
                self.sever(peer, BARRED_SECONDS)
        order = [peer for peer in all_links if peer not in self._admission.severed_peers]
        excess = surplus([self._place(peer, all_links[peer]) for peer in order], LINKS)
        given_up = {order[index] for index in excess}
        self._peer_links = {peer: all_links[peer] for peer in order if peer not in given_up}
        excess_peers = [peer for peer in all_links if peer not in self._peer_links]
        await asyncio.gather(*(node.disconnect(peer) for peer in excess_peers))
        if excess_peers:
            self._count_over_limit("links", sum(len(all_links[peer]) for peer in excess_peers))
        return self._peer_links

    def _place(self, peer: str, at: Sequence[str]) -> LinkPlace:
        """The place that a peer's link takes: the lowest for a stranger, the highest for one that
        this node asks."""
        if not self._is_member(peer):
            endpoint = split_endpoint(at[0]) if at else None
            return LinkPlace(site(endpoint[1]) if endpoint else "", 0)
        is_active = self._clock.now() - self._request_times.get(peer, -math.inf) < ASKED_SECONDS
        return LinkPlace(self._admission.issuer(peer), 2 if is_active else 1)

    async def _cut(self, peer: str) -> bool:
        """Close the links of a peer that was cut off. Return True if it was."""
        if peer not in self._admission.severed_peers:
            return False
        await self._disconnect(peer)
        return True

    async def _start_node(self, listen: Sequence[str], patience: float) -> DhtNode:
        if self._records is None:  # a new daemon keeps all heartbeats
            wall = self._clock.wall
            issuer = self._admission.issuer
            key_id, store = new_store(self._key, wall, self._is_member, issuer, self._rng)
            self._records = (
                HeartbeatRecords(self._identity, key_id, wall, self._proves_membership),
                store,
            )
        records, store = self._records
        require_free_ports(listen)
        self._state_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        node = await DhtNode.start(
            self._state_dir / "p2pd.key",
            self._identity,
            listen=listen,
            announce=self._announce,
            records=records,
            authorizer=self._authorizer,
            store=store,
            calls=TableCalls(self._authorizer, self._gate, self._is_member, self._cut),
            patience=patience,
        )
        try:
            await node.serve([*self._handlers, *self._routes], self._serve_stream)
        except BaseException:
            await node.stop()
            raise
        return node


async def cut_silent(node: DhtNode, peers: Sequence[str], has_moved: bool) -> frozenset[str]:
    """Ping the links to these peers, cut those without an answer, and return their peers.
    `has_moved` means that this node's addresses have changed."""
    for _ in range(1 if has_moved else 2):
        answers = await asyncio.gather(*(node.answers(peer, PING_SECONDS) for peer in peers))
        peers = [peer for peer, is_alive in zip(peers, answers, strict=True) if not is_alive]
    await asyncio.gather(*(node.disconnect(peer) for peer in peers))
    return frozenset(peers)
