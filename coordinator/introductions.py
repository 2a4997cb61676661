"""Presences that members left here, to be given to others. Pure.

Each is sealed by its author, so its receiver need not trust the coordinator. The holder of a ticket
makes keys for free, so both storage and replies are shared out by issuer first.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from swarm_node.p2p.coordinator.coordinator_api import MAX_INTRODUCED
from swarm_node.p2p.membership.members import MAX_HEAD_SECONDS

CAPACITY: Final = 4096


@dataclass(frozen=True, slots=True)
class _Entry:
    peer_id: str
    issuer: str
    presence: bytes
    issued_ms: int


class Introductions:
    """The newest presence of each member. In a full store, the oldest presence of the issuer with
    the most makes room. `is_member` says who is one now."""

    def __init__(self, is_member: Callable[[str], bool], capacity: int = CAPACITY) -> None:
        self._is_member = is_member
        self._capacity = capacity
        self._entries: dict[str, _Entry] = {}
        self._of: dict[str, dict[str, _Entry]] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, peer_id: str) -> bool:
        return peer_id in self._entries

    def leave(self, peer_id: str, presence: bytes, issuer: str, issued_ms: int) -> None:
        """Keep a presence, unless a newer one of this member is here."""
        old_entry = self._entries.get(peer_id)
        if old_entry is not None and old_entry.issued_ms >= issued_ms:
            return
        self.drop(peer_id)
        if len(self._entries) >= self._capacity:
            largest_issuer = max(self._of, key=lambda issuer: len(self._of[issuer]))
            self.drop(next(iter(self._of[largest_issuer])))
        entry = _Entry(peer_id, issuer, presence, issued_ms)
        self._entries[peer_id] = self._of.setdefault(issuer, {})[peer_id] = entry

    def drop(self, peer_id: str) -> None:
        """Forget a member, if it is here."""
        entry = self._entries.pop(peer_id, None)
        if entry is not None:
            del self._of[entry.issuer][peer_id]
            if not self._of[entry.issuer]:
                del self._of[entry.issuer]

    def expire(self, wall: float) -> None:
        """Forget the presences that no member would be given at the Unix second `wall`."""
        for entry in list(self._entries.values()):
            if not self._usable(entry, wall):
                self.drop(entry.peer_id)

    def sample(
        self, rng: random.Random, wall: float, excluded_id: str = "", limit: int = MAX_INTRODUCED
    ) -> list[bytes]:
        """Up to `limit` presences, none of the member `excluded_id`. A random issuer is drawn
        first, so further keys of a ticket are not shown more often."""
        pools: dict[str, list[_Entry]] = {}
        issuers = list(self._of)
        presences: list[bytes] = []
        while issuers and len(presences) < limit:
            issuer = rng.choice(issuers)
            pool = pools.get(issuer) or list(self._of[issuer].values())
            pools[issuer] = pool
            entry = pool.pop(rng.randrange(len(pool)))
            if not pool:
                issuers.remove(issuer)
            if entry.peer_id != excluded_id and self._usable(entry, wall):
                presences.append(entry.presence)
        return presences

    def _usable(self, entry: _Entry, wall: float) -> bool:
        """Check that nodes would accept a presence: it is not too old, and of a member."""
        min_issued_ms = (wall - MAX_HEAD_SECONDS) * 1000
        return entry.issued_ms >= min_issued_ms and self._is_member(entry.peer_id)
