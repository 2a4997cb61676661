"""All reasons for a refusal: the codes under which a node counts them, and the words of a refused
reply. Pure.

`.ci/tools/protocol_page.py` writes lists of docs/protocol-streams.md from `REASONS` and `REFUSALS`.
A peer's words have a consequence only if they are exactly those of a row."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum, auto
from typing import Final, Literal

from swarm_node.errors import RefusedError, TransportError


class Blame(Enum):
    """The class of a refusal: its meaning for the peer that caused it."""

    NONE = auto()  # nothing: bad luck, a full buffer, a clock
    USELESS = auto()  # a group that an honest peer with other settings might send
    VIOLATION = auto()  # no honest program sends it


#: Every reason, a metric label, with its class. docs/rejections.md says what each means, and a
#: test that none is missing there. tests/p2p/wire/test_reasons.py finds those missing here.
REASONS: Final[dict[str, Blame]] = {
    **dict.fromkeys((
        "altered", "anew", "blocked", "capacity", "copied", "duplicate", "elsewhere",
        "expired", "links", "not_here", "not_served", "not_yet_valid", "outdated", "quota",
        "rate", "revoked", "stale", "streams", "too_old", "unscored", "unknown_member",
        "unreachable", "used_up",
    ), Blame.NONE),
    **dict.fromkeys((
        "asleep", "environment", "implausible", "no_observation", "own_copied", "repeated",
        "slow_task", "too_large", "too_long", "zero_advantage",
    ), Blame.USELESS),
    **dict.fromkeys((
        "author", "content", "encoding", "flood", "hash", "held_out", "scoring", "key",
        "kind", "not_delegate", "outside_issuer", "rerun_mismatch", "route", "schema", "sequence",
        "signature", "size", "task", "tokens", "wrong_issuer", "wrong_root",
        "wrong_subject",
    ), Blame.VIOLATION),
}  # fmt: skip


def blame_of(code: str) -> Blame:
    """The class of a reason."""
    return REASONS.get(code, Blame.USELESS)


#: Separator of a refusal's text from what the refusal names, and the pattern of the latter.
_NAMED: Final = {
    "": ("", ""),
    "reason": (": ", "[a-z_]{1,24}"),
    "reason, seconds": (": ", "[a-z_]{1,24}(?: [0-9]{1,9})?"),
    "protocol": (" ", "/swarm-node/[a-z]{1,24}/[0-9]{1,3}"),
}


@dataclass(frozen=True, slots=True)
class Refusal:
    """A refused reply. On the wire it is exactly `text`, followed by the thing that it `names`, if
    it names one. Peers compare whole texts, so none may change within a version of the protocol.
    `code` stands for it in this program. `protocols` names the protocols, `meaning` says what the
    caller may conclude. If it names "reason, seconds", the reason may be followed by the seconds
    between this node's clock and the time that decides."""

    code: str
    text: str
    protocols: str
    meaning: str
    names: Literal["", "reason", "reason, seconds", "protocol"] = ""

    def error(self, name: str = "") -> TransportError:
        """Make the error with which a handler refuses a request."""
        return TransportError(self.words(name))

    def words(self, name: str = "") -> str:
        """Make the words of a reply that names this reason or protocol.

        Raises:
            ValueError: it would not be read as this refusal.
        """
        words = self.text + _NAMED[self.names][0] + name
        if self.named_in(words) != name:
            raise ValueError(f"the refusal {self.code} cannot name {name!r}")
        return words

    def named_in(self, words: str) -> str | None:
        """Return the reason or protocol that these words name, "" if this refusal names none, and
        None for the words of another."""
        separator, pattern = _NAMED[self.names]
        match = re.fullmatch(re.escape(self.text + separator) + f"({pattern})", words)
        return None if match is None else match[1]


UNKNOWN_MEMBER: Final = Refusal(
    "unknown_member",
    "say hello first",
    "all but hello",
    "no member here yet: greet, and ask once more",
)
NO_MEMBER: Final = Refusal(
    "no_member",
    "no member of this swarm",
    "hello",
    "the chain is refused: tell the owner why",
    "reason, seconds",
)
NOT_HERE: Final = Refusal(
    "not_here", "not here (any more)", "pull", "the group is not held: no failure"
)
BAD_REQUEST: Final = Refusal(
    "bad_request", "bad request", "all but keep", "body or envelope fail", "reason"
)
REFUSED: Final = Refusal(
    "refused",
    "refused",
    "revoked, secret, renew, probe, probe-for, punch, relayed",
    "the statement or request fails; renew: no such member is renewed; relayed: its time or nonce",
    "reason",
)
RATE: Final = Refusal(
    "rate",
    "too many requests; slow down",
    "all",
    "a budget is used up, on a relay perhaps the target's",
)
CUT_OFF: Final = Refusal(
    "cut_off",
    "you broke the protocol: ask again later",
    "all",
    "the caller is cut off, on a target the asker",
)
QUEUE_FULL: Final = Refusal(
    "queue_full",
    "too many of your requests at once: slow down",
    "all",
    "too many of its streams wait",
)
BUSY: Final = Refusal(
    "busy",
    "busy: ask again later",
    "all",
    "too many streams of all peers, on a relay no circuit within 10 s",
)
INTERNAL: Final = Refusal("internal", "internal error", "all", "a fault of the answering node")
NO_RELAY: Final = Refusal("no_relay", "no relay now", "keep, relay", "it forwards for nobody")
NOT_CONNECTED: Final = Refusal(
    "not_connected",
    "not connected to that member",
    "relay",
    "no link, or an end is no member",
)
NO_ANSWER: Final = Refusal(
    "no_answer",
    "the other peer did not answer in time",
    "relay",
    "nothing within 15 s",
)
NOT_SERVED: Final = Refusal(
    "not_served",
    "the peer does not serve",
    "a sealed reply",
    "the target has no such protocol",
    "protocol",
)

REFUSALS: Final = (
    UNKNOWN_MEMBER, NO_MEMBER, NOT_HERE, BAD_REQUEST, REFUSED, RATE, CUT_OFF, QUEUE_FULL, BUSY,
    INTERNAL, NO_RELAY, NOT_CONNECTED, NO_ANSWER, NOT_SERVED,
)  # fmt: skip


def with_seconds(reason: str, seconds: float) -> str:
    """Name a reason, with the seconds between this clock and the deciding time if these are under
    31 years."""
    digits = f"{abs(seconds):.0f}"
    return f"{reason} {digits}" if seconds and len(digits) <= 9 else reason


def read_refusal(payload: bytes) -> RefusedError:
    """Read the payload of a refused reply. Other words than those of REFUSALS have no code."""
    words = payload.decode("utf-8", "replace")
    # Logs and terminals show the words, so a peer must not send control characters.
    message = "".join(c if c.isprintable() else "?" for c in words)
    for refusal in REFUSALS:
        name = refusal.named_in(words)
        if name is not None:
            name, _, seconds = name.partition(" ")
            is_known = not refusal.names.startswith("reason") or name in REASONS
            offset = int(seconds) if seconds else None
            return RefusedError(message, refusal.code, name if is_known else "unknown", offset)
    return RefusedError(message)
