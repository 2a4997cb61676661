"""What the nodes of a demo learn, and which of them samples what."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from swarm_node.environments.bundled import games
from swarm_node.environments.bundled.drills import PRESETS
from swarm_node.errors import ConfigError, instead

FAMILIES = sorted(PRESETS["short"])


@dataclass(frozen=True, slots=True)
class DemoTasks:
    """Tasks of a demo: the `families` of an environment, learnt by a shipped model."""

    environment: str
    families: Sequence[str]
    model: str
    #: Settings of every node.
    assignments: Sequence[str]
    #: How long it takes until something is seen, on two cores.
    minutes: float = 3.0

    #: Families whose levels a node samples together are shared out by name.
    levels: bool = False

    @property
    def kinds(self) -> list[list[str]]:
        """The families that one node samples together: each alone, or all levels of one name."""
        if not self.levels:
            return [[family] for family in self.families]
        by_name = itertools.groupby(self.families, key=lambda family: family.rpartition("-")[0])
        return [[*members] for _, members in by_name]

    def share(self, index: int, nodes: int) -> list[str]:
        """The families of node `index` of `nodes`."""
        return [family for kind in self.kinds[index::nodes] for family in kind]

    @property
    def all(self) -> str:
        return f"all {_NUMBERS.get(len(self.kinds), len(self.kinds))} families"


_NUMBERS = {3: "three", 5: "five", 9: "nine"}
DRILLS = DemoTasks(
    "drills",
    FAMILIES,
    "tiny",
    # A fifth of the default: the rise then fills three minutes of two busy cores.
    ("training.learning_rate=6e-5",),
)
GAMES = DemoTasks("games", games.create().families, "tiny-talk", ("environment.name=games",))


def pretrained_tasks(model: str) -> DemoTasks:
    """Return the tasks of a demo of a pretrained `model`: small batches, because four nodes share
    the cores, and few measurements."""
    batch_settings = ("sampling.max_concurrent_groups=4", "experience.local=2")
    eval_settings = ("run.eval_seconds=150", "run.eval_tasks=8")
    return DemoTasks(
        "drills",
        sorted(PRESETS["graded"]),
        model,
        ("environment.options.preset=graded", *batch_settings, *eval_settings, "run.threads=1"),
        minutes=15.0,
        levels=True,
    )


GROUNDS = {ground.environment: ground for ground in (DRILLS, GAMES)}


def ground_of(environment: str, nodes: int, model: str | None = None) -> DemoTasks:
    """Return the ground called `environment`, or that of a `model` that does not ship.

    Raises:
        ConfigError: there is no demo of it, or one of so many `nodes` would sample nothing.
    """
    ground = GROUNDS.get(environment)
    if ground is None:
        raise ConfigError(
            f"--environment: no demo of {environment!r}", *instead(environment, GROUNDS)
        )
    if model not in (None, ground.model):
        if ground is not DRILLS:
            raise ConfigError(f"--model: the demo of {environment} is for {ground.model}")
        ground = pretrained_tasks(model)
    if nodes > len(ground.kinds):
        raise ConfigError(
            f"--nodes: {environment} has {len(ground.kinds)} families, and each node samples "
            f"one or more of its own: at most {len(ground.kinds)} nodes"
        )
    return ground
