"""Meets peers: publishes this node's heartbeat, learns of others, and tries peers from the book.

Peers are sampled by asking each other, as in Brahms (Bortnikov et al., 2009, doi
10.1016/j.comnet.2009.03.008). A node pulls a few heartbeats from a random partner. Peers that greet
it (pushes) get at most half of its draws. A part of its partners stays for long (the history
sample). benchmarks/peer_sampling.py compares this with Cyclon and HyParView. A node without
partners begins with the transport's table of heartbeats (the DHT).
"""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import Callable, Iterable, Sequence

from swarm_node.errors import Rejected
from swarm_node.p2p.addresses import circuit
from swarm_node.p2p.exchange.membership_sync import MembershipSync
from swarm_node.p2p.exchange.requests import Asker
from swarm_node.p2p.membership.credentials import Credentials
from swarm_node.p2p.membership.local_node import LocalNode
from swarm_node.p2p.peers.addressbook import AddressBook, Known, Unmet
from swarm_node.p2p.peers.liveness import PEER, Retry, came_back, choose
from swarm_node.p2p.peers.peers import ANCHORS, PARTNERS, Peer
from swarm_node.p2p.wire import wire
from swarm_node.p2p.wire.envelope import Kind, seal
from swarm_node.p2p.wire.protocols import PEERS
from swarm_node.p2p.wire.transport import Transport
from swarm_node.storage import MAX_PEERS, KnownPeer, Storage

_PEERS_LIMIT = 8
#: Heartbeats of the transport's table that are checked per read, and beats between two reads once
#: there are FEW peers. So the cost depends on neither the swarm's size nor the table's.
_HEARD_PER_READ = 32
_BEATS_PER_READ = 128
_HEARTBEAT_LIVES = 3
#: A node with fewer peers reads the table of heartbeats more often, and tries several peers at
#: once.
FEW = 4
#: Seconds between two tries of new peers once a node has all partners. Bitcoin Core's
#: FEELER_INTERVAL is 120; a greeting with two certificates costs more than its handshake.
_FEELER_SECONDS = 300.0


class Discovery:
    """Makes this node known to peers, and finds them."""

    def __init__(
        self,
        local: LocalNode,
        asker: Asker,
        book: AddressBook,
        *,
        transport: Transport,
        credentials: Credentials,
        membership_sync: MembershipSync,
        storage: Storage,
        rng: random.Random,
        relays: Callable[[], bool],
    ) -> None:
        self._asker = asker
        self._book = book
        self._transport = transport
        self._identity = local.identity
        self._credentials = credentials
        self._members = local.members
        self._membership_sync = membership_sync
        self._swarm_id = local.swarm_id
        self._storage = storage
        self._directory = local.directory
        self._clock = local.clock
        self._rng = rng
        self._relays = relays
        self._beats_left = 0  # further beats before the next read of the transport's table
        self._next_feeler = 0.0
        self._saved_state: list[tuple[str, tuple[str, ...], str, int, bool]] = []

    async def open(self, bootstraps: Sequence[str]) -> None:
        """Load the peers of earlier runs and the addresses from the settings and the ticket.
        Anchors and these addresses are tried first."""
        now, wall = self._clock.now(), self._clock.wall()
        for row in await self._storage.run(self._storage.known_peers, MAX_PEERS):
            entry = Known(row.peer_id, row.addresses, row.issuer, "")
            entry.retry = Retry(PEER, failures=row.failures)
            entry.answered_at = now - max(0.0, wall - row.last_seen)
            self._book.restore(entry, anchor=row.anchor)
        self.name(bootstraps)

    def name(self, addresses: Sequence[str]) -> None:
        """Add the peers of these addresses to the book, to be tried first."""
        peers: dict[str, list[str]] = {}
        for address in addresses:
            peers.setdefault(address.rpartition("/")[2], []).append(address)
        self._book.configure(peers.items(), self._clock.now())

    async def send_heartbeat(self, version: int, seconds: float) -> None:
        """Publish this node's heartbeat, ask a peer for those of others, and store the peers that
        answer. With few peers, also read heartbeats from the transport and try their peers at
        once."""
        await self._membership_sync.sync()
        credentials = self._credentials
        heartbeat = wire.pack(
            wire.Heartbeat(
                v=1,
                addresses=circuit.fit_heartbeat(self._transport.addresses()),
                policy_version=version,
                epoch=self._storage.epoch,
                head=await self._storage.run(self._storage.head),
                issued_ms=int(self._clock.wall() * 1000),
                agent="swarm-node",
                revoked=credentials.lists.number,
                secret=credentials.secrets.number,
                delegate=credentials.delegate is not None,
                relays=self._relays(),
            )
        )
        envelope = seal(self._identity, self._swarm_id, Kind.HEAD, heartbeat)
        presence = wire.pack(wire.Presence(envelope, *credentials.chain))
        self._directory.heartbeat = presence
        await self._transport.publish_heartbeat(presence, seconds * _HEARTBEAT_LIVES)
        await self._read()
        now = self._clock.now()
        for peer in self._directory.live(now, seconds):
            issuer = self._members.issuer(peer.peer_id)
            self._book.welcome(peer.peer_id, peer.addresses, now, issuer)
        # Without a table the node hears of others only from peers, so it asks more of them.
        count = 1 if self._transport.has_table else FEW
        peers = self._directory.draw(self._rng, count, self._clock.now())
        await asyncio.gather(*map(self._exchange_peers, peers))
        await self._save()

    def add_presences(self, presences: Iterable[bytes]) -> None:
        """Accept presences from a coordinator, like those of the transport's table."""
        for raw in presences:
            self._add_presence(raw, author_id=None, teller=None)

    def unmet(self, limit: int) -> tuple[list[Unmet], int]:
        """Return up to `limit` members that this node heard of and does not work with, and the
        number of all of them."""
        now = self._clock.now()
        return self._book.unmet(now, limit, lambda peer: self._directory.get(peer) is not None)

    def addresses(self, peer_id: str) -> Sequence[str] | None:
        """Return the addresses of a peer that this node knows or heard of, None for any other."""
        peer = self._directory.get(peer_id)
        return self._book.addresses(peer_id) if peer is None else peer.addresses

    async def reach(self, peer_id: str) -> Peer | None:
        """Try a member now that this node does not work with. Return None if it does not answer, or
        if this node never heard of it."""
        self._book.forgive(peer_id, self._clock.now(), self._members.issuer(peer_id))
        entry = self._book.get(peer_id)
        if entry is not None:
            await self._try(entry)
        return self._directory.get(peer_id)

    async def try_peer(self) -> bool | None:
        """Try one peer: a lost one, or one that this node only heard of. Return True if it
        answered, None if there is none to try now.

        A dead peer delays only this call. The caller runs one call at a time, or a few while there
        are fewer than FEW peers.
        """
        now = self._clock.now()
        is_alone = self._directory.fewer(1, now)
        lost_id = choose(self._rng, self._silent(now), now, is_alone=is_alone)
        if self._searching(now) and (lost_id is None or self._rng.random() < 0.5):
            entry = self._book.pick(self._rng, now, self._may_leave_out)
            if entry is not None:
                self._next_feeler = now + _FEELER_SECONDS
                return await self._try(entry)
        return None if lost_id is None else await self._retry(lost_id)

    def _silent(self, now: float) -> dict[str, Retry]:
        """The states of the peers that stopped answering and may be retried, by peer id."""
        retries = self._book.silent().items()
        left = {peer: retry for peer, retry in retries if self._directory.get(peer) is None}
        return left | self._directory.silent(now)

    async def _retry(self, peer_id: str) -> bool | None:
        """Retry a lost peer. Return True if it answers."""
        peer, entry = self._directory.get(peer_id), self._book.get(peer_id)
        if peer is None:
            return await self._try(entry) if entry is not None else None
        asked_before, last_seen, lost_at = peer.retry.tried_at, peer.last_seen, peer.retry.lost_at
        peer.retry.begin(self._clock.now())
        is_alive = await self._asker.greet(peer)
        self._note(peer.peer_id, is_alive, last_seen)
        self._directory.dismiss(peer, asked_before)
        if is_alive:
            self._came_back(lost_at)
        return is_alive

    def _came_back(self, lost_at: float) -> None:
        """Note that a peer lost at `lost_at` answers again."""
        now = self._clock.now()
        came_back(self._silent(now).values(), lost_at, now)

    async def _try(self, entry: Known) -> bool:
        """Try a peer of the book. Return True if it answers."""
        now = self._clock.now()
        lost_at = entry.retry.lost_at if entry.is_tried and entry.retry.failures else now
        entry.retry.begin(now)
        peer = self._directory.get(entry.peer_id)
        if peer is None:
            peer = Peer(entry.peer_id, now, entry.addresses)
            is_alive = await self._asker.greet(peer)
            self._note(entry.peer_id, is_alive)
            if not is_alive:
                return False
            live_peer = self._directory.meet(
                entry.peer_id, self._clock.now()
            )  # it may have greeted us
            live_peer.is_greeted, live_peer.addresses = True, peer.addresses
            live_peer.record_answer(self._clock.now())
            peer = live_peer
        self._directory.add_partner(self._rng, peer, self._members.issuer, self._clock.now())
        if entry.heartbeat:
            self._add_presence(entry.heartbeat, author_id=entry.peer_id, teller=None)
        if lost_at < now:
            self._came_back(lost_at)
        return True

    def _note(self, peer_id: str, is_alive: bool, last_seen: float = -math.inf) -> None:
        """Report the result of a try to the book. The peer was last seen at `last_seen`."""
        now = self._clock.now()
        if is_alive:
            self._book.record_answer(peer_id, now, self._members.issuer(peer_id))
        else:
            self._book.record_failure(peer_id, now, self._directory.last_heard(), last_seen)

    def _searching(self, now: float) -> bool:
        """Check that it is time to try a peer of the book."""
        return now >= self._next_feeler or self._directory.fewer(PARTNERS, now, partners=True)

    def _may_leave_out(self, peer_id: str) -> bool:
        """Check that the book can leave out this peer: a partner, or one that may not be asked
        now."""
        peer = self._directory.get(peer_id)
        return peer is not None and (
            peer.partner_since is not None or peer.retry_at > self._clock.now()
        )

    async def _read(self) -> None:
        """Read some heartbeats from the transport, if it is time."""
        has_few_peers = self._directory.fewer(FEW, self._clock.now())
        if self._beats_left and not has_few_peers:
            self._beats_left -= 1
            return
        self._beats_left = _BEATS_PER_READ
        heartbeats = await self._transport.heartbeats()
        sample = self._rng.sample(sorted(heartbeats), min(len(heartbeats), _HEARD_PER_READ))
        for peer_id in sample:
            self._add_presence(heartbeats[peer_id], author_id=peer_id, teller=None)
        if has_few_peers:
            await asyncio.gather(*(self.try_peer() for _ in range(FEW)))

    def _add_presence(self, raw: bytes, author_id: str | None, teller: str | None) -> None:
        """Check a presence, from the DHT or from the peer `teller`, and record its content. An
        honest peer checks each presence before it passes it on. So a teller is responsible for all
        faults but those of times and lists."""
        record = self._members.read_presence(raw, author_id)
        if isinstance(record, Rejected):
            author = author_id or teller
            if author is not None and self._members.author(raw) == author:
                self._asker.note_clock(author, record, told_itself=teller == author)
            return self._asker.reject(record, teller)
        send_heartbeat, peer_id, now = record.head, record.member.peer_id, self._clock.now()
        self._directory.failures.in_time(peer_id)
        issuer = record.member.admitted_by.hex()
        self._book.tell(
            peer_id,
            send_heartbeat.addresses,
            now,
            issuer=issuer,
            # The table names no teller. Its members share one teller per issuer.
            teller=teller or "",
            telling_issuer=self._members.issuer(teller) if teller else issuer,
            heartbeat=raw,
            issued_ms=send_heartbeat.issued_ms,
        )
        peer = self._directory.get(peer_id)
        if peer is None or send_heartbeat.issued_ms <= peer.issued_ms:
            return
        peer.issued_ms, peer.heartbeat, peer.last_seen = send_heartbeat.issued_ms, raw, now
        peer.addresses, peer.version = send_heartbeat.addresses, send_heartbeat.policy_version
        peer.epoch, peer.head = send_heartbeat.epoch, send_heartbeat.head

    async def _exchange_peers(self, peer: Peer) -> None:
        request = wire.pack(wire.PeersRequest(limit=_PEERS_LIMIT))
        reply = await self._asker.ask_for(wire.PeersReply, peer, PEERS, request)
        for raw in reply.presences[:_PEERS_LIMIT] if reply else ():
            self._add_presence(raw, author_id=None, teller=peer.peer_id)

    async def _save(self) -> None:
        """Store the peers that answered, with the anchors among them."""
        now, wall = self._clock.now(), self._clock.wall()
        partners = self._directory.partners(now)
        anchors = {peer.peer_id for peer in partners[:ANCHORS]}
        tried_entries = self._book.tried_peers()
        state = [
            (k.peer_id, k.addresses, k.issuer, k.retry.failures, k.peer_id in anchors)
            for k in tried_entries
        ]
        if state == self._saved_state:
            return
        self._saved_state = state
        last_seen = {peer.peer_id: peer.last_seen for peer in partners}
        rows = [
            KnownPeer(
                entry.peer_id,
                entry.addresses,
                last_seen=wall - (now - max(entry.answered_at, last_seen.get(entry.peer_id, 0.0))),
                issuer=entry.issuer,
                failures=entry.retry.failures,
                anchor=entry.peer_id in anchors,
            )
            for entry in tried_entries
        ]
        await self._storage.run(self._storage.remember_peers, rows)
