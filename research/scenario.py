"""What the scenario of a study has beyond that of a simulation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from research.hostile import KINDS
from research.unguarded import GUARDS
from swarm_node.errors import ConfigError
from swarm_node.simulation.scenario import Scenario


@dataclass(frozen=True)
class StudyScenario(Scenario):
    """A scenario with what studies compare.

    hostile: kinds of the last members (`hostile.KINDS`), which a report does not count as nodes.
    without: guards that no node has (`unguarded.GUARDS`).
    supervised: nodes train on right answers in place of their batches (`supervised.py`).
    told: the number of first updates that are supervised.
    late: rounds of the others after which the last node joins, 0 for none that is late. It does
        `rounds` - `late` rounds. A report has its figures apart (`LateNode`), and those of the
        others every `late` rounds.
    fresh_tasks: reward is measured on tasks that are drawn anew for each `seed`.
    eval_at: the rounds after which reward is measured in place of `eval_rounds`, and the last one.
    eval_nodes: number of the first nodes, whose reward is measured; 0 for all.
    samplers: the samplers that feed one node, each with its weights: tokens take it less time in
        proportion, and the bytes of the weights are counted. 0 for a node that samples itself.
    filtered: own groups of equal rewards leave the buffer at once.

    Raises:
        ConfigError: a value is impossible; the message says what is possible.
    """

    hostile: tuple[str, ...] = ()
    without: tuple[str, ...] = ()
    supervised: bool = False
    told: int = 0
    late: int = 0
    fresh_tasks: bool = False
    eval_at: tuple[int, ...] = ()
    eval_nodes: int = 0
    samplers: int = 0
    filtered: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if min(self.samplers, self.eval_nodes, self.told) < 0:
            raise ConfigError("samplers, measured nodes and supervised updates are 0 or more")
        if self.samplers and self.nodes > 1:
            raise ConfigError("samplers feed one node, not several")
        if len(self.hostile) >= self.nodes or not set(self.hostile) <= set(KINDS):
            raise ConfigError(f"fewer hostile members than nodes, of the kinds {', '.join(KINDS)}")
        if not set(self.without) <= set(GUARDS):
            raise ConfigError(f"the guards that can be taken out are {', '.join(GUARDS)}")
        if not 0 <= self.late < self.rounds or (self.late and (self.hostile or self.nodes == 1)):
            raise ConfigError(
                "a late node joins others before the last round, and no one is hostile"
            )

    @property
    def counted(self) -> int:
        """The number of the first members that a report counts as nodes."""
        return self.nodes - len(self.hostile) - (self.late > 0)

    def joins_late(self, index: int) -> bool:
        """Check that node `index` is the one that joins late."""
        return self.late > 0 and index == self.nodes - 1

    def is_eval_round(self, index: int, entry: int) -> bool:
        if self.late and not self.joins_late(index):
            return entry % self.late == 0
        return entry in self.eval_at if self.eval_at else super().is_eval_round(index, entry)

    def plan(self) -> dict[str, Any]:
        """As a simulation's, with what differs from it: a study's plan without such differences
        equals that of `swarm-node simulate`."""
        field_names = Scenario.__dataclass_fields__.keys()
        return {key: value for key, value in super().plan().items() if key in field_names or value}
