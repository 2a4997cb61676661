"""The scenario of a simulation, besides the settings."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from swarm_node.errors import ConfigError
from swarm_node.simulation.models import model_digests
from swarm_node.simulation.paced import Pace
from swarm_node.simulation.report import plain


@dataclass(frozen=True)
class Scenario:
    """The scenario of a simulation, besides the settings that all nodes share.

    rounds: batches per node.
    seed: decides everything that is left to chance.
    families_per_node: task families that each node samples, 0 for all. Node i starts at family
        i × families_per_node.
    delay: a message takes a uniform draw from this range of virtual seconds.
    message_loss: the probability that a message is lost.
    speeds: the speed of a node is a uniform draw from this range.
    behind: updates by which samplers get their weights late.
    eval_rounds, eval_tasks: rounds between measurements of reward, and tasks per family with
        unseen texts.
    models: "tiny" or directories, dealt to the nodes in turn.

    A study's scenario derives from it: `is_eval_round` and `plan` are its hooks.

    Raises:
        ConfigError: a value is impossible; the message says what is possible.
    """

    nodes: int = 8
    rounds: int = 60
    seed: int = 0
    families_per_node: int = 0
    delay: tuple[float, float] = (0.0, 0.0)
    message_loss: float = 0.0
    speeds: tuple[float, float] = (1.0, 1.0)
    behind: int = 0
    pace: Pace = field(default_factory=Pace)
    eval_rounds: int = 10
    eval_tasks: int = 16
    models: tuple[str, ...] = ("tiny",)

    def __post_init__(self) -> None:
        if min(self.nodes, self.rounds, self.eval_rounds, self.eval_tasks) < 1:
            raise ConfigError("a simulation needs at least 1 node, 1 round and 1 held-out task")
        if not 1 <= len(self.models) <= self.nodes:
            raise ConfigError(
                f"{len(self.models)} models are dealt to {self.nodes} nodes: every one of at least "
                "1 model needs a node"
            )
        if not 0 <= self.seed < 1 << 32 or min(self.families_per_node, self.behind) < 0:
            raise ConfigError("the seed is within [0, 2^32), families and updates are 0 or more")
        if not 0 <= self.delay[0] <= self.delay[1] or not 0 <= self.message_loss <= 1:
            raise ConfigError(
                "a delay is a range LO,HI of seconds >= 0, a message loss within 0 and 1"
            )
        if not 0 < self.speeds[0] <= self.speeds[1]:
            raise ConfigError("speeds are a range LO,HI of factors > 0")

    def is_eval_round(self, index: int, entry: int) -> bool:
        """Check that held-out reward of node `index` is measured after its round `entry`, if it is
        not the last."""
        return entry % self.eval_rounds == 0

    def plan(self) -> dict[str, Any]:
        """Everything that decides a result, in plain values. Models stand there by their digests,
        because their paths decide nothing.

        Raises:
            ModelError: there is no such model.
        """
        return plain({**asdict(self), "models": model_digests(self.models)})
