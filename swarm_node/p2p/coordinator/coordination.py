"""Statements that members and a coordinator sign: requests, reports and numbered batches. Pure.

A member's request carries a CALL that is valid for this request alone. A report is a member's own
claim and stays verifiable wherever it is stored. A coordinator signs a BATCH for every set of
reports that it accepted. Each batch names the one before. So a coordinator that shows two members
two histories leaves two signed heads with one number.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Final, TypeVar

from msgspec import Meta

from swarm_node.errors import Rejected
from swarm_node.p2p.membership.membership import Chain
from swarm_node.p2p.wire.envelope import SEALED_BYTES, Kind, open_sealed, seal
from swarm_node.p2p.wire.identity import Identity
from swarm_node.p2p.wire.wire import (
    Agent,
    Body,
    Certificate,
    Counter,
    Digest,
    Label,
    Milliseconds,
    Sequence1,
    Version1,
    pack,
    unpack,
)

MAX_TARGET_CHARS: Final = 256
MAX_CALL_BYTES: Final = SEALED_BYTES[Kind.CALL]
#: A call, two certificates and their headers.
MAX_SHOWN_BYTES: Final = MAX_CALL_BYTES + 2 * 320 + 10
MAX_REPORT_BYTES: Final = SEALED_BYTES[Kind.REPORT]
MAX_REPORTED_PEERS: Final = 64
MAX_REPORTED_FAMILIES: Final = 64
MAX_REASONS: Final = 12
MAX_BATCH_BYTES: Final = SEALED_BYTES[Kind.BATCH]

Share = Annotated[float, Meta(ge=0, le=1)]
Nonce = Annotated[bytes, Meta(min_length=16, max_length=16)]


class Call(Body, frozen=True):
    """Kind.CALL: the owner of the sealing key asks for `target` (path and query) by `method`, with
    a body whose sha256 is `digest`."""

    v: Version1
    method: Annotated[str, Meta(pattern=r"\A[A-Z]{3,7}\Z")]
    target: Annotated[str, Meta(min_length=1, max_length=MAX_TARGET_CHARS)]
    issued_ms: Milliseconds
    nonce: Nonce
    digest: Digest


class Shown(Body, frozen=True):
    """A sealed call with the certificates of the member that sealed it."""

    call: Annotated[bytes, Meta(max_length=MAX_CALL_BYTES)]
    issuer: Certificate
    member: Certificate


class PeerCounts(Body, frozen=True):
    """Results of a node's own checks of the peer with this `key`: groups received from it, and
    refused ones by reason."""

    key: Digest
    accepted: Counter
    rejected: Annotated[tuple[tuple[Label, Counter], ...], Meta(max_length=MAX_REASONS)]


class Report(Body, frozen=True):
    """Kind.REPORT: a member's statement about itself and its peers. `eval_reward` has the mean
    by family. Of two reports of a member, the one with the greater `issued_ms` counts."""

    v: Version1
    issued_ms: Milliseconds
    agent: Agent
    model: Label
    reach: Label
    version: Counter
    steps: Counter
    sampled: Counter
    sent: Counter
    accepted: Counter
    trained_local: Counter
    trained_external: Counter
    eval_reward: Annotated[tuple[tuple[Label, Share], ...], Meta(max_length=MAX_REPORTED_FAMILIES)]
    peers: Annotated[tuple[PeerCounts, ...], Meta(max_length=MAX_REPORTED_PEERS)]


class ReportBatch(Body, frozen=True):
    """Kind.BATCH, sealed by a coordinator: batch `number` holds reports whose digest is `content`
    (`content_digest`). `previous` is sha256 of the sealed batch before it, zeros for the first."""

    v: Version1
    number: Sequence1
    previous: Digest
    content: Digest
    issued_ms: Milliseconds


B = TypeVar("B", bound=Body)


@dataclass(frozen=True, slots=True)
class SealedStatement:
    """A statement with a valid signature by `author` (peer id), with its sealed bytes."""

    author: str
    author_key: bytes
    raw: bytes


@dataclass(frozen=True, slots=True)
class SignedBatch(SealedStatement):
    body: ReportBatch

    @property
    def digest(self) -> bytes:
        """The digest that the next batch names as `previous`."""
        return hashlib.sha256(self.raw).digest()


@dataclass(frozen=True, slots=True)
class SignedReport(SealedStatement):
    body: Report


@dataclass(frozen=True, slots=True)
class SignedCall(SealedStatement):
    body: Call
    chain: Chain


def show_call(identity: Identity, swarm_id: bytes, chain: Chain, call: Call) -> bytes:
    """The packed `Shown` of a call."""
    return pack(Shown(seal(identity, swarm_id, Kind.CALL, pack(call)), *chain))


def open_call(data: bytes, swarm_id: bytes) -> SignedCall | Rejected:
    """Open the call in a packed `Shown`. Membership, time and the call's fields are not checked."""
    message = unpack(Shown, data, max_bytes=MAX_SHOWN_BYTES)
    if isinstance(message, Rejected):
        return message
    contents = _open(message.call, swarm_id, Kind.CALL, Call, MAX_CALL_BYTES)
    if isinstance(contents, Rejected):
        return contents
    signed, call = contents
    chain = (message.issuer, message.member)
    return SignedCall(signed.author, signed.author_key, signed.raw, call, chain)


def open_report(data: bytes, swarm_id: bytes) -> SignedReport | Rejected:
    """Open a report, with its author."""
    contents = _open(data, swarm_id, Kind.REPORT, Report, MAX_REPORT_BYTES)
    if isinstance(contents, Rejected):
        return contents
    return SignedReport(contents[0].author, contents[0].author_key, data, contents[1])


def open_batch(data: bytes, swarm_id: bytes) -> SignedBatch | Rejected:
    """Open a batch, with the coordinator that sealed it."""
    contents = _open(data, swarm_id, Kind.BATCH, ReportBatch, MAX_BATCH_BYTES)
    if isinstance(contents, Rejected):
        return contents
    return SignedBatch(contents[0].author, contents[0].author_key, data, contents[1])


def next_batch(
    key: Identity, swarm_id: bytes, last: SignedBatch | None, items: Sequence[bytes], issued_ms: int
) -> bytes:
    """The sealed batch after `last`, of `items` (see `content_digest`)."""
    body = ReportBatch(
        1,
        1 if last is None else last.body.number + 1,
        bytes(32) if last is None else last.digest,
        content_digest(items),
        issued_ms,
    )
    return seal(key, swarm_id, Kind.BATCH, pack(body))


def content_digest(items: Sequence[bytes]) -> bytes:
    """sha256 over the sorted sha256 digests of sealed reports."""
    return hashlib.sha256(b"".join(sorted(items))).digest()


def follow(
    head: SignedBatch | None, batches: Sequence[SignedBatch]
) -> tuple[SignedBatch | None, str]:
    """Follow the chain of batches. Return the batch to hold after these, and the fault found in
    them ("" for none). `batches` are in order, from the held number on, or only the newest one if
    its number is lower. After a fork or a step back the old batch stays held, so that the fault is
    found again. Where batches are missing, a new chain begins."""
    gap = ""
    for batch in batches:
        if head is None:
            head = batch
            continue
        number, last = batch.body.number, head.body.number
        if batch.author_key != head.author_key:
            return head, "another key signs its batches"
        if number < last:
            return head, f"it went back from batch {last} to {number}"
        if number == last and batch.raw != head.raw:
            return head, f"two batches have the number {number}"
        if number == last + 1 and batch.body.previous != head.digest:
            return head, f"batch {number} does not continue batch {last}"
        if number > last + 1:
            gap = f"batches {last + 1} to {number - 1} are missing"
        head = batch
    return head, gap


def _open(
    data: bytes, swarm_id: bytes, kind: Kind, body_type: type[B], max_bytes: int
) -> tuple[SealedStatement, B] | Rejected:
    envelope = open_sealed(data, swarm_id, kind, max_bytes=max_bytes)
    if isinstance(envelope, Rejected):
        return envelope
    body = unpack(body_type, envelope.body, max_bytes=max_bytes)
    if isinstance(body, Rejected):
        return body
    return SealedStatement(envelope.author, envelope.author_key, data), body
