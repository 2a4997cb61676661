"""Decisions of the frontier's pilot for the final: the rule in code. Pure, but for the file.

The pilot runs every solo arm and the default swarms on seeds of its own. For each regime it decides
three things. One is the batch of the central learner: it follows from the answers per update of a
node of the default. One is four levels of reward on unseen texts. One is the solo arms of the
final: the three best at equal answers per learner, and the one that reaches each level with the
fewest answers.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path

import msgspec

from research.frontier_arms import DEFAULT, RIVALS, SIZE
from research.frontier_raw import Raw
from research.prediction import between
from swarm_node.errors import ConfigError, words_of

CHOICE_FILE = "declared.json"
#: The levels are at these shares of the way that the default swarm goes in the pilot.
WAY = (0.25, 0.5, 0.75, 0.9)
#: Solo arms that enter the final for their reward at equal answers. The pilot has one seed, so its
#: best arm need not be the best.
FINALISTS = 3


class PilotDecision(msgspec.Struct, frozen=True):
    """The decision for one regime. `answers` is by nodes of the swarm. `budget` is the number of
    answers at which arms are compared: those that a node of the default swarm of SIZE makes in the
    whole run. `solo` names the arms, the best at the budget first."""

    answers: dict[int, float]
    budget: float
    levels: list[float]
    solo: list[str]


def choose(runs: Sequence[Raw], levels: Sequence[float] = ()) -> PilotDecision:
    """Decide by the rule; `levels` take the place of those of the rule.

    Raises:
        ConfigError: the pilot has no run of the default swarm of SIZE, or of no solo arm.
    """
    default = [run for run in runs if run.arm == DEFAULT.name]
    swarm = [run for run in default if run.nodes == SIZE]
    solo = by_arm([run for run in runs if RIVALS[run.arm].kind == "solo"])
    if not swarm or not solo:
        raise ConfigError(f"the pilot lacks solo arms or the default swarm of {SIZE}")
    budget = _mean([run.answers[-1] for run in swarm])
    start, end = _mean([r.unseen[0] for r in swarm]), _mean([r.unseen[-1] for r in swarm])
    chosen = list(levels) or [round(start + share * (end - start), 3) for share in WAY]
    ends = {arm: _mean([reward_at(run, budget) for run in runs]) for arm, runs in solo.items()}
    best = sorted(solo, key=lambda arm: -ends[arm])[:FINALISTS]
    for level in chosen:
        needs = {arm: _mean([needed(run, level) for run in runs]) for arm, runs in solo.items()}
        fewest = min(needs, key=lambda arm: needs[arm])
        best += [fewest] if needs[fewest] < math.inf else []
    return PilotDecision(
        answers={
            nodes: round(_mean([run.answers[-1] / run.updates[-1] for run in of_size]), 2)
            for nodes in sorted({run.nodes for run in default})
            if (of_size := [run for run in default if run.nodes == nodes])
        },
        budget=round(budget, 1),
        levels=chosen,
        solo=list(dict.fromkeys(best)),
    )


def reward_at(run: Raw, answers: float) -> float:
    """Reward on unseen texts when a learner had made `answers` answers."""
    return between(run.answers, run.unseen, answers)


def needed(run: Raw, level: float, costs: Sequence[float] | None = None) -> float:
    """Answers of a learner (or other `costs`) when a level was first reached; infinite if never."""
    places = run.answers if costs is None else costs
    points = list(zip(places, run.unseen, strict=True))
    if points[0][1] >= level:
        return points[0][0]
    for (low, before), (high, after) in pairwise(points):
        if after >= level:
            return low + (high - low) * (level - before) / (after - before)
    return math.inf


def by_arm(runs: Sequence[Raw]) -> dict[str, list[Raw]]:
    """The runs of each arm, in the order of their seeds."""
    runs_of_arm: dict[str, list[Raw]] = {}
    for run in sorted(runs, key=lambda run: run.index):
        runs_of_arm.setdefault(run.arm, []).append(run)
    return runs_of_arm


def read_choices(directory: Path) -> dict[str, PilotDecision]:
    """The decisions by regime; none before the pilot has decided.

    Raises:
        ConfigError: the file is not one of decisions.
    """
    path = directory / CHOICE_FILE
    if not path.exists():
        return {}
    try:
        return msgspec.json.decode(path.read_bytes(), type=dict[str, PilotDecision])
    except (OSError, msgspec.DecodeError) as error:
        raise ConfigError(f"{path} holds no decisions: {words_of(error)}") from error


def write_choices(directory: Path, choices: Mapping[str, PilotDecision]) -> Path:
    """Write the decisions."""
    path = directory / CHOICE_FILE
    path.write_bytes(msgspec.json.format(msgspec.json.encode(dict(choices)), indent=1) + b"\n")
    return path


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
