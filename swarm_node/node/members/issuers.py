"""Issuer files, with which a home admits members while the root key stays offline.

Where root.key lies, `make` signs a stock of tickets without addresses, and a delegate: a key that
may renew and expel members. The running home takes the file, and gives a ticket addresses when
somebody is invited. A stolen file gives away its tickets and its delegate, never the swarm.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from swarm_node.errors import HomeError, Rejected, TicketError
from swarm_node.node.home.home import Home
from swarm_node.p2p.membership.delegates import Signer
from swarm_node.p2p.membership.issuer_file import (
    MAX_TICKETS,
    IssuerFile,
    Tickets,
    read_issuer_file,
    valid_tickets,
)
from swarm_node.p2p.membership.membership import IssuerBody, SwarmInfo, issue_issuer, verify_issuer
from swarm_node.p2p.membership.ticket import Ticket
from swarm_node.p2p.wire.identity import Identity

#: The file of a home's unused tickets.
STOCK: Final = "tickets.json"


class Made(NamedTuple):
    """A new issuer file, and the bodies of the certificates in it."""

    content: bytes
    delegate: IssuerBody | None
    tickets: list[IssuerBody]


class Taken(NamedTuple):
    """Contents that a home took from an issuer file: the number of tickets that it has now, and its
    delegate. `join_ticket` is the ticket by which the home joined the swarm, if it did."""

    tickets: int
    delegate: IssuerBody
    join_ticket: Ticket | None


def make(
    home: Home,
    name: str,
    count: int,
    *,
    now: float,
    valid_seconds: int,
    member_seconds: int,
    uses: int,
    delegate: bool = True,
) -> Made:
    """Make an issuer file with `count` tickets, called "NAME 1" and so on, and optionally a
    delegate, called "NAME delegate".

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
            name=f"{name} delegate",
            not_before=now,
            not_after=now + valid_seconds,
            member_seconds=member_seconds,
            delegate=True,
        )
    except ValueError as error:
        raise TicketError(f"{name!r} cannot name an issuer file: {error}") from error
    issuer_file = IssuerFile(
        1, tickets, *((key.seed().hex(), certificate.hex()) if delegate else ("", ""))
    )
    return Made(
        msgspec.json.format(msgspec.json.encode(issuer_file)) + b"\n",
        _delegate(issuer_file, swarm)[1] if delegate else None,
        [ticket.issuer for ticket in valid_tickets(tickets, now)],
    )


def use(home: Home, source: Path, now: float, known_keys: Sequence[str]) -> Taken:
    """Take the tickets and the delegate of an issuer file into `home`. A home without a swarm joins
    with the first ticket. Tickets of the issuer keys `known_keys` (hex) are left out, because they
    were given to somebody.

    Raises:
        HomeError: the file or the home cannot be used.
        TicketError: the file has expired or contradicts itself.
    """
    issuer_file = read_issuer_file(source)
    if not issuer_file.delegate_seed:
        raise TicketError(f"{source} has tickets only", "give it to `swarm-coordinator serve`")
    tickets = valid_tickets(issuer_file.tickets, now)
    if not tickets:
        raise TicketError(f"all tickets of {source} have expired", "make a new one offline")
    first_ticket = None
    if not home.has_swarm:
        first_ticket = tickets[0]
        home.join_swarm(first_ticket, now)
    swarm = home.swarm()
    if any(ticket.info.swarm_id != swarm.swarm_id for ticket in tickets):
        raise HomeError(
            f"{home.path} belongs to swarm {swarm.name!r}, {source} to another",
            "use another --home",
        )
    delegate = _delegate(issuer_file, swarm)
    chain = home.membership().open_chain()
    spent_keys = {
        *known_keys,
        *(() if isinstance(chain, Rejected) else (chain[0].issuer_key.hex(),)),
    }
    with home.editing():
        texts = [*_stock(home), *issuer_file.tickets]
        texts_by_key = {
            ticket.issuer.issuer_key.hex(): text
            for text in texts
            for ticket in valid_tickets([text], now)
        }
        kept_texts = [text for key, text in texts_by_key.items() if key not in spent_keys]
        home.save(STOCK, msgspec.json.encode(kept_texts[-MAX_TICKETS:]))
    home.keep_delegate(
        Signer(Identity.from_seed(bytes.fromhex(issuer_file.delegate_seed)), delegate[0])
    )
    return Taken(len(kept_texts), delegate[1], first_ticket)


def take(home: Home, now: float) -> Ticket | None:
    """Remove the next ticket that has not expired from the home's stock and return it.

    Raises:
        HomeError: the stock is damaged or cannot be written.
    """
    with home.editing():
        texts = _stock(home)
        while texts:
            tickets = valid_tickets([texts.pop(0)], now)
            if tickets:
                home.save(STOCK, msgspec.json.encode(texts))
                return tickets[0]
    return None


def _stock(home: Home) -> list[str]:
    raw = home.load(STOCK)
    try:
        return [] if raw is None else msgspec.json.decode(raw, type=Tickets)
    except (ValueError, RecursionError) as error:
        raise HomeError(
            f"{home.path / STOCK} is damaged ({error})",
            "restore it from a backup, or take the issuer file again",
        ) from error


def _delegate(issuer_file: IssuerFile, swarm: SwarmInfo) -> tuple[bytes, IssuerBody]:
    certificate = bytes.fromhex(issuer_file.delegate_certificate)
    body = verify_issuer(certificate, swarm)
    key = Identity.from_seed(bytes.fromhex(issuer_file.delegate_seed)).public_key
    if isinstance(body, Rejected) or not body.delegate or body.issuer_key != key:
        raise TicketError("the root key did not sign the delegate of this file", "make it again")
    return certificate, body
