"""The arms: ways to compose a batch of own and peers' groups. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from swarm_node.errors import ConfigError
from swarm_node.simulation.report import SimulationReport


@dataclass(frozen=True, slots=True)
class Arm:
    """One way to compose a batch. `settings` are further settings of the nodes by dotted key.
    `paper` is the cumulative reward that arXiv 2509.08721 reports for it."""

    name: str
    own: int
    external: int
    settings: Mapping[str, Any] = field(default_factory=dict, hash=False)
    paper: float | None = None

    @property
    def directory(self) -> str:
        """The name of its directory."""
        return self.name.replace("/", "-").replace("+", "-")

    def flags(self, shared: Mapping[str, Any]) -> dict[str, Any]:
        """The settings of this arm's nodes. `shared` are those of all arms; the arm's own
        `settings` override them."""
        return {
            "experience.own": self.own,
            "experience.external": self.external,
            **shared,
            **self.settings,
        }


ARMS = (
    Arm("8/0", 8, 0, paper=561.79),
    Arm("8/0+filter", 8, 0, {"experience.filter_own": True}),
    Arm("6/2", 6, 2, paper=854.43),
    Arm("4/4", 4, 4, paper=1093.31),
    Arm("2/6", 2, 6, paper=945.87),
    Arm("1/7", 1, 7),
    Arm("adaptive", 4, 4, {"experience.external": "auto"}),
)


def chosen_arms(names: Sequence[str]) -> list[Arm]:
    """The arms named, in the order of ARMS; all if there are no names.

    Raises:
        ConfigError: there is no such arm.
    """
    unknown = sorted(set(names) - {arm.name for arm in ARMS})
    if unknown:
        known = ", ".join(arm.name for arm in ARMS)
        raise ConfigError(f"there is no arm {unknown[0]}: choose from {known}")
    return [arm for arm in ARMS if not names or arm.name in names]


def expected_informative(own: float, external: float, nodes: int, p: float) -> float:
    """Informative groups per update if a share `p` of own groups is: p·I + min(J, (N−1)·p·I).

    A node borrows J groups per update, and each node's informative groups reach N−1 others at most.
    """
    return p * own + min(external, (nodes - 1) * p * own)


def informative_counts(report: SimulationReport, arm: Arm) -> tuple[float, float]:
    """Informative groups per update: as counted, and as `expected_informative` predicts them.

    The prediction is made round by round. Its p is the share of informative groups among those made
    in the round. Its I is the number of groups that nodes made, up to a batch, because they make up
    for what peers did not send in time. With a filter all groups trained on are informative.
    """
    rounds, size = report.rounds, arm.own + arm.external
    if arm.settings.get("experience.filter_own"):
        return report.informative_per_update, float(size)
    predicted = []
    for mixed, made in zip(rounds.mixed, rounds.made, strict=True):
        if made:
            own = min(made, size)
            predicted.append(expected_informative(own, size - own, len(report.nodes), mixed / made))
    return report.informative_per_update, sum(predicted) / max(1, len(predicted))
