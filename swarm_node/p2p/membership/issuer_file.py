"""Issuer file: a stock of tickets without addresses, and a delegate. A home or a coordinator takes
it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Final

import msgspec
from msgspec import Meta, Struct

from swarm_node.errors import HomeError, TicketExpiredError
from swarm_node.p2p.membership.ticket import MAX_TICKET_CHARS, Ticket, parse_ticket
from swarm_node.p2p.wire.identity import read_private

MAX_TICKETS: Final = 1000
_MAX_BYTES: Final = MAX_TICKETS * (MAX_TICKET_CHARS + 16)
Tickets = Annotated[list[str], Meta(max_length=MAX_TICKETS)]


class IssuerFile(Struct, frozen=True, forbid_unknown_fields=True):
    """A stock of tickets, and the seed and the certificate (hex) of a delegate. Both are empty
    without one: a program that only hands out tickets, such as a coordinator, should not be able to
    expel."""

    version: Annotated[int, Meta(ge=1, le=1)]
    tickets: Tickets
    delegate_seed: Annotated[str, Meta(pattern=r"\A([0-9a-f]{64})?\Z")]
    delegate_certificate: Annotated[str, Meta(pattern=r"\A([0-9a-f]{2}){0,512}\Z")]


def read_issuer_file(source: Path) -> IssuerFile:
    """
    Raises:
        HomeError: the file cannot be used.
    """
    raw = read_private(source, "issuer file", _MAX_BYTES)
    try:
        if len(raw) > _MAX_BYTES:
            raise ValueError("it is too long")
        return msgspec.json.decode(raw, type=IssuerFile)
    except (ValueError, RecursionError) as error:
        raise HomeError(
            f"{source} is not a usable issuer file ({error})", "copy it again"
        ) from error


def valid_tickets(texts: Sequence[str], now: float) -> list[Ticket]:
    """Return the tickets that have not expired."""
    tickets = []
    for text in texts:
        try:
            tickets.append(parse_ticket(text, now))
        except TicketExpiredError:
            continue
    return tickets


def tickets_of(source: Path, now: float) -> list[str]:
    """Return the tickets of an issuer file that have not expired, for a program that hands out
    tickets only.

    Raises:
        HomeError: the file cannot be used.
        TicketError: a ticket in it is damaged.
    """
    return [text for text in read_issuer_file(source).tickets if valid_tickets([text], now)]
