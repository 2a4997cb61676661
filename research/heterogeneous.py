"""`python -m research heterogeneous`: nodes of two sizes and two tokenizers, in one swarm.

A strong model and a weak one each learn alone (8/0), among their own kind and in a swarm of both.
Every node of a run does the same number of updates on batches of the same size.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from rich.table import Table

from research.arms import Arm, chosen_arms
from research.estimates import (
    Curve,
    all_nodes,
    estimate,
    over_seeds,
    per_update,
)
from research.scenario import StudyScenario
from research.skeleton import Case, Experiment, Results, draw_band, finish, results_table
from swarm_node.errors import ConfigError
from swarm_node.policy.models.build_tiny import Noise, Recipe
from swarm_node.simulation.building import build_once
from swarm_node.simulation.models import model_digests
from swarm_node.simulation.report import SimulationReport

ALONE = "8/0"
KINDS = ("strong", "weak")
#: 77 thousand weights, other tokens, and a corpus with one right, bare answer in 33.
WEAK = Recipe(
    "small", "words", Noise(bare_share=0.03, wrong_share=0.15, evasive_share=0.20), steps=1000
)
_LABELS = ("nodes", "with", "arm")


class Composition(NamedTuple):
    """One swarm: its kinds of nodes, and how they compose a batch."""

    kinds: tuple[str, ...]
    arm: Arm

    @property
    def name(self) -> str:
        """The name of the swarm in tables; it is the same for either kind."""
        if self.arm.name == ALONE:
            return "alone"
        return "both kinds" if len(self.kinds) > 1 else "own kind"

    def curve(self, report: SimulationReport, kind: str) -> Curve:
        """The curve of a kind's nodes in this swarm."""
        return report.models[self.kinds.index(kind)].curve


@dataclass(frozen=True)
class Heterogeneous(Experiment[Composition]):
    """`arms` names some of ARMS, besides 8/0. `strong` and `weak` are models; without a weak one,
    the model of `WEAK` is built."""

    name = "heterogeneous"
    picture = "kinds.png"
    size = (10, 4.2)

    arms: tuple[str, ...]
    strong: str
    weak: str | None

    def cases(self, directory: Path) -> Mapping[Composition, Case]:
        swarms = compositions(chosen_arms((ALONE, *self.arms)))
        weak = self.weak or str(build_once(WEAK, directory))
        models = {"strong": self.strong, "weak": weak}
        if len({*model_digests([*models.values()])}) < len(models):
            raise ConfigError(
                "the strong and the weak model are the same: give another with --weak"
            )
        return {
            swarm: Case(
                f"{'-'.join(swarm.kinds)}/{swarm.arm.directory}",
                StudyScenario(
                    self.nodes, self.rounds, models=tuple(models[k] for k in swarm.kinds)
                ),
                swarm.arm.flags(self.flags),
            )
            for swarm in swarms
        }

    def tables(self, results: Results[Composition]) -> Iterable[Table]:
        return groups_table(results), gains_table(results)

    def draw(self, figure: Any, results: Results[Composition]) -> None:
        """A panel for each kind of node, with its curve in every swarm."""
        panels = figure.subplots(1, len(KINDS), sharey=True)
        for kind, swarm, reports in _rows(results):
            points = over_seeds([swarm.curve(report, kind) for report in reports])
            draw_band(panels[KINDS.index(kind)], *points, f"{swarm.name}, {swarm.arm.name}")
        for kind, panel in zip(KINDS, panels, strict=True):
            panel.set(xlabel="updates", title=f"{kind} nodes")
        panels[0].set(ylabel="held-out reward (pass@1)")
        finish(panels)


def compositions(arms: Sequence[Arm]) -> list[Composition]:
    """Each kind by itself with each of the arms, and both together with those that share."""
    single_kinds = [Composition((kind,), arm) for kind in KINDS for arm in arms]
    return single_kinds + [Composition(KINDS, arm) for arm in arms if arm.name != ALONE]


def groups_table(results: Results[Composition]) -> Table:
    """First and last reward of each kind in each swarm, its groups made and trained on, and its
    cost."""
    title = "held-out reward; groups and CPU time per update and node"
    table = results_table(title, _LABELS, ("start", "end", "made", "foreign", "CPU ms"))
    for kind, swarm, reports in _rows(results):
        model = swarm.kinds.index(kind)
        nodes = [node for node in all_nodes(reports) if node.model == model]
        curves = [swarm.curve(report, kind) for report in reports]
        table.add_row(
            *(kind, swarm.name, swarm.arm.name),
            f"{curves[0][0][1]:.3f}",
            f"{estimate([curve[-1][1] for curve in curves]):.3f}",
            f"{per_update(nodes, lambda node: node.sampled):.2f}",
            f"{per_update(nodes, lambda node: node.trained_cross_model):.2f}",
            f"{per_update(nodes, lambda node: 1000 * node.cpu_seconds):.0f}",
        )
    return table


def gains_table(results: Results[Composition]) -> Table:
    """Gain of a kind in each swarm over learning alone, early, midway and at the end. A gain is the
    difference of two runs with the same seed."""
    title = "held-out reward less that alone, mean ± 95% interval over seeds"
    points = next(iter(results.values()))[0].eval_reward.curve
    columns = sorted({1, len(points) // 2, len(points) - 1})
    table = results_table(title, _LABELS, [f"{points[at][0]} updates" for at in columns])
    baselines = {swarm.kinds: r for swarm, r in results.items() if swarm.arm.name == ALONE}
    for kind, swarm, reports in _rows(results):
        if swarm.arm.name != ALONE:
            bases = [report.models[0].curve for report in baselines[kind,]]
            curves = [swarm.curve(report, kind) for report in reports]
            pairs = list(zip(curves, bases, strict=True))
            gains = [[curve[at][1] - base[at][1] for curve, base in pairs] for at in columns]
            cells = [f"{estimate(values):+.3f}" for values in gains]
            table.add_row(kind, swarm.name, swarm.arm.name, *cells)
    return table


def _rows(
    results: Results[Composition],
) -> Iterator[tuple[str, Composition, Sequence[SimulationReport]]]:
    for kind in KINDS:
        for swarm, reports in results.items():
            if kind in swarm.kinds:
                yield kind, swarm, reports
