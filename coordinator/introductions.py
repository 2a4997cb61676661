"""Presences that members left here, to be given to others. Pure.

Each is as its author signed it, so who gets one need not believe the coordinator. Keys cost nothing
to who has a ticket, so both what is kept and what is given follows issuers first.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Final

from swarm_node.p2p.coordinator_api import MAX_INTRODUCED
from swarm_node.p2p.members import MAX_HEAD_SECONDS

CAPACITY: Final = 4096


@dataclass(frozen=True, slots=True)
class _Entry:
    presence: bytes
    issuer: str
    issued_ms: int


class Introductions:
    """The newest presence of each member. In a full store, the oldest of the issuer with most makes
    room."""

    def __init__(self, capacity: int = CAPACITY) -> None:
        self._capacity = capacity
        self._entries: dict[str, _Entry] = {}
        self._of: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, peer_id: str) -> bool:
        return peer_id in self._entries

    def leave(self, peer_id: str, presence: bytes, issuer: str, issued_ms: int) -> None:
        """Keep a presence, unless a newer one of this member is here."""
        held = self._entries.get(peer_id)
        if held is not None and held.issued_ms >= issued_ms:
            return
        self.drop(peer_id)
        if len(self._entries) >= self._capacity:
            ((largest, _),) = self._of.most_common(1)
            self.drop(next(p for p, entry in self._entries.items() if entry.issuer == largest))
        self._entries[peer_id] = _Entry(presence, issuer, issued_ms)
        self._of[issuer] += 1

    def drop(self, peer_id: str) -> None:
        """Forget a member, if it is here."""
        entry = self._entries.pop(peer_id, None)
        if entry is not None:
            self._of[entry.issuer] -= 1
            self._of += Counter()  # which drops what is zero

    def expire(self, wall: float, is_member: Callable[[str], bool]) -> None:
        """Forget presences that nodes would refuse as too old, and who is no member any more."""
        oldest = (wall - MAX_HEAD_SECONDS) * 1000
        for peer_id, entry in list(self._entries.items()):
            if entry.issued_ms < oldest or not is_member(peer_id):
                self.drop(peer_id)

    def sample(
        self, rng: random.Random, without: Collection[str], most: int = MAX_INTRODUCED
    ) -> list[bytes]:
        """Up to `most` presences, none of members in `without`. A random issuer is drawn first, so
        further keys of a ticket are not shown more often."""
        pools: dict[str, list[bytes]] = {}
        for peer_id, entry in self._entries.items():
            if peer_id not in without:
                pools.setdefault(entry.issuer, []).append(entry.presence)
        drawn: list[bytes] = []
        issuers = list(pools)
        while issuers and len(drawn) < most:
            issuer = rng.choice(issuers)
            pool = pools[issuer]
            drawn.append(pool.pop(rng.randrange(len(pool))))
            if not pool:
                issuers.remove(issuer)
        return drawn
