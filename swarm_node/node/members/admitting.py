"""Tickets: made in a home, and recorded in its ledger with the members that they admit."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import msgspec

from swarm_node.config.model import Network
from swarm_node.errors import HomeError, TicketError, meant
from swarm_node.node.home.home import Home, listen_addresses
from swarm_node.node.members.issuers import Made, take
from swarm_node.node.members.ledger import MAX_ENDPOINTS, Followed, IssuedTicket, Ledger
from swarm_node.p2p.addresses.addresses import split_endpoint
from swarm_node.p2p.membership.members import load_claims
from swarm_node.p2p.membership.membership import IssuerBody, Name
from swarm_node.p2p.membership.ticket import parse_ticket, with_addresses
from swarm_node.p2p.membership.ticket_uses import TicketUses
from swarm_node.p2p.wire.identity import peer_id_of

_PEER = "/p2p/"
_ANY_HOST = "0.0.0.0"  # noqa: S104 - nothing binds it


class Invitation(NamedTuple):
    """A ticket's text, and its entry in the ledger."""

    ticket: str
    admission: IssuedTicket


def admissions(home: Home) -> Ledger[IssuedTicket]:
    """Return the ledger of the tickets made in this home."""
    return Ledger(home, "invitations.json", IssuedTicket)


def followed_names(home: Home) -> Followed[IssuedTicket, Mapping[str, str]]:
    """Return the names of this home's tickets now, by issuer key (hex), for its running node."""
    return Followed(
        admissions(home), lambda tickets: {ticket.issuer_key: ticket.name for ticket in tickets}
    )


def invite(
    home: Home,
    name: str,
    addresses: Sequence[str],
    *,
    now: float,
    valid_seconds: int,
    member_seconds: int,
    uses: int,
    present: Sequence[str] = (),
) -> Invitation:
    """Make a ticket for `name`, signed by root.key. It is in the ledger before anybody can have it.
    `present` are the endpoints of this home's node.

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
    return _record_invitation(home, name, text, now, present)


def invite_from_stock(
    home: Home, name: str, addresses: Sequence[str], now: float, present: Sequence[str] = ()
) -> Invitation:
    """Take a ticket for `name` from an issuer file. The file fixes its validity and the number of
    its uses. `present` are the endpoints of this home's node.

    Raises:
        HomeError: there is none left, or a file cannot be written.
        TicketError: an address or the name is malformed.
    """
    _check_name(name)
    ticket = take(home, now)
    if ticket is None:
        raise HomeError(
            f"{home.path} has neither root.key nor a ticket left",
            "create an issuer file where root.key lies (`swarm-node delegate create --help`), and "
            "import it here: `swarm-node delegate import FILE`",
        )
    try:
        text = with_addresses(ticket, home.swarm(), addresses[:8])
    except ValueError as error:
        raise TicketError(f"no ticket can be made: {error}") from error
    return _record_invitation(home, name, text, now, present)


def rename(home: Home, old: str, new: str) -> None:
    """Give the tickets called `old` another name in the ledger, which counts before the names in
    certificates.

    Raises:
        HomeError: no ticket has the old name, or another has the new one.
        TicketError: the new name is malformed.
    """
    _check_name(new)
    ledger = admissions(home)
    with home.editing():
        entries = ledger.entries()
        names = {entry.name for entry in entries}
        if old not in names:
            raise HomeError(
                f"no ticket of this data directory is called {old!r}",
                *meant(old, names),
                "`swarm-node members` lists them",
            )
        if new in names:
            raise HomeError(
                f"another ticket is called {new!r} already, and to revoke one would revoke both",
                "take another name",
            )
        ledger.write(
            [
                msgspec.structs.replace(entry, name=new) if entry.name == old else entry
                for entry in entries
            ]
        )


def present(home: Home, network: Network, live_addresses: Sequence[str]) -> list[str]:
    """Return the endpoints of the node of `home`. `live_addresses` are the addresses that it has
    while it runs. Without them, the endpoints are those at which it would start. Port 0 is a port
    that the node has yet to choose."""
    endpoints = [
        address.rpartition(_PEER)[0] or address for address in live_addresses or network.advertise
    ]
    if not live_addresses or network.advertise:  # it listens elsewhere too
        endpoints += listen_addresses(network.listen, home.kept_port)
    return endpoints


def own_endpoints(
    addresses: Sequence[str], peer_id: str, present: Sequence[str]
) -> tuple[tuple[str, ...], bool]:
    """Select this node's endpoints among a ticket's `addresses`. Return them, and True if the
    ticket names others too (see `IssuedTicket`). The node is `peer_id` and has the endpoints
    `present`. Before it has chosen a port, any port counts as its own."""
    ports = {parts[2] for parts in map(split_endpoint, present) if parts}
    endpoints: dict[str, None] = {}
    has_others = False
    for address in addresses:
        endpoint, _, owner_id = address.rpartition(_PEER)
        parts = split_endpoint(endpoint)
        if owner_id != peer_id or parts is None or not {0, parts[2]} & ports:
            has_others = True
        else:
            local_endpoint = endpoint if endpoint in present else f"/ip4/{_ANY_HOST}/tcp/{parts[2]}"
            endpoints[local_endpoint] = None
    return tuple(endpoints)[:MAX_ENDPOINTS], has_others or len(endpoints) > MAX_ENDPOINTS


def out_of_date(
    tickets: Sequence[IssuedTicket],
    holder_ids: Mapping[str, Sequence[str]],
    present: Sequence[str],
    now: float,
) -> list[IssuedTicket]:
    """Return the given tickets that lead nobody to this node any more, unless by `others`: none of
    their endpoints is among those `present`. There, host 0.0.0.0 or :: stands for any host, and
    port 0 for any port. A ticket is left out if, by `holder_ids`, as many peers hold it as it has
    uses: it admits nobody anyway."""
    places = [parts for parts in map(split_endpoint, present) if parts]
    ports = {port for _, _, port in places}
    open_ports = {port for _, host, port in places if host in (_ANY_HOST, "::")}

    def stands(endpoint: str) -> bool:
        parts = split_endpoint(endpoint)
        if parts is None or parts in places or 0 in ports or parts[2] in open_ports:
            return True
        return parts[1] == _ANY_HOST and parts[2] in ports

    return [
        ticket
        for ticket in tickets
        if ticket.given and ticket.expires > now and ticket.endpoints
        if not 0 < ticket.uses <= len(holder_ids.get(ticket.issuer_key, ()))
        if not any(map(stands, ticket.endpoints))
    ]


def holders(home: Home) -> dict[str, list[str]]:
    """Return the ids of the peers that this home's node admitted by tickets of limited uses, by
    issuer key (hex). Peers that it does not know now are among them.

    Raises:
        HomeError: the file is damaged.
    """
    return _by_issuer(load_claims(home), TicketUses.holders)


def read_late_peer_ids(home: Home) -> dict[str, list[str]]:
    """Return the ids of the peers that showed a ticket of this home after it was used up, by issuer
    key (hex).

    Raises:
        HomeError: the file is damaged.
    """
    return _by_issuer(load_claims(home), TicketUses.late_subjects)


def _by_issuer(
    claims: TicketUses, of: Callable[[TicketUses, bytes], list[bytes]]
) -> dict[str, list[str]]:
    keys_by_issuer = {issuer.hex(): of(claims, issuer) for issuer, _, _ in claims.rows()}
    return {
        issuer: [*map(peer_id_of, subjects)]
        for issuer, subjects in keys_by_issuer.items()
        if subjects
    }


def note_issuer_file(home: Home, issuer_file: Made) -> None:
    """Record the certificates of a new issuer file in the ledger, so that each can be revoked.

    Raises:
        HomeError: the ledger cannot be written.
    """
    bodies = (
        [*issuer_file.tickets]
        if issuer_file.delegate is None
        else [issuer_file.delegate, *issuer_file.tickets]
    )
    _note(home, [_admission(body.name, body, body.not_before, is_given=False) for body in bodies])


def _note(home: Home, entries: Sequence[IssuedTicket]) -> None:
    ledger, keys = admissions(home), {entry.issuer_key for entry in entries}
    with home.editing():
        other_entries = [entry for entry in ledger.entries() if entry.issuer_key not in keys]
        ledger.write([*other_entries, *entries])


def _admission(
    name: str,
    issuer: IssuerBody,
    created_at: float,
    is_given: bool = True,
    endpoints: tuple[str, ...] = (),
    has_others: bool = False,
) -> IssuedTicket:
    return IssuedTicket(
        name,
        issuer.issuer_key.hex(),
        int(created_at),
        issuer.not_after,
        issuer.uses,
        issuer.member_seconds,
        is_given,
        issuer.delegate,
        endpoints,
        has_others,
    )


def _check_name(name: str) -> None:
    try:
        msgspec.convert(name, Name)
    except msgspec.ValidationError:
        raise TicketError(
            f"{name!r} cannot be the name of a ticket",
            "take 1 to 32 letters, digits, spaces, or any of _ . -",
        ) from None


def _record_invitation(
    home: Home, name: str, text: str, now: float, present: Sequence[str]
) -> Invitation:
    ticket = parse_ticket(text, now)
    endpoints, has_others = own_endpoints(ticket.addresses, home.identity().peer_id, present)
    admission = _admission(name, ticket.issuer, now, endpoints=endpoints, has_others=has_others)
    _note(home, [admission])
    return Invitation(text, admission)
