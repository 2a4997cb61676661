"""Issuer files, with which a home admits members while the root key stays offline.

Where root.key lies, `make` signs a stock of tickets without addresses, and a steward: a key that
may renew and expel members. The running home takes the file, and gives a ticket addresses when
somebody is invited. A stolen file gives away its tickets and its steward, never the swarm.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Final, NamedTuple

import msgspec
from msgspec import Meta, Struct

from swarm_node.errors import HomeError, Rejected, TicketError, TicketExpiredError
from swarm_node.node.home.home import Home
from swarm_node.p2p.membership.membership import IssuerBody, SwarmInfo, issue_issuer, verify_issuer
from swarm_node.p2p.membership.stewards import Signer
from swarm_node.p2p.membership.ticket import MAX_TICKET_CHARS, Ticket, parse_ticket
from swarm_node.p2p.wire.identity import Identity, read_private

MAX_TICKETS: Final = 1000
#: The file of a home's unused tickets.
STOCK: Final = "tickets.json"
_MAX_BYTES: Final = MAX_TICKETS * (MAX_TICKET_CHARS + 16)

_Tickets = Annotated[list[str], Meta(max_length=MAX_TICKETS)]


class IssuerFile(Struct, frozen=True, forbid_unknown_fields=True):
    """A stock of tickets, and the seed and the certificate (hex) of a steward. Both are empty
    without one: a program that only hands out tickets, such as a coordinator, should not be able to
    expel."""

    version: Annotated[int, Meta(ge=1, le=1)]
    tickets: _Tickets
    steward_seed: Annotated[str, Meta(pattern=r"\A([0-9a-f]{64})?\Z")]
    steward_certificate: Annotated[str, Meta(pattern=r"\A([0-9a-f]{2}){0,512}\Z")]


class Made(NamedTuple):
    """A new issuer file, and the bodies of the certificates in it."""

    content: bytes
    steward: IssuerBody | None
    tickets: list[IssuerBody]


class Taken(NamedTuple):
    """Contents that a home took from an issuer file: the number of tickets that it has now, and its
    steward. `joined` is the ticket by which the home joined the swarm, if it did."""

    tickets: int
    steward: IssuerBody
    joined: Ticket | None


def make(
    home: Home,
    name: str,
    count: int,
    *,
    now: float,
    valid_seconds: int,
    member_seconds: int,
    uses: int,
    steward: bool = True,
) -> Made:
    """Make an issuer file with `count` tickets, called "NAME 1" and so on, and optionally a
    steward, called "NAME steward".

    Raises:
        HomeError: root.key is not here.
        TicketError: a value is outside its bounds.
    """
    tickets = [
        home.invite(
            [],
            now=now,
            valid_seconds=valid_seconds,
            member_seconds=member_seconds,
            name=f"{name} {number}",
            uses=uses,
        )
        for number in range(1, count + 1)
    ]
    key, certificate, swarm = Identity.generate(), b"", home.swarm()
    try:
        certificate = issue_issuer(
            Identity.load(home.path / "root.key"),
            swarm,
            key.public_key,
            name=f"{name} steward",
            not_before=now,
            not_after=now + valid_seconds,
            member_seconds=member_seconds,
            steward=True,
        )
    except ValueError as error:
        raise TicketError(f"{name!r} cannot name an issuer file: {error}") from error
    made = IssuerFile(1, tickets, *((key.seed().hex(), certificate.hex()) if steward else ("", "")))
    return Made(
        msgspec.json.format(msgspec.json.encode(made)) + b"\n",
        _steward(made, swarm)[1] if steward else None,
        [ticket.issuer for ticket in _tickets(tickets, now)],
    )


def use(home: Home, source: Path, now: float, known: Sequence[str]) -> Taken:
    """Take the tickets and the steward of an issuer file into `home`. A home without a swarm joins
    with the first ticket. Tickets of `known` issuer keys (hex) are left out, because they were
    given to somebody.

    Raises:
        HomeError: the file or the home cannot be used.
        TicketError: the file has expired or contradicts itself.
    """
    made = _read(source)
    if not made.steward_seed:
        raise TicketError(f"{source} has tickets only: give it to `swarm-coordinator serve`")
    tickets = _tickets(made.tickets, now)
    if not tickets:
        raise TicketError(f"all tickets of {source} have expired: make a new one offline")
    joined = None
    if not home.has_swarm:
        joined = tickets[0]
        home.join_swarm(joined, now)
    swarm = home.swarm()
    if any(ticket.info.swarm_id != swarm.swarm_id for ticket in tickets):
        raise HomeError(
            f"{home.path} belongs to swarm {swarm.name!r}, {source} to another: use another --home"
        )
    steward = _steward(made, swarm)
    own = home.membership().opened()
    gone = {*known, *(() if isinstance(own, Rejected) else (own[0].issuer_key.hex(),))}
    with home.editing():
        texts = [*_stock(home), *made.tickets]
        found = {
            ticket.issuer.issuer_key.hex(): text
            for text in texts
            for ticket in _tickets([text], now)
        }
        kept = [text for key, text in found.items() if key not in gone]
        home.save(STOCK, msgspec.json.encode(kept[-MAX_TICKETS:]))
    home.keep_steward(Signer(Identity.from_seed(bytes.fromhex(made.steward_seed)), steward[0]))
    return Taken(len(kept), steward[1], joined)


def take(home: Home, now: float) -> Ticket | None:
    """Remove the next ticket that has not expired from the home's stock and return it.

    Raises:
        HomeError: the stock is damaged or cannot be written.
    """
    with home.editing():
        texts = _stock(home)
        while texts:
            tickets = _tickets([texts.pop(0)], now)
            if tickets:
                home.save(STOCK, msgspec.json.encode(texts))
                return tickets[0]
    return None


def tickets_of(source: Path, now: float) -> list[str]:
    """Return the tickets of an issuer file that have not expired, for a program that hands out
    tickets only.

    Raises:
        HomeError: the file cannot be used.
        TicketError: a ticket in it is damaged.
    """
    return [text for text in _read(source).tickets if _tickets([text], now)]


def _stock(home: Home) -> list[str]:
    raw = home.load(STOCK)
    try:
        return [] if raw is None else msgspec.json.decode(raw, type=_Tickets)
    except (ValueError, RecursionError) as error:
        raise HomeError(
            f"{home.path / STOCK} is damaged ({error}): restore it from a backup, or take the "
            "issuer file again"
        ) from error


def _read(source: Path) -> IssuerFile:
    raw = read_private(source, "issuer file", _MAX_BYTES)
    try:
        if len(raw) > _MAX_BYTES:
            raise ValueError("it is too long")
        return msgspec.json.decode(raw, type=IssuerFile)
    except (ValueError, RecursionError) as error:
        raise HomeError(f"{source} is not a usable issuer file ({error}): copy it again") from error


def _tickets(texts: Sequence[str], now: float) -> list[Ticket]:
    """Return the tickets that have not expired."""
    found = []
    for text in texts:
        try:
            found.append(parse_ticket(text, now))
        except TicketExpiredError:
            continue
    return found


def _steward(made: IssuerFile, swarm: SwarmInfo) -> tuple[bytes, IssuerBody]:
    certificate = bytes.fromhex(made.steward_certificate)
    body = verify_issuer(certificate, swarm)
    key = Identity.from_seed(bytes.fromhex(made.steward_seed)).public_key
    if isinstance(body, Rejected) or not body.steward or body.issuer_key != key:
        raise TicketError("the root key did not sign the steward of this file: make it again")
    return certificate, body
