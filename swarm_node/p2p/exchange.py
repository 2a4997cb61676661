"""Shares experience: publishes own groups; meets peers; lists, draws and pulls their groups.

No call waits for all peers: it asks a few random ones, each with a deadline, and returns what they
answered. `serving.py` answers the same protocols; `verify.py` decides on admission.
"""

from __future__ import annotations

import asyncio
import functools
import math
import random
from collections import Counter
from collections.abc import Callable, Sequence

import structlog

from swarm_node.clock import Clock
from swarm_node.errors import RefusedError, Rejected, TransportError
from swarm_node.p2p import wire
from swarm_node.p2p.envelope import Kind, Opened, content_id, open_sealed, seal
from swarm_node.p2p.identity import Identity, public_key_of
from swarm_node.p2p.membership import SwarmInfo, verify_chain
from swarm_node.p2p.peers import Directory, Offer, Peer
from swarm_node.p2p.serving import (
    HELLO,
    LIST,
    NOT_HERE,
    PEERS,
    PULL,
    UNKNOWN_MEMBER,
    hello_body,
)
from swarm_node.p2p.transport import MAX_HEARTBEAT_BYTES, Transport
from swarm_node.p2p.verify import GroupVerifier, stored_group
from swarm_node.rollout import Provenance, RolloutGroup, VerifiedGroup
from swarm_node.storage import Storage, StoredGroup

_MAX_SMALL_REPLY = 64 * 1024
_LIST_LIMIT = 128
_PEERS_LIMIT = 8
_HEARTBEATS_PER_BEAT = 8
_MAX_LIST_REPLY = _LIST_LIMIT * (wire.MAX_ANNOUNCEMENT_BYTES + 8) + 64
_REQUEST_SECONDS = 10.0
_PULL_SECONDS = 60.0
_HEARTBEAT_LIVES = 3
_log = structlog.get_logger(__name__)


class Exchange:
    """Sends the node's requests to its peers."""

    def __init__(
        self,
        *,
        transport: Transport,
        identity: Identity,
        swarm: SwarmInfo,
        chain: tuple[bytes, bytes],
        storage: Storage,
        verifier: GroupVerifier,
        directory: Directory,
        rejected: Counter[str],
        clock: Clock,
        rng: random.Random,
    ) -> None:
        self._transport = transport
        self._identity = identity
        self._swarm = swarm
        self._chain = chain
        self._storage = storage
        self._verifier = verifier
        self._directory = directory
        self._rejected = rejected
        self._clock = clock
        self._rng = rng
        self._pulling: Counter[str] = Counter()
        self._unread = 0  # further beats before the next read of all heartbeats

    async def publish(
        self, scored: Sequence[tuple[RolloutGroup, str]], version: int
    ) -> list[VerifiedGroup]:
        """Seal and store own groups, each with its prompt; on return they survive a crash.

        Groups that peers can learn from are announced: their rewards differ and peers accept their
        tokens (a model may sample special tokens inside an answer). This node computed the
        `claimed` rewards of its own groups, so they are the verified rewards as well.

        Raises:
            HomeError: the disk is full or the database damaged.
        """
        created_ms = int(self._clock.wall() * 1000)
        epoch = self._storage.epoch
        published: list[VerifiedGroup] = []
        entries: list[tuple[StoredGroup, bytes | None]] = []
        first = await self._storage.run(self._storage.next_seq)
        for seq, (group, prompt) in enumerate(scored, start=first):
            body = wire.pack_group(group, epoch=epoch, seq=seq, created_ms=created_ms)
            sealed = seal(self._identity, self._swarm.swarm_id, Kind.ROLLOUT, body)
            verified = VerifiedGroup(
                id=content_id(sealed),
                author=self._identity.peer_id,
                provenance=Provenance.OWN,
                group=group,
                prompt=prompt,
                rewards=group.claimed,
                arrived=version,
            )
            published.append(verified)
            useful = verified.informative and self._verifier.accepts_tokens(group)
            announcement = self._announce(verified, seq, sealed) if useful else None
            entries.append((stored_group(verified, epoch, seq, sealed), announcement))
        await self._storage.run(self._storage.publish, entries)
        return published

    async def beat(self, version: int, seconds: float) -> None:
        """Publish this node's heartbeat, read those of all peers, and ask one peer for more.

        The larger the swarm, the fewer beats read all heartbeats, so the cost per beat does not
        grow with the swarm. Between two reads a node meets newcomers that greet it or whose
        heartbeats another peer sends.
        """
        heartbeat = wire.pack(
            wire.Heartbeat(
                v=1,
                addresses=wire.fit_heartbeat(self._transport.addresses()),
                policy_version=version,
                epoch=self._storage.epoch,
                head=await self._storage.run(self._storage.head),
                issued_ms=int(self._clock.wall() * 1000),
                agent="swarm-node",
            )
        )
        sealed = seal(self._identity, self._swarm.swarm_id, Kind.HEAD, heartbeat)
        await self._transport.publish_heartbeat(sealed, seconds * _HEARTBEAT_LIVES)
        if self._unread:
            self._unread -= 1
        else:
            found = await self._transport.heartbeats()
            self._unread = len(found) // _HEARTBEATS_PER_BEAT
            for peer_id, raw in found.items():
                self._hear(raw, expected=peer_id)
        for peer in self._directory.draw(self._rng, 1, self._clock.now()):
            await self._exchange_peers(peer)

    async def list_some(self, count: int, wanted: int) -> int:
        """List the newest announcements of up to `count` random peers, about `wanted` in all.
        Returns how many new offers these peers state, listed or not.

        The limit keeps the cost independent of the swarm's size: in a large swarm a peer has
        announced many groups since it was last listed. If none is wanted, one peer is still asked
        for its newest announcement, so that the offers do not all become stale.
        """
        count = count if wanted > 0 else 1
        peers = self._directory.draw(self._rng, count, self._clock.now())
        limit = max(1, min(math.ceil(wanted / count), _LIST_LIMIT))
        return sum(await asyncio.gather(*(self._list(peer, limit) for peer in peers)))

    def on_offer(self, slots: Callable[[str | None], int]) -> int:
        """How many more groups could be pulled now. Together with the pulls under way they take at
        most `slots(author)` of each author and `slots(None)` in all."""
        free = slots(None) - self._pulling.total()
        if free <= 0:
            return 0
        return min(free, self._directory.offered(self._left(slots), self._clock.now()))

    async def pull(self, slots: Callable[[str | None], int], version: int) -> VerifiedGroup | None:
        """Draw one offer at random, pull the group and verify it. None if there is no offer, if
        nobody answered, or if the group was refused, which is counted."""
        offer = self._directory.draw_offer(self._rng, self._left(slots), self._clock.now())
        if offer is None:
            return None
        self._pulling[offer.author] += 1
        try:
            return await self._pull(offer, version)
        finally:
            self._pulling[offer.author] -= 1

    def reject(self, rejected: Rejected, peer_id: str | None) -> None:
        """Count a refusal, in total and for the peer that sent the message."""
        self._rejected[rejected.reason] += 1
        peer = self._directory.get(peer_id) if peer_id else None
        if peer is not None:
            peer.rejected[rejected.reason] += 1
        _log.debug("rejected", reason=rejected.reason, detail=rejected.detail, peer=peer_id)

    def _left(self, slots: Callable[[str | None], int]) -> Callable[[str], int]:
        return lambda author: slots(author) - self._pulling[author]

    def _announce(self, verified: VerifiedGroup, seq: int, sealed: bytes) -> bytes:
        group = verified.group
        body = wire.pack(
            wire.Announcement(
                v=1,
                epoch=self._storage.epoch,
                seq=seq,
                id=verified.id,
                size=len(sealed),
                environment=group.task.environment,
                version=group.task.version,
                family=group.task.family,
                model=group.policy.model,
                tokenizer=group.policy.tokenizer,
                policy_version=group.policy.version,
                completions=len(group.completions),
                mixed=True,
            )
        )
        return seal(self._identity, self._swarm.swarm_id, Kind.RECORD, body)

    def _hear(self, raw: bytes, expected: str | None) -> None:
        """Check a heartbeat, from the DHT or from another peer, and note what it says."""
        opened = self._opened(raw, Kind.HEAD, MAX_HEARTBEAT_BYTES, expected)
        if opened is None or opened.author == self._identity.peer_id:
            return
        beat = wire.unpack(wire.Heartbeat, opened.body, max_bytes=MAX_HEARTBEAT_BYTES)
        if isinstance(beat, Rejected):
            return self.reject(beat, opened.author)
        now = self._clock.now()
        peer = self._directory.meet(opened.author, now)
        if beat.issued_ms <= peer.issued_ms:
            return
        peer.issued_ms, peer.heartbeat, peer.last_seen = beat.issued_ms, raw, now
        peer.addresses, peer.version = beat.addresses, beat.policy_version
        peer.epoch, peer.head = beat.epoch, beat.head

    def _opened(self, raw: bytes, kind: Kind, most: int, author: str | None) -> Opened | None:
        """An envelope of at most `most` bytes by `author`, or by anybody for None. If it is
        refused, that is counted."""
        opened = open_sealed(raw, self._swarm.swarm_id, kind, max_bytes=most)
        if isinstance(opened, Opened) and author not in (None, opened.author):
            opened = Rejected("author", f"a {kind.name} envelope of another peer")
        if isinstance(opened, Opened):
            return opened
        self.reject(opened, author)
        return None

    async def _exchange_peers(self, peer: Peer) -> None:
        request = wire.pack(wire.PeersRequest(limit=_PEERS_LIMIT))
        reply = await self._ask(peer, PEERS, request, max_reply=_MAX_SMALL_REPLY)
        if reply is None:
            return
        peers = wire.unpack(wire.PeersReply, reply, max_bytes=_MAX_SMALL_REPLY)
        if isinstance(peers, Rejected):
            return self.reject(peers, peer.peer_id)
        for raw in peers.heartbeats:
            self._hear(raw, expected=None)

    async def _list(self, peer: Peer, limit: int) -> int:
        epoch, since = peer.cursor
        # Older announcements are too stale to pull, so a newcomer lists only the newest.
        since = max(since if epoch == peer.epoch else 0, peer.head - _LIST_LIMIT)
        request = wire.pack(wire.ListRequest(epoch=peer.epoch, since=since, limit=limit))
        reply = await self._ask(peer, LIST, request, max_reply=_MAX_LIST_REPLY)
        if reply is None:
            return 0
        listed = wire.unpack(wire.ListReply, reply, max_bytes=_MAX_LIST_REPLY)
        if isinstance(listed, Rejected):
            self.reject(listed, peer.peer_id)
            return 0
        since = since if listed.epoch == peer.epoch else 0
        peer.epoch, peer.head = listed.epoch, listed.head
        before = peer.offered
        for raw in listed.items:
            since = max(since, self._note(peer, raw))
        peer.cursor = (listed.epoch, since)
        # The peer alone states how many it left out, so the number is bounded.
        return peer.offered - before + min(listed.left_out, _LIST_LIMIT)

    def _note(self, peer: Peer, raw: bytes) -> int:
        """Check one announcement, and keep it as an offer if its group is new and mixed. Returns
        its sequence number, 0 if it was refused."""
        opened = self._opened(raw, Kind.RECORD, wire.MAX_ANNOUNCEMENT_BYTES, peer.peer_id)
        if opened is None:
            return 0
        entry = wire.unpack(wire.Announcement, opened.body, max_bytes=wire.MAX_ANNOUNCEMENT_BYTES)
        if isinstance(entry, Rejected):
            self.reject(entry, peer.peer_id)
            return 0
        if entry.mixed and self._verifier.seen(peer.peer_id, entry.epoch, entry.seq) is None:
            peer.offered += 1
            peer.offers.append(Offer(entry.id, peer.peer_id, entry.epoch, entry.seq, entry.size))
        return entry.seq

    async def _pull(self, offer: Offer, version: int) -> VerifiedGroup | None:
        if self._verifier.seen(offer.author, offer.epoch, offer.seq) is not None:
            return None  # admitted, or outside the replay window, since it was listed
        request = wire.pack(wire.PullRequest(id=offer.id))
        for peer in self._holders(offer):
            sealed = await self._ask(
                peer, PULL, request, max_reply=offer.size, seconds=_PULL_SECONDS
            )
            if sealed is None:
                continue
            result = await self._verifier.verify(offer, sealed, version)
            if isinstance(result, Rejected):
                if result.reason == "hash":  # the fault of this holder, not of the author
                    self.reject(result, peer.peer_id)
                    continue
                self.reject(result, offer.author)
                if result.reason == "judging":
                    self._directory.offended(offer.author, self._clock.now())
                return None
            author = self._directory.get(offer.author)
            if author is not None:
                author.received += 1
            return result
        self._directory.give_back(offer)
        return None

    def _holders(self, offer: Offer) -> list[Peer]:
        """The author, then two other peers: a hash names the group, so anyone may send it."""
        now = self._clock.now()
        others = [p for p in self._directory.draw(self._rng, 3, now) if p.peer_id != offer.author]
        author = self._directory.get(offer.author)
        reachable = author is not None and author.retry_at <= now
        return ([author] if author is not None and reachable else []) + others[:2]

    async def _ask(
        self,
        peer: Peer,
        protocol: str,
        payload: bytes,
        *,
        max_reply: int,
        seconds: float = _REQUEST_SECONDS,
    ) -> bytes | None:
        """Send one request to a member, after a greeting if needed. A failure is counted: None."""
        try:
            async with asyncio.timeout(seconds if peer.greeted else seconds + _REQUEST_SECONDS):
                if not peer.greeted:
                    await self._greet(peer)
                ask = functools.partial(
                    self._transport.request, peer.peer_id, protocol, payload, max_reply=max_reply
                )
                try:
                    reply = await ask()
                except RefusedError as error:
                    if UNKNOWN_MEMBER not in str(error):
                        raise
                    await self._greet(peer)  # it restarted and forgot us
                    reply = await ask()
        except (TransportError, TimeoutError) as error:
            if isinstance(error, RefusedError) and NOT_HERE in str(error):
                peer.answered(self._clock.now())  # no failure: a peer need not hold a group
                self._rejected["not_here"] += 1
                return None
            peer.failed(self._clock.now())
            self._rejected["unreachable"] += 1
            _log.debug("unreachable", peer=peer.peer_id, protocol=protocol, error=str(error))
            return None
        peer.answered(self._clock.now())
        return reply

    async def _greet(self, peer: Peer) -> None:
        """Exchange certificate chains; raises TransportError if the peer is no member."""
        if peer.addresses:
            await self._transport.dial(peer.addresses)
        body = wire.pack(hello_body(wire.HelloRequest, self._chain, self._transport))
        raw = await self._transport.request(peer.peer_id, HELLO, body, max_reply=_MAX_SMALL_REPLY)
        hello = wire.unpack(wire.HelloReply, raw, max_bytes=_MAX_SMALL_REPLY)
        if isinstance(hello, Rejected):
            raise TransportError(f"{peer.peer_id} sent a malformed greeting: {hello.detail}")
        member = verify_chain(
            hello.chain, self._swarm, public_key_of(peer.peer_id), self._clock.wall()
        )
        if isinstance(member, Rejected):
            self.reject(member, peer.peer_id)
            raise TransportError(f"{peer.peer_id} is no member of this swarm: {member.reason}")
        peer.member_until = member.not_after
        peer.greeted = True
        if hello.addresses:
            peer.addresses = hello.addresses
