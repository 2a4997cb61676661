"""Shows whom tickets of this home admit, and whom its node has met."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

import msgspec
from rich.console import Group, RenderableType
from rich.table import Table

from swarm_node.cli.views.views import day_of, plain, standing
from swarm_node.node.members.ledger import Block, IssuedTicket
from swarm_node.node.metrics.snapshot import PeerRow
from swarm_node.p2p.wire.identity import short_id

#: Holders of one ticket, and tries of it, that are shown; `--json` has all.
_MOST_HOLDERS = 3


class TicketRow(msgspec.Struct, frozen=True):
    """A ticket of the ledger. `holders` are the ids of the peers that joined with it, `used` their
    number, `tried` the ids of those that showed it after it was used up. `state` is "open", "in
    stock", "delegate", "used up", "expired", "revoked", "blocked", or where no address of it is
    this node's any more, "leads nowhere" or, if it has addresses of others, "by others"."""

    name: str
    issuer_key: str
    made: int
    expires: int
    uses: int
    used: int
    state: str
    holders: list[str]
    tried: list[str] = []


def ticket_rows(
    admissions: Sequence[IssuedTicket],
    holder_ids: Mapping[str, Sequence[str]],
    late_ids: Mapping[str, Sequence[str]],
    met_peers: Sequence[PeerRow],
    revoked_keys: frozenset[str],
    blocks: Sequence[Block],
    now: float,
    stale_tickets: Sequence[IssuedTicket] = (),
) -> list[TicketRow]:
    """Rows of the ledger. Of its holders, the home stores `holder_ids` by issuer key, the running
    node has met `met_peers`, and `late_ids` showed a ticket after it was used up. `revoked_keys`
    are in hex. `stale_tickets` are out of date."""
    peer_ids: defaultdict[str, dict[str, None]] = defaultdict(dict)
    for key, ids in holder_ids.items():
        peer_ids[key] |= dict.fromkeys(ids)
    for peer in met_peers:
        if peer.peer_id in late_ids.get(peer.issuer_key, ()):
            continue
        peer_ids[peer.issuer_key][peer.peer_id] = None
    blocked_keys = {block.issuer_key for block in blocks}

    def state(ticket: IssuedTicket) -> str:
        if ticket.issuer_key in revoked_keys:
            return "revoked"
        if ticket.issuer_key in blocked_keys:
            return "blocked"
        if ticket.expires <= now:
            return "expired"
        if ticket.delegate:
            return "delegate"
        if not ticket.given and not peer_ids[ticket.issuer_key]:  # a coordinator may have given it
            return "in stock"
        if 0 < ticket.uses <= len(peer_ids[ticket.issuer_key]):
            return "used up"
        if ticket in stale_tickets:
            return "by others" if ticket.others else "leads nowhere"
        return "open"

    return [
        TicketRow(
            ticket.name,
            ticket.issuer_key,
            ticket.made,
            ticket.expires,
            ticket.uses,
            len(peer_ids[ticket.issuer_key]),
            state(ticket),
            [*peer_ids[ticket.issuer_key]],
            [*late_ids.get(ticket.issuer_key, ())],
        )
        for ticket in admissions
    ]


def members_view(
    tickets: Sequence[TicketRow], blocks: Sequence[Block], met_peers: Sequence[PeerRow] | None
) -> RenderableType:
    """Peers, then blocks and tickets, those in stock in one line. `met_peers` is None where no node
    runs."""
    parts: list[RenderableType] = []
    if met_peers is None:
        parts.append("no node runs in this data directory, so nobody knows whom it has met")
    elif not met_peers:
        parts.append("the node has met nobody yet")
    else:
        names = {ticket.issuer_key: ticket.name for ticket in tickets}
        table = Table("name", "peer", "issuer", "member", "last seen", title="met")
        for peer in met_peers:
            table.add_row(
                plain(names.get(peer.issuer_key, peer.name) or "?"),
                plain(short_id(peer.peer_id)),
                plain(peer.issuer or "?"),
                plain(standing(peer)),
                f"{peer.seconds_since_seen:.0f} s ago",
            )
        parts.append(table)
    for block in blocks:
        parts.append(f"blocked here since {day_of(block.since)}: {plain(block.name)}")
    issued_tickets = [ticket for ticket in tickets if ticket.state != "in stock"]
    stock = [ticket for ticket in tickets if ticket.state == "in stock"]
    if issued_tickets:
        parts.append(_tickets_table(issued_tickets))
    for ticket in issued_tickets:
        if ticket.tried:
            parts.append(
                f"{plain(ticket.name)} is used up, and tried by {_ids(ticket.tried)}: if you do "
                "not know them, somebody has a copy of the ticket"
            )
    if stock:
        end_date = day_of(min(ticket.expires for ticket in stock))
        count = "1 ticket" if len(stock) == 1 else f"{len(stock)} tickets"
        parts.append(f"in stock, until {end_date}: {count} (`swarm-node invite` takes the next)")
    if not tickets:
        parts.append("no tickets were made in this data directory (`swarm-node invite --help`)")
    return Group(*parts)


def _tickets_table(tickets: Sequence[TicketRow]) -> Table:
    columns = ("ticket for", "issuer key", "state", "admits until", "nodes", "held by")
    table = Table(*columns, title="tickets")
    for ticket in tickets:
        table.add_row(
            plain(ticket.name),
            ticket.issuer_key[:8],
            ticket.state,
            day_of(ticket.expires),
            f"{ticket.used} of {ticket.uses or 'any'}",
            plain(_ids(ticket.holders)),
        )
    return table


def _ids(peer_ids: Sequence[str]) -> str:
    ids = [short_id(peer_id) for peer_id in peer_ids[:_MOST_HOLDERS]]
    hidden_count = len(peer_ids) - len(ids)
    return " ".join([*ids, f"and {hidden_count} more"] if hidden_count else ids)
