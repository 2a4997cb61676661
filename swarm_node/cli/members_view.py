"""Shows whom tickets of this home admit, and whom its node has met."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import msgspec
from rich.console import Group, RenderableType
from rich.table import Table

from swarm_node.cli.views import day_of, plain, short, standing
from swarm_node.node.figures.snapshot import PeerRow
from swarm_node.node.members.ledger import Ban, IssuedTicket


class TicketRow(msgspec.Struct, frozen=True):
    """A ticket of the ledger. `used` counts the peers met that joined with it. `state` is "open",
    "in stock", "steward", "used up", "expired", "revoked" or "banned"."""

    name: str
    issuer_key: str
    made: int
    expires: int
    uses: int
    used: int
    state: str


def ticket_rows(
    admissions: Sequence[IssuedTicket],
    met: Sequence[PeerRow],
    revoked: frozenset[str],
    bans: Sequence[Ban],
    now: float,
) -> list[TicketRow]:
    """Rows of the ledger, with the peers that the running node has met. `revoked` are keys in
    hex."""
    used = Counter(peer.issuer_key for peer in met)
    banned = {ban.issuer_key for ban in bans}

    def state(ticket: IssuedTicket) -> str:
        if ticket.issuer_key in revoked:
            return "revoked"
        if ticket.issuer_key in banned:
            return "banned"
        if ticket.expires <= now:
            return "expired"
        if ticket.steward:
            return "steward"
        if not ticket.given:
            return "in stock"
        return "used up" if 0 < ticket.uses <= used[ticket.issuer_key] else "open"

    return [
        TicketRow(
            ticket.name,
            ticket.issuer_key,
            ticket.made,
            ticket.expires,
            ticket.uses,
            used[ticket.issuer_key],
            state(ticket),
        )
        for ticket in admissions
    ]


def members_view(
    tickets: Sequence[TicketRow], bans: Sequence[Ban], met: Sequence[PeerRow] | None
) -> RenderableType:
    """Tickets, bans, then peers. `met` is None where no node runs."""
    parts: list[RenderableType] = []
    if tickets:
        table = Table("ticket for", "issuer key", "state", "admits until", "nodes", title="tickets")
        for ticket in tickets:
            table.add_row(
                plain(ticket.name),
                ticket.issuer_key[:8],
                ticket.state,
                day_of(ticket.expires),
                f"{ticket.used} of {ticket.uses or 'any'}",
            )
        parts.append(table)
    else:
        parts.append("no tickets were made in this home (`swarm-node invite --help`)")
    for ban in bans:
        parts.append(f"banned here since {day_of(ban.since)}: {plain(ban.name)}")
    if met is None:
        parts.append("no node runs in this home, so nobody knows whom it has met")
    elif not met:
        parts.append("the node has met nobody yet")
    else:
        names = {ticket.issuer_key: ticket.name for ticket in tickets}
        table = Table("name", "peer", "issuer", "member", "last seen", title="met")
        for peer in met:
            table.add_row(
                plain(names.get(peer.issuer_key, peer.name) or "?"),
                plain(short(peer.peer_id)),
                plain(peer.issuer or "?"),
                plain(standing(peer)),
                f"{peer.seconds_since_seen:.0f} s ago",
            )
        parts.append(table)
    return Group(*parts)
