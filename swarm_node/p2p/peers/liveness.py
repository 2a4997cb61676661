"""Back-off: when this node may try something of the network again. Pure, no I/O.

The table below holds every pause, and `Retry` the state of one thing that is tried:

| event | next try |
| --- | --- |
| `record_failure` | after its row's pause, which grows with the failures and with the silence |
| `record_failure` before the pause was over | when the pause is over: an early try lengthens none |
| `record_failure` without `counts`: the fault may be this node's | after the same pause as before |
| `record_answer` | at once, and the next pause is the first again |
| `record_greeting`: it asked this node to be asked | at once, and the next pause is no shorter |
| `soon`: it asked something, or what was lost with it answers | SOON_SECONDS after the last try |
| `renew`: it has new addresses, or its link was lost | at once |
| `rest`: it answered all it can for now | after the longest pause |
| `busy` | it is asked after the first pause |
| `begin`: a try is under way | once that is reported, or after TRY_SECONDS |

While nothing else answers, the fault may be this node's own. Then everything is due SOON_SECONDS
after its last try (`alone`).
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple


class Backoff(NamedTuple):
    """The first pause and the longest in seconds, and the growth from each to the next."""

    first: float
    factor: float
    ceiling: float

    def after(self, failures: int) -> float:
        """Seconds to pause after a failure that followed `failures` others."""
        # A configured peer may fail for years, and a float has an end.
        return min(self.ceiling, self.first * self.factor ** min(failures, 64))


#: A peer that answered once. Each pause is an eighth of the silence before it. So a peer that was
#: cut off for a minute is due within nine seconds of the line's return, and one that was cut off
#: for hours within five minutes. Peers that are lost together are due together: with a factor of
#: 1.5 seven nodes took 70 s to meet again after 240 s.
PEER: Final = Backoff(1.0, 1.125, 300.0)
#: A peer that never answered. Any member can invent thousands, so one failure takes it out of the
#: book for the longest pause. Only one from the settings or the ticket, or one that was tried while
#: nobody answered, is tried sooner.
UNMET: Final = Backoff(60.0, 2.0, 3600.0)
#: The other peers that the teller of a dead one named. An answer of one ends the pause.
TELLER: Final = Backoff(2.0, 2.0, 60.0)
#: An address of settings or ticket from which nobody answers, tried for its cause.
DIAL_CHECK: Final = Backoff(2.0, 2.0, 60.0)
#: A relay that failed, while there are others to choose from.
RELAY: Final = Backoff(30.0, 1.0, 30.0)
#: A direct link to a relayed peer. The pauses grow while one of the two ends may not know its
#: position yet. Once both do, the longest applies, because only a change of network can help.
DIRECT: Final = Backoff(2.0, 1.25, 120.0)
#: The author of a useless group. Its ninth pause is the longest: the tenth is an offence.
STRIKE: Final = Backoff(1 / 64, 2.0, 4.0)
#: A peer that was dropped. After the longest pause without another offence, all are forgotten.
OFFENCE: Final = Backoff(60.0, 2.0, 86_400.0)
#: The seconds that the network daemon has to start, and those of silence after which it counts as
#: stuck. On a starved machine a start took 40 s, and an answer 8 s.
DAEMON_START: Final = Backoff(15.0, 2.0, 300.0)
DAEMON_SILENCE: Final = Backoff(3.0, 2.0, 300.0)
#: A loop of the node that failed. Whatever it needs is repaired meanwhile, so it is back within the
#: longest pause.
LOOP: Final = Backoff(1.0, 2.0, 15.0)
#: The trainer's process, which ended and is started again from its checkpoint.
CHILD: Final = Backoff(1.0, 2.0, 60.0)
#: Rounds of reach probes, while their result is uncertain.
PROBE_ROUND: Final = Backoff(15.0, 2.0, 600.0)

#: Shortest time between the beginnings of two tries that a hint or solitude allows. A try takes
#: five seconds.
SOON_SECONDS: Final = 6.0
#: Seconds after which an unreported try is no longer awaited.
TRY_SECONDS: Final = 60.0
#: Peers were lost together if their silences differ by at most this factor, and these seconds,
#: within which a fault is noticed.
_TOGETHER, _NOTICED_SECONDS = 2.0, 20.0


@dataclass(slots=True)
class Retry:
    """The state of one thing that is tried again. Times are seconds of the node's monotonic clock.
    It may be asked from `ask_at`, which is infinite while it does not answer. It may be tried from
    `due_at`, or from `soon_at` after a hint. It was lost with the first failure, at `lost_at`."""

    backoff: Backoff
    failures: int = 0
    pause: float = 0.0
    lost_at: float = math.inf
    ask_at: float = -math.inf
    due_at: float = -math.inf
    soon_at: float = math.inf
    tried_at: float = -math.inf
    is_trying: bool = False

    @property
    def silent(self) -> bool:
        """True if it stopped answering. Then it is tried, and asked for nothing."""
        return self.ask_at == math.inf

    def due(self, now: float, *, is_alone: bool = False) -> bool:
        """Check that it may be tried. `is_alone` is true if nothing else of its kind answers."""
        if self.is_trying and now < self.tried_at + TRY_SECONDS:
            return False
        retry_at = self.tried_at + SOON_SECONDS if is_alone else math.inf
        return min(self.due_at, self.soon_at, retry_at) <= now

    def begin(self, now: float) -> None:
        """Begin a try. The caller reports the result."""
        self.tried_at, self.is_trying = now, True

    def record_failure(self, now: float, *, counts: bool = True) -> None:
        """Record a failure. Those before the pause is over change nothing, so neither requests that
        were under way together nor early tries lengthen it."""
        if not self.is_trying:
            self.tried_at = now
        early = now < self.due_at
        self.ask_at = self.soon_at = math.inf
        self.is_trying = False
        self.lost_at = min(self.lost_at, now)
        if early:
            return
        if counts:
            # A try takes seconds and may wait for others, so the count alone tells too little.
            silence = (self.backoff.factor - 1.0) * (now - self.lost_at)
            pause = max(self.backoff.after(self.failures), silence)
            self.pause = min(self.backoff.ceiling, pause)
            self.failures += 1
        self.due_at = now + max(self.pause, self.backoff.first)

    def record_answer(self, now: float) -> None:
        """Record an answer. It forgives all failures."""
        self.failures, self.pause, self.lost_at, self.is_trying = 0, 0.0, math.inf, False
        self.ask_at, self.due_at, self.soon_at = now, -math.inf, math.inf

    def record_greeting(self, now: float) -> None:
        """Record that it wants to be asked. That proves nothing about this node's way to it."""
        self.ask_at = now

    def busy(self, now: float) -> None:
        """Ask it for nothing for the first pause."""
        self.ask_at = max(self.ask_at, now + self.backoff.first)

    def soon(self, now: float) -> None:
        """Try it soon, and no more often than every SOON_SECONDS."""
        self.soon_at = min(self.soon_at, max(now, self.tried_at + SOON_SECONDS))

    def renew(self, now: float) -> None:
        """Try it now: what failed before is no longer there."""
        self.due_at, self.is_trying = min(self.due_at, now), False

    def rest(self, now: float) -> None:
        """Try it after the longest pause: nothing suggests that sooner would help."""
        self.due_at, self.soon_at, self.is_trying = now + self.backoff.ceiling, math.inf, False


def choose(
    rng: random.Random, retries: Mapping[str, Retry], now: float, *, is_alone: bool
) -> str | None:
    """Choose what to try now, None without any. Half of the tries go to what was lost last, ahead
    of what died long ago. The others are random, so nobody takes all tries by coming and going."""
    lost_times = {
        name: retry.lost_at for name, retry in retries.items() if retry.due(now, is_alone=is_alone)
    }
    if not lost_times:
        return None
    latest = not is_alone and rng.random() < 0.5
    return max(lost_times, key=lost_times.__getitem__) if latest else rng.choice(list(lost_times))


def came_back(retries: Iterable[Retry], lost_at: float, now: float) -> None:
    """Try soon what was lost together with a peer that was lost then and answers again: a cut line
    takes many peers, and its return brings all of them."""
    max_seconds = _TOGETHER * (now - lost_at) + _NOTICED_SECONDS
    for retry in retries:
        if now - retry.lost_at <= max_seconds:
            retry.soon(now)
