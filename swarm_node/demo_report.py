"""What the demo leaves behind: report.json and learning.png."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from swarm_node.errors import SwarmNodeError
from swarm_node.node.snapshot import SCHEMA, EvalPoint


class NodeReport(msgspec.Struct, frozen=True):
    """One node's result. Rewards are held-out means over all families and over those it never
    sampled itself; `rejected` counts by reason."""

    peer_id: str
    updates: int
    reward_start: float
    reward_end: float
    unseen_start: float | None
    unseen_end: float | None
    groups_published: int
    groups_trained_own: int
    groups_trained_external: int
    rejected: dict[str, int]


def write_report(
    directory: Path,
    seconds: float,
    nodes: Sequence[NodeReport],
    curves: Mapping[str, Sequence[EvalPoint]],
) -> list[Path]:
    """Write report.json and, where matplotlib is installed, learning.png; returns the files.

    Raises:
        SwarmNodeError: the directory cannot be written.
    """
    report = {"schema": SCHEMA, "seconds": round(seconds, 1), "nodes": nodes}
    try:
        directory.mkdir(parents=True, exist_ok=True)
        path = directory / "report.json"
        path.write_bytes(msgspec.json.format(msgspec.json.encode(report), indent=2))
        picture = directory / "learning.png"
        return [path, picture] if draw(picture, curves) else [path]
    except OSError as error:
        raise SwarmNodeError(f"cannot write the report to {directory}: {error}") from error


def draw(path: Path, curves: Mapping[str, Sequence[EvalPoint]]) -> bool:
    """One panel per node: held-out reward over time. False without matplotlib (extra `plot`)."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        return False
    figure = Figure(figsize=(4 * len(curves), 3.9), layout="constrained")
    panels = figure.subplots(1, len(curves), sharey=True, squeeze=False)[0]
    for panel, (name, points) in zip(panels, curves.items(), strict=True):
        seconds = [point.seconds for point in points]
        panel.plot(seconds, [point.own for point in points], label="families it samples")
        unseen = [(p.seconds, p.unseen) for p in points if p.unseen is not None]
        if unseen:
            panel.plot(*zip(*unseen, strict=True), "--", label="families only in peers' rollouts")
        panel.set(title=name, xlabel="seconds", ylim=(0, 1))
        panel.grid(alpha=0.3)
    panels[0].set_ylabel("held-out reward")
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=2)
    figure.savefig(path, dpi=120)
    return True
