"""Requests and answers of a coordinator's API, as JSON. Bytes are base64 there. Pure.

A node checks all of it: presences, revocation lists and batches are signed by others, and a
reputation can only lower shares.
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
#: Scheme of the header Authorization. The base64 of a packed `coordination.Shown` follows.
SCHEME: Final = "Swarm "
MAX_INTRODUCED: Final = 16
MAX_ROWS: Final = 1000
MAX_BATCHES: Final = 256
#: Largest body of a request.
MAX_BODY_BYTES: Final = 64 * 1024
#: Largest answer that a node reads: a thousand rows.
MAX_ANSWER_BYTES: Final = 2 << 20
_NEWCOMER_DOMAIN: Final = b"swarm-node/redemption/v1"

Limit = Annotated[int, Meta(ge=1, le=MAX_ROWS)]
PeerId = Annotated[str, Meta(pattern=r"^[1-9A-HJ-NP-Za-km-z]{1,64}$")]
Seconds = Annotated[float, Meta(ge=0, lt=253_402_300_800)]
Statement = Annotated[bytes, Meta(max_length=MAX_STATEMENT_BYTES)]
PresenceBytes = Annotated[bytes, Meta(min_length=1, max_length=MAX_PRESENCE_BYTES)]
ReportBytes = Annotated[bytes, Meta(min_length=1, max_length=MAX_REPORT_BYTES)]
BatchBytes = Annotated[bytes, Meta(max_length=MAX_BATCH_BYTES)]
#: Letters and digits in groups. Blanks and hyphens in typed text are ignored.
Code = Annotated[str, Meta(min_length=8, max_length=64, pattern=r"^[A-Za-z0-9 -]*$")]


class Wire(Struct, frozen=True, forbid_unknown_fields=True):
    """Base of all requests: an object of exactly these fields."""


class Problem(Struct, frozen=True):
    """The error of a refused request (RFC 9457). `reason` is a word for programs."""

    type: str
    title: str
    status: int
    detail: str
    reason: str


class Health(Struct, frozen=True):
    status: str


class Introduction(Wire, frozen=True):
    """The caller's own packed presence, and the number of the newest revocation list that it holds.
    If the coordinator's list is older, `statement` carries this list."""

    peer_record: PresenceBytes
    revoked: Counter = 0
    revocation_list: Statement = b""


class Introduced(Struct, frozen=True):
    """Presences of other members, as these published them. `statement` is the coordinator's
    revocation list if it is newer than the caller's, and `revoked` is its number. `report` asks for
    a report, because the coordinator has none of the caller."""

    peer_records: Annotated[list[PresenceBytes], Meta(max_length=MAX_INTRODUCED)]
    revoked: Counter
    revocation_list: Statement
    report: bool


class Reported(Wire, frozen=True):
    """A sealed report of the caller."""

    report: ReportBytes


class ReportReceipt(Struct, frozen=True):
    """Receipt for a stored report. `number` is that of the newest batch. The report goes into the
    next."""

    number: Counter


class Batches(Struct, frozen=True):
    """Sealed batches from a number on, in order. If the newest number is lower, only the newest
    batch."""

    batches: Annotated[list[BatchBytes], Meta(max_length=MAX_BATCHES)]


class ReputationRow(Struct, frozen=True):
    """A member's `share` of all trust, in [0, 1]. `issuer_share` is the sum over all rated members
    of its issuer. `raters` members reported about it."""

    peer_id: PeerId
    share: Share
    issuer_share: Share
    raters: Counter


class Reputation(Struct, frozen=True):
    """Members with reports about them, the least trusted first; their `count`; and the `median` of
    their issuers' shares."""

    count: Counter
    median: Share
    rows: Annotated[list[ReputationRow], Meta(max_length=MAX_ROWS)]


class MemberRow(Struct, frozen=True):
    """A member according to its certificate and its newest report. `standing` is "member", or the
    reason why it is none. `seen` and `reported` are Unix seconds, 0 for never. `introduced` is true
    while its presence is given to others. `eval_reward` has it by family."""

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
    steps: Counter = 0
    sampled: Counter = 0
    sent: Counter = 0
    accepted: Counter = 0
    trained_local: Counter = 0
    trained_external: Counter = 0
    eval_reward: dict[str, float] = {}


class MemberRows(Struct, frozen=True):
    """Members in the order of their peer ids. `next` is the `after` of the next page, "" at the
    end."""

    rows: Annotated[list[MemberRow], Meta(max_length=MAX_ROWS)]
    next: str


class FindingRow(Struct, frozen=True):
    """Findings of a report's author about a peer: groups received, and refused by reason."""

    peer_id: PeerId
    accepted: Counter
    rejected: dict[str, int]


class ReportView(Struct, frozen=True):
    """The newest report of a member: its signed bytes, and its findings about peers."""

    report: ReportBytes
    peers: list[FindingRow]


class ReportRow(Struct, frozen=True):
    """One report of a member at `at`, in Unix seconds; `eval_reward` is the mean over families."""

    id: Counter
    at: Seconds
    peer_id: PeerId
    version: Counter
    eval_reward: Share | None
    sampled: Counter
    accepted: Counter
    trained_local: Counter
    trained_external: Counter


class History(Struct, frozen=True):
    """Rows in order of arrival. `next` is the `after` of the next page, 0 at the end."""

    rows: Annotated[list[ReportRow], Meta(max_length=MAX_ROWS)]
    next: Counter


class Picture(Struct, frozen=True):
    """The content of the page at `time` (Unix seconds): members, the reputation from reports, and
    history from a row on. `next` is as in `History`."""

    swarm: str
    swarm_id: str
    time: Seconds
    members: Annotated[list[MemberRow], Meta(max_length=MAX_ROWS)]
    reputation: Annotated[list[ReputationRow], Meta(max_length=MAX_ROWS)]
    history: Annotated[list[ReportRow], Meta(max_length=MAX_ROWS)]
    next: Counter


class Redemption(Wire, frozen=True):
    """A code, and a proof that only the `newcomer` can derive from it. The same two get the same
    ticket again."""

    code: Code
    newcomer: Digest


def redemption(code: str, newcomer: Identity) -> Redemption:
    """Build a newcomer's request. Ed25519 signatures are deterministic, so the newcomer needs to
    store nothing. Somebody who reads a used code gets no ticket for it.

    Raises:
        msgspec.ValidationError: this is no code.
    """
    signature = newcomer.sign(_NEWCOMER_DOMAIN + code_digest(code))
    proof = hashlib.sha256(signature).digest()
    return msgspec.convert({"code": code, "newcomer": proof}, Redemption)


def code_digest(code: str) -> bytes:
    """Hash a code as a person types it. It has 100 random bits, so no slow hash is needed."""
    letters = [letter for letter in code.upper() if letter.isalnum()]
    return hashlib.sha256("".join(letters).encode()).digest()


class Redeemed(Struct, frozen=True):
    ticket: Annotated[str, Meta(max_length=MAX_TICKET_CHARS)]


class NewCode(Wire, frozen=True):
    """A code for `uses` newcomers, within `seconds`."""

    name: Name
    uses: Annotated[int, Meta(ge=1, le=1000)] = 1
    seconds: Annotated[int, Meta(ge=60, le=366 * 86_400)] = 7 * 86_400


class CodeRow(Struct, frozen=True):
    """A code without its text, which is shown once. A `withdrawn` code is not redeemed. `tickets`
    are the names of the tickets that were given for it. `holders` has, by ticket, the members that
    the coordinator has met."""

    id: Counter
    name: Name
    uses: Counter
    left: Counter
    expires: UnixSeconds
    withdrawn: bool
    tickets: tuple[Name, ...] = ()
    holders: dict[Name, list[PeerId]] = {}


class MadeCode(Struct, frozen=True):
    code: Code
    row: CodeRow


class Codes(Struct, frozen=True):
    """All codes, and the number of tickets left for them."""

    codes: list[CodeRow]
    tickets: Counter


class Trusted(Wire, frozen=True):
    """Peer ids or ticket names. The reputation starts from their reports."""

    who: Annotated[
        list[Annotated[str, Meta(min_length=1, max_length=64)]], Meta(max_length=MAX_ROWS)
    ]


class Forgotten(Struct, frozen=True):
    """The number of a member's reports and rows of history that were deleted."""

    rows: Counter
