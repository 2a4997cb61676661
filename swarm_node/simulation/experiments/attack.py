"""`swarm-node experiment attack`: what do members do to a swarm that publish something else?

The plan "trigger": a quarter of the members put words before their right answers, and all nodes
share one model. The table shows how many of the others' own answers hold the words at the end, with
and without the guards. The plan "careless": three of ten members lie about rewards, repeat one task
and copy. The table shows held-out reward beside that of a swarm without them, and of nodes alone.
`hostile.py` has the members, `unguarded.py` the guards.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.table import Table

from swarm_node.errors import ConfigError
from swarm_node.simulation.experiments.arms import batch_of
from swarm_node.simulation.experiments.estimates import all_nodes, estimate, held_out
from swarm_node.simulation.experiments.plots import draw_bars, finish
from swarm_node.simulation.experiments.regimes import REGIMES
from swarm_node.simulation.experiments.skeleton import Case, Experiment, Results, results_table
from swarm_node.simulation.report import SimulationReport
from swarm_node.simulation.swarm import Scenario
from swarm_node.simulation.unguarded import GUARDS

_LENIENT = {"environment.name": "swarm_node.simulation.lenient:create"}
_ALONE = batch_of(8, 0)
#: What can be wrong with the content of an honest member's group.
_CONTENT = ("implausible", "too_large", "too_long", "own_copied", "repeated", "copied")


@dataclass(frozen=True, slots=True)
class _Swarm:
    hostile: tuple[str, ...] = ()
    without: tuple[str, ...] = ()
    flags: Mapping[str, Any] | None = None


def _trigger(nodes: int) -> dict[str, _Swarm]:
    swarms = {"no attacker": _Swarm()}
    for kind, off in (("large", GUARDS), ("within", ("likelihood",)), ("hidden", ("likelihood",))):
        hostile = (kind,) * max(1, nodes // 4)
        swarms[f"{kind}, {'no guard' if off == GUARDS else 'gate off'}"] = _Swarm(hostile, off)
        swarms[f"{kind}, guarded"] = _Swarm(hostile)
    return swarms


def _careless(nodes: int) -> dict[str, _Swarm]:
    kinds = ("liar", "lazy", "copier")
    hostile = tuple(kinds[index % 3] for index in range(max(1, 3 * nodes // 10)))
    return {
        "no attacker": _Swarm(),
        "no guard": _Swarm(hostile, GUARDS),
        "guarded": _Swarm(hostile),
        "alone": _Swarm(flags=_ALONE),
    }


_PLANS = {"trigger": _trigger, "careless": _careless}


@dataclass(frozen=True)
class Attack(Experiment[str]):
    """Compares swarms with and without attackers and guards.

    Raises:
        ConfigError: there is no such plan, or no such case in it.
    """

    name = "attack"
    picture = "attack.png"
    size = (8, 4)

    plan: str
    only: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.plan not in _PLANS:
            raise ConfigError(f"there is no plan {self.plan}: use {', '.join(_PLANS)}")
        unknown = sorted(set(self.only) - _PLANS[self.plan](self.nodes).keys())
        if unknown:
            known = "; ".join(_PLANS[self.plan](self.nodes))
            raise ConfigError(f"there is no case {unknown[0]}: choose from {known}")

    @property
    def place(self) -> str:
        return f"{self.plan}-{super().place}"

    def cases(self, directory: Path) -> Mapping[str, Case]:
        swarms = _PLANS[self.plan](self.nodes)
        trigger = self.plan == "trigger"
        models = () if trigger else (REGIMES["sparse"].model(directory),)
        shared = batch_of(4, 4) | (_LENIENT if trigger else {})
        return {
            name: Case(
                name.replace(", ", "-").replace(" ", "-"),
                Scenario(
                    self.nodes,
                    self.rounds,
                    eval_rounds=max(1, self.rounds // 2),
                    models=models or ("tiny",),
                    hostile=swarm.hostile,
                    without=swarm.without,
                ),
                {**shared, **self.flags, **(swarm.flags or {})},
            )
            for name, swarm in swarms.items()
            if not self.only or name in self.only
        }

    def tables(self, results: Results[str]) -> Iterable[Table]:
        """Held-out reward and the trigger in own answers, and what was refused."""
        headings = ("held-out", "trigger", "worst node", "alarms", "honest refused")
        title = "at the end, mean ± 95% interval over seeds"
        table = results_table(title, ("swarm",), headings)
        counts = results_table("groups refused, of all members", ("swarm",), _CONTENT)
        for name, reports in results.items():
            nodes = all_nodes(reports)
            table.add_row(
                name,
                f"{held_out(reports)[1][-1]:.3f}",
                f"{estimate([_mean_triggered(report) for report in reports]):.3f}",
                f"{max(node.triggered for node in nodes):.3f}",
                f"{sum(bool(node.alarms) for node in nodes)} of {len(nodes)}",
                f"{_honest_share(reports):.2%}",
            )
            refused = [sum(node.rejected.get(key, 0) for node in nodes) for key in _CONTENT]
            counts.add_row(name, *map(str, refused))
        return [table, counts]

    def draw(self, figure: Any, results: Results[str]) -> None:
        """Held-out reward over updates."""
        panel = figure.subplots()
        for name, reports in results.items():
            rounds, points = held_out(reports)
            draw_bars(panel, rounds, points, name)
        panel.set(xlabel="updates", ylabel="held-out reward (pass@1)")
        finish((panel,), "swarm")


def _mean_triggered(report: SimulationReport) -> float:
    return sum(node.triggered for node in report.nodes) / len(report.nodes)


def _honest_share(reports: Iterable[SimulationReport]) -> float:
    """Refused groups of honest members among all of theirs that were judged or trained on."""
    refused = taken = 0
    for report in reports:
        for node in report.nodes:
            refused += sum(node.refused.get(reason, 0) for reason in _CONTENT)
            taken += node.groups_received
    return refused / max(1, taken + refused)
