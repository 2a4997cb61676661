"""What peers may take of a node: requests, bytes out, bytes in and time for judging. Pure.

Every limit follows from what the node itself does, so none is a setting. Identities are free, so a
limit for all peers comes first, then one for the members of an issuer, then one for the peer.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from swarm_node.p2p.limits.gates import PeerGates, TokenBucket
from swarm_node.recent import Recent

#: All peers together take at most this many times what this node wants of others, the members of
#: one issuer so much, and one peer so much: in a swarm of two it alone takes everything.
_ALL, _ISSUER, _PEER = 4.0, 3.0, 2.0
#: Requests per second besides those for groups: lists, greetings, heartbeats.
_OTHER_REQUESTS = 4.0
_BURST_SECONDS = 5.0
#: What one peer may take at once, as a multiple of what this node wants of all peers per second.
AT_ONCE: Final = _PEER * _BURST_SECONDS
#: A token takes its id, its log-prob and four bytes of text.
_TOKEN_BYTES, _COMPLETION_BYTES, _GROUP_BYTES = 12, 64, 512
#: Seconds in which what was taken counts half.
HALF_LIFE: Final = 60.0
#: Issuers and peers that are remembered.
_CAPACITY = 1024
#: Requests over the limit that are only refused. More are a flood.
_TOLERANCE = (1.0, 64.0)


@dataclass(frozen=True, slots=True)
class Wants:
    """What this node wants of all peers together: `groups` per second, each of at most `size`
    bytes. `external` is the number of peers' groups for each own one in a batch."""

    groups: float
    size: int
    external: float

    @classmethod
    def of(
        cls, *, own: int, external: int, batches: int, poll: float, answers: int, tokens: int
    ) -> Wants:
        """Of a node that trains on `own` and `external` groups, holds `batches` times as many,
        lists every `poll` seconds, and samples `answers` of at most `tokens` tokens."""
        size = answers * (tokens * _TOKEN_BYTES + _COMPLETION_BYTES) + _GROUP_BYTES
        return cls(batches * max(own, external) / poll, size, external / max(own, 1))


class _Fading:
    """A sum that halves in HALF_LIFE seconds."""

    __slots__ = ("_at", "_sum")

    def __init__(self) -> None:
        self._sum, self._at = 0.0, -math.inf

    def add(self, amount: float, now: float) -> None:
        self._sum, self._at = max(0.0, self.at(now) + amount), now

    def at(self, now: float) -> float:
        return self._sum * 0.5 ** (max(0.0, now - self._at) / HALF_LIFE) if self._sum else 0.0


class _Takings:
    """What was taken lately: in all, and by issuers or peers."""

    def __init__(self) -> None:
        self._all = _Fading()
        self._of: Recent[str, _Fading] = Recent(_CAPACITY)

    def add(self, units: float, now: float, *keys: str) -> None:
        """Count once what was taken, and for each of `keys`."""
        self._all.add(units, now)
        for key in keys:
            taken = self._of.get(key) or _Fading()
            taken.add(units, now)
            self._of[key] = taken

    def total(self, now: float) -> float:
        return self._all.at(now)

    def of(self, key: str, now: float) -> float:
        """What `key` took; 0 for who took nothing."""
        taken = self._of.get(key)
        return taken.at(now) if taken is not None else 0.0

    def share(self, key: str, now: float) -> float:
        """The part of all that `key` took, in [0, 1]."""
        return min(1.0, self.of(key, now) / (self.total(now) or 1.0))


#: Of a `Budget` of what a node does for others at their word, such as dialling a host: of all 0.5
#: per second and 16 at once, of one a quarter and half of it.
FAVOURS: Final = (0.125, 32.0)


class Budget:
    """One resource in units per second. What was taken is charged afterwards, so one reply of any
    size passes, and what it cost beyond the budget is a debt."""

    def __init__(self, unit: float, seconds: float = _BURST_SECONDS) -> None:
        """`unit` is what this node wants of all peers, per second. What is given in so many
        `seconds` may be taken at once."""
        self._all = TokenBucket(_ALL * unit, _ALL * unit * seconds)
        self._issuers = PeerGates(_ISSUER * unit, _ISSUER * unit * seconds)
        self._peers = PeerGates(_PEER * unit, _PEER * unit * seconds)
        self._taken = _Takings()

    def open(
        self, issuer: str, peer: str, now: float, *, guest: bool = False, units: float = 0.0
    ) -> bool:
        """Whether this peer may take something, and `units` are left for it; a `guest` only while
        half of what all may take is left. The larger its issuer's share of what was taken lately,
        the more must be left, so that the members of two issuers cannot keep those of a third from
        taking anything."""
        share = self._taken.share(issuer, now)
        reserve = self._all.burst * (0.5 + 0.25 * share if guest else 0.5 * share)
        return (
            self._all.holds(now, reserve + units)
            and self._issuers.holds(issuer, now, units)
            and self._peers.holds(peer, now, units)
        )

    def take(self, issuer: str, peer: str, now: float, units: float = 1.0) -> bool:
        """Whether so many `units` are left for this peer; if so, they are charged."""
        if not self.open(issuer, peer, now, units=units):
            return False
        self.charge(issuer, peer, now, units)
        return True

    def charge(
        self, issuer: str, peer: str, now: float, units: float, since: float | None = None
    ) -> None:
        """Count what the peer took; a negative number gives back units that were charged at
        `since`, of which less counts by now."""
        faded = 1.0 if since is None else 0.5 ** ((now - since) / HALF_LIFE)
        self._taken.add(units * faded, now, issuer)
        self._all.charge(now, units)
        self._issuers.charge(issuer, now, units)
        self._peers.charge(peer, now, units)


class Traffic:
    """The budgets of requests, and of bytes in both directions."""

    def __init__(self, wants: Wants, issuer: Callable[[str], str]) -> None:
        """`issuer` names who admitted a peer, "" for a stranger."""
        rate = wants.groups * wants.size
        self._issuer = issuer
        self._requests = Budget(wants.groups + _OTHER_REQUESTS)
        self._bytes_out = Budget(rate)
        self._bytes_in = Budget(rate)
        self._tolerance = PeerGates(*_TOLERANCE)

    def asks(self, peer: str, now: float, *, guest: bool) -> bool:
        """Whether a request of `peer` is answered; if so, it is charged. A `guest`, which gave
        nothing yet, pays twice, and gets nothing while less than half of what all may take is
        left."""
        issuer = self._issuer(peer)
        budgets = self._requests, self._bytes_out
        if not all(budget.open(issuer, peer, now, guest=guest) for budget in budgets):
            return False
        self._requests.charge(issuer, peer, now, 2.0 if guest else 1.0)
        return True

    def floods(self, peer: str, now: float) -> bool:
        """Whether a peer goes on after so many refusals that no honest one would."""
        return not self._tolerance.take(peer, now)

    def sent(self, peer: str, now: float, size: int) -> None:
        """Charge a reply of `size` bytes."""
        self._bytes_out.charge(self._issuer(peer), peer, now, size)

    def reserves(self, peer: str, now: float, size: int) -> bool:
        """Whether `size` bytes are left for a reply; if so, they are charged."""
        return self._bytes_out.take(self._issuer(peer), peer, now, size)

    def unsent(self, peer: str, now: float, size: int, since: float) -> None:
        """Give back `size` bytes that were reserved at `since`."""
        self._bytes_out.charge(self._issuer(peer), peer, now, -size, since)

    def pulls(self, author: str, now: float, size: int) -> bool:
        """Whether a group of `size` bytes by `author` is pulled; if so, it is charged."""
        issuer = self._issuer(author)
        if not self._bytes_in.open(issuer, author, now):
            return False
        self._bytes_in.charge(issuer, author, now, size)
        return True


#: Seconds of judging that a peer may cost in the last minutes, whatever own groups cost: a group
#: that took the judge's limit. An issuer's members may cost twice, and all peers four times this.
FREE_SECONDS: Final = 5.0


class Effort:
    """Time that judging took: a peer's, an issuer's and all peers' share, beside that of own
    groups. Own groups have a judge of their own, which waits for nobody."""

    def __init__(self, external: float, issuer: Callable[[str], str]) -> None:
        """`external` is the number of peers' groups for each own one in a batch; `issuer` is that
        of `Traffic`."""
        self._ratio = max(external, 1.0)
        self._issuer = issuer
        self._own, self._peers = _Fading(), _Takings()

    def judged_own(self, seconds: float, now: float) -> None:
        """Take in the time for an own group."""
        self._own.add(seconds, now)

    def judged(self, peer: str, seconds: float, now: float) -> None:
        """Take in the time for a group of `peer`."""
        self._peers.add(seconds, now, self._issuer(peer), peer)

    def left(self, peer: str, now: float) -> bool:
        """Whether another group of `peer` may be judged. One peer may cost as much as the own
        groups that it replaces, all peers together twice as much. Whose issuer's members took a
        large share must leave some of that to others."""
        own, issuer = self._own.at(now) * self._ratio, self._issuer(peer)
        most = (4 * FREE_SECONDS + 2.0 * own) * (1.0 - self._peers.share(issuer, now) / 4)
        return (
            self._peers.total(now) <= most
            and self._peers.of(issuer, now) <= 2 * FREE_SECONDS + 1.5 * own
            and not self.exceeds(peer, now)
        )

    def exceeds(self, peer: str, now: float) -> bool:
        """Whether `peer` alone has cost too much."""
        return self._peers.of(peer, now) > FREE_SECONDS + self._own.at(now) * self._ratio
