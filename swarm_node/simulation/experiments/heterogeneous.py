"""`swarm-node experiment heterogeneous`: nodes of two sizes and two tokenizers, in one swarm.

A strong model and a weak one each learn alone (8/0), among their own kind and in a swarm of both.
Every node of a run does the same number of updates on batches of the same size. As in the other
experiment, runs whose reports are there are not made again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console
from rich.table import Table

from swarm_node.errors import ConfigError
from swarm_node.policy.models.build_tiny import Noise, Recipe
from swarm_node.policy.models.model import TINY
from swarm_node.simulation.building import build_once
from swarm_node.simulation.experiments.arms import Arm, chosen_arms, declared_seeds, estimate
from swarm_node.simulation.experiments.plots import draw_kinds
from swarm_node.simulation.experiments.resume import Case, run_cases
from swarm_node.simulation.experiments.sapo import arm_flags, experiment_table
from swarm_node.simulation.kinds import model_digests
from swarm_node.simulation.report import SimulationReport
from swarm_node.simulation.swarm import Plan

ALONE = "8/0"
#: 77 thousand weights, other tokens, and a corpus with one right, bare answer in 33.
WEAK = Recipe("small", "words", Noise(bare=0.03, wrong=0.15, evasive=0.20), steps=1000)

Curve = Sequence[tuple[int, float]]


@dataclass(frozen=True, slots=True)
class Comparison:
    """What to run: `arms` names some of ARMS, besides 8/0; `strong` and `weak` are models, None the
    weak one built by `WEAK`; `flags` are settings that all nodes share."""

    nodes: int = 8
    rounds: int = 30
    seeds: int = 4
    arms: tuple[str, ...] = ("4/4",)
    strong: str = TINY
    weak: str | None = None
    flags: Mapping[str, Any] = field(default_factory=dict, hash=False)


class Run(NamedTuple):
    """One swarm: its kinds of nodes, and how they compose a batch."""

    kinds: tuple[str, ...]
    arm: Arm

    @property
    def name(self) -> str:
        """How the swarm is called in tables, for any of its kinds."""
        if self.arm.name == ALONE:
            return "alone"
        return "both kinds" if len(self.kinds) > 1 else "own kind"


Results = Mapping[Run, Sequence[SimulationReport]]


def run_comparison(comparison: Comparison, directory: Path) -> None:
    """Run what is missing below `directory`, then print the tables and draw the plot.

    Raises:
        SwarmNodeError: a name is unknown, both models are the same, the weak one cannot be made, or
            the directory not be written.
    """
    runs = planned(chosen_arms((ALONE, *comparison.arms)))
    weak = comparison.weak or str(build_once(WEAK, directory))
    models = {"strong": comparison.strong, "weak": weak}
    if len({*model_digests(list(models.values()))}) < len(models):
        raise ConfigError("the strong and the weak model are the same: give another with --weak")
    place = directory / f"n{comparison.nodes}-r{comparison.rounds}"
    cases = [
        Case(
            f"{'-'.join(run.kinds)}/{run.arm.directory}",
            Plan(comparison.nodes, comparison.rounds, models=tuple(models[k] for k in run.kinds)),
            arm_flags(run.arm, comparison.flags),
        )
        for run in runs
    ]
    seeds = declared_seeds(comparison.seeds, "heterogeneous")
    results = dict(zip(runs, run_cases("heterogeneous", cases, seeds, place), strict=True))
    console = Console(highlight=False)
    for table in (groups_table, gains_table):
        console.print(table(results))
    curves = {
        kind: {
            f"{run.name}, {run.arm.name}": [curve_of(report, run, kind) for report in reports]
            for run, reports in results.items()
            if kind in run.kinds
        }
        for kind in models
    }
    for path in draw_kinds(curves, place):
        print(f"wrote {path}")


def planned(arms: Sequence[Arm]) -> list[Run]:
    """Each kind by itself with each of the arms, and both together with those that share."""
    alone = [Run((kind,), arm) for kind in ("strong", "weak") for arm in arms]
    return alone + [Run(("strong", "weak"), arm) for arm in arms if arm.name != ALONE]


def curve_of(report: SimulationReport, run: Run, kind: str) -> Curve:
    """(round, held-out reward) of a kind's nodes in a swarm."""
    return report.models[run.kinds.index(kind)].curve


def gains_table(results: Results) -> Table:
    """How much better a kind is in each swarm than alone, early, midway and at the end:
    differences of runs with the same seed."""
    table = experiment_table("held-out reward less that alone, mean ± 95% interval over seeds")
    points = next(iter(results.values()))[0].held_out.curve
    columns = sorted({1, len(points) // 2, len(points) - 1})
    _add_columns(table, [f"{points[column][0]} updates" for column in columns])
    for kind, run, reports in _rows(results):
        if run.arm.name != ALONE:
            curves = [curve_of(report, run, kind) for report in reports]
            alone = [
                curve_of(report, base, kind)
                for base, others in results.items()
                if base.kinds == (kind,) and base.arm.name == ALONE
                for report in others
            ]
            pairs = list(zip(curves, alone, strict=True))
            gains = [[ours[at][1] - base[at][1] for ours, base in pairs] for at in columns]
            found = [f"{estimate(values):+.3f}" for values in gains]
            table.add_row(kind, run.name, run.arm.name, *found)
    return table


def groups_table(results: Results) -> Table:
    """Where each kind began and ended in each swarm, what it made, learnt from and spent."""
    table = experiment_table("held-out reward; groups and CPU time per update and node")
    _add_columns(table, ("start", "end", "made", "foreign", "CPU ms"))
    for kind, run, reports in _rows(results):
        model = run.kinds.index(kind)
        nodes = [node for report in reports for node in report.nodes if node.model == model]
        updates = sum(node.updates + node.skipped_updates for node in nodes)
        table.add_row(
            *(kind, run.name, run.arm.name),
            f"{curve_of(reports[0], run, kind)[0][1]:.3f}",
            f"{estimate([curve_of(report, run, kind)[-1][1] for report in reports]):.3f}",
            f"{sum(node.groups_made for node in nodes) / updates:.2f}",
            f"{sum(node.trained_foreign for node in nodes) / updates:.2f}",
            f"{1000 * sum(node.cpu_seconds for node in nodes) / updates:.0f}",
        )
    return table


def _add_columns(table: Table, headings: Sequence[str]) -> None:
    for heading in ("nodes", "with", "arm"):
        table.add_column(heading)
    for heading in headings:
        table.add_column(heading, justify="right")


def _rows(results: Results) -> list[tuple[str, Run, Sequence[SimulationReport]]]:
    return [
        (kind, run, reports)
        for kind in ("strong", "weak")
        for run, reports in results.items()
        if kind in run.kinds
    ]
