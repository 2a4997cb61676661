"""Tickets: made in a home, and recorded in its ledger with the members that they admit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from swarm_node.errors import HomeError, TicketError
from swarm_node.node.home.home import Home
from swarm_node.node.members.issuers import Made, take
from swarm_node.node.members.ledger import IssuedTicket, Ledger
from swarm_node.p2p.membership.membership import IssuerBody, Name
from swarm_node.p2p.membership.ticket import parse_ticket, with_addresses


class Invitation(NamedTuple):
    """A ticket's text, and its entry in the ledger."""

    ticket: str
    admission: IssuedTicket


def admissions(home: Home) -> Ledger[IssuedTicket]:
    """Return the ledger of the tickets made in this home."""
    return Ledger(home, "invitations.json", IssuedTicket)


def invite(
    home: Home,
    name: str,
    addresses: Sequence[str],
    *,
    now: float,
    valid_seconds: int,
    member_seconds: int,
    uses: int,
) -> Invitation:
    """Make a ticket for `name`, signed by root.key. It is in the ledger before anybody can have it.

    Raises:
        HomeError: this home cannot invite, or the ledger cannot be written.
        TicketError: an address or the name is malformed.
    """
    _check_name(name)
    text = home.invite(
        addresses,
        now=now,
        valid_seconds=valid_seconds,
        member_seconds=member_seconds,
        name=name,
        uses=uses,
    )
    return _written(home, name, text, now)


def invite_from_stock(home: Home, name: str, addresses: Sequence[str], now: float) -> Invitation:
    """Take a ticket for `name` from an issuer file. The file fixes its validity and the number of
    its uses.

    Raises:
        HomeError: there is none left, or a file cannot be written.
        TicketError: an address or the name is malformed.
    """
    _check_name(name)
    ticket = take(home, now)
    if ticket is None:
        raise HomeError(
            f"{home.path} has neither root.key nor a ticket left: make an issuer file where "
            "root.key lies (`swarm-node issuer make --help`), take it here with `issuer use FILE`"
        )
    try:
        text = with_addresses(ticket, home.swarm(), addresses[:8])
    except ValueError as error:
        raise TicketError(f"no ticket can be made: {error}") from error
    return _written(home, name, text, now)


def note_issuer_file(home: Home, made: Made) -> None:
    """Record the certificates of a new issuer file in the ledger, so that each can be revoked.

    Raises:
        HomeError: the ledger cannot be written.
    """
    bodies = [*made.tickets] if made.steward is None else [made.steward, *made.tickets]
    _note(home, [_admission(body.name, body, body.not_before, given=False) for body in bodies])


def _note(home: Home, entries: Sequence[IssuedTicket]) -> None:
    ledger, keys = admissions(home), {entry.issuer_key for entry in entries}
    with home.editing():
        kept = [entry for entry in ledger.entries() if entry.issuer_key not in keys]
        ledger.write([*kept, *entries])


def _admission(name: str, issuer: IssuerBody, made: float, given: bool = True) -> IssuedTicket:
    return IssuedTicket(
        name,
        issuer.issuer_key.hex(),
        int(made),
        issuer.not_after,
        issuer.uses,
        issuer.member_seconds,
        given,
        issuer.steward,
    )


def _check_name(name: str) -> None:
    try:
        msgspec.convert(name, Name)
    except msgspec.ValidationError:
        raise TicketError(
            f"{name!r} cannot be the name of a ticket: take 1 to 32 letters, digits, spaces, or "
            "any of _ . -"
        ) from None


def _written(home: Home, name: str, text: str, now: float) -> Invitation:
    admission = _admission(name, parse_ticket(text, now).issuer, now)
    _note(home, [admission])
    return Invitation(text, admission)
