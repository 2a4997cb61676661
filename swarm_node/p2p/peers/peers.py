"""The peers that a node works with, and the groups they offer. Pure state, no I/O.

A peer is here because it answered this node or greeted it. `addressbook.py` keeps the peers that
the node only heard of. Partners are the peers that this node chose. A peer that greets it is here
too, and cannot displace a partner. A peer that stops answering gets only retries until it answers
one. It leaves after LOST_TRIES retries. `liveness.py` says when they are due.

The number of peers is bounded by `limit`: of those that are no partners, the one silent for longest
is forgotten first. Offers per peer are bounded by `OFFERS_PER_PEER`: the oldest is forgotten first,
because the newest are the least stale.
"""

from __future__ import annotations

import math
import random
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import islice
from operator import attrgetter

from swarm_node.p2p.peers.causes import FailureLog
from swarm_node.p2p.peers.liveness import PEER, Retry
from swarm_node.p2p.peers.standing import Standing, draw
from swarm_node.p2p.wire.reasons import Blame
from swarm_node.recent import Recent

OFFERS_PER_PEER = 64
#: A node keeps this many partners, of as many issuers as it can.
PARTNERS = 32
#: With this many partners, at least half of the draws go to them, however many others greet the
#: node.
_ENOUGH = 8
#: Partners that are kept over a restart: those with the longest partnership.
ANCHORS = 8
#: Retries of a peer that stopped answering.
LOST_TRIES = 12
#: Requests for a group before its offer is forgotten.
TRIES = 3
#: Standings that are remembered of forgotten peers that were dropped once.
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
    """The state of one peer. Times are seconds of the node's monotonic clock. `environment` is the
    name and version, `policy` the digests of model and tokenizer, in its newest announcement; None
    without one."""

    peer_id: str
    last_seen: float
    addresses: tuple[str, ...] = ()
    version: int = 0
    epoch: int = 0
    head: int = 0
    heartbeat: bytes = b""
    issued_ms: int = 0
    is_greeted: bool = False
    cursor: tuple[int, int] = (0, 0)
    offered_groups: int = 0
    accepted_groups: int = 0
    sent_groups: int = 0
    environment: tuple[str, str] | None = None
    policy: tuple[bytes, bytes] | None = None
    rejected: Counter[str] = field(default_factory=Counter)
    standing: Standing = field(default_factory=Standing)
    retry: Retry = field(default_factory=lambda: Retry(PEER))
    #: Start of the partnership.
    partner_since: float | None = None
    offers: deque[Offer] = field(default_factory=lambda: deque(maxlen=OFFERS_PER_PEER))

    @property
    def retry_at(self) -> float:
        """Monotonic second from which the peer may be asked again."""
        return max(self.retry.ask_at, self.standing.left_until)

    def record_miss(self, now: float) -> None:
        """Record that a request was not answered. Those that were under way together, or with a
        retry, count as one failure."""
        if not self.retry.silent:
            self.record_failure(now)

    def record_failure(self, now: float) -> None:
        """Record that the peer failed: it is asked nothing until it answers a retry."""
        self.retry.record_failure(now)
        if self.retry.failures > 1:  # after a single lost message no new greeting is needed
            self.is_greeted = False

    def record_request(self, now: float) -> None:
        """Record a request from the peer: it is online."""
        self.last_seen = now
        self.retry.soon(now)

    def record_answer(self, now: float) -> None:
        self.last_seen = now
        self.retry.record_answer(now)


class Directory:
    """All known peers."""

    def __init__(self, own_id: str, limit: int = 128) -> None:
        self._own_id = own_id
        self._limit = limit
        self._peers: dict[str, Peer] = {}
        self._standings: Recent[str, Standing] = Recent(_REMEMBERED)
        self._hints: Mapping[str, float] = {}
        #: Failed tries and refused callers, also of peers that are not here.
        self.failures = FailureLog()
        #: This node's newest heartbeat, for peers that ask for some.
        self.heartbeat = b""

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
                stalest = min(
                    self._peers.values(),
                    key=lambda candidate: (
                        candidate.partner_since is not None,
                        candidate.last_seen,
                    ),
                )
                del self._peers[stalest.peer_id]
            standing = self._standings.get(peer_id) or Standing()
            standing.hint = self._hints.get(peer_id, 1.0)
            peer = self._peers[peer_id] = Peer(peer_id, now, standing=standing)
        return peer

    def apply_hints(self, hints: Mapping[str, float]) -> None:
        """Weigh offers by a coordinator's reputation of their authors, in place of the previous
        one. `conduct.Standing.weight` bounds it."""
        self._hints = hints
        for peer_id, peer in self._peers.items():
            peer.standing.hint = hints.get(peer_id, 1.0)

    def forget(self, peer_id: str) -> None:
        """Drop a former member, with its offers."""
        self._peers.pop(peer_id, None)

    def record_rejection(self, peer_id: str, reason: str, now: float) -> float:
        """Count a refusal of a message from `peer_id`. Return for how many seconds its link must be
        cut, 0 if it stays."""
        peer = self._peers.get(peer_id)
        if peer is None:
            return 0.0
        peer.rejected[reason] += 1
        blame = peer.standing.penalize_rejection(reason, now)
        if now < peer.standing.off_until:
            peer.offers.clear()
            self.recall(peer_id, peer.standing)
        return self.cut(peer_id, now) if blame is Blame.VIOLATION else 0.0

    def recall(self, peer_id: str, standing: Standing) -> None:
        """Restore the standing of a peer that was dropped, even if the peer itself is forgotten."""
        self._standings[peer_id] = standing

    def suspended_standings(self) -> dict[str, Standing]:
        """The standings of all peers that were dropped once, the latest last."""
        return dict(self._standings)

    def cut(self, peer_id: str, now: float) -> float:
        """Seconds for which a peer still gets no answer, 0 if it broke no rule lately."""
        standing = self._standings.get(peer_id)
        return max(0.0, standing.cut_until - now) if standing is not None else 0.0

    def took(self, peer_id: str) -> None:
        """Record that `peer_id` pulled a group from this node."""
        if peer_id in self._peers:
            self._peers[peer_id].sent_groups += 1

    def live(self, now: float, patience: float) -> list[Peer]:
        """Peers seen within `patience` seconds, in a stable order."""
        return [
            self._peers[key]
            for key in sorted(self._peers)
            if now - self._peers[key].last_seen <= patience
        ]

    def draw(
        self, rng: random.Random, count: int, now: float, excluded_ids: Collection[str] = ()
    ) -> list[Peer]:
        """Up to `count` random peers that answered last time, none of them in `excluded_ids`."""
        partners, other_peers = self._answering(now, excluded_ids)
        share = len(partners) / max(1, len(partners) + len(other_peers))
        if len(partners) >= _ENOUGH:
            share = max(share, 0.5)
        peers: list[Peer] = []
        while len(peers) < count and (partners or other_peers):
            first = not other_peers or (bool(partners) and rng.random() < share)
            pool = partners if first else other_peers
            index = rng.randrange(len(pool))
            pool[index], pool[-1] = pool[-1], pool[index]
            peers.append(pool.pop())
        return peers

    def fewer(self, limit: int, now: float, *, partners: bool = False) -> bool:
        """Check that fewer than `limit` peers may be asked now. With `partners` only partners
        count. It stops counting at `limit`, because callers ask it every second."""
        matches = (
            1
            for peer in self._peers.values()
            if peer.retry.ask_at <= now
            and peer.standing.left_until <= now
            and (peer.partner_since is not None or not partners)
        )
        return sum(islice(matches, limit)) < limit

    def last_heard(self) -> float:
        """Monotonic second at which any peer was last heard."""
        return max((peer.last_seen for peer in self._peers.values()), default=-math.inf)

    def partners(self, now: float) -> list[Peer]:
        """The partners that may be asked now, the longest partnership first."""
        peers, _ = self._answering(now, ())
        return sorted(peers, key=lambda peer: (peer.partner_since or 0.0, peer.peer_id))

    def silent(self, now: float) -> dict[str, Retry]:
        """The states of the peers that stopped answering and are under no penalty, by peer id."""
        return {
            key: peer.retry
            for key, peer in self._peers.items()
            if peer.retry.silent and peer.standing.left_until <= now
        }

    def hurry(self, now: float) -> None:
        """Retry soon all peers that stopped answering, because the fault was this node's own."""
        for retry in self.silent(now).values():
            retry.soon(now)

    def add_partner(
        self, rng: random.Random, peer: Peer, issuer: Callable[[str], str], now: float
    ) -> None:
        """Make `peer`, which answered, a partner. If there are PARTNERS already, it replaces a
        random non-anchor partner of the most common `issuer`. So partners come to be of many
        issuers, and an attacker that came first does not remain the only one."""
        if self._peers.setdefault(peer.peer_id, peer).partner_since is not None:
            return
        partners = self.partners(now)
        if len(partners) >= PARTNERS:
            issuer_counts = Counter(issuer(partner.peer_id) for partner in partners)
            max_count = max(issuer_counts.values())
            candidates = [
                p for p in partners[ANCHORS:] if issuer_counts[issuer(p.peer_id)] == max_count
            ]
            rng.choice(candidates or partners[ANCHORS:]).partner_since = None
        peer.partner_since = now

    def dismiss(self, peer: Peer, asked_before: float) -> None:
        """Forget a peer that answered none of LOST_TRIES retries, if another peer was heard since
        this node `asked_before`. Otherwise the fault may be this node's own."""
        if peer.retry.failures > LOST_TRIES and self.last_heard() > asked_before:
            self._peers.pop(peer.peer_id, None)

    def _answering(
        self, now: float, excluded_ids: Collection[str]
    ) -> tuple[list[Peer], list[Peer]]:
        """Return partners and others that may be asked now, in order of arrival."""
        partners: list[Peer] = []
        other_peers: list[Peer] = []
        for key, peer in self._peers.items():
            # The condition of `retry_at`, written out in a quarter of its time: every list looks at
            # all peers.
            if (
                peer.retry.ask_at <= now
                and peer.standing.left_until <= now
                and key not in excluded_ids
            ):
                (other_peers if peer.partner_since is None else partners).append(peer)
        return partners, other_peers

    def offered_count(self, slots: Callable[[str], int], now: float) -> int:
        """Count the groups that could be drawn now, at most `slots(author)` of each author."""
        return sum(
            min(len(peer.offers), max(0, slots(peer.peer_id))) for peer in self._offering(now)
        )

    def _offering(self, now: float) -> Iterator[Peer]:
        """Yield the peers that offer groups and may be asked now. Callers look up slots only for
        these, because a lookup counts the node's buffer."""
        return (peer for peer in self._peers.values() if peer.offers and peer.retry_at <= now)

    def give_back(self, offer: Offer) -> None:
        """Put a drawn offer that nobody answered back into the queue. It is pulled TRIES times in
        all."""
        author = self._peers.get(offer.author)
        if author is not None and offer.tries + 1 < TRIES:
            author.offers.append(replace(offer, tries=offer.tries + 1))

    def postpone(self, offer: Offer, now: float) -> None:
        """Return a drawn offer to the queue, and pause its author for a moment."""
        author = self._peers.get(offer.author)
        if author is not None:
            author.offers.append(offer)
            author.retry.busy(now)

    def draw_offer(
        self,
        rng: random.Random,
        slots: Callable[[str], int],
        issuer: Callable[[str], str],
        now: float,
    ) -> Offer | None:
        """Remove and return one offer of an author with `slots(author)` left, None if there is
        none.

        `standing.draw` picks the author. Then all its offers have the same chance, so a peer that
        announces more is not drawn more often. Peers that may not be asked now are left out.
        """
        peers = sorted(self._offering(now), key=attrgetter("peer_id"))
        offering = [peer for peer in peers if slots(peer.peer_id) > 0]
        if not offering:
            return None
        pool = offering[
            draw(rng, [(issuer(peer.peer_id), peer.standing) for peer in offering])
        ].offers
        index = rng.randrange(len(pool))
        offer = pool[index]
        del pool[index]
        return offer
