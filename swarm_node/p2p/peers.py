"""The peers that a node knows and the groups they offer. Pure state, no I/O.

Both are bounded: peers by `limit` (the peer silent for longest is forgotten first), offers per peer
by `OFFERS_PER_PEER` (the oldest is forgotten first, because the newest are the least stale).
"""

from __future__ import annotations

import random
from collections import Counter, OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from swarm_node.p2p.conduct import Blame, Standing, draw

OFFERS_PER_PEER = 64
#: In a large swarm a node draws from this many greeted peers, and with this probability from all.
PARTNERS = 32
_NEW_PARTNER = 0.02
#: How often a node requests a group before it forgets the offer.
TRIES = 3
_BACKOFF_SECONDS = (1.0, 60.0)
#: Standings of forgotten peers that a node remembers: those that were dropped once.
_REMEMBERED = 4096


@dataclass(frozen=True, slots=True)
class Offer:
    """A group that a peer announced and that this node may pull. `tries` counts failed pulls."""

    id: bytes
    author: str
    epoch: int
    seq: int
    size: int
    tries: int = 0


@dataclass(slots=True)
class Peer:
    """What is known of one peer. Times are seconds of the node's monotonic clock. `refusal` is why
    the peer takes this node for no member, in its words."""

    peer_id: str
    last_seen: float
    addresses: tuple[str, ...] = ()
    version: int = 0
    epoch: int = 0
    head: int = 0
    heartbeat: bytes = b""
    issued_ms: int = 0
    greeted: bool = False
    cursor: tuple[int, int] = (0, 0)
    offered: int = 0
    received: int = 0
    rejected: Counter[str] = field(default_factory=Counter)
    trained: int = 0
    standing: Standing = field(default_factory=Standing)
    failures: int = 0
    failed_until: float = 0.0
    refusal: str = ""
    offers: deque[Offer] = field(default_factory=lambda: deque(maxlen=OFFERS_PER_PEER))

    @property
    def retry_at(self) -> float:
        """When the peer may be asked again."""
        return max(self.failed_until, self.standing.left_until)

    def failed(self, now: float) -> None:
        """Ask the peer nothing for a while, twice as long after each failure in a row."""
        shortest, longest = _BACKOFF_SECONDS
        self.failed_until = now + min(longest, shortest * 2.0**self.failures)
        self.failures = min(self.failures + 1, 16)
        if self.failures > 1:  # after a single lost message no new greeting is needed
            self.greeted = False

    def answered(self, now: float) -> None:
        self.failures = 0
        self.failed_until = self.last_seen = now


class Directory:
    """All known peers."""

    def __init__(self, own_id: str, limit: int = 1024) -> None:
        self._own_id = own_id
        self._limit = limit
        self._peers: dict[str, Peer] = {}
        self._dropped: OrderedDict[str, Standing] = OrderedDict()

    def __len__(self) -> int:
        return len(self._peers)

    def get(self, peer_id: str) -> Peer | None:
        return self._peers.get(peer_id)

    def meet(self, peer_id: str, now: float) -> Peer:
        """The record of `peer_id`, made if new."""
        if peer_id == self._own_id:
            raise ValueError("a node is not its own peer")
        peer = self._peers.get(peer_id)
        if peer is None:
            if len(self._peers) >= self._limit:
                stalest = min(self._peers.values(), key=lambda known: known.last_seen)
                del self._peers[stalest.peer_id]
            standing = self._dropped.get(peer_id) or Standing()
            peer = self._peers[peer_id] = Peer(peer_id, now, standing=standing)
        return peer

    def forget(self, peer_id: str) -> None:
        """Drop a peer that is no member any more, with its offers."""
        self._peers.pop(peer_id, None)

    def refused(self, peer_id: str, reason: str, now: float) -> float:
        """Take in a refusal of what `peer_id` sent. Returns for how many seconds its link must be
        cut, 0 if it stays."""
        peer = self._peers.get(peer_id)
        if peer is None:
            return 0.0
        peer.rejected[reason] += 1
        blame = peer.standing.refused(reason, now)
        if now < peer.standing.off_until:
            peer.offers.clear()
            self.recall(peer_id, peer.standing)
        return self.cut(peer_id, now) if blame is Blame.VIOLATION else 0.0

    def recall(self, peer_id: str, standing: Standing) -> None:
        """Remember the standing of a peer that was dropped, also when the peer is forgotten."""
        self._dropped[peer_id] = standing
        self._dropped.move_to_end(peer_id)
        if len(self._dropped) > _REMEMBERED:
            self._dropped.popitem(last=False)

    def dropped(self) -> dict[str, Standing]:
        """The standings of all peers that were dropped once, the latest last."""
        return dict(self._dropped)

    def cut(self, peer_id: str, now: float) -> float:
        """For how many more seconds a peer gets no answer; 0 for all that broke no rule lately."""
        standing = self._dropped.get(peer_id)
        return max(0.0, standing.cut_until - now) if standing is not None else 0.0

    def live(self, now: float, patience: float) -> list[Peer]:
        """Peers seen within `patience` seconds, in a stable order."""
        return [
            self._peers[key]
            for key in sorted(self._peers)
            if now - self._peers[key].last_seen <= patience
        ]

    def draw(self, rng: random.Random, count: int, now: float) -> list[Peer]:
        """Up to `count` random peers that may be asked now. Once PARTNERS are greeted, most draws
        are from them: each greeting costs, and in a large swarm greetings would never end."""
        ready = [
            self._peers[key] for key in sorted(self._peers) if self._peers[key].retry_at <= now
        ]
        greeted = [peer for peer in ready if peer.greeted]
        if len(greeted) >= PARTNERS and rng.random() >= _NEW_PARTNER:
            ready = greeted
        return rng.sample(ready, min(count, len(ready)))

    def offered(self, slots: Callable[[str], int], now: float) -> int:
        """How many groups could be drawn now, at most `slots(author)` of each author."""
        return sum(
            min(len(peer.offers), slots(key))
            for key, peer in self._peers.items()
            if peer.offers and peer.retry_at <= now
        )

    def give_back(self, offer: Offer) -> None:
        """Keep a drawn offer that nobody answered, for TRIES pulls in all."""
        author = self._peers.get(offer.author)
        if author is not None and offer.tries + 1 < TRIES:
            author.offers.append(replace(offer, tries=offer.tries + 1))

    def postpone(self, offer: Offer, now: float) -> None:
        """Keep a drawn offer, and ask its author for nothing for a moment."""
        author = self._peers.get(offer.author)
        if author is not None:
            author.offers.append(offer)
            author.failed_until = max(author.failed_until, now + _BACKOFF_SECONDS[0])

    def draw_offer(
        self,
        rng: random.Random,
        slots: Callable[[str], int],
        issuer: Callable[[str], str],
        now: float,
    ) -> Offer | None:
        """Remove and return one offer of an author with `slots(author)` left, None without any.

        `conduct.draw` picks the author, and then all its offers have the same chance, so a peer
        that announces more is not drawn more often. Peers that may not be asked now are left out.
        """
        offering = [
            peer
            for key, peer in sorted(self._peers.items())
            if peer.offers and peer.retry_at <= now and slots(key) > 0
        ]
        if not offering:
            return None
        pool = offering[
            draw(rng, [(issuer(peer.peer_id), peer.standing) for peer in offering])
        ].offers
        index = rng.randrange(len(pool))
        offer = pool[index]
        del pool[index]
        return offer
