"""Shows measurements and choices in a terminal, and what all views share."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from rich.console import Group, RenderableType
from rich.markup import escape
from rich.table import Table

from swarm_node.node.metrics.snapshot import EvalPoint, PeerRow
from swarm_node.p2p.wire.identity import short_id
from swarm_node.policy.choices import ADVANTAGE_CHOICES, LOSS_CHOICES, Choice

_CHOICES: Mapping[str, Mapping[Any, Choice]] = {
    "loss": LOSS_CHOICES,
    "advantage": ADVANTAGE_CHOICES,
}


def standing(peer: PeerRow) -> str:
    """Until when the peer is a member, or why it is none."""
    return f"until {day_of(peer.until)}" if peer.standing == "member" else peer.standing or "?"


def who(peer: PeerRow, known_as: Mapping[str, str]) -> str:
    """Name of a peer for a person: the owner's name for its ticket, or that in its certificate."""
    name = known_as.get(peer.issuer_key, peer.name) or "?"
    return name if peer.issuer in ("", name, peer.name) else f"{name} (by {peer.issuer})"


def relay_name(
    peer_id: str, rows: Sequence[PeerRow], known_as: Mapping[str, str] = MappingProxyType({})
) -> str:
    """Name of a peer for a person: its name, if it is among `rows`, and the end of its id."""
    name = next((who(row, known_as) for row in rows if row.peer_id == peer_id), "")
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
    """Eval reward by family, and the reward on training prompts."""
    table = Table("family", "reward", title=f"held-out prompts, policy version {point.version}")
    for family, reward in sorted(point.families.items()):
        table.add_row(family, f"{reward:.2f}")
    external_mean = "-" if point.external_only is None else f"{point.external_only:.3f}"
    train = "-" if point.train is None else f"{point.train:.3f}"
    summary = f"all {point.reward:.3f}   local {point.local:.3f}   external-only {external_mean}"
    return Group(table, f"{summary}   training prompts {train}")


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
