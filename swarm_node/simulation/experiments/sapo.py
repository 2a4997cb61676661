"""`swarm-node experiment sapo`: the arms of the paper (arXiv 2509.08721)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.table import Table

from swarm_node.simulation.experiments.arms import ARMS, Arm, chosen_arms, informative_counts
from swarm_node.simulation.experiments.budgets import (
    budget_table,
    cpu_seconds,
    groups_made,
    mean_cost,
)
from swarm_node.simulation.experiments.estimates import all_nodes, estimate, held_out, per_update
from swarm_node.simulation.experiments.plots import draw_band
from swarm_node.simulation.experiments.regimes import REGIMES, RegimeExperiment
from swarm_node.simulation.experiments.skeleton import HELD_OUT, Case, Results, results_table
from swarm_node.simulation.swarm import Scenario

_PAPER = tuple(arm.paper for arm in ARMS if arm.name == "8/0" and arm.paper is not None)


@dataclass(frozen=True)
class Sapo(RegimeExperiment[Arm]):
    """`arms` names some of ARMS (none: all). `model` takes the place of the regime's own."""

    name = "sapo"
    picture = "arms.png"
    size = (11, 7.6)

    arms: tuple[str, ...] = ()
    model: str | None = None

    def cases(self, directory: Path) -> Mapping[Arm, Case]:
        arms, regime = chosen_arms(self.arms), REGIMES[self.regime]
        scenario = Scenario(
            self.nodes,
            self.rounds,
            specialised=regime.specialised,
            models=(self.model or regime.model(directory),),
        )
        return {arm: Case(arm.directory, scenario, arm.flags(self.flags)) for arm in arms}

    def tables(self, results: Results[Arm]) -> Iterable[Table]:
        tables = (held_out_table, budget_table, reward_table, mechanism_table)
        return [table(results) for table in tables]

    def draw(self, figure: Any, results: Results[Arm]) -> None:
        """Held-out reward over updates, groups made and CPU seconds, and informative groups as
        counted against as expected."""
        (by_round, by_group), (by_seconds, counts) = figure.subplots(2, 2)
        for arm, reports in results.items():
            rounds, points = held_out(reports)
            colour = draw_band(by_round, rounds, points, arm.name)
            for panel, cost in ((by_group, groups_made), (by_seconds, cpu_seconds)):
                spent = mean_cost(cost, reports)
                # The start cost nothing, which a logarithm cannot show.
                draw_band(panel, [spent[entry] for entry in rounds][1:], points[1:], arm.name)
            pairs = [informative_counts(report, arm) for report in reports]
            counts.scatter(*zip(*((b, a) for a, b in pairs), strict=True), color=colour)
        by_round.set(xlabel="updates", title="equal training")
        by_group.set(xlabel="groups made per node", title="equal generation", xscale="log")
        by_seconds.set(xlabel="CPU seconds per node", title="equal compute", xscale="log")
        for panel in (by_round, by_group, by_seconds):
            panel.set(ylabel="held-out reward (pass@1)")
        formula, title = "p·I + min(B-I, (N-1)·p·I)", "informative groups per update"
        counts.set(ylabel="counted", xlabel=formula, title=title)
        counts.axline((0, 0), slope=1, color="gray", linewidth=0.8)
        for panel in (by_round, by_group, by_seconds, counts):
            panel.grid(alpha=0.3)
        figure.legend(*by_round.get_legend_handles_labels(), loc="outside right upper")


def held_out_table(results: Results[Arm]) -> Table:
    """The figure that counts: held-out reward of the nodes' own samples."""
    table = results_table(HELD_OUT, ("arm",), ("start", "middle", "end", "seeds"))
    for arm, reports in results.items():
        _, points = held_out(reports)
        start = f"{reports[0].held_out.start:.3f}"
        middle, end = f"{points[len(points) // 2]:.3f}", f"{points[-1]:.3f}"
        table.add_row(arm.name, start, middle, end, str(len(reports)))
    return table


def reward_table(results: Results[Arm]) -> Table:
    """Cumulative rewards of own groups and of batches. The latter is SAPO's own metric; the paper's
    figures stand next to it."""
    title = "cumulative reward; the paper's figures are of its own setting"
    table = results_table(title, ("arm",), ("own groups", "", "batch", "", "paper", ""))
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


def mechanism_table(results: Results[Arm]) -> Table:
    """What each arm had to learn from and what it cost."""
    title = "per update and node; expected = p·I + min(B-I, (N-1)·p·I)"
    headings = ("informative", "expected", "made", "CPU ms", "KiB in")
    table = results_table(title, ("arm",), headings)
    for arm, reports in results.items():
        counts = [informative_counts(report, arm) for report in reports]
        nodes = all_nodes(reports)
        table.add_row(
            arm.name,
            *(f"{sum(column) / len(counts):.2f}" for column in zip(*counts, strict=True)),
            f"{per_update(nodes, lambda node: node.groups_made):.2f}",
            f"{per_update(nodes, lambda node: 1000 * node.cpu_seconds):.0f}",
            f"{per_update(nodes, lambda node: node.bytes_received) / 1024:.1f}",
        )
    return table


def _against(value: float, base: Sequence[float]) -> str:
    return f"{value / estimate(base).mean - 1:+.0%}" if base else ""
