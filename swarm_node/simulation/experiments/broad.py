"""`swarm-node experiment broad`: does it pay if the nodes of a swarm sample the same tasks?

Arms differ in `sampling.common_share` only: all make and train on the same number of groups. Groups
of a common task are judged together (`policy/baselines.py`); how many of those trained on were is
counted and shown beside.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from swarm_node.errors import ConfigError
from swarm_node.simulation.experiments.arms import REGIMES, declared_seeds, estimate
from swarm_node.simulation.experiments.budgets import groups_made
from swarm_node.simulation.experiments.plots import half_widths, mean_cost, over_seeds, saved
from swarm_node.simulation.experiments.resume import Case, run_cases
from swarm_node.simulation.experiments.sapo import experiment_table, regime_model
from swarm_node.simulation.report import SimulationReport
from swarm_node.simulation.swarm import Plan

SHARES = (0.0, 0.5, 1.0)

#: By share of common tasks.
Results = Mapping[float, Sequence[SimulationReport]]


@dataclass(frozen=True, slots=True)
class Broad:
    """What to run: every share of common tasks over the first `seeds` declared seeds, from the
    model of `regime`; `flags` are settings that all share.

    Raises:
        ConfigError: no such regime.
    """

    regime: str = "dense"
    nodes: int = 4
    rounds: int = 40
    seeds: int = 4
    shares: tuple[float, ...] = SHARES
    flags: Mapping[str, Any] = field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        if self.regime not in REGIMES:
            raise ConfigError(f"there is no regime {self.regime}: use {', '.join(REGIMES)}")

    def case(self, share: float, model: str) -> Case:
        """What is simulated for one of them."""
        specialised = REGIMES[self.regime].specialised
        every = max(1, self.rounds // 4)
        plan = Plan(
            self.nodes,
            self.rounds,
            specialised=specialised,
            eval_rounds=every,
            models=(model,),
        )
        flags = {**self.flags, "sampling.common_share": share}
        return Case(f"share-{share:g}", plan, flags)


def run_broad(experiment: Broad, directory: Path) -> None:
    """Run what is missing below `directory`, then print the table and draw the curves.

    Raises:
        SwarmNodeError: a setting is impossible, a model cannot be made, or the directory not be
            written.
    """
    model = regime_model(experiment.regime, directory)
    place = directory / f"{experiment.regime}-n{experiment.nodes}-r{experiment.rounds}"
    cases = [experiment.case(share, model) for share in experiment.shares]
    reports = run_cases("broad", cases, declared_seeds(experiment.seeds, "broad"), place)
    results = dict(zip(experiment.shares, reports, strict=True))
    Console(highlight=False).print(broad_table(results))
    picture = place / "broad.png"
    if draw_broad(results, picture):
        print(f"wrote {picture}")


def broad_table(results: Results) -> Table:
    """Held-out reward half-way and at the end, and what was made, taken and merged for it."""
    table = experiment_table("held-out reward, mean ± 95% confidence interval over seeds")
    for heading in ("share", "half-way", "end", "made", "peers'", "merged", "CPU ms"):
        table.add_column(heading, justify="right")
    for share, reports in results.items():
        nodes = [node for report in reports for node in report.nodes]
        updates = sum(len(report.nodes) * len(report.rounds.own) for report in reports)
        middles = [curve[len(curve) // 2][1] for curve in (r.held_out.curve for r in reports)]
        table.add_row(
            f"{share:g}",
            f"{estimate(middles):.3f}",
            f"{estimate([report.held_out.end for report in reports]):.3f}",
            *(
                f"{sum(count) / updates:.2f}"
                for count in (
                    [node.groups_made for node in nodes],
                    [node.trained_external for node in nodes],
                    [node.merged for node in nodes],
                )
            ),
            f"{1000 * sum(node.cpu_seconds for node in nodes) / updates:.0f}",
        )
    return table


def draw_broad(results: Results, path: Path) -> bool:
    """Held-out reward over updates and over groups made. False without matplotlib (extra `plot`).

    Raises:
        SwarmNodeError: the file cannot be written.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError:
        return False
    figure = Figure(figsize=(10, 4), layout="constrained")
    training, generation = figure.subplots(1, 2, sharey=True)
    for share, reports in results.items():
        rounds, points = over_seeds([report.held_out.curve for report in reports])
        spent = mean_cost(groups_made, reports)
        made = [spent[entry] for entry in rounds]
        for panel, places in ((training, rounds), (generation, made)):
            means = [point.mean for point in points]
            panel.errorbar(places, means, half_widths(points), capsize=3, label=f"{share:g}")
    training.set(xlabel="updates", ylabel="held-out reward (pass@1)", title="equal training")
    generation.set(xlabel="groups made per node", title="equal generation")
    for panel in (training, generation):
        panel.grid(alpha=0.3)
        panel.legend(title="common share")
    saved(figure, path)
    return True
