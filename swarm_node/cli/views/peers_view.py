"""Shows peers in a terminal: the link to each, why there is none, and the use of their groups."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from types import MappingProxyType

from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.table import Table

from swarm_node.cli.views.views import counts, plain, span, standing, who
from swarm_node.node.metrics.snapshot import PeerRow, Said, Snapshot, UnmetRow
from swarm_node.p2p.addresses.addresses import host_and_port, split_endpoint
from swarm_node.p2p.wire.identity import short_id

#: Narrower terminals get two lines for each peer in the place of a table.
_LINKS_WIDTH, _GROUPS_WIDTH = 72, 90
_NOBODY = "no peers yet: give a ticket to another machine (`swarm-node invite --help`)"


class PeersView:
    """One row per peer, the most recently seen first, then former members, then members that were
    only heard of. `groups` adds the use of their groups. `known_as` has the names that the owner of
    this home gave to issuer keys (hex). It fits 60 columns."""

    def __init__(self, snapshot: Snapshot, known_as: Mapping[str, str], *, groups: bool) -> None:
        self._rows = (*snapshot.peers, *snapshot.former)
        self._unmet_rows = snapshot.unmet
        self._extra_count = snapshot.unmet_total - len(snapshot.unmet)
        self._known_as = known_as
        self._reach = snapshot.reach
        self._groups = groups
        self._display_names = display_names(snapshot, known_as)

    def __rich_console__(self, _: Console, options: ConsoleOptions) -> RenderResult:
        if not self._rows and not self._unmet_rows:
            yield _NOBODY
            return
        is_wide = options.max_width >= _LINKS_WIDTH
        yield from [self._links()] if is_wide else map(self._link_lines, self._rows)
        for peer in self._rows:
            if remarks := self._remarks(peer):
                yield plain(f"{self._display_names[peer.peer_id]}: {remarks}")
            yield from _remedy(peer.reason)
        for row in self._unmet_rows:
            yield plain(f"{self._display_names[row.peer_id]}: {row.reason.text}")
            yield from _remedy(row.reason)
        if self._extra_count > 0:
            yield f"and {self._extra_count:,} more members that this node has not met"
        if self._groups and self._rows:
            yield ""
            yield from self._of_groups(options.max_width >= _GROUPS_WIDTH)
        if self._reach is not None:
            yield plain(f"this node: {self._reach.text}")

    def _links(self) -> Table:
        table = _table("name", "address", "link", "ms", "in", "out", "version", "seen")
        for peer in self._rows:
            table.add_row(*map(plain, self._link_cells(peer)))
        for row in self._unmet_rows:
            table.add_row(*map(plain, (self._display_names[row.peer_id], *"-" * 7)))
        return table

    def _link_cells(self, peer: PeerRow) -> tuple[str, ...]:
        link, has_traffic = self._link(peer), peer.bytes_in or peer.bytes_out
        trip = None if link == "-" else peer.round_trip
        return (
            self._display_names[peer.peer_id],
            place(peer.address),
            link,
            "-" if trip is None else milliseconds(trip),
            size(peer.bytes_in) if has_traffic else "-",
            size(peer.bytes_out) if has_traffic else "-",
            str(peer.version),
            span(peer.seconds_since_seen),
        )

    def _link(self, peer: PeerRow) -> str:
        if peer.address:
            return "direct"
        if peer.via is None or peer.reason is not None:
            return "-"
        return f"relay {self._relay(peer.via)}" if peer.via else "direct"

    def _relay(self, relay: str) -> str:
        return self._display_names.get(relay) or short_id(relay)

    def _link_lines(self, peer: PeerRow) -> str:
        name, address, link, trip, received, sent, version, age = self._link_cells(peer)
        summary = f"{name} {address} {link}, {trip} ms, seen {age} ago"
        return f"{plain(summary)}\n  in {received}, out {sent}, version {version}"

    def _remarks(self, peer: PeerRow) -> str:
        remarks = [peer.reason.text] if peer.reason else []
        remarks += (
            [f"rejected {counts(peer.rejected_by_reason)}"] if peer.rejected_by_reason else []
        )
        remarks += [f"uses {peer.environment}: nothing is exchanged"] if peer.environment else []
        remarks += [f"another model ({peer.model})"] if peer.model else []
        return "; ".join(remarks)

    def _of_groups(self, is_wide: bool) -> Iterator[RenderableType]:
        if not is_wide:
            yield from map(self._group_lines, self._rows)
            return
        table = _table("name", "peer", "member", "accepted", "sent", "trained on", "useful")
        for peer in self._rows:
            cells = (
                who(peer, self._known_as),
                short_id(peer.peer_id),
                standing(peer),
                f"{peer.accepted} of {peer.announced}",
                str(peer.sent),
                f"{peer.trained_fraction:.0%}",
                f"{peer.useful_fraction:.2f}",
            )
            table.add_row(*map(plain, cells))
        yield table

    def _group_lines(self, peer: PeerRow) -> str:
        name = f"{who(peer, self._known_as)} {short_id(peer.peer_id)} {standing(peer)}"
        totals = f"accepted {peer.accepted} of {peer.announced}, sent {peer.sent}"
        of_use = f"trained on {peer.trained_fraction:.0%}, useful {peer.useful_fraction:.2f}"
        return f"{plain(name)}\n  {totals}, {of_use}"


def peers_view(
    snapshot: Snapshot,
    known_as: Mapping[str, str] = MappingProxyType({}),
    *,
    groups: bool = False,
) -> RenderableType:
    """See `PeersView`."""
    return PeersView(snapshot, known_as, groups=groups)


def display_names(snapshot: Snapshot, known_as: Mapping[str, str]) -> dict[str, str]:
    """Return the name of each peer of a snapshot for people, by peer id. A name that several have,
    as with a ticket of several uses, comes with the end of the id."""
    rows: list[PeerRow | UnmetRow] = [*snapshot.peers, *snapshot.former, *snapshot.unmet]
    names = {row.peer_id: name_of(row, known_as) for row in rows}
    times = Counter(names.values())
    return {
        peer_id: f"{name} {short_id(peer_id)}"
        if name and times[name] > 1
        else name or short_id(peer_id)
        for peer_id, name in names.items()
    }


def name_of(row: PeerRow | UnmetRow, known_as: Mapping[str, str]) -> str:
    """Return a peer's name: the owner's for its ticket, or that in its certificate; "" for none."""
    return known_as.get(row.issuer_key, row.name)


def milliseconds(seconds: float) -> str:
    """A time in milliseconds: one decimal below ten."""
    return f"{seconds * 1e3:.1f}" if seconds < 0.00995 else f"{seconds * 1e3:,.0f}"


def size(count: int) -> str:
    """A number of bytes: 812 B, 3.4 kB, 12 MB."""
    value, unit = float(count), "B"
    for next_unit in ("kB", "MB", "GB", "TB"):
        if value < 999.5:
            break
        value, unit = value / 1e3, next_unit
    return f"{value:.1f} {unit}" if unit != "B" and value < 9.95 else f"{value:.0f} {unit}"


def place(address: str) -> str:
    """HOST:PORT of a multiaddr, "-" for none."""
    endpoint = split_endpoint(address)
    if endpoint is None:
        return "-"
    return host_and_port(*endpoint[1:])


def _table(*titles: str) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0))
    for title in titles:
        table.add_column(title, no_wrap=title not in ("name", "link"), overflow="fold")
    return table


def _remedy(cause: Said | None) -> Iterator[str]:
    if cause is not None and cause.remedy and cause.level != "good":
        yield plain(f"  → {cause.remedy}")
