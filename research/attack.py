"""`python -m research attack`: the harm of members that publish something else than they made.

The plan "trigger": a quarter of the members put words before their right answers, and all nodes
share one model. The table shows the share of the others' own answers with the words at the end,
with and without the guards. The plan "quarter": a quarter of the members lie, copy, repeat one task
or put words before answers, or half of the members have another model. The table shows the others'
held-out reward beside two swarms: one where all are honest, and one without these members.
`hostile.py` has the members, `unguarded.py` the guards.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.table import Table

from research.arms import REGIMES
from research.estimates import Estimate, all_nodes, estimate, over_seeds
from research.heterogeneous import WEAK
from research.scenario import StudyScenario
from research.skeleton import Case, Experiment, Results, draw_bars, finish, results_table
from research.swarm import attack_figures
from research.unguarded import GUARDS
from swarm_node.errors import ConfigError
from swarm_node.simulation.building import build_once
from swarm_node.simulation.report import SimulationReport

_LENIENT = {"environment.name": "research.lenient:create"}
#: The reference case.
_HONEST = "no attacker"
#: The reference of the lenient cases of "quarter".
_LENIENTLY = "no attacker, lenient"
#: Reasons that concern the content of an honest member's group.
_CONTENT = ("implausible", "too_large", "too_long", "own_copied", "repeated", "copied")


@dataclass(frozen=True, slots=True)
class _AttackedSwarm:
    """A swarm of the comparison. Its `missing` members are not there. With `mixed`, every other
    member has another model. A `lenient` environment accepts any words before an answer."""

    hostile: tuple[str, ...] = ()
    without: tuple[str, ...] = ()
    missing: int = 0
    mixed: bool = False
    lenient: bool = False


def _trigger(nodes: int) -> dict[str, _AttackedSwarm]:
    swarms = {_HONEST: _AttackedSwarm(lenient=True)}
    for kind, off in (("large", GUARDS), ("within", ("likelihood",)), ("hidden", ("likelihood",))):
        hostile = (kind,) * max(1, nodes // 4)
        without = "no guard" if off == GUARDS else "gate off"
        swarms[f"{kind}, {without}"] = _AttackedSwarm(hostile, off, lenient=True)
        swarms[f"{kind}, guarded"] = _AttackedSwarm(hostile, lenient=True)
    return swarms


def _quarter(nodes: int) -> dict[str, _AttackedSwarm]:
    few, half = max(1, nodes // 4), nodes // 2
    return {
        _HONEST: _AttackedSwarm(),
        **{
            f"{kind}, guarded": _AttackedSwarm((kind,) * few) for kind in ("liar", "copier", "lazy")
        },
        "a quarter missing": _AttackedSwarm(missing=few),
        "half another model": _AttackedSwarm(mixed=True),
        "half missing": _AttackedSwarm(missing=half),
        _LENIENTLY: _AttackedSwarm(lenient=True),
        "within, guarded": _AttackedSwarm(("within",) * few, lenient=True),
    }


_PLANS = {"trigger": _trigger, "quarter": _quarter}


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
            case_names = "; ".join(_PLANS[self.plan](self.nodes))
            raise ConfigError(f"there is no case {unknown[0]}: choose from {case_names}")

    @property
    def place(self) -> str:
        return f"{self.plan}-{super().place}"

    def cases(self, directory: Path) -> Mapping[str, Case]:
        swarms = _PLANS[self.plan](self.nodes)
        model = "tiny" if self.plan == "trigger" else REGIMES["sparse"].model(directory)
        return {
            name: Case(
                name.replace(", ", "-").replace(" ", "-"),
                StudyScenario(
                    self.nodes - swarm.missing,
                    self.rounds,
                    eval_rounds=max(1, self.rounds // 2),
                    models=(model, str(build_once(WEAK, directory))) if swarm.mixed else (model,),
                    hostile=swarm.hostile,
                    without=swarm.without,
                ),
                {**(_LENIENT if swarm.lenient else {}), **self.flags},
            )
            for name, swarm in swarms.items()
            if not self.only or name in self.only
        }

    def tables(self, results: Results[str]) -> Iterable[Table]:
        """Held-out reward and the trigger in own answers, and counts of refusals."""
        headings = ("held-out", "of honest", "trigger", "worst node", "alarms", "honest refused")
        title = "at the end, mean ± 95% interval over seeds"
        table = results_table(title, ("swarm",), headings)
        counts = results_table("groups refused, of all members", ("swarm",), _CONTENT)
        swarms = _PLANS[self.plan](self.nodes)
        for name, reports in results.items():
            nodes = all_nodes(reports)
            figures = [attack_figures(node.study) for node in nodes]
            lenient = swarms[name].lenient and _LENIENTLY in swarms
            honest = results.get(_LENIENTLY if lenient else _HONEST)
            table.add_row(
                name,
                f"{_held_out(reports)[1][-1]:.3f}",
                _of_honest(reports, honest),
                f"{estimate([_mean_triggered(report) for report in reports]):.3f}",
                f"{max(each.triggered for each in figures):.3f}",
                f"{sum(bool(each.alarms) for each in figures)} of {len(nodes)}",
                f"{_honest_share(reports):.2%}",
            )
            refused = [sum(node.rejected.get(key, 0) for node in nodes) for key in _CONTENT]
            counts.add_row(name, *map(str, refused))
        return [table, counts]

    def draw(self, figure: Any, results: Results[str]) -> None:
        """Held-out reward over updates."""
        panel = figure.subplots()
        for name, reports in results.items():
            rounds, points = _held_out(reports)
            draw_bars(panel, rounds, points, name)
        panel.set(xlabel="updates", ylabel="held-out reward (pass@1)")
        finish((panel,), "swarm")


def _held_out(reports: Iterable[SimulationReport]) -> tuple[list[int], list[Estimate]]:
    """The curve of the nodes with the model of the plan."""
    return over_seeds([report.models[0].curve for report in reports])


def _of_honest(
    reports: Sequence[SimulationReport], honest: Sequence[SimulationReport] | None
) -> str:
    """The reward at the end as a share of that of the honest swarm with the same seed."""
    if honest is None:
        return ""
    ends = ([of.models[0].curve[-1][1] for of in swarm] for swarm in (reports, honest))
    return f"{estimate([end / base for end, base in zip(*ends, strict=True)]):.3f}"


def _mean_triggered(report: SimulationReport) -> float:
    figures = [attack_figures(node.study) for node in report.nodes]
    return sum(each.triggered for each in figures) / len(figures)


def _honest_share(reports: Iterable[SimulationReport]) -> float:
    """Refused groups of honest members among all of theirs that were judged or trained on."""
    refused_groups = received_groups = 0
    for report in reports:
        for node in report.nodes:
            counts = attack_figures(node.study).refused
            refused_groups += sum(counts.get(reason, 0) for reason in _CONTENT)
            received_groups += node.accepted
    return refused_groups / max(1, received_groups + refused_groups)
