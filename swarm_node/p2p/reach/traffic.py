"""What passes between this node and each peer: routes, bytes, round trips. Pure state, no I/O."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from swarm_node.p2p.wire.transport import Handler
from swarm_node.recent import Recent

#: Peers whose traffic and routes are remembered.
REMEMBERED: Final = 512
#: The smallest round trip is that of at least the last so many seconds, and at most twice as many.
RECENT_SECONDS: Final = 120.0


@dataclass(slots=True)
class PeerTraffic:
    """Payload bytes of requests and replies exchanged with one peer since the start, and the
    smallest recent round trip: the shortest time from a request to its reply, in seconds."""

    bytes_out: int = 0
    bytes_in: int = 0
    _window_start: float = -math.inf
    _now: float = math.inf
    _previous_min: float = math.inf

    def record_answer(
        self, request_bytes: int, reply_bytes: int, seconds: float, now: float
    ) -> None:
        """Count a request of this node and its reply, which took `seconds` until `now`."""
        self.bytes_out += request_bytes
        self.bytes_in += reply_bytes
        self._turn(now)
        self._now = min(self._now, seconds)

    def forget_route(self) -> None:
        """Forget the round trips of another route."""
        self._now = self._previous_min = math.inf

    def round_trip(self, now: float) -> float | None:
        """Return the smallest recent round trip in seconds, None without one."""
        self._turn(now)
        seconds = min(self._now, self._previous_min)
        return None if seconds == math.inf else seconds

    def _turn(self, now: float) -> None:
        if now - self._window_start < RECENT_SECONDS:
            return
        is_recent = now - self._window_start < 2 * RECENT_SECONDS
        self._previous_min = self._now if is_recent else math.inf
        self._window_start, self._now = now, math.inf


@dataclass
class Usage:
    """Routes and traffic. `total_requests` and `relayed_requests` count own requests, in all and
    through relays. `relay_ids` is the relay of each peer that answered lately, "" for a direct
    link."""

    total_requests: int = 0
    relayed_requests: int = 0
    relay_ids: Recent[str, str] = field(default_factory=lambda: Recent(REMEMBERED))
    _traffic: Recent[str, PeerTraffic] = field(default_factory=lambda: Recent(REMEMBERED))

    def traffic(self, peer: str) -> PeerTraffic | None:
        """Return what was exchanged with `peer`, None for nothing."""
        return self._traffic.get(peer)

    def record_answer(
        self, peer: str, via: str, request_bytes: int, reply_bytes: int, start: float, now: float
    ) -> None:
        """Count a request to `peer` that was answered `via` a relay, "" for a direct link."""
        traffic = self._of(peer)
        if self.relay_ids.get(peer, via) != via:
            traffic.forget_route()
        self.relay_ids[peer] = via
        traffic.record_answer(request_bytes, reply_bytes, now - start, now)

    def counting(self, handler: Handler, is_member: Callable[[str], bool]) -> Handler:
        """Return a handler that counts what members ask and get. Strangers have any number of keys,
        and displace no member's counts."""

        async def counting_handler(peer: str, payload: bytes) -> bytes:
            reply = await handler(peer, payload)
            if is_member(peer):
                traffic = self._of(peer)
                traffic.bytes_in += len(payload)
                traffic.bytes_out += len(reply)
            return reply

        return counting_handler

    def _of(self, peer: str) -> PeerTraffic:
        traffic = self._traffic.get(peer) or PeerTraffic()
        self._traffic[peer] = traffic
        return traffic
