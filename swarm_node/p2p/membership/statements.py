"""Statements of the root or a delegate to the whole swarm: revocation lists and new secrets.

A statement travels as `Signed`: the sealed body, and the certificate of the delegate that sealed
it. A node keeps, of each kind, the statement with the greatest rank. The rank is a total order, so
all nodes end with the same one, whatever the order of arrival.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Annotated, Final, Generic, TypeVar

from msgspec import Meta

from swarm_node.errors import Rejected
from swarm_node.p2p.membership.membership import (
    CLOCK_SKEW_SECONDS,
    SwarmInfo,
    UnixSeconds,
    verify_issuer,
)
from swarm_node.p2p.wire.envelope import SEALED_BYTES, Kind, content_id, open_sealed, seal
from swarm_node.p2p.wire.identity import Identity
from swarm_node.p2p.wire.wire import (
    Body,
    Certificate,
    Digest,
    Sequence1,
    Version1,
    pack,
    unpack,
)

MAX_REVOKED: Final = 1000
MAX_LIST_BYTES: Final = SEALED_BYTES[Kind.REVOKE]
#: `Signed` adds a certificate to the sealed list.
MAX_STATEMENT_BYTES: Final = MAX_LIST_BYTES + 512
#: Numbers from here on are reserved for the root, so that it can outrank the thief of a delegate's
#: key.
ROOT_ONLY: Final = 1 << 61


class Signed(Body, frozen=True):
    """A statement with the issuer certificate of the delegate that sealed it. The certificate is
    empty for the root."""

    certificate: Certificate
    sealed: Annotated[bytes, Meta(max_length=MAX_LIST_BYTES)]


class Revocations(Body, frozen=True):
    """Kind.REVOKE: the keys of former members, in ascending order. An issuer's key stands for all
    members that it admitted or renewed."""

    v: Version1
    number: Sequence1
    issued: UnixSeconds
    not_after: UnixSeconds
    keys: Annotated[tuple[Digest, ...], Meta(max_length=MAX_REVOKED)]

    def __post_init__(self) -> None:
        if any(a >= b for a, b in zip(self.keys, self.keys[1:], strict=False)):
            raise ValueError("the keys must ascend")
        if self.not_after <= self.issued:
            raise ValueError("a list must end after it begins")


class NewSecret(Body, frozen=True):
    """Kind.SECRET: the secret of the swarm from now on. Only members may see it."""

    v: Version1
    number: Sequence1
    issued: UnixSeconds
    secret: Digest

    def __repr__(self) -> str:
        return f"NewSecret(number={self.number})"


T = TypeVar("T", bound=Revocations | NewSecret)


@dataclass(frozen=True, slots=True)
class Statement(Generic[T]):
    """A verified statement. `raw` is the packed `Signed`, as it is stored and sent on. The
    statement with the greatest `rank` is in force: by number, then the root's before a delegate's,
    then by content id."""

    body: T
    raw: bytes = field(repr=False)
    rank: tuple[int, bool, bytes]


def state(
    signer: Identity, certificate: bytes, info: SwarmInfo, body: Revocations | NewSecret
) -> bytes:
    """The packed `Signed` of `body`. `certificate` is the delegate's, empty if the root signs.

    Raises:
        ValueError: a field is outside its bounds, or peers would refuse the signer.
    """
    kind = Kind.REVOKE if isinstance(body, Revocations) else Kind.SECRET
    envelope = seal(signer, info.swarm_id, kind, pack(body))
    raw = pack(Signed(certificate, envelope))
    statement = (verify_revocations if kind is Kind.REVOKE else verify_secret)(raw, info)
    if isinstance(statement, Rejected):
        raise ValueError(
            f"peers would refuse this statement: {statement.reason}, {statement.detail}"
        )
    return raw


def revocations(
    number: int, issued_at: float, not_after: float, keys: Iterable[bytes]
) -> Revocations:
    """The body of a list. Fractions of seconds are cut off.

    Raises:
        ValueError: it is outside its bounds.
    """
    return Revocations(1, number, int(issued_at), int(not_after), tuple(sorted(set(keys))))


def verify_revocations(
    raw: bytes, info: SwarmInfo, now: float | None = None
) -> Statement[Revocations] | Rejected:
    """Open the list in a packed `Signed`. Reasons besides those of `open_sealed`: "wrong_root",
    "wrong_issuer", "not_delegate", "outside_issuer", "content", and if `now` is given
    "not_yet_valid" and "expired". A list that a node holds stays in force after its end."""
    statement = _verify(raw, info, Kind.REVOKE, Revocations)
    if isinstance(statement, Rejected):
        return statement
    if info.root_key in statement.body.keys:
        return Rejected("content", "nobody revokes the root")
    if now is not None and not now <= statement.body.not_after + CLOCK_SKEW_SECONDS:
        return Rejected("expired", f"the list ended at {statement.body.not_after}")
    return _from_the_past(statement, now)


def verify_secret(
    raw: bytes, info: SwarmInfo, now: float | None = None
) -> Statement[NewSecret] | Rejected:
    """Open the secret in a packed `Signed`. Reasons as in `verify_revocations`."""
    statement = _verify(raw, info, Kind.SECRET, NewSecret)
    return statement if isinstance(statement, Rejected) else _from_the_past(statement, now)


def _from_the_past(statement: Statement[T], now: float | None) -> Statement[T] | Rejected:
    if now is not None and now < statement.body.issued - CLOCK_SKEW_SECONDS:
        return Rejected("not_yet_valid", f"issued at {statement.body.issued}")
    return statement


def _verify(raw: bytes, info: SwarmInfo, kind: Kind, body_type: type[T]) -> Statement[T] | Rejected:
    signed = unpack(Signed, raw, max_bytes=MAX_STATEMENT_BYTES)
    if isinstance(signed, Rejected):
        return signed
    envelope = open_sealed(signed.sealed, info.swarm_id, kind, max_bytes=MAX_LIST_BYTES)
    if isinstance(envelope, Rejected):
        return envelope
    body = unpack(body_type, envelope.body, max_bytes=MAX_LIST_BYTES)
    if isinstance(body, Rejected):
        return body
    by_root = not signed.certificate
    if by_root and envelope.author_key != info.root_key:
        return Rejected("wrong_root", "neither the root nor a delegate signed it")
    if not by_root:
        delegate = verify_issuer(signed.certificate, info)
        if isinstance(delegate, Rejected):
            return delegate
        if envelope.author_key != delegate.issuer_key:
            return Rejected("wrong_issuer", "another issuer signed it")
        if not delegate.delegate:
            return Rejected("not_delegate", "its issuer is no delegate")
        if not delegate.not_before - CLOCK_SKEW_SECONDS <= body.issued <= delegate.not_after:
            return Rejected("outside_issuer", "issued when its delegate was none")
        if body.number >= ROOT_ONLY:
            return Rejected("content", "only the root uses such a number")
    return Statement(body, raw, (body.number, by_root, content_id(signed.sealed)))
