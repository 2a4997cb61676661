"""Pictures of an experiment; needs matplotlib (extra `plot`)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from swarm_node.errors import SwarmNodeError
from swarm_node.simulation.experiments.arms import Arm, Estimate, estimate, informative_counts
from swarm_node.simulation.experiments.budgets import Cost, cpu_seconds, groups_made
from swarm_node.simulation.report import SimulationReport


def draw_experiment(
    results: Mapping[Arm, Sequence[SimulationReport]], directory: Path
) -> list[Path]:
    """Held-out reward over updates, groups made and CPU seconds, and informative groups as counted
    against as expected. Returns the file; none without matplotlib.

    Raises:
        SwarmNodeError: the directory cannot be written.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError:
        return []
    figure = Figure(figsize=(11, 7.6), layout="constrained")
    (by_round, by_group), (by_seconds, counts) = figure.subplots(2, 2)
    for arm, reports in results.items():
        rounds, points = over_seeds([report.held_out.curve for report in reports])
        colour = _draw_band(by_round, rounds, points, arm.name)
        for panel, cost in ((by_group, groups_made), (by_seconds, cpu_seconds)):
            spent = mean_cost(cost, reports)
            # The start cost nothing, which a logarithm cannot show.
            _draw_band(panel, [spent[entry] for entry in rounds][1:], points[1:], arm.name)
        pairs = [informative_counts(report, arm) for report in reports]
        counts.scatter(*zip(*((b, a) for a, b in pairs), strict=True), color=colour)
    by_round.set(xlabel="updates", title="equal training")
    by_group.set(xlabel="groups made per node", title="equal generation", xscale="log")
    by_seconds.set(xlabel="CPU seconds per node", title="equal compute", xscale="log")
    for panel in (by_round, by_group, by_seconds):
        panel.set(ylabel="held-out reward (pass@1)")
    counts.set(
        ylabel="counted",
        xlabel="p·I + min(B-I, (N-1)·p·I)",
        title="informative groups per update",
    )
    counts.axline((0, 0), slope=1, color="gray", linewidth=0.8)
    for panel in (by_round, by_group, by_seconds, counts):
        panel.grid(alpha=0.3)
    figure.legend(*by_round.get_legend_handles_labels(), loc="outside right upper")
    return [saved(figure, directory / "arms.png")]


def draw_kinds(
    kinds: Mapping[str, Mapping[str, Sequence[Sequence[tuple[int, float]]]]], directory: Path
) -> list[Path]:
    """A panel for each kind of node, with the curves of the swarms it was in over rounds, one per
    seed. Returns the file; none without matplotlib.

    Raises:
        SwarmNodeError: the directory cannot be written.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError:
        return []
    figure = Figure(figsize=(5 * len(kinds), 4.2), layout="constrained")
    panels = figure.subplots(1, len(kinds), sharey=True)
    for panel, (kind, swarms) in zip(panels, kinds.items(), strict=True):
        for label, curves in swarms.items():
            _draw_band(panel, *over_seeds(curves), label)
        panel.set(xlabel="updates", title=f"{kind} nodes")
        panel.grid(alpha=0.3)
        panel.legend()
    panels[0].set(ylabel="held-out reward (pass@1)")
    return [saved(figure, directory / "kinds.png")]


def saved(figure: Any, path: Path) -> Path:
    """`path`, to which the figure was written.

    Raises:
        SwarmNodeError: it cannot be written.
    """
    try:
        figure.savefig(path, dpi=120)
    except OSError as error:
        raise SwarmNodeError(f"cannot write {path}: {error}") from error
    return path


def half_widths(points: Sequence[Estimate]) -> list[float]:
    """Of the confidence intervals; 0 where one seed allows none."""
    return [0.0 if math.isnan(point.half) else point.half for point in points]


def mean_cost(cost: Cost, reports: Sequence[SimulationReport]) -> list[float]:
    """What a node had spent at the end of each round, from 0 rounds on; mean over seeds."""
    return [sum(at) / len(reports) for at in zip(*map(cost, reports), strict=True)]


def _draw_band(panel: Any, rounds: Sequence[float], points: Sequence[Estimate], label: str) -> Any:
    """A line with its confidence interval; returns its colour."""
    means = [point.mean for point in points]
    (line,) = panel.plot(rounds, means, label=label)
    halves = half_widths(points)
    low = [mean - half for mean, half in zip(means, halves, strict=True)]
    high = [mean + half for mean, half in zip(means, halves, strict=True)]
    panel.fill_between(rounds, low, high, alpha=0.15, color=line.get_color())
    return line.get_color()


def over_seeds(
    curves: Sequence[Sequence[tuple[int, float]]],
) -> tuple[list[int], list[Estimate]]:
    """The rounds of the curves, which all have the same, and at each the estimate over seeds."""
    rounds = [entry for entry, _ in curves[0]]
    return rounds, [
        estimate([reward for _, reward in points]) for points in zip(*curves, strict=True)
    ]
