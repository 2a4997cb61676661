"""Budgets of peers: requests, bytes out, bytes in and time for scoring. Pure.

Each limit is a multiple of this node's own demand, so none is a setting. Identities are free. So
there is a limit for all peers first, then one for the members of an issuer, then one for the peer.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from swarm_node.p2p.limits.gates import PeerGates, TokenBucket
from swarm_node.recent import Recent

#: Limits as multiples of this node's own demand: 4 for all peers, 3 for one issuer's members, 2 for
#: one peer. In a swarm of two, one peer takes everything.
_ALL, _ISSUER, _PEER = 4.0, 3.0, 2.0
#: Requests per second besides those for groups: lists, greetings, heartbeats.
_OTHER_REQUESTS = 4.0
#: Calls of the table of heartbeats per second. In a large swarm its holders get calls of all
#: members. So calls have a separate budget and displace no pulls.
_TABLE_CALLS = 4.0
_BURST_SECONDS = 5.0
#: Burst of one peer, as a multiple of this node's demand of all peers per second.
AT_ONCE: Final = _PEER * _BURST_SECONDS
#: Bytes of a token (its id, its log-prob and four bytes of text), of a completion and of a group.
_TOKEN_BYTES, _COMPLETION_BYTES, _GROUP_BYTES = 12, 64, 512
#: Half-life of recorded use, in seconds.
HALF_LIFE: Final = 60.0
#: Issuers and peers that are remembered.
_CAPACITY = 1024
#: Rate and burst of requests over the limit that are only refused. More are a flood.
_TOLERANCE = (1.0, 64.0)


@dataclass(frozen=True, slots=True)
class Wants:
    """This node's own demand. Peers' requests are limited in proportion to it. The node pulls
    `groups` per second from all peers together, each of at most `size` bytes. `external_ratio` is
    the number of peers' groups for each own one in a batch."""

    groups: float
    size: int
    external_ratio: float

    @classmethod
    def of(
        cls,
        *,
        local_groups: int,
        external_groups: int,
        batches: int,
        poll: float,
        answers: int,
        tokens: int,
    ) -> Wants:
        """Compute the demand of a node. It trains on `local_groups` and `external_groups` per
        batch, and holds groups for `batches` batches. It lists peers every `poll` seconds. Its
        groups have `answers` answers of at most `tokens` tokens."""
        size = answers * (tokens * _TOKEN_BYTES + _COMPLETION_BYTES) + _GROUP_BYTES
        return cls(
            batches * max(local_groups, external_groups) / poll,
            size,
            external_groups / max(local_groups, 1),
        )


class _Fading:
    """A sum that halves every HALF_LIFE seconds."""

    __slots__ = ("_at", "_sum")

    def __init__(self) -> None:
        self._sum, self._at = 0.0, -math.inf

    def add(self, amount: float, now: float) -> None:
        self._sum, self._at = max(0.0, self.at(now) + amount), now

    def at(self, now: float) -> float:
        return self._sum * 0.5 ** (max(0.0, now - self._at) / HALF_LIFE) if self._sum else 0.0


class _Takings:
    """Recent use: the total, and by issuer or peer."""

    def __init__(self) -> None:
        self._total_usage = _Fading()
        self._of: Recent[str, _Fading] = Recent(_CAPACITY)

    def add(self, units: float, now: float, *keys: str) -> None:
        """Add `units` once to the total, and once to each of `keys`."""
        self._total_usage.add(units, now)
        for key in keys:
            usage = self._of.get(key) or _Fading()
            usage.add(units, now)
            self._of[key] = usage

    def total(self, now: float) -> float:
        return self._total_usage.at(now)

    def of(self, key: str, now: float) -> float:
        """Return the use of `key`, 0 if it used nothing."""
        usage = self._of.get(key)
        return usage.at(now) if usage is not None else 0.0

    def share(self, key: str, now: float) -> float:
        """Return the share of `key` in the total, in [0, 1]."""
        return min(1.0, self.of(key, now) / (self.total(now) or 1.0))


#: Arguments of a `Budget` for services to others, such as dialling a host. All peers get 0.5 per
#: second and a burst of 16, one peer half of both.
FAVOURS: Final = (0.125, 32.0)


class Budget:
    """One resource in units per second. Use is charged afterwards, so one reply of any size passes.
    Its cost beyond the budget becomes a debt."""

    def __init__(self, unit: float, seconds: float = _BURST_SECONDS) -> None:
        """`unit` is this node's demand of all peers, per second. The allowance of `seconds` may be
        used at once."""
        self._total_bucket = TokenBucket(_ALL * unit, _ALL * unit * seconds)
        self._issuers = PeerGates(_ISSUER * unit, _ISSUER * unit * seconds)
        self._peers = PeerGates(_PEER * unit, _PEER * unit * seconds)
        self._usage = _Takings()

    def open(
        self, issuer: str, peer: str, now: float, *, guest: bool = False, units: float = 0.0
    ) -> bool:
        """Check that this peer may use the resource, and that `units` are left for it. A `guest` is
        admitted only while half of the allowance for all is left. The larger the issuer's share of
        recent use, the more must be left. So the members of two issuers cannot lock out those of a
        third."""
        share = self._usage.share(issuer, now)
        reserve = self._total_bucket.burst * (0.5 + 0.25 * share if guest else 0.5 * share)
        return (
            self._total_bucket.holds(now, reserve + units)
            and self._issuers.holds(issuer, now, units)
            and self._peers.holds(peer, now, units)
        )

    def take(self, issuer: str, peer: str, now: float, units: float = 1.0) -> bool:
        """Charge `units` to this peer, if they are left. Return False if they are not."""
        if not self.open(issuer, peer, now, units=units):
            return False
        self.charge(issuer, peer, now, units)
        return True

    def charge(
        self, issuer: str, peer: str, now: float, units: float, charged_at: float | None = None
    ) -> None:
        """Charge units to the peer. A negative number refunds units that were charged at
        `charged_at`. A refund lowers recent use by the part of these units that has not decayed."""
        fraction = 1.0 if charged_at is None else 0.5 ** ((now - charged_at) / HALF_LIFE)
        self._usage.add(units * fraction, now, issuer)
        self._total_bucket.charge(now, units)
        self._issuers.charge(issuer, now, units)
        self._peers.charge(peer, now, units)


class Traffic:
    """The budgets of requests, and of bytes in both directions."""

    def __init__(self, wants: Wants, issuer: Callable[[str], str]) -> None:
        """`issuer` names the issuer that admitted a peer, "" for a stranger."""
        rate = wants.groups * wants.size
        self._issuer = issuer
        self._requests = Budget(wants.groups + _OTHER_REQUESTS)
        self._table = Budget(_TABLE_CALLS)
        self._bytes_out = Budget(rate)
        self._bytes_in = Budget(rate)
        self._tolerance = PeerGates(*_TOLERANCE)

    def asks(self, peer: str, now: float, *, guest: bool) -> bool:
        """Admit a request of `peer` and charge it. A `guest`, which gave nothing yet, pays twice,
        and is refused while less than half of the allowance for all is left."""
        issuer = self._issuer(peer)
        budgets = self._requests, self._bytes_out
        if not all(budget.open(issuer, peer, now, guest=guest) for budget in budgets):
            return False
        self._requests.charge(issuer, peer, now, 2.0 if guest else 1.0)
        return True

    def looks_up(self, peer: str, now: float, *, guest: bool) -> bool:
        """Admit and charge a call of the table of heartbeats, as `asks` does for requests."""
        issuer = self._issuer(peer)
        budgets = self._table, self._bytes_out
        if not all(budget.open(issuer, peer, now, guest=guest) for budget in budgets):
            return False
        self._table.charge(issuer, peer, now, 1.0)
        return True

    def floods(self, peer: str, now: float) -> bool:
        """Check for a flood: the peer continued after more refusals than an honest peer would."""
        return not self._tolerance.take(peer, now)

    def charge_reply(self, peer: str, now: float, size: int) -> None:
        """Charge a reply of `size` bytes."""
        self._bytes_out.charge(self._issuer(peer), peer, now, size)

    def reserves(self, peer: str, now: float, size: int) -> bool:
        """Charge `size` bytes for a reply, if they are left. Return False if they are not."""
        return self._bytes_out.take(self._issuer(peer), peer, now, size)

    def unsent(self, peer: str, now: float, size: int, reserved_at: float) -> None:
        """Refund `size` bytes that were reserved at `reserved_at`."""
        self._bytes_out.charge(self._issuer(peer), peer, now, -size, reserved_at)

    def pulls(self, author: str, now: float, size: int) -> bool:
        """Charge a group of `size` bytes by `author` to be pulled, if the budget allows it."""
        issuer = self._issuer(author)
        if not self._bytes_in.open(issuer, author, now):
            return False
        self._bytes_in.charge(issuer, author, now, size)
        return True


#: Seconds of scoring that a peer may use in the last minutes, whatever own groups cost. It covers a
#: group that took the scoring worker's limit. An issuer's members may use twice this, and all peers
#: four times.
FREE_SECONDS: Final = 5.0


class Effort:
    """Time used for scoring: shares of a peer, an issuer and all peers, relative to own groups. Own
    groups have a separate scoring worker and wait for nothing."""

    def __init__(self, ratio: float, issuer: Callable[[str], str]) -> None:
        """`ratio` is the number of peers' groups for each own one in a batch. `issuer` is as in
        `Traffic`."""
        self._ratio = max(ratio, 1.0)
        self._issuer = issuer
        self._local_usage, self._peers = _Fading(), _Takings()

    def charge_own(self, seconds: float, now: float) -> None:
        """Add the time for an own group."""
        self._local_usage.add(seconds, now)

    def charge(self, peer: str, seconds: float, now: float) -> None:
        """Add the time for a group of `peer`."""
        self._peers.add(seconds, now, self._issuer(peer), peer)

    def has_budget(self, peer: str, now: float) -> bool:
        """Check that another group of `peer` may be scored. One peer may use as much time as the
        own groups that its groups replace, all peers together twice as much. If its issuer's
        members had a large share, part of that time is kept for other issuers."""
        local_seconds, issuer = self._local_usage.at(now) * self._ratio, self._issuer(peer)
        limit = (4 * FREE_SECONDS + 2.0 * local_seconds) * (
            1.0 - self._peers.share(issuer, now) / 4
        )
        return (
            self._peers.total(now) <= limit
            and self._peers.of(issuer, now) <= 2 * FREE_SECONDS + 1.5 * local_seconds
            and not self.exceeds(peer, now)
        )

    def exceeds(self, peer: str, now: float) -> bool:
        """Check for excess: `peer` alone used more than one peer may."""
        return self._peers.of(peer, now) > FREE_SECONDS + self._local_usage.at(now) * self._ratio
