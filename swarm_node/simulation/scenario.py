"""The scenario of a simulation, besides the settings."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from swarm_node.errors import ConfigError
from swarm_node.simulation.hostile import KINDS
from swarm_node.simulation.models import model_digests
from swarm_node.simulation.paced import Pace
from swarm_node.simulation.report import plain
from swarm_node.simulation.unguarded import GUARDS

#: Fields that a description omits at their default, so that runs from before these fields stay
#: valid.
_LATER = (
    *("hostile", "without", "supervised", "told", "late", "fresh_tasks"),
    *("eval_at", "eval_nodes", "samplers", "by_rows"),
)
#: Fields that are described where they stood as settings.
_ELSEWHERE = ("filtered", "common")


@dataclass(frozen=True, slots=True)
class Scenario:
    """The scenario of a simulation, besides the settings that all nodes share.

    rounds: batches per node.
    seed: decides everything that is left to chance.
    specialised: task families that each node samples, 0 for all. Node i starts at family
        i × specialised.
    delay: a message takes a uniform draw from this range of virtual seconds.
    loss: the probability that a message is lost.
    speeds: the speed of a node is a uniform draw from this range.
    behind: updates by which samplers get their weights late.
    samplers: the samplers that feed one node, each with its weights: tokens take it less time in
        proportion, and the bytes of the weights are counted. 0 for a node that samples itself.
    eval_rounds, eval_tasks: rounds between measurements of reward, and tasks per family with
        unseen texts.
    eval_at: these rounds instead, and the last one.
    eval_nodes: number of the first nodes, whose reward is measured; 0 for all.
    models: "tiny" or directories, dealt to the nodes in turn.
    hostile: kinds of the last members (`hostile.KINDS`), which a report does not count as nodes.
    without: guards that no node has (`unguarded.GUARDS`).
    supervised: nodes train on right answers in place of their batches (`supervised.py`).
    told: the number of first updates that are supervised.
    late: rounds of the others after which the last node joins, 0 for none that is late. It does
        `rounds` - `late` rounds. A report has its figures apart (`LateNode`), and those of the
        others every `late` rounds.
    fresh_tasks: reward is measured on tasks that are drawn anew for each `seed`.
    by_rows: the rows with a gradient up to which peers' groups fill a batch; 0 for batches of
        groups.
    filtered: own groups of equal rewards leave the buffer at once.
    common: share of the tasks that all nodes sample in common.

    Raises:
        ConfigError: a value is impossible; the message says what is possible.
    """

    nodes: int = 8
    rounds: int = 60
    seed: int = 0
    specialised: int = 0
    delay: tuple[float, float] = (0.0, 0.0)
    loss: float = 0.0
    speeds: tuple[float, float] = (1.0, 1.0)
    behind: int = 0
    pace: Pace = field(default_factory=Pace)
    eval_rounds: int = 10
    eval_tasks: int = 16
    models: tuple[str, ...] = ("tiny",)
    hostile: tuple[str, ...] = ()
    without: tuple[str, ...] = ()
    supervised: bool = False
    told: int = 0
    late: int = 0
    fresh_tasks: bool = False
    eval_at: tuple[int, ...] = ()
    eval_nodes: int = 0
    samplers: int = 0
    by_rows: int = 0
    filtered: bool = False
    common: float = 0.0

    def __post_init__(self) -> None:
        if min(self.nodes, self.rounds, self.eval_rounds, self.eval_tasks) < 1:
            raise ConfigError("a simulation needs at least 1 node, 1 round and 1 held-out task")
        if not 1 <= len(self.models) <= self.nodes:
            raise ConfigError(
                f"{len(self.models)} models are dealt to {self.nodes} nodes: every one of at least "
                "1 model needs a node"
            )
        if min(self.samplers, self.by_rows, self.eval_nodes) < 0:
            raise ConfigError("samplers, rows and measured nodes are 0 or more")
        if self.samplers and self.nodes > 1:
            raise ConfigError("samplers feed one node, not several")
        if not 0 <= self.seed < 1 << 32 or min(self.specialised, self.behind, self.told) < 0:
            raise ConfigError("the seed is within [0, 2^32), families and updates are 0 or more")
        if not 0 <= self.delay[0] <= self.delay[1] or not 0 <= self.loss <= 1:
            raise ConfigError("a delay is a range LO,HI of seconds >= 0, a loss within 0 and 1")
        if not 0 <= self.common <= 1:
            raise ConfigError("a share of common tasks is within 0 and 1")
        if len(self.hostile) >= self.nodes or not set(self.hostile) <= set(KINDS):
            raise ConfigError(f"fewer hostile members than nodes, of the kinds {', '.join(KINDS)}")
        if not set(self.without) <= set(GUARDS):
            raise ConfigError(f"the guards that can be taken out are {', '.join(GUARDS)}")
        if not 0 < self.speeds[0] <= self.speeds[1]:
            raise ConfigError("speeds are a range LO,HI of factors > 0")
        if not 0 <= self.late < self.rounds or (self.late and (self.hostile or self.nodes == 1)):
            raise ConfigError(
                "a late node joins others before the last round, and no one is hostile"
            )

    def measured(self, entry: int) -> bool:
        """Check that held-out reward is measured after round `entry`, if it is not the last."""
        return entry in self.eval_at if self.eval_at else entry % self.eval_rounds == 0

    def plan(self) -> dict[str, Any]:
        """Everything that decides a result, in plain values. Models stand there by their digests,
        because their paths decide nothing.

        Raises:
            ModelError: there is no such model.
        """
        plan = {**asdict(self), "models": model_digests(self.models)}
        for name in _ELSEWHERE:
            del plan[name]
        return plain({key: value for key, value in plan.items() if key not in _LATER or value})
