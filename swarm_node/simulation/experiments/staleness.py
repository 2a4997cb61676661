"""`swarm-node experiment staleness`: does training improve on old groups over a bad network?

A lag of L means that no own group older than L updates is trained on (`experience.max_lag`),
while samplers get their weights L − 1 updates late, so that most are as old as they may be; an
update goes by while a group is made, as in any asynchronous node. Messages are delayed, overtake
each other and are lost. The lags that came of it are counted and shown beside.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from swarm_node.errors import ConfigError
from swarm_node.simulation.experiments.arms import declared_seeds, estimate
from swarm_node.simulation.experiments.plots import half_widths, over_seeds, saved
from swarm_node.simulation.experiments.resume import Case, run_cases
from swarm_node.simulation.experiments.sapo import experiment_table
from swarm_node.simulation.report import SimulationReport
from swarm_node.simulation.swarm import Plan

#: How old samples are taken: the node's default, its default with weights for peers' log-probs, and
#: nothing at all.
CORRECTIONS: Mapping[str, Mapping[str, Any]] = {
    "positive": {"training.loss": "decoupled", "experience.correction": "positive"},
    "sampler": {"training.loss": "decoupled", "experience.correction": "sampler"},
    "none": {"training.loss": "reinforce", "experience.correction": "own"},
}
LAGS = (0, 1, 2, 4, 8, 16)

#: By correction and lag.
Results = Mapping[tuple[str, int], Sequence[SimulationReport]]


@dataclass(frozen=True, slots=True)
class Staleness:
    """What to run: every correction named with every lag, over the first `seeds` declared seeds.
    `delay` and `loss` are those of a `Plan`; `flags` are settings that all share.

    Raises:
        ConfigError: no such correction, a negative lag, or fewer than 3 rounds.
    """

    nodes: int = 4
    rounds: int = 40
    seeds: int = 3
    lags: tuple[int, ...] = LAGS
    corrections: tuple[str, ...] = tuple(CORRECTIONS)
    delay: tuple[float, float] = (0.5, 4.0)
    loss: float = 0.1
    flags: Mapping[str, Any] = field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        unknown = [name for name in self.corrections if name not in CORRECTIONS]
        if self.rounds < 3:
            raise ConfigError("held-out reward is shown at thirds: make at least 3 rounds")
        if unknown or min(self.lags) < 0:
            known = ", ".join(CORRECTIONS)
            raise ConfigError(f"corrections are {known}, lags 0 or more updates: {unknown or ''}")

    def case(self, correction: str, lag: int) -> Case:
        """What is simulated for one of them."""
        plan = Plan(
            self.nodes,
            self.rounds,
            delay=self.delay,
            loss=self.loss,
            behind=max(0, lag - 1),
            eval_rounds=max(1, self.rounds // 3),
        )
        flags = {"experience.max_lag": lag, **self.flags, **CORRECTIONS[correction]}
        return Case(f"{correction}-lag-{lag}", plan, flags)


def run_staleness(experiment: Staleness, directory: Path) -> None:
    """Run what is missing below `directory`, then print the table and draw the curve.

    Raises:
        SwarmNodeError: a setting is impossible, or the directory cannot be written.
    """
    keys = [(name, lag) for lag in experiment.lags for name in experiment.corrections]
    cases = [experiment.case(*key) for key in keys]
    place = directory / f"n{experiment.nodes}-r{experiment.rounds}"
    seeds = declared_seeds(experiment.seeds, "staleness")
    results = dict(zip(keys, run_cases("staleness", cases, seeds, place), strict=True))
    Console(highlight=False).print(staleness_table(results))
    picture = place / "staleness.png"
    if draw_staleness(results, picture):
        print(f"wrote {picture}")


def staleness_table(results: Results) -> Table:
    """Lags as set and as counted, groups per update (of peers among them), and held-out reward at a
    third, two thirds and the end."""
    table = experiment_table("held-out reward, mean ± 95% confidence interval over seeds")
    headings = ("correction", "lag", "own (most)", "peers'", "groups (peers')", "1/3", "2/3", "end")
    for heading in headings:
        table.add_column(heading, justify="left" if heading == "correction" else "right")
    for (correction, lag), reports in results.items():
        nodes = [node for report in reports for node in report.nodes]
        trained = sum(node.trained_own + node.trained_external for node in nodes)
        external = sum(node.trained_external for node in nodes)
        updates = sum(len(report.nodes) * len(report.rounds.own) for report in reports)
        curves = [report.held_out.curve for report in reports]
        table.add_row(
            correction,
            str(lag),
            f"{_mean([node.own_lag for node in nodes]):.1f} "
            f"({max(node.own_lag_most for node in nodes)})",
            f"{_mean([node.peers_lag for node in nodes]):.1f}",
            f"{trained / updates:.1f} ({external / updates:.1f})",
            *(f"{estimate([curve[at][1] for curve in curves]):.3f}" for at in (1, 2, -1)),
        )
    return table


def draw_staleness(results: Results, path: Path) -> bool:
    """Held-out reward at the end over lags, and over updates at the largest lag. False without
    matplotlib (extra `plot`).

    Raises:
        SwarmNodeError: the file cannot be written.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError:
        return False
    figure = Figure(figsize=(11, 4), layout="constrained")
    over_lags, over_updates = figure.subplots(1, 2, sharey=True)
    lags = sorted({lag for _, lag in results})
    for name in dict.fromkeys(name for name, _ in results):
        ends = [estimate([report.held_out.end for report in results[name, lag]]) for lag in lags]
        places = range(len(lags))
        over_lags.errorbar(
            places, [end.mean for end in ends], half_widths(ends), capsize=3, label=name
        )
        rounds, points = over_seeds([r.held_out.curve for r in results[name, lags[-1]]])
        over_updates.plot(rounds, [point.mean for point in points], marker=".", label=name)
    over_lags.set_xticks(range(len(lags)), [str(lag) for lag in lags])
    over_lags.set(xlabel="lag as set, updates", ylabel="held-out reward (pass@1)", title="end")
    over_updates.set(xlabel="updates", title=f"lag {lags[-1]}")
    for panel in (over_lags, over_updates):
        panel.grid(alpha=0.3)
        panel.legend(title="correction")
    saved(figure, path)
    return True


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
