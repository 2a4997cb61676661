"""Which peers that stopped answering are tried early, whatever their own pauses are. Pure, no I/O.

The pause between two tries of one dead peer doubles, up to an hour. If a line was cut, that is too
long: both sides of it have peers that answer, and nobody tries the others. So a node also tries one
random peer of those that it lost last, after an eighth of the time since then. An outage of a
minute then costs some eight seconds more, and the dead of yesterday cost hardly anything. When one
answers again, those that were lost with it are tried at once.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Mapping
from typing import Final

#: The least and the longest time between two early tries.
PAUSE_SECONDS: Final = (5.0, 300.0)
_SHARE = 1 / 8
#: Peers were lost together if the times since they answered differ by no more than this factor,
#: and by some seconds in which a fault is noticed.
_TOGETHER, _NOTICED_SECONDS = 2.0, 20.0
#: Peers that are tried at once after one that came back.
_MOST = 32


class Revisits:
    """Takes, for each peer that stopped answering, when it last did (monotonic seconds)."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._tried_at = 0.0
        self._queue: deque[str] = deque()

    def due(self, now: float) -> bool:
        """Whether it is worth to ask for `next`."""
        return bool(self._queue) or now >= self._tried_at + PAUSE_SECONDS[0]

    def next(self, silent: Mapping[str, float], now: float) -> str | None:
        """The peer of those `silent` that is tried now, None if it is not time yet."""
        while self._queue:
            peer = self._queue.popleft()
            if peer in silent:
                return peer
        if not silent:
            return None
        since = max(silent.values())
        shortest, longest = PAUSE_SECONDS
        if now < self._tried_at + min(longest, max(shortest, _SHARE * (now - since))):
            return None
        self._tried_at = now
        return self._rng.choice(_together(silent, since, now))

    def returned(self, silent: Mapping[str, float], since: float, now: float) -> None:
        """A peer that had been silent `since` then answers: try those that were lost with it."""
        lost = [peer for peer in _together(silent, since, now) if peer not in self._queue]
        self._queue.extend(self._rng.sample(lost, min(len(lost), _MOST - len(self._queue))))


def _together(silent: Mapping[str, float], since: float, now: float) -> list[str]:
    """Who of those silent has been so for about as long as a peer silent `since` then."""
    longest = _TOGETHER * (now - since) + _NOTICED_SECONDS
    return sorted(peer for peer, answered in silent.items() if now - answered <= longest)
