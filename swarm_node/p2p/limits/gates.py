"""Cheap checks that run before any costly one: replay windows and rate limits. Pure.

Callers pass the time in monotonic seconds. They store state as rows: an accepted group and its
window in one transaction. A group is new only if `Windows` accepts it. The caller must mark it
there before it uses the group.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Self

from swarm_node.errors import Rejected
from swarm_node.p2p.wire.groups import MAX_GROUP_BYTES, MAX_TEXT_BYTES, MAX_TOKENS
from swarm_node.recent import Recent

WINDOW: Final = 1024
#: Largest advance of a window by one message. Without it one absurd sequence number would make
#: every later group of its author look old.
MAX_ADVANCE: Final = 1_000_000
#: Limits for peers' groups and answers, as a multiple of this node's own sizes.
LARGER: Final = 4
LONGER: Final = 4
#: Most bytes of a sealed group without its answers, of an answer without its tokens, and of a token
#: (its id, its log-prob, its version and its text).
_GROUP_BYTES, _ANSWER_BYTES, _TOKEN_BYTES = 1024, 256, 64
#: Bytes that own groups are planned with: of a token's text, which in English has up to five in a
#: large vocabulary, of a token with its id and log-prob, and of a turn without its tokens.
_TEXT_BYTES, _PLANNED_BYTES, _TURN_BYTES = 5, 5 + 4 + 4, 64


def longest_turn(completions: int, turns: int) -> int:
    """Return the greatest length of a turn, in tokens, with which peers take a group of
    `completions` completions of `turns` turns. A group can still be too large if its tokens have
    more bytes than planned."""
    room = (MAX_GROUP_BYTES - _GROUP_BYTES) // (completions * turns)
    return min(
        (room - _TURN_BYTES) // _PLANNED_BYTES, MAX_TEXT_BYTES // _TEXT_BYTES, MAX_TOKENS // turns
    )


@dataclass(frozen=True, slots=True)
class SizeGate:
    """Limits of a peer's group: the `completions`, and the `tokens` in each. A group of 64 gives
    its only right answer an advantage of √63. The cost of a forward pass grows with the length of
    an answer. So both are bounded by the sizes that this node makes itself."""

    completions: int
    tokens: int

    @classmethod
    def of(cls, group_size: int, max_new_tokens: int, turns: int = 1) -> Self:
        """Return the gate of a node whose own groups have `group_size` completions of up to `turns`
        turns of up to `max_new_tokens` tokens."""
        return cls(LARGER * group_size, LONGER * max_new_tokens * turns)

    def check_announced_size(self, completions: int, size: int) -> Rejected | None:
        """Check the announced number of completions and sealed bytes. Return the reason for not
        pulling the group, None if it may be pulled."""
        if completions > self.completions:
            return Rejected("too_large", f"{completions} completions, at most {self.completions}")
        max_bytes = _GROUP_BYTES + completions * (_ANSWER_BYTES + self.tokens * _TOKEN_BYTES)
        if size > max_bytes:
            return Rejected("too_long", f"{size} bytes in {completions} completions")
        return None

    def check_completion_lengths(self, lengths: Sequence[int]) -> Rejected | None:
        """Check the `lengths` of the answers in tokens. Return the reason of a refusal, None if
        there is none."""
        if len(lengths) > self.completions:
            return Rejected("too_large", f"{len(lengths)} completions, at most {self.completions}")
        if max(lengths) > self.tokens:
            return Rejected("too_long", f"a completion of {max(lengths)} tokens, not {self.tokens}")
        return None


class ReplayWindow:
    """The sequence numbers seen of one author's epoch: the newest, and a bitmap of the 1024 up to
    it (bit i stands for newest - i), as in RFC 4303, 3.4.3.

    Numbers start at 1. The first number seen may be any, because a node may join late."""

    def __init__(self) -> None:
        self._high = 0
        self._bitmap = 0

    @property
    def high(self) -> int:
        """The newest number marked, 0 if none."""
        return self._high

    def check(self, seq: int) -> Rejected | None:
        """Check `seq`. Return None if it was not seen, else "too_old", "duplicate" or "sequence"
        for one far above the newest."""
        if seq < 1 or seq <= self._high - WINDOW:
            return Rejected("too_old", f"sequence {seq}, newest {self._high}")
        if self._high and seq > self._high + MAX_ADVANCE:
            return Rejected("sequence", f"sequence {seq}, newest {self._high}")
        if seq <= self._high and self._bitmap >> (self._high - seq) & 1:
            return Rejected("duplicate", f"sequence {seq}")
        return None

    def mark(self, seq: int) -> None:
        """Remember `seq`.

        Raises:
            ValueError: `check` refuses it; marking it would admit a group twice.
        """
        rejection = self.check(seq)
        if rejection is not None:
            raise ValueError(f"cannot mark a refused sequence number: {rejection.reason}")
        if seq > self._high:
            # A first number can be anywhere: shifting by it would build an integer of that size.
            shift = min(seq - self._high, WINDOW)
            self._bitmap = (self._bitmap << shift | 1) & ((1 << WINDOW) - 1)
            self._high = seq
        else:
            self._bitmap |= 1 << (self._high - seq)

    def to_row(self) -> tuple[int, bytes]:
        """(newest number, bitmap of 128 bytes, little-endian)."""
        return self._high, self._bitmap.to_bytes(WINDOW // 8, "little")

    @classmethod
    def from_row(cls, high: int, bitmap: bytes) -> ReplayWindow:
        """The window that `to_row` described.

        Raises:
            ValueError: not a row of `to_row`. An empty window instead would forget what was seen.
        """
        window = cls()
        window._high, window._bitmap = high, int.from_bytes(bitmap, "little")
        if len(bitmap) != WINDOW // 8 or high < 0 or (window._bitmap & 1) != (high > 0):
            raise ValueError("a stored replay window is damaged")
        if window._bitmap >> min(high, WINDOW):
            raise ValueError("a stored replay window is damaged")
        return window


class Windows:
    """The greatest epoch of each author, and the window in it, for the `capacity` authors marked
    last.

    An author starts a greater epoch, with an empty `ReplayWindow`, when it cannot know which
    numbers it has used: at every start. From then on groups of a lower epoch are refused, because
    their window is gone. Only the author can announce its groups. So if an author is forgotten, at
    worst its own old groups are accepted again."""

    def __init__(self, capacity: int = 4096) -> None:
        self._windows: Recent[str, tuple[int, ReplayWindow]] = Recent(capacity)

    def __len__(self) -> int:
        return len(self._windows)

    def check(self, author: str, epoch: int, seq: int) -> Rejected | None:
        """Check a group. Return None if it is new, else a reason of `ReplayWindow.check`; a lower
        epoch is "too_old"."""
        last_epoch, window = self._windows.get(author, (epoch, ReplayWindow()))
        if epoch < last_epoch:
            return Rejected("too_old", f"epoch {epoch}, newest {last_epoch}")
        return (window if epoch == last_epoch else ReplayWindow()).check(seq)

    def begins(self, author: str, epoch: int) -> bool:
        """Check that `epoch` is greater than the stored epoch of a known author."""
        entry = self._windows.get(author)
        return entry is not None and epoch > entry[0]

    def mark(self, author: str, epoch: int, seq: int) -> tuple[int, bytes]:
        """Mark a group as seen. Return the window's row; the author's row is `epoch` with this
        pair.

        Raises:
            ValueError: `check` refuses it.
        """
        rejection = self.check(author, epoch, seq)
        if rejection is not None:
            raise ValueError(f"cannot mark a refused group: {rejection.reason}")
        last_epoch, window = self._windows.get(author, (epoch, ReplayWindow()))
        window = window if epoch == last_epoch else ReplayWindow()
        window.mark(seq)
        self._windows[author] = epoch, window
        return window.to_row()

    def restore(self, author: str, epoch: int, high: int, bitmap: bytes) -> None:
        """Restore a stored row. Restore rows in the order in which they were marked.

        Raises:
            ValueError: it is damaged. Then no group of the author's epoch is taken any more.
        """
        try:
            self._windows[author] = epoch, ReplayWindow.from_row(high, bitmap)
        except (ValueError, TypeError) as error:
            if isinstance(epoch, int):
                self._windows[author] = epoch + 1, ReplayWindow()
            raise ValueError(f"a stored replay window is damaged: {error}") from error


class TokenBucket:
    """A rate limit: `rate` units per second, and at most `burst` at once. It starts full. A charge
    of more than is left becomes a debt."""

    def __init__(self, rate: float, burst: float) -> None:
        if not (0 <= rate < float("inf") and 0 < burst < float("inf")):
            raise ValueError("a bucket needs a finite rate >= 0 and a finite burst > 0")
        self.burst = burst
        self._rate = rate
        self._tokens = burst
        self._last: float | None = None

    @property
    def tokens(self) -> float:
        """Units left after the last call: at most `burst`, below 0 for a debt."""
        return self._tokens

    def take(self, now: float, n: float = 1.0) -> bool:
        """Take `n` units at monotonic second `now`. If fewer are left, take nothing and return
        False. A clock that goes backwards adds no units."""
        if not n >= 0:
            raise ValueError("only a number >= 0 can be taken")
        if not self.holds(now, n):
            return False
        self._tokens -= n
        return True

    def holds(self, now: float, n: float) -> bool:
        """Check that `n` units are left at monotonic second `now`."""
        if self._last is None:
            self._last = now
        if now > self._last:
            self._tokens = min(self.burst, self._tokens + (now - self._last) * self._rate)
            self._last = now
        return n <= self._tokens

    def charge(self, now: float, n: float) -> None:
        """Take `n` units at monotonic second `now`, even if fewer are left. A negative number is a
        refund."""
        self.holds(now, n)
        self._tokens = min(self.burst, self._tokens - n)


class PeerGates:
    """One bucket per peer, for the `capacity` most recent peers.

    Identities cost nothing, so limits per peer bound a careless peer, not an attacker. Callers put
    one shared bucket in front. A forgotten peer that returns starts with a full bucket."""

    def __init__(self, rate: float, burst: float, capacity: int = 1024) -> None:
        if capacity < 1:
            raise ValueError("capacity must be at least 1")
        self._rate = rate
        self._burst = burst
        self._buckets: Recent[str, TokenBucket] = Recent(capacity)

    def __len__(self) -> int:
        return len(self._buckets)

    def take(self, peer: str, now: float, n: float = 1.0) -> bool:
        """Take `n` units from the bucket of `peer` at monotonic second `now`."""
        return self._bucket(peer).take(now, n)

    def holds(self, peer: str, now: float, n: float) -> bool:
        """Check that `n` units are left in the bucket of `peer`."""
        return self._bucket(peer).holds(now, n)

    def charge(self, peer: str, now: float, n: float) -> None:
        """Take `n` units, even if fewer are left."""
        self._bucket(peer).charge(now, n)

    def _bucket(self, peer: str) -> TokenBucket:
        bucket = self._buckets.get(peer) or TokenBucket(self._rate, self._burst)
        self._buckets[peer] = bucket
        return bucket
