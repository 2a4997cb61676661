"""The arms of an experiment at equal cost. An update of one arm may cost five groups of own
sampling less than an update of another. Pure."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate

from rich.table import Table

from swarm_node.simulation.experiments.arms import Arm
from swarm_node.simulation.experiments.estimates import estimate
from swarm_node.simulation.experiments.skeleton import Results, results_table
from swarm_node.simulation.report import SimulationReport

#: What a run had cost a node at the end of each round, from 0 rounds on; never falls.
Cost = Callable[[SimulationReport], Sequence[float]]


def budget_table(results: Results[Arm]) -> Table:
    """Held-out reward when each arm had spent what the cheapest one spent in the whole run:
    updates, groups made, CPU seconds (each of one node)."""
    costs: Mapping[str, Cost] = {
        "updates": _updates,
        "groups made": groups_made,
        "CPU s": cpu_seconds,
    }
    budgets = {
        name: min(cost(report)[-1] for reports in results.values() for report in reports)
        for name, cost in costs.items()
    }
    title = "held-out reward at equal cost of a node, mean ± 95% interval"
    headings = [f"{budget:.3g} {name}" for name, budget in budgets.items()]
    table = results_table(title, ("arm",), headings)
    for arm, reports in results.items():
        cells = (
            estimate([reward_at(report, cost(report), budgets[name]) for report in reports])
            for name, cost in costs.items()
        )
        table.add_row(arm.name, *(f"{cell:.3f}" for cell in cells))
    return table


def reward_at(report: SimulationReport, spent: Sequence[float], budget: float) -> float:
    """Held-out reward when `budget` was spent, interpolated between two measurements.

    `spent` is the cost up to each round. Beyond the last measurement the last one stands.
    """
    curve = [(spent[entry], reward) for entry, reward in report.held_out.curve]
    after = bisect_left(curve, budget, key=lambda point: point[0])
    if after == 0 or after == len(curve):
        return curve[min(after, len(curve) - 1)][1]
    (low, before), (high, reward) = curve[after - 1 : after + 1]
    return before + (reward - before) * (budget - low) / (high - low)


def _updates(report: SimulationReport) -> Sequence[float]:
    return range(len(report.rounds.made) + 1)


def groups_made(report: SimulationReport) -> Sequence[float]:
    """Groups that a node had made at the end of each round."""
    return list(accumulate(report.rounds.made, initial=0.0))


def cpu_seconds(report: SimulationReport) -> Sequence[float]:
    """CPU seconds that a node had used at the end of each round. A report has the sum of the run
    only, so every round is taken to cost the same."""
    rounds, nodes = len(report.rounds.made), len(report.nodes)
    return [report.cpu_seconds / nodes * entry / rounds for entry in range(rounds + 1)]


def mean_cost(cost: Cost, reports: Sequence[SimulationReport]) -> list[float]:
    """What a node had spent at the end of each round, from 0 rounds on; mean over seeds."""
    return [sum(at) / len(reports) for at in zip(*map(cost, reports), strict=True)]
