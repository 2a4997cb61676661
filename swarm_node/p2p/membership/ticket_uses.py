"""Claims of tickets that admit a limited number of keys: the keys, and when each was first met.
Pure.

A ticket is a file, so several keys can be shown with it at several nodes at once, and each node
would admit its own. Nodes tell each other when a key was first met. The keys that were met first
stay, and the others are `used_up` everywhere.

The time is a witness's, never the claimant's: the holder of a ticket can sign a certificate for any
key and start time, and can make keys until their hash fits. So a member of the ticket itself is no
witness (`Members.learn`), and a hash decides only between equal times.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

#: Claims beyond a ticket's uses that are remembered: those met first.
_MAX_TRIED = 16
#: Limit of claims, over all issuers whose uses are limited.
MAX_CLAIMS: Final = 65_536


@dataclass(slots=True)
class _Issuer:
    """The claims of one issuer: when each subject was first met, in ms."""

    uses: int
    met_times: dict[bytes, int] = field(default_factory=dict)
    stays: frozenset[bytes] = frozenset()


class TicketUses:
    """The subjects that each limited issuer was used for."""

    def __init__(self) -> None:
        self._issuers: dict[bytes, _Issuer] = {}
        self._count = 0
        #: Grows whenever a subject that stayed before has to go.
        self.displaced_count = 0

    def meet(self, issuer: bytes, uses: int, subject: bytes, met_ms: int) -> bool:
        """Note that a subject was met with a certificate of this issuer. The earliest time counts.
        Return True if anything changed."""
        of = self._issuers.setdefault(issuer, _Issuer(uses))
        old_met_ms = of.met_times.get(subject)
        if old_met_ms is not None and old_met_ms <= met_ms:
            return False
        of.met_times[subject] = met_ms
        stayed = of.stays
        first = sorted(of.met_times, key=lambda key: (of.met_times[key], _tie(issuer, key)))
        for late_subject in first[of.uses + _MAX_TRIED :]:
            del of.met_times[late_subject]
        of.stays = frozenset(first[: of.uses])
        self.displaced_count += len(stayed - of.stays)
        self._count += (old_met_ms is None) - len(first[of.uses + _MAX_TRIED :])
        while self._count > MAX_CLAIMS:
            self._count -= len(self._issuers.pop(next(iter(self._issuers))).met_times)
        return subject in of.met_times

    def arrive(self, issuer: bytes, uses: int, subject: bytes, now_ms: int) -> bool:
        """Note a subject that this node itself meets now. It ranks after all known ones, even if
        the clock was set back."""
        of = self._issuers.get(issuer)
        if of is None or not of.met_times:
            return self.meet(issuer, uses, subject, now_ms)
        if subject in of.met_times:
            return False
        return self.meet(issuer, uses, subject, max(now_ms, 1 + max(of.met_times.values())))

    def stays(self, issuer: bytes, subject: bytes) -> bool:
        """Check that this subject is among the first. An issuer without claims limits nobody."""
        of = self._issuers.get(issuer)
        return of is None or subject in of.stays

    def has_use(self, issuer: bytes, subject: bytes) -> bool:
        """Check that this subject has a claim."""
        of = self._issuers.get(issuer)
        return of is not None and subject in of.met_times

    def since(self, met_ms: int) -> list[tuple[bytes, bytes, int]]:
        """(issuer, subject, first met) of those met at this time or later. Those that came too late
        are included, for the ticket's owner to see."""
        return [row for row in self._rows() if row[2] >= met_ms]

    def holders(self, issuer: bytes) -> list[bytes]:
        """The subjects that stay, the first one first."""
        of = self._issuers.get(issuer)
        return [] if of is None else sorted(of.stays, key=of.met_times.__getitem__)

    def late_subjects(self, issuer: bytes) -> list[bytes]:
        """The subjects that came too late, the first one first."""
        of = self._issuers.get(issuer)
        return (
            []
            if of is None
            else sorted(of.met_times.keys() - of.stays, key=of.met_times.__getitem__)
        )

    def rows(self) -> list[tuple[bytes, int, list[tuple[bytes, int]]]]:
        """(issuer, uses, its subjects with the times of their first meeting), to be stored."""
        return [(key, of.uses, list(of.met_times.items())) for key, of in self._issuers.items()]

    def _rows(self) -> Iterator[tuple[bytes, bytes, int]]:
        for issuer, of in self._issuers.items():
            for subject, met_ms in of.met_times.items():
                yield issuer, subject, met_ms


def digest(claims: list[tuple[bytes, bytes, int]]) -> bytes:
    """Summarise claims, so that two nodes that hold the same tell each other nothing."""
    keys = sorted(issuer + subject for issuer, subject, _ in claims)
    return hashlib.sha256(b"".join(keys)).digest()


def _tie(issuer: bytes, subject: bytes) -> bytes:
    return hashlib.sha256(issuer + subject).digest()
