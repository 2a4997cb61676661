"""Issuer files, with which a home admits members while the root key stays offline.

Where root.key lies, `make` signs a stock of tickets without addresses, and a steward: a key that
may renew and revoke members. The running home takes the file and makes each ticket usable when
somebody is invited. A stolen file gives away its tickets and its steward, never the swarm.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final

import msgspec
from msgspec import Meta, Struct

from swarm_node.errors import HomeError, TicketError, TicketExpiredError
from swarm_node.node.home import Home
from swarm_node.p2p.identity import Identity, read_private
from swarm_node.p2p.membership import issue_issuer
from swarm_node.p2p.ticket import MAX_TICKET_CHARS, Ticket, parse_ticket

MAX_TICKETS: Final = 1000
_MAX_BYTES: Final = MAX_TICKETS * (MAX_TICKET_CHARS + 16)


class IssuerFile(Struct, frozen=True, forbid_unknown_fields=True):
    """A stock of tickets, and the seed and the certificate (hex) of a steward."""

    version: Annotated[int, Meta(ge=1, le=1)]
    tickets: Annotated[list[str], Meta(max_length=MAX_TICKETS)]
    steward_seed: Annotated[str, Meta(pattern=r"\A[0-9a-f]{64}\Z")]
    steward_certificate: Annotated[str, Meta(pattern=r"\A[0-9a-f]{2,1024}\Z")]


def make(
    home: Home,
    name: str,
    count: int,
    *,
    now: float,
    valid_seconds: int,
    member_seconds: int,
    uses: int,
) -> bytes:
    """The content of an issuer file with `count` tickets, called "NAME 1" and so on.

    Raises:
        HomeError: root.key is not here, or a value is outside its bounds.
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
    steward = Identity.generate()
    certificate = issue_issuer(
        Identity.load(home.path / "root.key"),
        home.swarm(),
        steward.public_key,
        name=name,
        not_before=now,
        not_after=now + valid_seconds,
        member_seconds=member_seconds,
        steward=True,
    )
    stock = IssuerFile(1, tickets, steward.seed().hex(), certificate.hex())
    return msgspec.json.format(msgspec.json.encode(stock)) + b"\n"


def load(path: Path, now: float) -> tuple[IssuerFile, list[Ticket]]:
    """An issuer file and its tickets that have not expired, all of one swarm.

    Raises:
        HomeError: it cannot be read, is open to others, or is damaged.
        TicketError: it is of no use any more, or contradicts itself.
    """
    raw = read_private(path, "issuer file", _MAX_BYTES)
    try:
        if len(raw) > _MAX_BYTES:
            raise ValueError("it is too long")
        stock = msgspec.json.decode(raw, type=IssuerFile)
    except (ValueError, RecursionError) as error:
        raise HomeError(f"{path} is not a usable issuer file ({error}): copy it again") from error
    tickets, seen = [], set()
    for text in stock.tickets:
        try:
            ticket = parse_ticket(text, now)
        except TicketExpiredError as error:
            seen.add(error.swarm_id)
            continue
        seen.add(ticket.info.swarm_id)
        tickets.append(ticket)
    if len(seen) > 1:
        raise TicketError(f"{path} has tickets of more than one swarm: make it again")
    return stock, tickets
