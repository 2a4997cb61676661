"""Admission of peers' streams: limits per peer and for all, and peers whose links are cut."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncGenerator, Callable
from typing import NamedTuple

from swarm_node.errors import TransportError
from swarm_node.p2p.limits.gates import PeerGates
from swarm_node.p2p.limits.links import STREAMS_PER_PEER
from swarm_node.p2p.wire.protocols import RELAY, RELAYED
from swarm_node.p2p.wire.reasons import BUSY, QUEUE_FULL
from swarm_node.recent import Recent

#: Limits of waiting streams: of one peer, and of all peers together.
MAX_WAITING_PER_PEER = 64
MAX_STREAMS = 512
#: Limit for all non-members together. Keys cost nothing, so a limit per non-member bounds nothing.
MAX_STRANGERS_STREAMS = MAX_STREAMS // 4
#: Peers whose links are cut. Above this number the one cut longest ago is forgotten.
_MAX_SEVERED = 4096
#: Seconds for which a peer is cut off after streams over the limit or streams that end early. More
#: than a few of these a second are no accident.
_JUNK_SECONDS = 60.0
_EARLY_ENDS = (1.0, 64.0)


class BusyError(TransportError):
    """Refusal of a stream before its request is read. The caller gets the text."""


class PeerSlots:
    """Limits the running tasks per key, the waiting tasks per key, and both together for all keys.
    A key is a peer id, or a peer id with the name of a resource that has a limit of its own."""

    def __init__(self) -> None:
        self._streams: Counter[str] = Counter()
        self._groups: Counter[str] = Counter()
        self._semaphores: dict[str, asyncio.Semaphore] = {}

    @contextlib.asynccontextmanager
    async def hold(self, key: str, limit: int, group: str | None = None) -> AsyncGenerator[None]:
        """Wait until fewer than `limit` tasks of this key run. The keys of a `group` hold at most
        as many slots as are free, so other groups always find some.

        Raises:
            BusyError: its queue, its group's share or the node is full.
        """
        if self._streams[key] >= limit + MAX_WAITING_PER_PEER:
            raise BusyError(QUEUE_FULL.words())
        free = MAX_STREAMS - self._streams.total()
        if free <= (0 if group is None else self._groups[group]):
            raise BusyError(BUSY.words())
        self._streams[key] += 1
        self._groups[group or ""] += 1
        semaphore = self._semaphores.setdefault(key, asyncio.Semaphore(limit))
        try:
            async with semaphore:
                yield
        finally:
            self._groups[group or ""] -= 1
            self._groups += Counter()  # forgets who has none left
            self._streams[key] -= 1
            if not self._streams[key]:
                del self._streams[key]
                del self._semaphores[key]


class Severed:
    """The peers whose links are cut. `now` is the node's monotonic clock in seconds."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._severed_until: Recent[str, float] = Recent(_MAX_SEVERED)

    def sever(self, peer: str, seconds: float) -> None:
        """Cut the link of a peer for `seconds`. A later call replaces an earlier one."""
        self._severed_until[peer] = self._now() + seconds

    def __contains__(self, peer: object) -> bool:
        return isinstance(peer, str) and self._severed_until.get(peer, 0.0) > self._now()


class Entry(NamedTuple):
    """A served stream: its peer, and the issuer of this peer when the stream began."""

    peer: str
    issuer: str
    is_stranger: bool


class Admission:
    """Admits the streams of one transport. `per_peer` streams of one peer run at once."""

    def __init__(self, per_peer: int, now: Callable[[], float]) -> None:
        self.severed_peers = Severed(now)
        self._per_peer = per_peer
        #: Names the issuer that admitted a peer, "" for a stranger.
        self.issuer: Callable[[str], str] = lambda peer: ""
        self._now = now
        self._slots = PeerSlots()
        self._early_ends = PeerGates(*_EARLY_ENDS)
        self._open: Counter[str] = Counter()
        self._members: Counter[str] = Counter()
        self._strangers = 0

    def enter(self, peer: str, is_stranger: bool) -> Entry | None:
        """Admit a stream, None if a limit does not allow it. The caller passes the entry to `leave`
        at its end. The members of an issuer have at most as many streams as are free."""
        entry = Entry(peer, self.issuer(peer), is_stranger)
        if peer in self.severed_peers:
            return None
        if self._open[peer] >= STREAMS_PER_PEER:
            self.ended_early(peer, junk=False)
            return None
        free = 2 * MAX_STREAMS - self._open.total()  # without any, too many even to refuse each
        issuer_streams = 0 if is_stranger else self._members[entry.issuer]
        if free <= issuer_streams or (is_stranger and self._strangers >= MAX_STRANGERS_STREAMS):
            return None
        self._count(entry, 1)
        return entry

    def leave(self, entry: Entry) -> None:
        """Release a stream that has ended."""
        self._count(entry, -1)

    def _count(self, entry: Entry, change: int) -> None:
        self._open[entry.peer] += change
        self._strangers += change * entry.is_stranger
        self._members[entry.issuer] += change * (not entry.is_stranger)
        if not self._open[entry.peer]:
            del self._open[entry.peer]
        if not self._members[entry.issuer]:
            del self._members[entry.issuer]

    def hold(self, peer: str, protocol: str) -> contextlib.AbstractAsyncContextManager[None]:
        """Wait for this peer's turn. Requests for a third peer wait only for each other. A relay
        has twice as many slots, because it limits each of its askers itself.

        Raises:
            BusyError: its queue or the node is full.
        """
        issuer = self.issuer(peer)
        if protocol not in (RELAY, RELAYED):
            return self._slots.hold(peer, self._per_peer, issuer)
        limit = self._per_peer * (2 if protocol == RELAYED else 1)
        return self._slots.hold(f"{peer} {protocol}", limit, issuer)

    def ended_early(self, peer: str, *, junk: bool) -> None:
        """Note a stream that ended before its reply was taken. `junk` marks one that was over the
        limit."""
        if junk or not self._early_ends.take(peer, self._now()):
            self.severed_peers.sever(peer, _JUNK_SECONDS)
