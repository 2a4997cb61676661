"""Penalties for a peer's conduct: the consequences of refusals, and a peer's standing. Pure.

A violation of the protocol cuts the peer off for a minute, and for twice as long after each further
one. A group that broke no rule but is useless is a strike: the peer is asked for nothing for a
while. STRIKES in a row drop the peer. Useful groups raise its score, which sets how often its
offers are drawn. Only findings of this node's own checks count.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from swarm_node.p2p.peers.liveness import OFFENCE, STRIKE
from swarm_node.p2p.wire.reasons import REASONS, Blame, blame_of

BLAMELESS: Final = frozenset(code for code, blame in REASONS.items() if blame is Blame.NONE)

#: Useless groups in a row that drop a peer. The last strike before that pauses it for 4 s, each
#: earlier one for half as long: 8 s in all. An honest peer's single strike costs almost nothing.
STRIKES: Final = 10
#: The prior of a peer's useful share, and the half-life of a group's count in later groups.
_PRIOR = (1.0, 4.0)
_HALF_LIFE = 256.0
#: A peer with fewer counted groups than this is a newcomer. All newcomers share this part of the
#: draws while others offer groups too.
_NEWCOMER_GROUPS = 16.0
NEWCOMERS_SHARE: Final = 0.2
#: A reputation from others multiplies a peer's weight by at least this factor.
LEAST_HINT: Final = 0.5
_Z = 1.6448536269514722  # the normal distribution's 95% quantile


@dataclass(slots=True)
class Standing:
    """This node's findings about one peer. Times are seconds of the node's monotonic clock.
    `useful_count` and `useless_count` are decayed counts of groups. The peer is asked for nothing
    until `left_until`, is dropped until `off_until`, and gets no answer until `cut_until`."""

    useful_count: float = 0.0
    useless_count: float = 0.0
    strikes: int = 0
    offences: int = 0
    left_until: float = 0.0
    off_until: float = 0.0
    cut_until: float = 0.0
    #: Factor of a coordinator's reputation on the weight in draws: in [LEAST_HINT, 1].
    hint: float = 1.0

    def penalize_rejection(self, reason: str, now: float) -> Blame:
        """Count a refusal, and set its penalty."""
        blame = blame_of(reason)
        if blame is Blame.NONE:
            return blame
        self._count(useless_count=1.0)
        self.strikes += 1
        if blame is Blame.VIOLATION or self.strikes >= STRIKES:
            self._drop(now)
        else:
            self.left_until = max(self.left_until, now + STRIKE.after(self.strikes - 1))
        if blame is Blame.VIOLATION:
            self.cut_until = self.off_until
        return blame

    def count_useful_group(self) -> None:
        """Count a useful group."""
        self._count(useful_count=1.0)
        self.strikes = 0

    @property
    def weight(self) -> float:
        """The weight of the peer's offers in a draw. A hint can halve it, and never raises it."""
        return self.score * min(1.0, max(LEAST_HINT, self.hint))

    @property
    def newcomer(self) -> bool:
        """True while fewer than _NEWCOMER_GROUPS groups of the peer were counted."""
        return self.useful_count + self.useless_count < _NEWCOMER_GROUPS

    @property
    def score(self) -> float:
        """The lower 5% quantile of its useful share, in (0, 1)."""
        return lower_quantile(_PRIOR[0] + self.useful_count, _PRIOR[1] + self.useless_count)

    def _drop(self, now: float) -> None:
        self.strikes = 0
        if now < self.off_until:
            return  # what was under way when it was dropped prolongs nothing
        if now > self.off_until + OFFENCE.ceiling:
            self.offences = 0
        self.off_until = now + OFFENCE.after(self.offences)
        self.left_until = max(self.left_until, self.off_until)
        self.offences = min(self.offences + 1, 16)

    def _count(self, useful_count: float = 0.0, useless_count: float = 0.0) -> None:
        decay = 0.5 ** (1.0 / _HALF_LIFE)
        self.useful_count = self.useful_count * decay + useful_count
        self.useless_count = self.useless_count * decay + useless_count


def lower_quantile(a: float, b: float) -> float:
    """The 5% quantile of Beta(a, b) for a, b >= 1, by formula 26.5.22 of Abramowitz and Stegun."""
    a_term, b_term = 1.0 / (2.0 * a - 1.0), 1.0 / (2.0 * b - 1.0)
    mean = 2.0 / (a_term + b_term)
    curve = (_Z * _Z - 3.0) / 6.0
    spread = _Z * math.sqrt(mean + curve) / mean
    shift = (b_term - a_term) * (curve + 5.0 / 6.0 - 2.0 / (3.0 * mean))
    return a / (a + b * math.exp(2.0 * (spread - shift)))


def draw(rng: random.Random, offering: Sequence[tuple[str, Standing]]) -> int:
    """Draw one of the (issuer, standing) of the peers that offer groups. Return its index.

    Newcomers share NEWCOMERS_SHARE of the draws. The issuer is drawn first, with the weight of its
    best member, so that further keys of one ticket buy nothing. Then a member is drawn by score.
    """
    indices = range(len(offering))
    new = [index for index in indices if offering[index][1].newcomer]
    veterans = [index for index in indices if not offering[index][1].newcomer]
    pool = new if not veterans or (new and rng.random() < NEWCOMERS_SHARE) else veterans
    scores = {index: offering[index][1].weight for index in pool}
    issuers: dict[str, list[int]] = {}
    for index in pool:
        issuers.setdefault(offering[index][0], []).append(index)
    weights = [max(scores[index] for index in members) for members in issuers.values()]
    (members,) = rng.choices(list(issuers.values()), weights)
    return rng.choices(members, [scores[index] for index in members])[0]
