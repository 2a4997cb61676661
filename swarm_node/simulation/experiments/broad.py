"""`swarm-node experiment broad`: the gain of nodes that sample the same tasks.

The cases differ in `Scenario.common` only: all nodes make and train on the same number of
groups. A node judges the groups of a common task together (`policy/experience/advantage.py`). The
table shows the share of the groups trained on that were judged so.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rich.table import Table

from swarm_node.simulation.experiments.arms import batch_of
from swarm_node.simulation.experiments.budgets import groups_made, mean_cost
from swarm_node.simulation.experiments.estimates import all_nodes, held_out, per_update
from swarm_node.simulation.experiments.plots import draw_bars, finish
from swarm_node.simulation.experiments.regimes import REGIMES, RegimeExperiment
from swarm_node.simulation.experiments.skeleton import HELD_OUT, Case, Results, results_table
from swarm_node.simulation.scenario import Scenario


@dataclass(frozen=True)
class Broad(RegimeExperiment[float]):
    """Compares every share of common tasks."""

    name = "broad"
    picture = "broad.png"
    size = (10, 4)

    shares: tuple[float, ...] = (0.0, 0.5, 1.0)

    def cases(self, directory: Path) -> Mapping[float, Case]:
        regime = REGIMES[self.regime]
        scenario = Scenario(
            self.nodes,
            self.rounds,
            specialised=regime.specialised,
            eval_rounds=max(1, self.rounds // 4),
            models=(regime.model(directory),),
        )
        return {share: self._case(share, scenario) for share in self.shares}

    def tables(self, results: Results[float]) -> Iterable[Table]:
        """Held-out reward half-way and at the end, and the groups made, taken and merged."""
        headings = ("share", "half-way", "end", "made", "peers'", "merged", "CPU ms")
        table = results_table(HELD_OUT, (), headings)
        for share, reports in results.items():
            nodes = all_nodes(reports)
            _, points = held_out(reports)
            table.add_row(
                f"{share:g}",
                f"{points[len(points) // 2]:.3f}",
                f"{points[-1]:.3f}",
                f"{per_update(nodes, lambda node: node.groups_made):.2f}",
                f"{per_update(nodes, lambda node: node.trained_external):.2f}",
                f"{per_update(nodes, lambda node: node.merged):.2f}",
                f"{per_update(nodes, lambda node: 1000 * node.cpu_seconds):.0f}",
            )
        return [table]

    def draw(self, figure: Any, results: Results[float]) -> None:
        """Held-out reward over updates and over groups made."""
        training, generation = figure.subplots(1, 2, sharey=True)
        for share, reports in results.items():
            rounds, points = held_out(reports)
            made = mean_cost(groups_made, reports)
            draw_bars(training, rounds, points, f"{share:g}")
            draw_bars(generation, [made[entry] for entry in rounds], points, f"{share:g}")
        training.set(xlabel="updates", ylabel="held-out reward (pass@1)", title="equal training")
        generation.set(xlabel="groups made per node", title="equal generation")
        finish((training, generation), "common share")

    def _case(self, share: float, scenario: Scenario) -> Case:
        flags = {**batch_of(4, 4), **self.shared}
        return Case(f"share-{share:g}", replace(scenario, common=share), flags)
