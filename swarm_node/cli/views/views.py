"""Shows peers, measurements and choices in a terminal, and what all views share."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.markup import escape
from rich.table import Table

from swarm_node.node.figures.snapshot import EvalPoint, PeerRow, Snapshot
from swarm_node.p2p.wire.identity import short_id
from swarm_node.policy.choices import ADVANTAGE_CHOICES, LOSS_CHOICES, Choice

_CHOICES: Mapping[str, Mapping[Any, Choice]] = {
    "loss": LOSS_CHOICES,
    "advantage": ADVANTAGE_CHOICES,
}


#: Narrower terminals get two lines for each peer in the place of a table.
_TABLE_WIDTH = 90


class PeersView:
    """One row per known peer, the most recently seen first, then former members. `known_as` has the
    names that the owner of this home gave to issuer keys (hex). It fits 60 columns."""

    def __init__(self, snapshot: Snapshot, known_as: Mapping[str, str]) -> None:
        self._rows = (*snapshot.peers, *snapshot.former)
        self._known_as = known_as
        self._reach = snapshot.reach

    def __rich_console__(self, _: Console, options: ConsoleOptions) -> RenderResult:
        if not self._rows:
            yield "no peers yet: give a ticket to another machine (`swarm-node invite --help`)"
            return
        wide = options.max_width >= _TABLE_WIDTH
        yield from [self._table()] if wide else map(self._lines, self._rows)
        for peer in self._rows:
            if said := self._remarks(peer):
                yield plain(f"{_who(peer, self._known_as)} {short_id(peer.peer_id)}: {said}")
        if self._reach is not None:
            yield plain(f"this node: {self._reach.text}")

    def _table(self) -> Table:
        table = Table(box=None, padding=(0, 2, 0, 0))
        titles = ("name", "peer", "member", "seen", "gave you", "took", "share", "score", "link")
        for title in titles:
            table.add_column(title, no_wrap=title != "name", overflow="fold")
        for peer in self._rows:
            cells = (
                _who(peer, self._known_as),
                short_id(peer.peer_id),
                standing(peer),
                span(peer.seconds_since_seen),
                f"{peer.received} of {peer.published}",
                str(peer.took),
                f"{peer.share:.0%}",
                f"{peer.score:.2f}",
                _link(peer),
            )
            table.add_row(*map(plain, cells))
        return table

    def _lines(self, peer: PeerRow) -> str:
        who = f"{_who(peer, self._known_as)} {short_id(peer.peer_id)}"
        seen = f"{standing(peer)}, seen {span(peer.seconds_since_seen)} ago, {_link(peer)}"
        gave = f"gave you {peer.received} of {peer.published}, took {peer.took}"
        worth = f"share {peer.share:.0%}, score {peer.score:.2f}"
        return f"{plain(f'{who} {seen}')}\n  {gave}, {worth}"

    def _remarks(self, peer: PeerRow) -> str:
        said = [f"via {relay_name(peer.via, self._rows, self._known_as)}"] if peer.via else []
        said += [f"refused {counts(peer.refused)}"] if peer.refused or peer.left_seconds else []
        said += [f"left alone for {span(peer.left_seconds)}"] if peer.left_seconds else []
        said += [f"uses {peer.environment}"] if peer.environment else []
        return "; ".join(said)


def peers_view(
    snapshot: Snapshot, known_as: Mapping[str, str] = MappingProxyType({})
) -> RenderableType:
    """See `PeersView`."""
    return PeersView(snapshot, known_as)


def standing(peer: PeerRow) -> str:
    """Until when the peer is a member, or why it is none."""
    return f"until {day_of(peer.until)}" if peer.standing == "member" else peer.standing or "?"


def _who(peer: PeerRow, known_as: Mapping[str, str]) -> str:
    name = known_as.get(peer.issuer_key, peer.name) or "?"
    return name if peer.issuer in ("", name, peer.name) else f"{name} (by {peer.issuer})"


def _link(peer: PeerRow) -> str:
    return "-" if peer.via is None else "relayed" if peer.via else "direct"


def relay_name(
    peer_id: str, rows: Sequence[PeerRow], known_as: Mapping[str, str] = MappingProxyType({})
) -> str:
    """Name of a peer for a person: its name, if it is among `rows`, and the end of its id."""
    name = next((_who(row, known_as) for row in rows if row.peer_id == peer_id), "")
    return f"{name} {short_id(peer_id)}".strip()


def plain(text: str) -> str:
    """Escape a text of any origin for the terminal: no control characters, no markup."""
    return escape("".join(c if c.isprintable() else "?" for c in text))


def number_of(count: int, thing: str) -> str:
    """ "1 peer", "2 peers"."""
    return f"{count:,} {thing}{'' if count == 1 else 's'}"


def day_of(seconds: float) -> str:
    """A time in Unix seconds as a day, in UTC."""
    return time.strftime("%Y-%m-%d", time.gmtime(seconds))


def eval_view(point: EvalPoint) -> RenderableType:
    """Reward on unseen texts per family, and that on seen ones."""
    table = Table("family", "reward", title=f"unseen texts, policy version {point.version}")
    for family, reward in sorted(point.families.items()):
        table.add_row(family, f"{reward:.2f}")
    borrowed = "-" if point.borrowed is None else f"{point.borrowed:.3f}"
    seen = "-" if point.seen is None else f"{point.seen:.3f}"
    means = f"all {point.all:.3f}   own {point.own:.3f}   never sampled {borrowed}"
    return Group(table, f"{means}   seen texts {seen}")


def choices_view() -> RenderableType:
    """The losses and advantages, each with its source."""
    lines: list[RenderableType] = []
    for key, choices in _CHOICES.items():
        lines.append(escape(f"[training] {key} = …"))
        table = Table(show_header=False, box=None, padding=(0, 2, 0, 2))
        table.add_column()
        table.add_column(overflow="fold")  # an address is of use as a whole only
        for name, choice in choices.items():
            table.add_row(name, f"{escape(choice.summary)}\n[dim]{escape(choice.source)}[/dim]")
        lines.append(table)
    return Group(*lines)


def choices_rows() -> dict[str, dict[str, Any]]:
    """The choices for programs: key, name, then "summary" and "source"."""
    return {
        key: {name: choice._asdict() for name, choice in choices.items()}
        for key, choices in _CHOICES.items()
    }


def counts(numbers: Mapping[str, int]) -> str:
    """Numbers by reason in a line, or "none"."""
    return ", ".join(f"{number} {reason}" for reason, number in sorted(numbers.items())) or "none"


def span(seconds: float) -> str:
    """A time in words."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    if seconds < 7200:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"
