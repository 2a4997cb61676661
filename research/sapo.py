"""`python -m research sapo`: the arms of the paper (arXiv 2509.08721)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.table import Table

from research.arms import (
    ARMS,
    DEFAULT,
    REGIMES,
    Arm,
    RegimeExperiment,
    chosen_arms,
    informative_counts,
)
from research.budgets import (
    CostRatio,
    answers_made,
    at_equal_cost,
    budget_costs,
    cpu_seconds,
    mean_cost,
)
from research.estimates import (
    all_nodes,
    area,
    declared_seeds,
    estimate,
    held_out,
    paired,
    per_update,
)
from research.scenario import StudyScenario
from research.skeleton import HELD_OUT, Case, Results, draw_band, results_table

_PAPER = tuple(arm.paper for arm in ARMS if arm.name == "8/0" and arm.paper is not None)
#: Generation takes 60 to 80% of the time of a node with a model of 1.5 billion weights on one card
#: (docs/experiments.md).
USUAL_RATIO = CostRatio(70, 30)


@dataclass(frozen=True)
class Sapo(RegimeExperiment[Arm]):
    """`arms` names some of ARMS (none: all). `model` takes the place of the regime's own. `first`
    is the index of the first declared seed. `ratio` is that of the comparison at equal time."""

    name = "sapo"
    picture = "arms.png"
    size = (11, 7.6)

    arms: tuple[str, ...] = ()
    model: str | None = None
    first: int = 0
    ratio: CostRatio = USUAL_RATIO

    def declared(self) -> Mapping[int, int]:
        seeds = declared_seeds(self.first + self.seeds, self.name)
        return dict(list(enumerate(seeds))[self.first :])

    def cases(self, directory: Path) -> Mapping[Arm, Case]:
        arms, regime = chosen_arms(self.arms), REGIMES[self.regime]
        scenario = StudyScenario(
            self.nodes,
            self.rounds,
            families_per_node=regime.families_per_node,
            models=(self.model or regime.model(directory),),
        )
        return {
            arm: Case(arm.directory, arm.scenario(scenario), arm.flags(self.shared)) for arm in arms
        }

    def tables(self, results: Results[Arm]) -> Iterable[Table]:
        swarms = {arm: reports for arm, reports in results.items() if not arm.supervised}
        yield held_out_table(results)
        yield budget_table(results, self.ratio)
        if any(arm.name == DEFAULT for arm in results):
            yield difference_table(results, self.ratio)
        yield reward_table(swarms)
        yield mechanism_table(swarms)

    def draw(self, figure: Any, results: Results[Arm]) -> None:
        """Held-out reward over updates, answers made, time at the cost ratio, and CPU seconds."""
        (by_round, by_answer), (by_time, by_cpu) = figure.subplots(2, 2, sharey=True)
        priced = ((by_answer, answers_made), (by_time, self.ratio.spent), (by_cpu, cpu_seconds))
        for arm, reports in results.items():
            rounds, points = held_out(reports)
            line = "--" if arm.supervised else "-"
            colour = draw_band(by_round, rounds, points, arm.name, linestyle=line)
            for panel, cost in () if arm.supervised else priced:
                spent = mean_cost(cost, reports)
                # The start cost nothing, which a logarithm cannot show.
                places = [spent[entry] for entry in rounds][1:]
                draw_band(panel, places, points[1:], arm.name, color=colour)
        by_round.set(xlabel="updates", title="equal training")
        by_answer.set(xlabel="answers made per node", title="equal generation", xscale="log")
        ratio = f"{self.ratio.made:g}:{self.ratio.trained:g}"
        by_time.set(xlabel="batches", title=f"equal time at {ratio}", xscale="log")
        by_cpu.set(xlabel="CPU seconds per node", title="equal compute", xscale="log")
        for panel, _ in priced:
            panel.xaxis.set_minor_formatter("")  # labels within a decade would overlap
        for panel in (by_round, by_answer, by_time, by_cpu):
            panel.set(ylabel="held-out reward (pass@1)")
            panel.grid(alpha=0.3)
        figure.legend(*by_round.get_legend_handles_labels(), loc="outside right upper")


def held_out_table(results: Results[Arm]) -> Table:
    """The main table: held-out reward of the nodes' own samples. Its area is the mean over the
    updates of a run."""
    table = results_table(HELD_OUT, ("arm",), ("start", "middle", "end", "area", "seeds"))
    for arm, reports in results.items():
        _, points = held_out(reports)
        start = f"{reports[0].eval_reward.start:.3f}"
        middle, end = f"{points[len(points) // 2]:.3f}", f"{points[-1]:.3f}"
        whole = f"{estimate(list(map(area, reports))):.3f}"
        table.add_row(arm.name, start, middle, end, whole, str(len(reports)))
    return table


def budget_table(results: Results[Arm], ratio: CostRatio) -> Table:
    """Held-out reward of each arm at the cost of the cheapest arm's whole run."""
    costs = budget_costs(ratio)
    columns = [at_equal_cost(results, cost) for cost in costs.values()]
    title = "held-out reward at equal cost of a node, mean ± 95% interval"
    headings = [f"{budget:.3g} {unit}" for (budget, _), unit in zip(columns, costs, strict=True)]
    table = results_table(title, ("arm",), headings)
    for arm in columns[0][1]:
        table.add_row(arm.name, *(f"{estimate(column[arm]):.3f}" for _, column in columns))
    return table


def difference_table(results: Results[Arm], ratio: CostRatio) -> Table:
    """Gain of the default over each other arm, seed by seed."""
    title = "held-out reward of the default less that of the arm, paired by seed"
    costs = budget_costs(ratio)
    columns: list[Mapping[Arm, Sequence[float]]] = [
        {arm: list(map(area, reports)) for arm, reports in results.items()},
        *(at_equal_cost(results, cost)[1] for cost in costs.values()),
    ]
    table = results_table(title, ("arm",), ("area", *(f"equal {unit}" for unit in costs)))
    (default,) = (arm for arm in results if arm.name == DEFAULT)
    for arm in results:
        if arm is not default and not arm.supervised:
            cells = (paired(column[default], column[arm]) for column in columns)
            table.add_row(arm.name, *(f"{cell:+.3f}" for cell in cells))
    return table


def reward_table(results: Results[Arm]) -> Table:
    """Cumulative rewards of own groups and of batches. The latter is SAPO's own metric; the paper's
    figures stand next to it."""
    title = "cumulative reward; the paper's figures are of its own setting"
    table = results_table(title, ("arm",), ("own groups", "", "batch", "", "paper", ""))
    base = next((reports for arm, reports in results.items() if arm.name == "8/0"), ())
    own_base = [report.cumulative_local_reward for report in base]
    batch_base = [report.cumulative_batch_reward for report in base]
    for arm, reports in results.items():
        own_reward = estimate([report.cumulative_local_reward for report in reports])
        batch_reward = estimate([report.cumulative_batch_reward for report in reports])
        table.add_row(
            arm.name,
            *(f"{own_reward:.1f}", _against(own_reward.mean, own_base)),
            *(f"{batch_reward:.1f}", _against(batch_reward.mean, batch_base)),
            *("", "") if arm.paper is None else (f"{arm.paper:.2f}", _against(arm.paper, _PAPER)),
        )
    return table


def mechanism_table(results: Results[Arm]) -> Table:
    """Groups that each arm had to learn from, and its cost."""
    title = "per update and node; expected = p·I + min(B-I, (N-1)·p·I)"
    headings = ("informative", "expected", "answers made", "own lag", "CPU ms", "KiB in")
    table = results_table(title, ("arm",), headings)
    for arm, reports in results.items():
        counts = [informative_counts(report) for report in reports]
        answers = [answers_made(report)[-1] / len(report.rounds.sampled) for report in reports]
        nodes = all_nodes(reports)
        table.add_row(
            arm.name,
            *(f"{sum(column) / len(counts):.2f}" for column in zip(*counts, strict=True)),
            f"{sum(answers) / len(answers):.1f}",
            f"{sum(node.local_staleness for node in nodes) / len(nodes):.1f}",
            f"{per_update(nodes, lambda node: 1000 * node.cpu_seconds):.0f}",
            f"{per_update(nodes, lambda node: node.bytes_received) / 1024:.1f}",
        )
    return table


def _against(value: float, base: Sequence[float]) -> str:
    return f"{value / estimate(base).mean - 1:+.0%}" if base else ""
