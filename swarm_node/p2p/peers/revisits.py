"""Early retries of lost peers, regardless of their own pauses. Pure, no I/O.

The pause between two tries of one dead peer doubles, up to an hour. After a partition that is too
long: both sides have peers that answer, and nobody tries the others. So a node also tries one
random peer of those that it lost last, after an eighth of the time since then. This adds about
eight seconds to an outage of a minute, and costs hardly anything for peers lost yesterday. When one
answers again, those that were lost with it are tried at once.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Mapping
from typing import Final

#: Shortest and longest time between two early retries.
PAUSE_SECONDS: Final = (5.0, 300.0)
_SHARE = 1 / 8
#: Peers were lost together if the times since their last answers differ by at most this factor, and
#: by at most these seconds, within which a fault is noticed.
_TOGETHER, _NOTICED_SECONDS = 2.0, 20.0
#: Peers that are tried at once after a lost peer returned.
_MOST = 32


class Revisits:
    """Chooses early retries. Callers pass, for each peer that stopped answering, the time of its
    last answer (monotonic seconds)."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._tried_at = 0.0
        self._queue: deque[str] = deque()

    def due(self, now: float) -> bool:
        """Check that `next` may return a peer."""
        return bool(self._queue) or now >= self._tried_at + PAUSE_SECONDS[0]

    def next(self, silent: Mapping[str, float], now: float) -> str | None:
        """Return the peer of `silent` to try now, None if it is not time yet."""
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
        """Queue the peers that were lost with a peer that was silent `since` then and answers
        again."""
        lost = [peer for peer in _together(silent, since, now) if peer not in self._queue]
        self._queue.extend(self._rng.sample(lost, min(len(lost), _MOST - len(self._queue))))


def _together(silent: Mapping[str, float], since: float, now: float) -> list[str]:
    """Return the peers that have been silent for about as long as a peer silent `since` then."""
    longest = _TOGETHER * (now - since) + _NOTICED_SECONDS
    return sorted(peer for peer, answered in silent.items() if now - answered <= longest)
