"""The join ticket: one line of text with all that a machine needs to become a member, offline.

It holds an issuer key whose certificate expires. Until then anybody with the text can become a
member and can share the ticket, so treat it like a password. A ticket is accepted only if it is
consistent: the swarm id follows from root key and name, that root signed the issuer certificate,
and the certificate and the ticket expire at the same time.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Final, TextIO

from msgspec import Meta

from swarm_node.errors import Rejected, TicketError, TicketExpiredError, reason_of
from swarm_node.p2p.addresses.addresses import coordinator_url
from swarm_node.p2p.membership.membership import (
    CLOCK_SKEW_SECONDS,
    Chain,
    IssuerBody,
    Name,
    SwarmInfo,
    UnixSeconds,
    issue_issuer,
    issue_member,
    verify_issuer,
)
from swarm_node.p2p.wire.identity import Identity
from swarm_node.p2p.wire.wire import (
    Addresses,
    Body,
    Certificate,
    Counter,
    Digest,
    Version1,
    pack,
    unpack,
)

PREFIX: Final = "swarmjoin1."
MAX_TICKET_CHARS: Final = 4096
_MAX_FILE_CHARS: Final = 16 * 1024

_ALPHABET = re.compile(r"[A-Za-z0-9_-]+")
_LENGTH = struct.Struct(">H")
_CHECKSUM_DOMAIN = b"swarm-node/ticket/v1"
_CHECKSUM_BYTES = 8


class _TicketBody(Body, frozen=True):
    v: Version1
    name: Name
    swarm_id: Digest
    root_key: Digest
    secret: Digest
    addresses: Addresses
    expires: UnixSeconds
    issuer_certificate: Certificate
    issuer_seed: Annotated[bytes, Meta(min_length=32, max_length=32)]
    secret_number: Counter


@dataclass(frozen=True, slots=True)
class Ticket:
    """A consistent ticket that has not expired. `expires` is Unix seconds. `addresses` are peers to
    dial first, and perhaps a coordinator's. Its `repr` shows neither the swarm's secret nor the
    issuer's seed."""

    info: SwarmInfo
    addresses: tuple[str, ...]
    expires: int
    issuer: IssuerBody
    issuer_certificate: bytes = field(repr=False)
    issuer_seed: bytes = field(repr=False)

    @property
    def peers(self) -> list[str]:
        """The addresses of peers."""
        return [address for address in self.addresses if coordinator_url(address) is None]


def make_ticket(
    root: Identity,
    info: SwarmInfo,
    addresses: Sequence[str],
    *,
    now: float,
    valid_seconds: float,
    member_seconds: float,
    name: str = "ticket",
    uses: int = 0,
    issuer: Identity | None = None,
) -> str:
    """Make a ticket for `info`. It admits members for `valid_seconds` from `now`, each for
    `member_seconds`. It has at most eight bootstrap `addresses`. Its members bear the ticket's
    `name`. Every node accepts the first `uses` of them (0: any number). `issuer` is a key for this
    ticket alone, a new one by default, because the ticket contains its secret half.

    Raises:
        ValueError: `root` is not the swarm's root, or a value is outside its bounds.
    """
    issuer = issuer or Identity.generate()
    if issuer.public_key == root.public_key:
        raise ValueError("a ticket contains its issuer key: it must not be the root key")
    expires = int(now + valid_seconds)
    certificate = issue_issuer(
        root,
        info,
        issuer.public_key,
        name=name,
        not_before=now,
        not_after=expires,
        member_seconds=member_seconds,
        uses=uses,
    )
    return _pack_ticket(info, addresses, expires, certificate, issuer.seed())


def with_addresses(ticket: Ticket, info: SwarmInfo, addresses: Sequence[str]) -> str:
    """Return the text of a ticket with other `addresses` and the swarm's current state, because a
    new secret may be in force.

    Raises:
        ValueError: an address is outside its bounds.
    """
    return _pack_ticket(
        info, addresses, ticket.expires, ticket.issuer_certificate, ticket.issuer_seed
    )


def _pack_ticket(
    info: SwarmInfo, addresses: Sequence[str], expires: int, certificate: bytes, seed: bytes
) -> str:
    body = pack(
        _TicketBody(
            v=1,
            name=info.name,
            swarm_id=info.swarm_id,
            root_key=info.root_key,
            secret=info.secret,
            secret_number=info.secret_number,
            addresses=tuple(addresses),
            expires=expires,
            issuer_certificate=certificate,
            issuer_seed=seed,
        )
    )
    raw = _LENGTH.pack(len(body)) + body + _checksum(body)
    return PREFIX + base64.urlsafe_b64encode(raw).decode("ascii").rstrip("=")


def read_ticket(path: str | Path, standard_input: TextIO | None = None) -> str:
    """Return the text of a ticket file. "-" means `standard_input`, where a command line has one.

    Raises:
        TicketError: it cannot be read; the message says why.
    """
    path = Path(path)
    try:
        if standard_input and str(path) == "-":
            return standard_input.read(_MAX_FILE_CHARS)
        if path.exists() and not path.is_file():  # a pipe may never have an end
            hint = ". Name one, or give the ticket on standard input (--ticket-file -)"
            raise TicketError(
                f"cannot read the ticket file {path}: it is no regular file"
                f"{hint if standard_input else ''}"
            )
        with path.open(encoding="ascii") as file:
            return file.read(_MAX_FILE_CHARS)
    except (OSError, UnicodeDecodeError) as error:
        reason = reason_of(error) if isinstance(error, OSError) else "it is not text"
        raise TicketError(f"cannot read the ticket file {path}: {reason}") from error


def parse_ticket(text: str, now: float) -> Ticket:
    """Parse the ticket in `text`. Blanks and line breaks, which pasting adds, are ignored.

    Raises:
        TicketError: malformed, cut short or inconsistent. The message says which, and never
            quotes the ticket.
        TicketExpiredError: it has expired.
    """
    body = unpack(_TicketBody, _decode(text), max_bytes=MAX_TICKET_CHARS)
    if isinstance(body, Rejected):
        raise TicketError("this ticket is malformed, or from a newer program", "ask for a new one")
    try:
        info = SwarmInfo(body.name, body.root_key, body.secret, body.secret_number)
    except ValueError as error:
        raise TicketError(f"this ticket is unusable ({error})", "ask for a new one") from error
    if info.swarm_id != body.swarm_id:
        raise TicketError(
            "this ticket contradicts itself: its swarm id does not follow from its root key and "
            "name",
            "ask for a new one, from somebody you trust",
        )
    issuer = verify_issuer(body.issuer_certificate, info)
    if isinstance(issuer, Rejected):
        raise TicketError(
            f"the root key of this ticket did not sign it ({issuer.reason})", "ask for a new one"
        )
    if issuer.issuer_key != Identity.from_seed(body.issuer_seed).public_key:
        raise TicketError("this ticket holds a key it has no certificate for", "ask for a new one")
    if issuer.not_after != body.expires:
        raise TicketError("the expiry of this ticket was altered", "ask for a new one")
    _check_time(issuer, info, now)
    return Ticket(
        info, body.addresses, body.expires, issuer, body.issuer_certificate, body.issuer_seed
    )


def redeem(ticket: Ticket, identity: Identity, now: float) -> tuple[SwarmInfo, Chain]:
    """Admit `identity` at `now`. Return the swarm and the (issuer, member) certificates of
    `identity`.

    Raises:
        TicketError: the ticket has expired since it was parsed.
    """
    _check_time(ticket.issuer, ticket.info, now)
    not_before = int(now)
    certificate = issue_member(
        Identity.from_seed(ticket.issuer_seed),
        ticket.info,
        identity.public_key,
        name=ticket.issuer.name,
        not_before=not_before,
        not_after=not_before + ticket.issuer.member_seconds,
    )
    return ticket.info, (ticket.issuer_certificate, certificate)


def _decode(text: str) -> bytes:
    if len(text) > MAX_TICKET_CHARS:
        raise TicketError(f"this is too long for a ticket (over {MAX_TICKET_CHARS} characters)")
    compact = "".join(text.split())
    if re.match(r"swarmjoin\d+\.", compact) and not compact.startswith(PREFIX):
        raise TicketError(
            "this ticket is of another wire version", "upgrade the older of both nodes"
        )
    if not compact.startswith(PREFIX):
        raise TicketError(f"this is not a join ticket: one begins with {PREFIX}")
    payload = compact.removeprefix(PREFIX)
    if payload and not _ALPHABET.fullmatch(payload):
        raise TicketError("this ticket holds characters no ticket has", "copy the whole line again")
    # A single trailing character encodes no whole byte, and only a truncated ticket has one.
    payload = payload[: len(payload) - (len(payload) % 4 == 1)]
    try:
        raw = base64.b64decode(payload + "=" * (-len(payload) % 4), altchars=b"-_", validate=True)
    except binascii.Error as error:
        raise TicketError("this ticket is malformed", "copy the whole line again") from error
    overhead = _LENGTH.size + _CHECKSUM_BYTES
    length = _LENGTH.unpack_from(raw)[0] if len(raw) >= _LENGTH.size else 0
    if len(raw) < length + overhead:
        raise TicketError("this ticket is cut short", "copy the whole line, to its end")
    body, checksum = raw[_LENGTH.size :][:length], raw[_LENGTH.size + length :]
    if checksum != _checksum(body):
        raise TicketError("this ticket was altered in copying", "copy the whole line again")
    return body


def _checksum(body: bytes) -> bytes:
    """Detects copying mistakes only; the root's signature detects forgery."""
    return hashlib.sha256(_CHECKSUM_DOMAIN + body).digest()[:_CHECKSUM_BYTES]


def _check_time(issuer: IssuerBody, info: SwarmInfo, now: float) -> None:
    if now > issuer.not_after:
        raise TicketExpiredError(
            f"this ticket expired on {_date(issuer.not_after)}: ask for a new one", info.swarm_id
        )
    if now < issuer.not_before - CLOCK_SKEW_SECONDS:
        raise TicketError(
            f"this ticket is valid only from {_date(issuer.not_before)}",
            "check that the clock of this machine is right",
        )


def _date(seconds: int) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M UTC")
