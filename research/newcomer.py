"""`python -m research newcomer`: the gain of a node that joins a trained swarm.

A swarm trains for a while, then one more node joins it with the weights that all began with. Three
kinds of nodes are compared with it: nodes that begin alone with default settings, nodes that begin
alone and throw uninformative groups away, and one that is told right answers. The table shows the
updates and answers that each takes to nine tenths of the swarm's reward when the node joined.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any, NamedTuple

from rich.table import Table

from research.arms import REGIMES, RegimeExperiment, chosen_arms
from research.estimates import Curve, estimate, over_seeds
from research.scenario import StudyScenario
from research.skeleton import HELD_OUT, Case, Results, draw_band, finish, results_table
from research.swarm import late_node
from swarm_node.simulation.report import SimulationReport

_JOINS = "joins"
_ALONE = "alone"
#: The arm of the other nodes, by case.
_ARMS = {_ALONE: "default", "alone+filter": "8/0+filter", "supervised": "supervised"}
#: Part of the swarm's reward.
_SHARE = 0.9
_EVAL_ROUNDS = 5


class Reached(NamedTuple):
    """Cost of a node when it reached a reward; the cost of its whole run if it `never` did."""

    updates: float
    answers: float
    never: bool


@dataclass(frozen=True)
class Newcomer(RegimeExperiment[str]):
    """A node joins `nodes` others after `rounds` updates and does half as many. Nodes alone do
    `rounds`, and with default settings, which learn slowly, twice as many."""

    name = "newcomer"
    picture = "newcomer.png"
    size = (8, 4)

    def cases(self, directory: Path) -> Mapping[str, Case]:
        regime = REGIMES[self.regime]
        rounds, late = self.rounds, self.rounds + max(1, self.rounds // 2)
        alone = StudyScenario(
            1, rounds, eval_rounds=_EVAL_ROUNDS, models=(regime.model(directory),)
        )
        joins = replace(alone, nodes=self.nodes + 1, rounds=late, late=rounds)
        cases = {_JOINS: Case(_JOINS, joins, self.shared)}
        for name, chosen in _ARMS.items():
            (arm,) = chosen_arms((chosen,))
            count = rounds * (2 if name == _ALONE else 1)
            scenario = arm.scenario(replace(alone, rounds=count))
            cases[name] = Case(name.replace("+", "-"), scenario, arm.flags(self.shared))
        return cases

    def tables(self, results: Results[str]) -> Iterable[Table]:
        aims = [_SHARE * report.eval_reward.curve[1][1] for report in results[_JOINS]]
        by_case = {
            name: [reached(report, aim) for report, aim in zip(reports, aims, strict=True)]
            for name, reports in results.items()
        }
        title = f"to {_SHARE:.0%} of the swarm's reward at the time ({estimate(aims):.3f})"
        headings = ("updates", "answers made", "updates / alone", "answers / alone", "never")
        table = results_table(title, ("node",), headings)
        alone = by_case[_ALONE]
        for name, rows in by_case.items():
            pairs = list(zip(rows, alone, strict=True))
            table.add_row(
                name,
                f"{estimate([row.updates for row in rows]):.1f}",
                f"{estimate([row.answers for row in rows]):.0f}",
                f"{estimate([row.updates / base.updates for row, base in pairs]):.2f}",
                f"{estimate([row.answers / base.answers for row, base in pairs]):.3f}",
                f"{sum(row.never for row in rows)} of {len(rows)}",
            )
        return [table, self._progress(results)]

    def _progress(self, results: Results[str]) -> Table:
        whole = self.rounds // _EVAL_ROUNDS
        places = sorted({max(1, whole * part // 8) for part in (1, 2, 3, 4, 8)})
        table = results_table(HELD_OUT, ("node",), [f"{n * _EVAL_ROUNDS}" for n in places])
        for name, reports in results.items():
            _, points = over_seeds(list(map(_curve, reports)))
            table.add_row(name, *(f"{points[n]:.3f}" for n in places if n < len(points)))
        return table

    def draw(self, figure: Any, results: Results[str]) -> None:
        """Held-out reward over the node's own updates."""
        panel = figure.subplots()
        for name, reports in results.items():
            rounds, points = over_seeds(list(map(_curve, reports)))
            draw_band(panel, rounds, points, name)
        panel.set(xlabel="updates of the node", ylabel="held-out reward (pass@1)")
        finish((panel,), "node")


def reached(report: SimulationReport, reward: float) -> Reached:
    """Cost at which the newcomer of a report, or else its nodes, had this held-out reward,
    interpolated between two measurements."""
    curve, joined = _curve(report), late_node(report)
    size = report.settings["sampling"]["group_size"]
    groups_per_round: Sequence[float] = joined.made if joined else report.rounds.sampled
    answers = list(accumulate((size * groups for groups in groups_per_round), initial=0.0))
    for (begin, before), (end, after) in pairwise(curve):
        if after >= reward:
            share = (reward - before) / (after - before)
            low, high = answers[begin], answers[end]
            return Reached(begin + share * (end - begin), low + share * (high - low), False)
    return Reached(curve[-1][0], answers[-1], True)


def _curve(report: SimulationReport) -> Curve:
    joined = late_node(report)
    return joined.curve if joined else report.eval_reward.curve
