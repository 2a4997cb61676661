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

from swarm_node.building import build_once
from swarm_node.errors import ConfigError
from swarm_node.policy.build_tiny import Noise, Recipe
from swarm_node.policy.models import TINY
from swarm_node.simulation.arms import Arm, chosen_arms, declared_seeds, estimate
from swarm_node.simulation.experiment import arm_settings, experiment_table
from swarm_node.simulation.kinds import model_digests
from swarm_node.simulation.plots import draw_kinds
from swarm_node.simulation.report import SimulatedNode, SimulationReport
from swarm_node.simulation.run import progress_bar, resumed
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
    """Run what is missing below `directory`, then print the table and draw the plot.

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
    total = len(runs) * comparison.seeds * comparison.nodes * comparison.rounds
    results: dict[Run, list[SimulationReport]] = {run: [] for run in runs}
    with progress_bar("heterogeneous", total) as advance:
        for index, seed in enumerate(declared_seeds(comparison.seeds, "heterogeneous")):
            for run in runs:
                named = tuple(models[kind] for kind in run.kinds)
                plan = Plan(comparison.nodes, comparison.rounds, seed, models=named)
                settings = arm_settings(run.arm, seed, comparison.flags)
                run_place = place / "-".join(run.kinds) / run.arm.directory / f"seed-{index}"
                results[run].append(resumed(plan, settings, run_place, advance))
    Console(highlight=False).print(kinds_table(results))
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


def kinds_table(results: Results) -> Table:
    """For each kind how well it learns in each swarm, and how much better than alone: differences
    of runs with the same seed."""
    table = experiment_table("held-out reward, mean ± 95% confidence interval over seeds")
    columns = ("nodes", "with", "arm", "start", "middle", "end", "against alone", "foreign", "made")
    for heading in columns:
        left = heading in ("nodes", "with", "arm")
        table.add_column(heading, justify="left" if left else "right")
    for kind in ("strong", "weak"):
        solo = next(run for run in results if run.kinds == (kind,) and run.arm.name == ALONE)
        base = [curve_of(report, solo, kind)[-1][1] for report in results[solo]]
        for run, reports in results.items():
            if kind in run.kinds:
                curves = [curve_of(report, run, kind) for report in reports]
                ends = [curve[-1][1] for curve in curves]
                gains = [end - alone for end, alone in zip(ends, base, strict=True)]
                table.add_row(
                    *(kind, run.name, run.arm.name, f"{curves[0][0][1]:.3f}"),
                    f"{estimate([curve[len(curve) // 2][1] for curve in curves]):.3f}",
                    f"{estimate(ends):.3f}",
                    "" if run is solo else f"{estimate(gains):+.3f}",
                    *_per_update(reports, run.kinds.index(kind)),
                )
    return table


def _per_update(reports: Sequence[SimulationReport], model: int) -> tuple[str, str]:
    """Groups of the other model trained on, and own groups made, per update of a kind's node."""
    nodes: list[SimulatedNode] = [
        node for report in reports for node in report.nodes if node.model == model
    ]
    updates = sum(node.updates + node.skipped_updates for node in nodes)
    foreign = sum(node.trained_foreign for node in nodes)
    made = sum(node.groups_made for node in nodes)
    return f"{foreign / updates:.2f}", f"{made / updates:.2f}"
