"""The arms of an experiment at equal cost. An update of one arm may cost five groups of own
sampling less than an update of another. Pure."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

from research.arms import Arm
from research.skeleton import Results
from swarm_node.errors import ConfigError
from swarm_node.simulation.report import SimulationReport

#: Answers of the batch in which time is counted.
BATCH_ANSWERS = 64
#: Cost of a run for one node at the end of each round, from 0 rounds on; never falls.
Cost = Callable[[SimulationReport], Sequence[float]]


@dataclass(frozen=True, slots=True)
class CostRatio:
    """Cost of a language model's node: seconds per group made, and per informative group trained
    on. Only their ratio matters.

    Raises:
        ConfigError: a cost is negative, or both are 0.
    """

    made: float
    trained: float

    def __post_init__(self) -> None:
        if not (min(self.made, self.trained) >= 0 and 0 < self.made + self.trained < math.inf):
            raise ConfigError("a cost ratio is two numbers of 0 or more that are not both 0")

    def spent(self, report: SimulationReport) -> Sequence[float]:
        """The time at the end of each round, in batches of eight groups of eight that are made and
        trained on whole. A smaller group costs less in proportion."""
        unit = BATCH_ANSWERS * (self.made + self.trained)
        rounds, size = report.rounds, report.settings["sampling"]["group_size"]
        costs = (
            size * (self.made * made_groups + self.trained * trained_groups) / unit
            for made_groups, trained_groups in zip(
                rounds.sampled, rounds.mixed_in_batch, strict=True
            )
        )
        return list(accumulate(costs, initial=0.0))


def budget_costs(ratio: CostRatio) -> Mapping[str, Cost]:
    """Costs of one node that are held equal, by their unit."""
    return {
        "updates": _updates,
        "answers": answers_made,
        f"batches of time at {ratio.made:g}:{ratio.trained:g}": ratio.spent,
        "CPU s": cpu_seconds,
    }


def at_equal_cost(results: Results[Arm], cost: Cost) -> tuple[float, dict[Arm, list[float]]]:
    """The whole run's cost of the cheapest arm, and the held-out reward of each run at that cost. A
    supervised arm makes nothing, so it has no cost to compare."""
    swarms = {arm: reports for arm, reports in results.items() if not arm.supervised}
    budget = min(cost(report)[-1] for reports in swarms.values() for report in reports)
    return budget, {
        arm: [reward_at(report, cost(report), budget) for report in reports]
        for arm, reports in swarms.items()
    }


def reward_at(report: SimulationReport, spent: Sequence[float], budget: float) -> float:
    """Held-out reward at the cost `budget`, interpolated between two measurements.

    `spent` is the cost up to each round. Beyond the last measurement the last one stands.
    """
    curve = [(spent[entry], reward) for entry, reward in report.eval_reward.curve]
    after = bisect_left(curve, budget, key=lambda point: point[0])
    if after == 0 or after == len(curve):
        return curve[min(after, len(curve) - 1)][1]
    (low, before), (high, reward) = curve[after - 1 : after + 1]
    return before + (reward - before) * (budget - low) / (high - low)


def _updates(report: SimulationReport) -> Sequence[float]:
    return range(len(report.rounds.sampled) + 1)


def groups_made(report: SimulationReport) -> Sequence[float]:
    """Groups that a node had made at the end of each round."""
    return list(accumulate(report.rounds.sampled, initial=0.0))


def answers_made(report: SimulationReport) -> Sequence[float]:
    """Answers that a node had made at the end of each round."""
    size = report.settings["sampling"]["group_size"]
    return [size * groups for groups in groups_made(report)]


def cpu_seconds(report: SimulationReport) -> Sequence[float]:
    """CPU seconds that a node had used at the end of each round. A report has the sum of the run
    only, so every round is taken to cost the same."""
    rounds, nodes = len(report.rounds.sampled), len(report.nodes)
    return [report.cpu_seconds / nodes * entry / rounds for entry in range(rounds + 1)]


def mean_cost(cost: Cost, reports: Sequence[SimulationReport]) -> list[float]:
    """Cost of a node at the end of each round, from 0 rounds on; mean over seeds."""
    return [sum(at) / len(reports) for at in zip(*map(cost, reports), strict=True)]
