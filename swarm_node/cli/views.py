"""Shows snapshots, peers and measurements in a terminal."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Group, RenderableType
from rich.markup import escape
from rich.table import Table

from swarm_node.node.snapshot import BusyRow, EvalPoint, MixtureRow, Snapshot
from swarm_node.policy.choices import ADVANTAGE_CHOICES, LOSS_CHOICES, Choice

_CHOICES: Mapping[str, Mapping[Any, Choice]] = {
    "loss": LOSS_CHOICES,
    "advantage": ADVANTAGE_CHOICES,
}


def status_view(snapshot: Snapshot) -> RenderableType:
    """A summary of the node."""
    table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    groups = snapshot.groups
    rows = {
        "node": f"{snapshot.peer_id} ({snapshot.state}, {_span(snapshot.seconds)})",
        "swarm": f"{snapshot.swarm}, {len(snapshot.peers)} peers known",
        "policy": f"{snapshot.model}, version {snapshot.version}, {snapshot.updates} updates",
        "held-out reward": _curve(snapshot.evals),
        "own groups": f"{groups.published} published, {groups.trained_own} trained",
        "peers' groups": f"{groups.received} received, {groups.trained_external} trained",
        "each update": _mixture(snapshot.mixture),
        "busy": _busy(snapshot.busy),
        "sampler": snapshot.engine,
        "judging": snapshot.sandbox or "not known yet",
        "rejected": _counts(snapshot.rejected),
        "faults": _counts(snapshot.faults),
    }
    if snapshot.trainer_restarts:
        rows["trainer"] = f"restarted {snapshot.trainer_restarts} times"
    for name, text in rows.items():
        table.add_row(name, text)
    for alarm in snapshot.alarms:
        table.add_row("[bold red]alarm[/bold red]", escape(alarm))
    return table


def peers_view(snapshot: Snapshot) -> RenderableType:
    """One row per known peer, the most recently seen first."""
    if not snapshot.peers:
        return "no peers yet: give a ticket to another machine (`swarm-node invite`)"
    table = Table(
        *("peer", "version", "seen", "published", "received", "of training", "score", "refused"),
        *("left alone", "address"),
    )
    for peer in snapshot.peers:
        table.add_row(
            peer.peer_id,
            str(peer.version),
            f"{_span(peer.seconds_since_seen)} ago",
            str(peer.published),
            str(peer.received),
            f"{peer.share:.0%}",
            f"{peer.score:.2f}",
            _counts(peer.refused),
            _span(peer.left_seconds) if peer.left_seconds else "-",
            peer.addresses[0] if peer.addresses else "-",
        )
    return table


def eval_view(point: EvalPoint) -> RenderableType:
    """Held-out reward per family."""
    table = Table("family", "reward", title=f"held out, policy version {point.version}")
    for family, reward in sorted(point.families.items()):
        table.add_row(family, f"{reward:.2f}")
    unseen = "-" if point.unseen is None else f"{point.unseen:.3f}"
    return Group(table, f"all {point.all:.3f}   own {point.own:.3f}   never sampled {unseen}")


def choices_view() -> RenderableType:
    """The losses and advantages, each with its source."""
    lines: list[RenderableType] = []
    for key, choices in _CHOICES.items():
        lines.append(escape(f"[training] {key} = …"))
        table = Table(show_header=False, box=None, padding=(0, 2, 0, 2))
        for name, choice in choices.items():
            table.add_row(name, f"{escape(choice.summary)}\n[dim]{escape(choice.source)}[/dim]")
        lines.append(table)
    return Group(*lines)


def choices_rows() -> dict[str, dict[str, Any]]:
    """The same for programs: key, name, then "summary" and "source"."""
    return {
        key: {name: choice._asdict() for name, choice in choices.items()}
        for key, choices in _CHOICES.items()
    }


def _curve(evals: list[EvalPoint]) -> str:
    if not evals:
        return "not measured yet"
    return f"{evals[0].all:.3f} at first, {evals[-1].all:.3f} now"


def _mixture(row: MixtureRow | None) -> str:
    if row is None:
        return "not known yet"
    text = f"{row.own} own, {row.external} of peers" + (" (auto)" if row.adaptive else "")
    if row.mixed_share is not None:
        error = "" if row.mixed_share_error is None else f" ± {row.mixed_share_error:.0%}"
        text += f"; {row.mixed_share:.0%}{error} of own groups have mixed rewards"
    return text


def _busy(row: BusyRow | None) -> str:
    if row is None or row.seconds <= 0:
        return "not known yet"
    return f"sampler {row.sampler / row.seconds:.0%}, trainer {row.trainer / row.seconds:.0%}"


def _counts(counts: dict[str, int]) -> str:
    return ", ".join(f"{number} {reason}" for reason, number in sorted(counts.items())) or "none"


def _span(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    if seconds < 7200:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"
