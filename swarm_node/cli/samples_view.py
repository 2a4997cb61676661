"""Shows sample answers in a terminal, escaped: peers wrote some of them."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.table import Table

from swarm_node.cli.views import plain, short
from swarm_node.node.samples import SampleRow
from swarm_node.node.snapshot import PeerRow


def samples_view(rows: Sequence[SampleRow], peers: Sequence[PeerRow]) -> RenderableType:
    """Each family's question with the answers that were given to questions of that family."""
    if not rows:
        return "no answers yet: the node has just started"
    names = {peer.peer_id: peer.name for peer in peers}
    table = Table.grid(padding=(0, 1, 0, 0))
    for _ in range(3):
        table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    family = ""
    for row in rows:
        if row.family != family:
            table.add_row("", "", "", "") if family else None
            family = row.family
        who = names.get(row.author) or short(row.author) if row.author else "own"
        mark = "[green]✓[/]" if row.reward > 0.5 else "[red]✗[/]"
        table.add_row(plain(row.family), plain(who), f"v{row.version}", plain(_line(row.prompt)))
        table.add_row("", "", mark, f"[bold]{plain(_line(row.answer)) or '(nothing)'}[/]")
    legend = "v: the policy version that answered; ✓ right, ✗ wrong, as scored here"
    return Group(table, f"[dim]{legend}[/]")


def _line(text: str) -> str:
    return " ⏎ ".join(filter(None, map(str.strip, text.splitlines())))
