"""Requests and answers of a coordinator's API, as JSON. Bytes are base64 there. Pure.

A node believes none of it without a check of its own: presences, revocation lists and batches are
signed by others, and a reputation only lowers shares.
"""

from __future__ import annotations

import hashlib
from typing import Annotated, Final

import msgspec
from msgspec import Meta, Struct

from swarm_node.p2p.coordinator.coordination import MAX_BATCH_BYTES, MAX_REPORT_BYTES, Share
from swarm_node.p2p.membership.membership import Name, UnixSeconds
from swarm_node.p2p.membership.statements import MAX_STATEMENT_BYTES
from swarm_node.p2p.membership.ticket import MAX_TICKET_CHARS
from swarm_node.p2p.wire.identity import Identity
from swarm_node.p2p.wire.wire import MAX_PRESENCE_BYTES, Counter, Digest

PREFIX: Final = "/v1"
#: Before the base64 of a packed `coordination.Shown`, in the header Authorization.
SCHEME: Final = "Swarm "
MAX_INTRODUCED: Final = 16
MAX_ROWS: Final = 1000
MAX_BATCHES: Final = 256
#: Of a request's body.
MAX_BODY_BYTES: Final = 64 * 1024
#: Of an answer that a node reads: a thousand rows.
MAX_ANSWER_BYTES: Final = 2 << 20
_NEWCOMER_DOMAIN: Final = b"swarm-node/redemption/v1"

Limit = Annotated[int, Meta(ge=1, le=MAX_ROWS)]
PeerId = Annotated[str, Meta(pattern=r"^[1-9A-HJ-NP-Za-km-z]{1,64}$")]
Seconds = Annotated[float, Meta(ge=0, lt=253_402_300_800)]
Statement = Annotated[bytes, Meta(max_length=MAX_STATEMENT_BYTES)]
PresenceBytes = Annotated[bytes, Meta(min_length=1, max_length=MAX_PRESENCE_BYTES)]
ReportBytes = Annotated[bytes, Meta(min_length=1, max_length=MAX_REPORT_BYTES)]
BatchBytes = Annotated[bytes, Meta(max_length=MAX_BATCH_BYTES)]
#: Letters and digits in groups; what a person types is compared without blanks and hyphens.
Code = Annotated[str, Meta(min_length=8, max_length=64, pattern=r"^[A-Za-z0-9 -]*$")]


class Wire(Struct, frozen=True, forbid_unknown_fields=True):
    """Base of all requests: an object of exactly these fields."""


class Problem(Struct, frozen=True):
    """Why a request was refused (RFC 9457); `reason` is a word for programs."""

    type: str
    title: str
    status: int
    detail: str
    reason: str


class Health(Struct, frozen=True):
    status: str


class Introduction(Wire, frozen=True):
    """The caller's own packed presence, and the number of the newest revocation list it holds, with
    the list itself where the coordinator has an older one."""

    presence: PresenceBytes
    revoked: Counter = 0
    statement: Statement = b""


class Introduced(Struct, frozen=True):
    """Presences of other members, as they left them. `statement` is the coordinator's revocation
    list if it is newer than the caller's, whose number it states as `revoked`. It asks for a
    `report` if it has none of the caller."""

    presences: Annotated[list[PresenceBytes], Meta(max_length=MAX_INTRODUCED)]
    revoked: Counter
    statement: Statement
    report: bool


class Reported(Wire, frozen=True):
    """A sealed report of the caller."""

    report: ReportBytes


class Taken(Struct, frozen=True):
    """A report was stored. `number` is that of the newest batch; the report goes into the next."""

    number: Counter


class Batches(Struct, frozen=True):
    """Sealed batches from a number on, in order; the newest one if that is lower."""

    batches: Annotated[list[BatchBytes], Meta(max_length=MAX_BATCHES)]


class ReputationRow(Struct, frozen=True):
    """A member's `share` of all trust, in [0, 1], and that of all rated members of its issuer.
    `raters` members reported about it."""

    peer_id: PeerId
    share: Share
    issuer_share: Share
    raters: Counter


class Reputation(Struct, frozen=True):
    """Members about whom others reported, the least trusted first; how many there are, and the
    median of their issuers' shares."""

    count: Counter
    median: Share
    rows: Annotated[list[ReputationRow], Meta(max_length=MAX_ROWS)]


class MemberRow(Struct, frozen=True):
    """A member as its certificate and its newest report say. `standing` is "member", or why it is
    none; `seen` and `reported` are Unix seconds, 0 for never; `introduced` says that its presence
    is given to others now. `held_out` has rewards by family."""

    peer_id: PeerId
    name: str
    issuer_key: str
    until: UnixSeconds
    standing: str
    seen: Seconds
    reported: Seconds
    introduced: bool
    agent: str = ""
    model: str = ""
    reach: str = ""
    version: Counter = 0
    updates: Counter = 0
    published: Counter = 0
    taken: Counter = 0
    received: Counter = 0
    trained_own: Counter = 0
    trained_external: Counter = 0
    held_out: dict[str, float] = {}


class MemberRows(Struct, frozen=True):
    """Members in the order of their peer ids. `next` is the `after` of the next page, "" at the
    end."""

    rows: Annotated[list[MemberRow], Meta(max_length=MAX_ROWS)]
    next: str


class FindingRow(Struct, frozen=True):
    """What the author of a report found of a peer: groups received, and refused by reason."""

    peer_id: PeerId
    received: Counter
    refused: dict[str, int]


class ReportView(Struct, frozen=True):
    """The newest report of a member: its signed bytes, and what it found of its peers."""

    report: ReportBytes
    peers: list[FindingRow]


class HistoryRow(Struct, frozen=True):
    """One report of a member at `at`, in Unix seconds; `held_out` is the mean over families."""

    id: Counter
    at: Seconds
    peer_id: PeerId
    version: Counter
    held_out: Share | None
    published: Counter
    received: Counter
    trained_own: Counter
    trained_external: Counter


class History(Struct, frozen=True):
    """Rows in the order in which they came. `next` is the `after` of the next page, 0 at the
    end."""

    rows: Annotated[list[HistoryRow], Meta(max_length=MAX_ROWS)]
    next: Counter


class Picture(Struct, frozen=True):
    """What the page shows at `time` (Unix seconds): members, whom reports trust, and history from a
    row on. `next` is as in `History`."""

    swarm: str
    swarm_id: str
    time: Seconds
    members: Annotated[list[MemberRow], Meta(max_length=MAX_ROWS)]
    reputation: Annotated[list[ReputationRow], Meta(max_length=MAX_ROWS)]
    history: Annotated[list[HistoryRow], Meta(max_length=MAX_ROWS)]
    next: Counter


class Redemption(Wire, frozen=True):
    """A code, and what nobody but the `newcomer` can make of it: the same two get the same ticket
    again."""

    code: Code
    newcomer: Digest


def redemption(code: str, newcomer: Identity) -> Redemption:
    """What a newcomer asks with. Ed25519 signs the same code alike each time, so it needs to store
    nothing, and who reads a used code gets no ticket for it.

    Raises:
        msgspec.ValidationError: this is no code.
    """
    signature = newcomer.sign(_NEWCOMER_DOMAIN + code_digest(code))
    proof = hashlib.sha256(signature).digest()
    return msgspec.convert({"code": code, "newcomer": proof}, Redemption)


def code_digest(code: str) -> bytes:
    """Of a code as a person types it. It has 100 random bits, so no slow hash is needed."""
    plain = [letter for letter in code.upper() if letter.isalnum()]
    return hashlib.sha256("".join(plain).encode()).digest()


class Redeemed(Struct, frozen=True):
    ticket: Annotated[str, Meta(max_length=MAX_TICKET_CHARS)]


class NewCode(Wire, frozen=True):
    """A code for `uses` newcomers, within `seconds`."""

    name: Name
    uses: Annotated[int, Meta(ge=1, le=1000)] = 1
    seconds: Annotated[int, Meta(ge=60, le=366 * 86_400)] = 7 * 86_400


class CodeRow(Struct, frozen=True):
    """A code without its text, which is shown once. `withdrawn` ones are not redeemed."""

    id: Counter
    name: Name
    uses: Counter
    left: Counter
    expires: UnixSeconds
    withdrawn: bool


class MadeCode(Struct, frozen=True):
    code: Code
    row: CodeRow


class Codes(Struct, frozen=True):
    """All codes, and how many tickets are left for them."""

    codes: list[CodeRow]
    tickets: Counter


class Trusted(Wire, frozen=True):
    """Peer ids or names of tickets whose reports the reputation begins with."""

    who: Annotated[
        list[Annotated[str, Meta(min_length=1, max_length=64)]], Meta(max_length=MAX_ROWS)
    ]


class Forgotten(Struct, frozen=True):
    """How many reports and rows of history of a member were deleted."""

    rows: Counter
