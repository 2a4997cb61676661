"""Lists, draws and pulls the groups of peers. `verify.py` decides on their admission."""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from swarm_node.errors import Rejected
from swarm_node.p2p.exchange.requests import Asker
from swarm_node.p2p.exchange.verify import GroupVerifier
from swarm_node.p2p.limits.budgets import Effort, Traffic
from swarm_node.p2p.membership.local_node import LocalNode
from swarm_node.p2p.peers.peers import Offer, Peer
from swarm_node.p2p.peers.standing import BLAMELESS
from swarm_node.p2p.wire import wire
from swarm_node.p2p.wire.envelope import Kind
from swarm_node.p2p.wire.protocols import LIST, PULL
from swarm_node.rollout import VerifiedGroup

_LIST_LIMIT = 128
_MAX_LIST_REPLY = _LIST_LIMIT * (wire.MAX_ANNOUNCEMENT_BYTES + 8) + 64
_PULL_SECONDS = 60.0
_LIST_TRIES = 3


@dataclass(frozen=True, slots=True)
class Turn:
    """Permission to list one peer, up to `limit` announcements. `asked_ids` are the peers that the
    turns of one round have asked."""

    limit: int
    asked_ids: set[str]


class Puller:
    """Fetches peers' groups."""

    def __init__(
        self,
        local: LocalNode,
        asker: Asker,
        *,
        verifier: GroupVerifier,
        traffic: Traffic,
        effort: Effort,
        rng: random.Random,
    ) -> None:
        self._asker = asker
        self._verifier = verifier
        self._directory = local.directory
        self._members = local.members
        self._traffic = traffic
        self._effort = effort
        self._clock = local.clock
        self._rng = rng
        self._pulling: Counter[str] = Counter()
        self._listing: set[str] = set()

    def turns(self, count: int, total: int) -> list[Turn]:
        """Make the turns of one round: `count` different peers, or all if there are fewer, and
        about `total` announcements in all.

        The limit keeps the cost independent of the swarm's size: in a large swarm a peer has
        announced many groups since it was last listed. If `total` is 0, one peer is still asked
        for its newest announcement, so that not all offers become stale.
        """
        now, count = self._clock.now(), count if total > 0 else 1
        while count > 1 and self._directory.fewer(count, now):
            count -= 1
        limit = max(1, min(math.ceil(total / count), _LIST_LIMIT))
        peer_ids: set[str] = set()
        return [Turn(limit, peer_ids) for _ in range(count)]

    async def list_one(self, turn: Turn) -> Counter[str]:
        """List a random peer. A peer that does not answer costs this call ten seconds, and then
        another is asked. Return the number of new offers that the peer states, under its id."""
        for _ in range(_LIST_TRIES):
            excluded_ids = turn.asked_ids | self._listing
            peers = self._directory.draw(self._rng, 1, self._clock.now(), excluded_ids)
            if not peers:
                break
            peer_id = peers[0].peer_id
            turn.asked_ids.add(peer_id)
            self._listing.add(peer_id)
            try:
                offer_count = await self._list(peers[0], turn.limit)
            finally:
                self._listing.discard(peer_id)
            if offer_count is not None:
                return Counter({peer_id: offer_count})
        return Counter()

    def on_offer(self, slots: Callable[[str | None], int]) -> int:
        """Count the groups that could still be pulled now. Together with the pulls under way they
        take at most `slots(author)` of each author and `slots(None)` in all."""
        free = slots(None) - self._pulling.total()
        if free <= 0:
            return 0
        return min(
            free, self._directory.offered_count(self._make_slots_left(slots), self._clock.now())
        )

    async def pull(self, slots: Callable[[str | None], int], version: int) -> VerifiedGroup | None:
        """Draw one offer at random, pull the group and verify it. Return None if there is no offer,
        if nobody answered, or if the group was refused, which is counted."""
        while True:
            now = self._clock.now()
            offer = self._directory.draw_offer(
                self._rng, self._make_slots_left(slots), self._members.issuer, now
            )
            if offer is None:
                return None
            if self._effort.has_budget(offer.author, now) and self._traffic.pulls(
                offer.author, now, offer.size
            ):
                break
            self._directory.postpone(offer, now)  # its author has had its share
        self._pulling[offer.author] += 1
        try:
            return await self._pull(offer, version)
        finally:
            self._pulling[offer.author] -= 1
            if not self._pulling[offer.author]:
                del self._pulling[offer.author]

    def _make_slots_left(self, slots: Callable[[str | None], int]) -> Callable[[str], int]:
        return lambda author: slots(author) - self._pulling[author]

    async def _list(self, peer: Peer, limit: int) -> int | None:
        epoch, last_seq = peer.cursor
        # Older announcements are too stale to pull, so a newcomer lists only the newest.
        last_seq = max(last_seq if epoch == peer.epoch else 0, peer.head - _LIST_LIMIT)
        request = wire.pack(wire.ListRequest(epoch=peer.epoch, since=last_seq, limit=limit))
        reply = await self._asker.ask(peer, LIST, request, max_reply=_MAX_LIST_REPLY)
        if reply is None:
            return None
        listing = wire.unpack(wire.ListReply, reply, max_bytes=_MAX_LIST_REPLY)
        if isinstance(listing, Rejected):
            self._asker.reject(listing, peer.peer_id)
            return 0
        last_seq = last_seq if listing.epoch == peer.epoch else 0
        peer.epoch, peer.head = listing.epoch, listing.head
        old_count = peer.offered_groups
        for raw in listing.items:
            if self._clock.now() < peer.standing.off_until:
                break  # it was dropped for what it listed
            last_seq = max(last_seq, self._note(peer, raw))
        peer.cursor = (listing.epoch, last_seq)
        # Only the peer knows how many it left out, so the number is bounded.
        return peer.offered_groups - old_count + min(listing.left_out, _LIST_LIMIT)

    def _note(self, peer: Peer, raw: bytes) -> int:
        """Check one announcement, and keep it as an offer if its group is new and mixed. Return its
        sequence number, 0 if it was refused."""
        max_bytes = wire.MAX_ANNOUNCEMENT_BYTES
        envelope = self._asker.open_envelope(raw, Kind.RECORD, max_bytes, peer.peer_id)
        if envelope is None:
            return 0
        entry = wire.unpack(wire.Announcement, envelope.body, max_bytes=max_bytes)
        if isinstance(entry, Rejected):
            self._asker.reject(entry, peer.peer_id)
            return 0
        peer.environment = entry.environment, entry.version
        peer.policy = entry.model, entry.tokenizer
        seq_rejection = self._verifier.check_replay(peer.peer_id, entry.epoch, entry.seq)
        if seq_rejection is not None and seq_rejection.reason not in BLAMELESS:
            self._asker.reject(seq_rejection, peer.peer_id)
        if entry.mixed and seq_rejection is None:
            rejection = self._verifier.refuse_announced(entry)
            if rejection is not None:
                self._asker.reject(rejection, peer.peer_id)
                return entry.seq
            peer.offered_groups += 1
            peer.offers.append(Offer(entry.id, peer.peer_id, entry.epoch, entry.seq, entry.size))
        return entry.seq

    async def _pull(self, offer: Offer, version: int) -> VerifiedGroup | None:
        if self._verifier.check_replay(offer.author, offer.epoch, offer.seq) is not None:
            return None  # admitted, or outside the replay window, since it was listed
        if self._asker.reject_former_member(offer.author):
            return None
        request = wire.pack(wire.PullRequest(id=offer.id))
        for peer in self._holders(offer):
            blob = await self._asker.ask(
                peer,
                PULL,
                request,
                max_reply=offer.size,
                seconds=_PULL_SECONDS,
                stated_by=offer.author,
            )
            if blob is None:
                continue
            result = await self._verifier.verify(offer, blob, version)
            if isinstance(result, Rejected):
                if result.reason == "hash":  # the fault of this holder, not of the author
                    self._asker.reject(result, peer.peer_id)
                    continue
                self._asker.reject(result, offer.author)
                if result.reason == "unscored":  # this machine may score it later
                    self._directory.give_back(offer)
                return None
            if self._asker.reject_former_member(offer.author):  # while it was scored
                return None
            author = self._directory.get(offer.author)
            if author is not None:
                author.accepted_groups += 1
            return result
        self._directory.give_back(offer)
        return None

    def _holders(self, offer: Offer) -> list[Peer]:
        """Return the author if it may be asked now, then up to two other peers. A hash names the
        group, so any peer may send it."""
        now = self._clock.now()
        other_peers = [
            peer for peer in self._directory.draw(self._rng, 3, now) if peer.peer_id != offer.author
        ]
        author = self._directory.get(offer.author)
        reachable = author is not None and author.retry_at <= now
        return ([author] if author is not None and reachable else []) + other_peers[:2]
