"""Shows sample answers in a terminal, escaped: peers wrote some of them."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.table import Table

from swarm_node.cli.views.views import plain
from swarm_node.node.metrics.samples import SampleRow
from swarm_node.node.metrics.snapshot import PeerRow
from swarm_node.p2p.wire.identity import short_id


def samples_view(rows: Sequence[SampleRow], peers: Sequence[PeerRow]) -> RenderableType:
    """Each family's question with the answers that were given to questions of that family."""
    if not rows:
        return "no completions yet: the node has just started"
    names = {peer.peer_id: peer.name for peer in peers}
    sections: list[RenderableType] = []
    for family in dict.fromkeys(row.family for row in rows):
        table = Table.grid(padding=(0, 1))
        table.add_column(no_wrap=True)
        table.add_column(overflow="fold")
        for row in rows:
            if row.family != family:
                continue
            author = names.get(row.author) or short_id(row.author) if row.author else "local"
            mark = "[green]✓[/]" if row.reward > 0.5 else "[red]✗[/]"
            name, question = f"  {plain(author)} v{row.version}", plain(_line(row.prompt))
            if not row.turns:
                table.add_row(name, f"{question} → {_format_text(row.completion)} {mark}")
                continue
            table.add_row(name, f"{question} {mark}")
            for place, text in enumerate(row.turns):
                speaker, words = (
                    ("observation", plain(_line(text)))
                    if place % 2
                    else ("node", _format_text(text))
                )
                table.add_row(f"    {speaker}", words)
        sections += [f"[bold]{plain(family)}[/]", table]
    legend = "v: the policy version that sampled it; ✓ ✗ as scored here"
    return Group(*sections, f"[dim]{legend}[/]")


def _format_text(text: str) -> str:
    return f"[bold]{plain(_line(text)) or '(nothing)'}[/]"


def _line(text: str) -> str:
    return " ⏎ ".join(filter(None, map(str.strip, text.splitlines())))
