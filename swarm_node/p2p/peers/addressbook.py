"""Address book: the known peers, and which of them to try next. Pure state, no I/O.

The design is that of Bitcoin Core's address manager (src/addrman.h and addrman_impl.h, v27), with
smaller tables. Issuers of certificates take the place of networks: a member with a ticket makes
keys at no cost, and an issuer certificate costs a signature of the root key.

- A peer that this node only heard of is in the *new* table. Its bucket follows from the teller, the
  peer that named it. A teller reaches 4 buckets of 128, and all tellers of one issuer reach 32.
- A peer that answered under an address of its own is in the *tried* table. Its bucket follows from
  its issuer, which reaches 16 buckets of 64. A peer that answers is never displaced from there.
- A secret key chooses the buckets, so nobody can aim at the bucket of another.
- A new peer is tried once. If it fails, it is ignored for an hour, or until it states other
  addresses: a peer that found a relay is reached from then on. A tried peer leaves after
  MAX_FAILURES failures in a row, unless the settings or the ticket name it. While nobody answers,
  failures are this node's own and do not count.

Each draw takes a random bucket, then a peer of it. So the buckets bound the share of draws too.
"""

from __future__ import annotations

import hashlib
import random
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Final

from swarm_node.p2p.peers.liveness import PEER, TELLER, UNMET, Retry
from swarm_node.recent import Recent

NEW_BUCKETS: Final = 128
BUCKETS_PER_TELLING_ISSUER: Final = 32
BUCKETS_PER_TELLER: Final = 4
TRIED_BUCKETS: Final = 64
BUCKETS_PER_ISSUER: Final = 16
SLOTS: Final = 8
#: So many failures take two hours. ADDRMAN_MAX_FAILURES is 10 in Bitcoin Core, over at least a
#: week. Peers of a swarm return by greeting.
MAX_FAILURES: Final = 64
#: The teller of addresses from this node's settings, its ticket or earlier runs.
CONFIGURED: Final = "configured"
_MAX_IGNORED = 2048
_MAX_TELLERS = 1024
_NEVER = float("-inf")


@dataclass(slots=True)
class Known:
    """A peer in the book. `teller` is the id of the peer that named it. `heartbeat` is its newest
    known heartbeat. Times are seconds of the node's monotonic clock."""

    peer_id: str
    addresses: tuple[str, ...]
    issuer: str
    teller: str
    heartbeat: bytes = b""
    is_tried: bool = False
    retry: Retry = field(default_factory=lambda: Retry(UNMET))
    answered_at: float = _NEVER
    counted_at: float = _NEVER
    bucket: int = 0
    issued_ms: int = 0


@dataclass(frozen=True, slots=True)
class Unmet:
    """A peer of the book with its addresses. The last `tries` tries in a row failed. It is tried
    again at the monotonic second `next_at`, None if that is not decided."""

    peer_id: str
    addresses: tuple[str, ...]
    tries: int
    next_at: float | None


@dataclass(slots=True)
class _Table:
    """Buckets of at most SLOTS peer ids each, in the order in which they came."""

    buckets: dict[int, OrderedDict[str, Known]] = field(default_factory=dict)

    def bucket(self, index: int) -> OrderedDict[str, Known]:
        return self.buckets.setdefault(index, OrderedDict())

    def remove(self, entry: Known) -> None:
        bucket = self.buckets[entry.bucket]
        del bucket[entry.peer_id]
        if not bucket:
            del self.buckets[entry.bucket]


class AddressBook:
    """The new and the tried table. `key` is secret and stays the same after a restart."""

    def __init__(self, own_id: str, key: bytes) -> None:
        self._own_id = own_id
        self._key = hashlib.blake2b(key, digest_size=32, person=b"swarm-node/book").digest()
        self._entries: dict[str, Known] = {}
        self._new = _Table()
        self._tried_table = _Table()
        self._first: deque[str] = deque()
        self._ignored_peers: Recent[str, tuple[float, tuple[str, ...]]] = Recent(_MAX_IGNORED)
        self._teller_retries: Recent[tuple[str, str], Retry] = Recent(_MAX_TELLERS)

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, peer_id: str) -> Known | None:
        return self._entries.get(peer_id)

    def tell(
        self,
        peer_id: str,
        addresses: Sequence[str],
        now: float,
        *,
        issuer: str,
        teller: str,
        telling_issuer: str,
        heartbeat: bytes = b"",
        issued_ms: int = 0,
    ) -> None:
        """Record that `teller` named this peer. A newer heartbeat of a known peer replaces the
        older one. In a full bucket the peer named longest ago makes room, but never a configured
        one."""
        if peer_id == self._own_id or not addresses:
            return
        entry = self._entries.get(peer_id)
        if entry is not None:
            if issued_ms > entry.issued_ms:
                if entry.addresses != tuple(addresses):
                    entry.retry.renew(now)
                entry.addresses, entry.heartbeat = tuple(addresses), heartbeat
                entry.issued_ms = issued_ms
            return
        ignored_until, old_addresses = self._ignored_peers.get(peer_id, (_NEVER, ()))
        if ignored_until > now and old_addresses == tuple(addresses):
            return
        entry = Known(peer_id, tuple(addresses), issuer, teller, heartbeat, issued_ms=issued_ms)
        slot = self._hash("slot", teller, peer_id) % BUCKETS_PER_TELLER
        reach = self._hash("teller", teller, str(slot)) % BUCKETS_PER_TELLING_ISSUER
        entry.bucket = self._hash("new", telling_issuer, str(reach)) % NEW_BUCKETS
        bucket = self._new.bucket(entry.bucket)
        if len(bucket) >= SLOTS:
            oldest_entry = next(
                (candidate for candidate in bucket.values() if candidate.teller != CONFIGURED), None
            )
            if oldest_entry is None:
                return
            self._remove(oldest_entry)
        self._new.bucket(entry.bucket)[peer_id] = self._entries[peer_id] = entry

    def configure(self, peers: Iterable[tuple[str, Sequence[str]]], now: float) -> None:
        """Add configured (peer id, addresses). They are tried before all others and never
        ignored."""
        for peer_id, addresses in peers:
            self._ignored_peers.pop(peer_id, None)
            self.tell(peer_id, addresses, now, issuer="", teller=CONFIGURED, telling_issuer="")
            if peer_id in self._entries and peer_id not in self._first:
                self._first.append(peer_id)

    def restore(self, entry: Known, *, anchor: bool) -> None:
        """Put a peer that answered in an earlier run into the tried table. Anchors are tried first,
        as with Bitcoin Core's anchors.dat, so that an attacker gains nothing by making a node
        restart."""
        if entry.peer_id == self._own_id or entry.peer_id in self._entries:
            return
        self._enter_tried(entry)
        if entry.is_tried and anchor:
            self._first.append(entry.peer_id)

    def pick(
        self, rng: random.Random, now: float, is_excluded: Callable[[str], bool]
    ) -> Known | None:
        """Choose a peer to try now. Return None if there is none. Peers for which `is_excluded`
        holds are left out, and so are `silent` ones, of which the caller knows. The caller reports
        the result to `record_answer` or `record_failure`."""
        entry = None
        while self._first and entry is None:
            first = self._entries.get(self._first.popleft())
            if first is not None and not is_excluded(first.peer_id):
                entry = first
        for table in rng.sample((self._tried_table, self._new), 2):
            entry = entry or self._draw(table, rng, now, is_excluded)
        if entry is not None:
            entry.retry.begin(now)
        return entry

    def record_answer(self, peer_id: str, now: float, issuer: str) -> None:
        """Record an answer of the peer at an address of its own. It enters the tried table if its
        bucket has room or holds a peer that fails."""
        entry = self._entries.get(peer_id)
        if entry is None:
            return
        self._teller_retries.pop((entry.teller, entry.issuer), None)
        entry.retry.record_answer(now)
        entry.answered_at = now
        if not entry.is_tried:
            self._new.remove(entry)
            del self._entries[peer_id]
            bucket = entry.bucket
            entry.issuer = issuer
            if not self._enter_tried(entry):
                entry.bucket = bucket
                self._new.bucket(bucket)[peer_id] = self._entries[peer_id] = entry

    def record_failure(
        self, peer_id: str, now: float, last_heard: float, last_seen: float = _NEVER
    ) -> None:
        """Record that the peer, last seen at `last_seen`, did not answer. The failure counts only
        if another peer was heard (`last_heard`) since this peer's last counted failure. Otherwise
        the fault may be this node's own."""
        entry = self._entries.get(peer_id)
        if entry is None:
            return
        if entry.is_tried:
            entry.answered_at = max(entry.answered_at, last_seen)
        entry.retry.record_failure(now, counts=last_heard > entry.counted_at)
        if last_heard > entry.counted_at:
            entry.counted_at = now
        if entry.teller == CONFIGURED:
            return
        if not entry.is_tried:
            key = entry.teller, entry.issuer
            self._teller_retries[key] = teller_retry = self._teller_retries.get(key) or Retry(
                TELLER
            )
            teller_retry.record_failure(now)
        if entry.retry.failures >= (MAX_FAILURES if entry.is_tried else 1):
            self._remove(entry)
            self._ignored_peers[peer_id] = now + UNMET.ceiling, entry.addresses

    def silent(self) -> dict[str, Retry]:
        """The states of the peers that answered once and failed the last time, by peer id."""
        return {
            k.peer_id: k.retry for k in self._entries.values() if k.is_tried and k.retry.failures
        }

    def welcome(self, peer_id: str, addresses: Sequence[str], now: float, issuer: str) -> None:
        """Record a peer that connected by itself and named these addresses. It is no longer
        ignored."""
        self._ignored_peers.pop(peer_id, None)
        if peer_id not in self._entries:
            self.tell(peer_id, addresses, now, issuer=issuer, teller=peer_id, telling_issuer=issuer)

    def tried_peers(self) -> list[Known]:
        """The tried peers, in a stable order."""
        entries = (entry for entry in self._entries.values() if entry.is_tried)
        return sorted(entries, key=attrgetter("peer_id"))

    def new(self) -> list[Known]:
        """The new peers, in a stable order."""
        return [entry for _, entry in sorted(self._entries.items()) if not entry.is_tried]

    def addresses(self, peer_id: str) -> tuple[str, ...] | None:
        """Return the addresses of a peer of the book, or of one that is ignored."""
        entry, ignored_entry = self._entries.get(peer_id), self._ignored_peers.get(peer_id)
        return entry.addresses if entry else ignored_entry[1] if ignored_entry else None

    def forgive(self, peer_id: str, now: float, issuer: str) -> None:
        """Take back a peer that is ignored because it failed."""
        if peer_id in self._ignored_peers and peer_id not in self._entries:
            self.welcome(peer_id, self._ignored_peers[peer_id][1], now, issuer)

    def unmet(
        self, now: float, limit: int, is_met: Callable[[str], bool]
    ) -> tuple[list[Unmet], int]:
        """Return up to `limit` peers for which `is_met` does not hold, and the number of all of
        them. Configured ones come first, then those that failed."""
        book_peers = [
            _unmet(k)
            for k in sorted(self._entries.values(), key=_first_shown)
            if not is_met(k.peer_id)
        ]
        ignored_peers = [
            Unmet(peer_id, addresses, 1, ignored_until)
            for peer_id, (ignored_until, addresses) in reversed(self._ignored_peers.items())
            if ignored_until > now and peer_id not in self._entries and not is_met(peer_id)
        ]
        first_count = sum(self._entries[peer.peer_id].teller == CONFIGURED for peer in book_peers)
        peers = [*book_peers[:first_count], *ignored_peers, *book_peers[first_count:]]
        return peers[:limit], len(peers)

    def _draw(
        self, table: _Table, rng: random.Random, now: float, is_excluded: Callable[[str], bool]
    ) -> Known | None:
        buckets = [
            entries
            for _, bucket in sorted(table.buckets.items())
            if (
                entries := [
                    k for k in bucket.values() if self._due(k, now) and not is_excluded(k.peer_id)
                ]
            )
        ]
        return rng.choice(rng.choice(buckets)) if buckets else None

    def _due(self, entry: Known, now: float) -> bool:
        if entry.is_tried:
            return not entry.retry.failures and entry.retry.due(now)
        teller_retry = self._teller_retries.get((entry.teller, entry.issuer))
        return entry.retry.due(now) and (teller_retry is None or teller_retry.due(now))

    def _enter_tried(self, entry: Known) -> bool:
        slot = self._hash("slot", entry.peer_id) % BUCKETS_PER_ISSUER
        index = self._hash("tried", entry.issuer, str(slot)) % TRIED_BUCKETS
        bucket = self._tried_table.bucket(index)
        if len(bucket) >= SLOTS:
            failing_entries = [
                candidate for candidate in bucket.values() if candidate.retry.failures
            ]
            if not failing_entries:
                return False
            self._remove(min(failing_entries, key=lambda candidate: candidate.answered_at))
        entry.is_tried, entry.bucket, entry.retry.backoff = True, index, PEER
        self._tried_table.bucket(index)[entry.peer_id] = self._entries[entry.peer_id] = entry
        return True

    def _remove(self, entry: Known) -> None:
        (self._tried_table if entry.is_tried else self._new).remove(entry)
        del self._entries[entry.peer_id]

    def _hash(self, *parts: str) -> int:
        text = "\0".join(parts).encode()
        return int.from_bytes(hashlib.blake2b(text, key=self._key, digest_size=8).digest(), "big")


def _first_shown(entry: Known) -> tuple[bool, bool, str]:
    return entry.teller != CONFIGURED, not entry.retry.failures, entry.peer_id


def _unmet(entry: Known) -> Unmet:
    tries = entry.retry.failures
    return Unmet(entry.peer_id, entry.addresses, tries, entry.retry.due_at if tries else None)
