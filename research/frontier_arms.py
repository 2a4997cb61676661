"""The arms of the frontier, the regimes they run in, and the scenario of each run. Pure, but for
the models that a regime builds."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any

from research.arms import REGIMES, Regime, batch_of
from research.heterogeneous import WEAK
from research.scenario import StudyScenario
from swarm_node.errors import ConfigError
from swarm_node.policy.models.model import TINY
from swarm_node.simulation.building import build_once

#: Nodes of a swarm, and those of the swarm that arms are compared with.
SIZES, SIZE = (2, 4, 8, 16, 32), 8
GROUP = 4
#: Answers and updates that a solo arm makes at least: three times the answers of a node of the
#: default swarm when the plan was written, so that a third of them can be told.
SOLO_ANSWERS, SOLO_UPDATES = 2700, 60
#: The largest batch of the solo arms that the pilots of all regimes but the dense one have.
PILOT_GROUPS = 16
#: Groups of its own past in a batch.
PAST = 8
EVAL_TASKS = 64
#: Number of the first nodes, whose reward is measured: all would cost more than their training.
EVAL_NODES = 4
#: When reward is measured, in shares of the updates.
_MEASURED = (1 / 12, 1 / 6, 1 / 3, 1 / 2, 2 / 3, 5 / 6, 1, 1.5, 2, 3, 4, 6, 8, 12)
#: Families that a private node has, of nine.
_FAMILIES = 9


@dataclass(frozen=True, slots=True)
class Rival:
    """One arm. `kind` is solo, swarm, candidate (a swarm with something tried out), central (one
    learner, whose samplers have weights of `lag` updates ago) or supervised. A batch has `own` own
    groups and `past` of the node's past; `filtered` is as in `StudyScenario`. A swarm
    makes `longer` times the updates of the default."""

    name: str
    kind: str
    settings: Mapping[str, Any] = field(default_factory=dict, hash=False)
    own: int = 0
    size: int = GROUP
    past: int = 0
    lag: int = 0
    filtered: bool = False
    longer: int = 1


@dataclass(frozen=True, slots=True)
class Ground:
    """A regime of the frontier, with `seeds` seeds in the final. A solo run has `alone` nodes that
    share nothing: more than one if nodes are unlike."""

    regime: Regime
    seeds: int = 16
    alone: int = 1
    unlike: bool = False

    def models(self, directory: Path) -> tuple[str, ...]:
        """The models that are dealt to the nodes; they are built once below `directory`.

        Raises:
            SwarmNodeError: one cannot be built.
        """
        if self.unlike:
            return (TINY, str(build_once(WEAK, directory)))
        return (self.regime.model(directory),)


GROUNDS: Mapping[str, Ground] = {
    "dense": Ground(REGIMES["dense"]),
    "sparse": Ground(REGIMES["sparse"], seeds=20),
    "specialised": Ground(REGIMES["specialised"], alone=4),
    "unlike": Ground(REGIMES["dense"], alone=2, unlike=True),
}


def _solo(groups: int, size: int, filtered: bool, past: bool) -> Rival:
    name = f"solo-{groups}x{size}" + "-filter" * filtered + "-past" * past
    past_groups = PAST if past else 0
    settings = batch_of(groups, 0, size)
    return Rival(name, "solo", settings, groups, size, past_groups, filtered=filtered)


SOLO = tuple(
    _solo(groups, size, filtered, past)
    for groups, size, filtered, past in product(
        (4, 8, 16, 32, 64), (2, 4, 8), (False, True), (False, True)
    )
)
DEFAULT = Rival("default", "swarm")
#: The swarm of two whose curves predict those of larger ones. In 120 updates the nodes of the
#: largest train on 960 groups at most.
SOURCE = Rival("default-long", "swarm", longer=2)
#: The regimes whose finals had been read when that source was chosen.
FITTED = ("dense", "sparse")
#: The central learner in turns with its samplers: as many updates as a node of the swarm with all
#: answers, or as many answers in small batches with its own past.
CENTRAL = (
    Rival("central-lag0", "central"),
    Rival("central-small", "central", own=8, past=PAST),
)
#: The central learner with its own past, and with late samplers.
LATE = (
    Rival("central-lag0-past", "central", past=PAST),
    *(Rival(f"central-lag{lag}", "central", lag=lag) for lag in range(1, 5)),
)
CANDIDATES = (
    Rival("default+past", "candidate", past=PAST),
    Rival(
        "groups-of-two",
        "candidate",
        {"sampling.group_size": 2, "sampling.max_concurrent_groups": 32},
        size=2,
    ),
    Rival("smaller-batches", "candidate", {"experience.local": 2}),
    Rival("smaller-batches+past", "candidate", {"experience.local": 2}, past=PAST),
    Rival("larger-batches", "candidate", {"experience.local": 8}),
)
SUPERVISED = Rival("supervised", "supervised", batch_of(1, 0, 2), size=2)
RIVALS = {
    rival.name: rival
    for rival in (*SOLO, DEFAULT, SOURCE, *CENTRAL, *LATE, *CANDIDATES, SUPERVISED)
}


def rivals(names: Sequence[str]) -> list[Rival]:
    """The arms of these names.

    Raises:
        ConfigError: there is no such arm.
    """
    unknown = sorted(set(names) - RIVALS.keys())
    if unknown:
        raise ConfigError(f"there is no arm {unknown[0]}: choose from {', '.join(RIVALS)}")
    return [RIVALS[name] for name in names]


def updates(rival: Rival, rounds: int, nodes: int = 1, answers: float = 0.0) -> int:
    """The updates of an arm where the default does `rounds` with `nodes` nodes that make `answers`
    per update each. A solo arm goes on until it has made SOLO_ANSWERS, and for SOLO_UPDATES at
    least; a central learner with a batch of its own until it has made the answers of all."""
    if rival.kind == "solo":
        return max(SOLO_UPDATES, math.ceil(SOLO_ANSWERS / (rival.own * rival.size)))
    if rival.kind == "central" and rival.own:
        return math.ceil(rounds * nodes * answers / (rival.own * rival.size))
    return rival.longer * rounds


def central_groups(nodes: int, answers: float) -> int:
    """The batch of a central learner that makes as many answers as `nodes` nodes, which make
    `answers` per update each.

    Raises:
        ConfigError: a node would hold no such batch.
    """
    groups = max(1, round(nodes * answers / GROUP))
    if groups > 1024:
        raise ConfigError(f"a batch of {groups} groups is too large for a node")
    return groups


def settings_of(rival: Rival, ground: Ground, nodes: int, answers: float) -> dict[str, Any]:
    """The settings of the nodes, by dotted key; `answers` are those of `central_groups`."""
    preset = ground.regime.preset
    chosen = {} if preset == "short" else {"environment.options.preset": preset}
    past = {"experience.replay": rival.past}
    if rival.kind != "central":
        return {**chosen, **rival.settings, **past}
    groups = rival.own or central_groups(nodes, answers)
    # Without a lag, sampling and training take turns.
    turns = {} if rival.lag else {"experience.max_staleness": 0}
    calls = {"sampling.max_concurrent_groups": groups}
    return {**chosen, **batch_of(groups, 0, GROUP), **calls, **turns, **past}


def scenario_of(
    rival: Rival,
    ground: Ground,
    nodes: int,
    seed: int,
    rounds: int,
    models: Sequence[str],
    answers: float = 0.0,
) -> StudyScenario:
    """The scenario of a run in a swarm of `nodes`, or of a rival of such a swarm, whose nodes make
    `answers` per update."""
    central, families_per_node = rival.kind == "central", ground.regime.families_per_node
    count = {"solo": ground.alone, "central": 1, "supervised": 1}.get(rival.kind, nodes)
    if central and families_per_node:
        families_per_node = min(
            _FAMILIES, nodes * families_per_node
        )  # those that its samplers have
    whole = updates(rival, rounds, nodes, answers)
    return StudyScenario(
        nodes=count,
        rounds=whole,
        seed=seed,
        families_per_node=families_per_node,
        # With one batch under way, groups are an update old by themselves.
        behind=max(0, rival.lag - 1),
        samplers=nodes if central else 0,
        eval_at=tuple(measured_at(SOLO_UPDATES if rival.kind == "solo" else rounds, whole)),
        eval_tasks=EVAL_TASKS,
        eval_nodes=EVAL_NODES,
        models=tuple(models[:count]),
        supervised=rival.kind == "supervised",
        filtered=rival.filtered,
        fresh_tasks=True,
    )


def measured_at(rounds: int, whole: int) -> Iterator[int]:
    """The updates after which reward is measured; the last one is left out."""
    yield from sorted({at for share in _MEASURED if 0 < (at := round(share * rounds)) < whole})
