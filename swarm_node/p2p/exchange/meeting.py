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
from swarm_node.p2p.exchange.affairs import Affairs
from swarm_node.p2p.exchange.asking import Asker
from swarm_node.p2p.membership.credentials import Credentials
from swarm_node.p2p.membership.local import Local
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


class Meeting:
    """Makes this node known to peers, and finds them."""

    def __init__(
        self,
        local: Local,
        asker: Asker,
        book: AddressBook,
        *,
        transport: Transport,
        credentials: Credentials,
        affairs: Affairs,
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
        self._affairs = affairs
        self._swarm_id = local.swarm_id
        self._storage = storage
        self._directory = local.directory
        self._clock = local.clock
        self._rng = rng
        self._relays = relays
        self._unread = 0  # further beats before the next read of the transport's table
        self._next_feeler = 0.0
        self._saved: list[tuple[str, tuple[str, ...], str, int, bool]] = []

    async def open(self, bootstraps: Sequence[str]) -> None:
        """Load the peers of earlier runs and the addresses from the settings and the ticket.
        Anchors and these addresses are tried first."""
        now, wall = self._clock.now(), self._clock.wall()
        for row in await self._storage.run(self._storage.known_peers, MAX_PEERS):
            known = Known(row.peer_id, row.addresses, row.issuer, "")
            known.retry = Retry(PEER, failures=row.failures)
            known.answered = now - max(0.0, wall - row.last_seen)
            self._book.restore(known, anchor=row.anchor)
        self.name(bootstraps)

    def name(self, addresses: Sequence[str]) -> None:
        """Add the peers of these addresses to the book, to be tried first."""
        peers: dict[str, list[str]] = {}
        for address in addresses:
            peers.setdefault(address.rpartition("/")[2], []).append(address)
        self._book.configure(peers.items(), self._clock.now())

    async def beat(self, version: int, seconds: float) -> None:
        """Publish this node's heartbeat, ask a peer for those of others, and store the peers that
        answer. With few peers, also read heartbeats from the transport and try their peers at
        once."""
        await self._affairs.tend()
        own = self._credentials
        heartbeat = wire.pack(
            wire.Heartbeat(
                v=1,
                addresses=circuit.fit_heartbeat(self._transport.addresses()),
                policy_version=version,
                epoch=self._storage.epoch,
                head=await self._storage.run(self._storage.head),
                issued_ms=int(self._clock.wall() * 1000),
                agent="swarm-node",
                revoked=own.lists.number,
                secret=own.secrets.number,
                delegate=own.delegate is not None,
                relays=self._relays(),
            )
        )
        sealed = seal(self._identity, self._swarm_id, Kind.HEAD, heartbeat)
        presence = wire.pack(wire.Presence(sealed, *own.chain))
        self._directory.heartbeat = presence
        await self._transport.publish_heartbeat(presence, seconds * _HEARTBEAT_LIVES)
        await self._read()
        now = self._clock.now()
        for peer in self._directory.live(now, seconds):
            issuer = self._members.issuer(peer.peer_id)
            self._book.welcome(peer.peer_id, peer.addresses, now, issuer)
        # Without a table the node hears of others only from peers, so it asks more of them.
        count = 1 if self._transport.has_table else FEW
        asked = self._directory.draw(self._rng, count, self._clock.now())
        await asyncio.gather(*map(self._exchange_peers, asked))
        await self._save()

    def hear(self, presences: Iterable[bytes]) -> None:
        """Accept presences from a coordinator, like those of the transport's table."""
        for raw in presences:
            self._hear(raw, expected=None, teller=None)

    def unmet(self, most: int) -> tuple[list[Unmet], int]:
        """Return up to `most` members that this node heard of and does not work with, and the
        number of all of them."""
        now = self._clock.now()
        return self._book.unmet(now, most, lambda peer: self._directory.get(peer) is not None)

    def addresses(self, peer_id: str) -> Sequence[str] | None:
        """Return the addresses of a peer that this node knows or heard of, None for any other."""
        peer = self._directory.get(peer_id)
        return self._book.addresses(peer_id) if peer is None else peer.addresses

    async def reach(self, peer_id: str) -> Peer | None:
        """Try a member now that this node does not work with. Return None if it does not answer, or
        if this node never heard of it."""
        self._book.forgive(peer_id, self._clock.now(), self._members.issuer(peer_id))
        known = self._book.get(peer_id)
        if known is not None:
            await self._try(known)
        return self._directory.get(peer_id)

    async def feel(self) -> bool | None:
        """Try one peer: a lost one, or one that this node only heard of. Return True if it
        answered, None if there is none to try now.

        A dead peer delays only this call. The caller runs one call at a time, or a few while there
        are fewer than FEW peers.
        """
        now = self._clock.now()
        alone = self._directory.fewer(1, now)
        lost = choose(self._rng, self._silent(now), now, alone=alone)
        if self._searching(now) and (lost is None or self._rng.random() < 0.5):
            known = self._book.pick(self._rng, now, self._passed)
            if known is not None:
                self._next_feeler = now + _FEELER_SECONDS
                return await self._try(known)
        return None if lost is None else await self._retry(lost)

    def _silent(self, now: float) -> dict[str, Retry]:
        """The states of the peers that stopped answering and may be retried, by peer id."""
        known = self._book.silent().items()
        left = {peer: retry for peer, retry in known if self._directory.get(peer) is None}
        return left | self._directory.silent(now)

    async def _retry(self, peer_id: str) -> bool | None:
        """Retry a lost peer. Return True if it answers."""
        lost, known = self._directory.get(peer_id), self._book.get(peer_id)
        if lost is None:
            return await self._try(known) if known is not None else None
        asked_before, since, lost_at = lost.retry.tried_at, lost.last_seen, lost.retry.lost_at
        lost.retry.begin(self._clock.now())
        answered = await self._asker.greet(lost)
        self._note(lost.peer_id, answered, since)
        self._directory.dismiss(lost, asked_before)
        if answered:
            self._came_back(lost_at)
        return answered

    def _came_back(self, lost_at: float) -> None:
        """Note that a peer lost at `lost_at` answers again."""
        now = self._clock.now()
        came_back(self._silent(now).values(), lost_at, now)

    async def _try(self, known: Known) -> bool:
        """Try a peer of the book. Return True if it answers."""
        now = self._clock.now()
        lost_at = known.retry.lost_at if known.tried and known.retry.failures else now
        known.retry.begin(now)
        peer = self._directory.get(known.peer_id)
        if peer is None:
            peer = Peer(known.peer_id, now, known.addresses)
            answered = await self._asker.greet(peer)
            self._note(known.peer_id, answered)
            if not answered:
                return False
            met = self._directory.meet(known.peer_id, self._clock.now())  # it may have greeted us
            met.greeted, met.addresses = True, peer.addresses
            met.answered(self._clock.now())
            peer = met
        self._directory.befriend(self._rng, peer, self._members.issuer, self._clock.now())
        if known.heartbeat:
            self._hear(known.heartbeat, expected=known.peer_id, teller=None)
        if lost_at < now:
            self._came_back(lost_at)
        return True

    def _note(self, peer_id: str, answered: bool, since: float = -math.inf) -> None:
        """Report the result of a try to the book. The peer was last seen at `since`."""
        now = self._clock.now()
        if answered:
            self._book.answered(peer_id, now, self._members.issuer(peer_id))
        else:
            self._book.failed(peer_id, now, self._directory.heard(), since)

    def _searching(self, now: float) -> bool:
        """Check that it is time to try a peer of the book."""
        return now >= self._next_feeler or self._directory.fewer(PARTNERS, now, partners=True)

    def _passed(self, peer_id: str) -> bool:
        """Check that the book can leave out this peer: a partner, or one that may not be asked
        now."""
        peer = self._directory.get(peer_id)
        return peer is not None and (
            peer.partner_since is not None or peer.retry_at > self._clock.now()
        )

    async def _read(self) -> None:
        """Read some heartbeats from the transport, if it is time."""
        few = self._directory.fewer(FEW, self._clock.now())
        if self._unread and not few:
            self._unread -= 1
            return
        self._unread = _BEATS_PER_READ
        found = await self._transport.heartbeats()
        heard = self._rng.sample(sorted(found), min(len(found), _HEARD_PER_READ))
        for peer_id in heard:
            self._hear(found[peer_id], expected=peer_id, teller=None)
        if few:
            await asyncio.gather(*(self.feel() for _ in range(FEW)))

    def _hear(self, raw: bytes, expected: str | None, teller: str | None) -> None:
        """Check a presence, from the DHT or from the peer `teller`, and record its content. An
        honest peer checks each presence before it passes it on. So a teller is responsible for all
        faults but those of times and lists."""
        heard = self._members.hear(raw, expected)
        if isinstance(heard, Rejected):
            author = expected or teller
            if author is not None and self._members.author(raw) == author:
                self._asker.note_clock(author, heard, told_itself=teller == author)
            return self._asker.reject(heard, teller)
        beat, peer_id, now = heard.head, heard.member.peer_id, self._clock.now()
        self._directory.failures.in_time(peer_id)
        issuer = heard.member.admitted_by.hex()
        self._book.tell(
            peer_id,
            beat.addresses,
            now,
            issuer=issuer,
            # The table names no teller. Its members share one teller per issuer.
            teller=teller or "",
            telling_issuer=self._members.issuer(teller) if teller else issuer,
            heartbeat=raw,
            issued_ms=beat.issued_ms,
        )
        peer = self._directory.get(peer_id)
        if peer is None or beat.issued_ms <= peer.issued_ms:
            return
        peer.issued_ms, peer.heartbeat, peer.last_seen = beat.issued_ms, raw, now
        peer.addresses, peer.version = beat.addresses, beat.policy_version
        peer.epoch, peer.head = beat.epoch, beat.head

    async def _exchange_peers(self, peer: Peer) -> None:
        request = wire.pack(wire.PeersRequest(limit=_PEERS_LIMIT))
        reply = await self._asker.ask_for(wire.PeersReply, peer, PEERS, request)
        for raw in reply.presences[:_PEERS_LIMIT] if reply else ():
            self._hear(raw, expected=None, teller=peer.peer_id)

    async def _save(self) -> None:
        """Store the peers that answered, with the anchors among them."""
        now, wall = self._clock.now(), self._clock.wall()
        partners = self._directory.partners(now)
        anchors = {peer.peer_id for peer in partners[:ANCHORS]}
        tried = self._book.tried()
        saved = [
            (k.peer_id, k.addresses, k.issuer, k.retry.failures, k.peer_id in anchors)
            for k in tried
        ]
        if saved == self._saved:
            return
        self._saved = saved
        seen = {peer.peer_id: peer.last_seen for peer in partners}
        rows = [
            KnownPeer(
                known.peer_id,
                known.addresses,
                last_seen=wall - (now - max(known.answered, seen.get(known.peer_id, 0.0))),
                issuer=known.issuer,
                failures=known.retry.failures,
                anchor=known.peer_id in anchors,
            )
            for known in tried
        ]
        await self._storage.run(self._storage.remember_peers, rows)
