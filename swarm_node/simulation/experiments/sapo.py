"""`swarm-node experiment sapo`: the paper's arms over several seeds, resumable, with tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table

from swarm_node.errors import ConfigError
from swarm_node.policy.models.model import TINY
from swarm_node.simulation.building import build_once
from swarm_node.simulation.experiments.arms import (
    ARMS,
    REGIMES,
    Arm,
    chosen_arms,
    declared_seeds,
    estimate,
    informative_counts,
)
from swarm_node.simulation.experiments.budgets import budget_table
from swarm_node.simulation.experiments.plots import draw_experiment
from swarm_node.simulation.experiments.resume import Case, run_cases
from swarm_node.simulation.report import SimulationReport
from swarm_node.simulation.swarm import Plan

_PAPER = tuple(arm.paper for arm in ARMS if arm.name == "8/0" and arm.paper is not None)

Results = Mapping[Arm, Sequence[SimulationReport]]


@dataclass(frozen=True, slots=True)
class Experiment:
    """What to run: `regime` is a key of REGIMES, `arms` names some of ARMS (none: all), `flags`
    are settings that all arms share. `model` takes the place of the regime's own."""

    regime: str = "dense"
    nodes: int = 8
    rounds: int = 60
    seeds: int = 4
    arms: tuple[str, ...] = ()
    model: str | None = None
    flags: Mapping[str, Any] | None = None


def run_experiment(experiment: Experiment, directory: Path) -> None:
    """Run what is missing below `directory`, then print the tables and draw the plots.

    Raises:
        SwarmNodeError: a name is unknown, a model cannot be made, or the directory not be written.
    """
    if experiment.regime not in REGIMES:
        raise ConfigError(f"there is no regime {experiment.regime}: use {', '.join(REGIMES)}")
    arms = chosen_arms(experiment.arms)
    model = experiment.model or regime_model(experiment.regime, directory)
    place = directory / f"{experiment.regime}-n{experiment.nodes}-r{experiment.rounds}"
    cases = [_case(experiment, arm, model) for arm in arms]
    reports = run_cases(experiment.regime, cases, declared_seeds(experiment.seeds), place)
    results = dict(zip(arms, reports, strict=True))
    console = Console(highlight=False)
    for table in (held_out_table, budget_table, reward_table, mechanism_table):
        console.print(table(results))
    for path in draw_experiment(results, place):
        print(f"wrote {path}")


def held_out_table(results: Results) -> Table:
    """The figure that counts: held-out reward of the nodes' own samples."""
    table = experiment_table("held-out reward, mean ± 95% confidence interval over seeds")
    for heading in ("arm", "start", "middle", "end", "seeds"):
        table.add_column(heading, justify="left" if heading == "arm" else "right")
    for arm, reports in results.items():
        middles = [curve[len(curve) // 2][1] for curve in (r.held_out.curve for r in reports)]
        table.add_row(
            arm.name,
            f"{reports[0].held_out.start:.3f}",
            f"{estimate(middles):.3f}",
            f"{estimate([report.held_out.end for report in reports]):.3f}",
            str(len(reports)),
        )
    return table


def reward_table(results: Results) -> Table:
    """Cumulative rewards: of own groups, and SAPO's own metric beside the paper's figures."""
    table = experiment_table("cumulative reward; the paper's figures are of its own setting")
    for heading in ("arm", "own groups", "", "batch", "", "paper", ""):
        table.add_column(heading, justify="left" if heading == "arm" else "right")
    base = next((reports for arm, reports in results.items() if arm.name == "8/0"), ())
    own_base = [report.cumulative_own for report in base]
    batch_base = [report.cumulative_batch for report in base]
    for arm, reports in results.items():
        own = estimate([report.cumulative_own for report in reports])
        batch = estimate([report.cumulative_batch for report in reports])
        table.add_row(
            arm.name,
            *(f"{own:.1f}", _against(own.mean, own_base)),
            *(f"{batch:.1f}", _against(batch.mean, batch_base)),
            *("", "") if arm.paper is None else (f"{arm.paper:.2f}", _against(arm.paper, _PAPER)),
        )
    return table


def mechanism_table(results: Results) -> Table:
    """What each arm had to learn from and what it cost."""
    table = experiment_table("per update and node; expected = p·I + min(B-I, (N-1)·p·I)")
    for heading in ("arm", "informative", "expected", "made", "CPU ms", "KiB in"):
        table.add_column(heading, justify="left" if heading == "arm" else "right")
    for arm, reports in results.items():
        counts = [informative_counts(report, arm) for report in reports]
        expected = estimate([expected for _, expected in counts]).mean
        updates = sum(len(report.nodes) * len(report.rounds.own) for report in reports)
        received = sum(node.bytes_received for report in reports for node in report.nodes)
        table.add_row(
            arm.name,
            f"{estimate([counted for counted, _ in counts]).mean:.2f}",
            f"{expected:.2f}",
            f"{sum(report.groups_made for report in reports) / updates:.2f}",
            f"{1000 * sum(report.cpu_seconds for report in reports) / updates:.0f}",
            f"{received / updates / 1024:.1f}",
        )
    return table


def _case(experiment: Experiment, arm: Arm, model: str) -> Case:
    specialised = REGIMES[experiment.regime].specialised
    plan = Plan(experiment.nodes, experiment.rounds, specialised=specialised, models=(model,))
    return Case(arm.directory, plan, arm_flags(arm, experiment.flags or {}))


def arm_flags(arm: Arm, flags: Mapping[str, Any]) -> dict[str, Any]:
    """What the nodes of an arm are set to, by dotted key; `flags` are for all arms, and give way to
    the arm's own."""
    return {"experience.own": arm.own, "experience.external": arm.external, **flags, **arm.settings}


def regime_model(name: str, directory: Path) -> str:
    """The model that a regime starts from, built once below `directory`.

    Raises:
        SwarmNodeError: it cannot be built.
    """
    recipe = REGIMES[name].recipe
    return TINY if recipe is None else str(build_once(recipe, directory))


def experiment_table(title: str) -> Table:
    """An empty table in the style of all experiments."""
    return Table(title=title, title_justify="left", box=SIMPLE)


def _against(value: float, base: Sequence[float]) -> str:
    return f"{value / estimate(base).mean - 1:+.0%}" if base else ""
