"""Which of the peers' groups a batch takes. Pure.

"uniform" is SAPO's policy (arXiv 2509.08721): after the filter for groups without advantage, all
are alike. "weighted" prefers groups with more to teach; see `draw_weight`.
"""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Literal, TypeVar

from swarm_node.rollout import VerifiedGroup

DrawPolicy = Literal["uniform", "weighted"]
#: Of an author, how far its groups were found good, in [0, 1].
Quality = Callable[[str], float]

#: Largest population standard deviation of rewards within [0, 1].
_LARGEST_STD = 0.5
#: A weight that is positive but tiny keeps 1/weight finite.
_SMALLEST_WEIGHT = 1e-12

Item = TypeVar("Item")


def weighted_sample(
    items: Sequence[Item], weights: Sequence[float], count: int, rng: random.Random
) -> list[Item]:
    """Up to `count` of `items` without replacement; whoever is left is taken next with a chance
    proportional to its weight. Items of weight 0 are never taken.

    Algorithm A-ES of Efraimidis & Spirakis, "Weighted random sampling with a reservoir" (2006):
    the largest keys u^(1/w), here log(u)/w, with u uniform in (0, 1].

    Raises:
        ValueError: the lengths differ, or a weight is negative or not finite.
    """
    if not all(math.isfinite(weight) and weight >= 0 for weight in weights):
        raise ValueError("weights must be finite and 0 or more")
    keyed = []
    for index, (item, weight) in enumerate(zip(items, weights, strict=True)):
        uniform = 1.0 - rng.random()  # one number per item: its place does not move the others'
        if weight > 0:
            keyed.append((math.log(uniform) / max(weight, _SMALLEST_WEIGHT), index, item))
    keyed.sort(key=lambda entry: entry[:2], reverse=True)
    return [item for *_, item in keyed[: max(count, 0)]]


def novelty(family: str, own_families: Mapping[str, int]) -> float:
    """1 for a task family that this node does not sample, 1/2 for one it samples as often as its
    average family, towards 0 the more it samples it. `own_families` counts own groups by family."""
    total = sum(own_families.values())
    mine = own_families.get(family, 0)
    if not total or not mine:
        return 1.0
    return 1.0 / (1.0 + mine * len(own_families) / total)


def spread(rewards: Sequence[float]) -> float:
    """How far rewards within [0, 1] lie apart: population standard deviation over the largest
    possible, in [0, 1]. Without it partial credit of 0.01 looks like a difference of 1, because
    advantages are normalised within their group."""
    return min(1.0, statistics.pstdev(rewards) / _LARGEST_STD)


def staleness_weight(age: int, half_life: float, max_age: int) -> float:
    """2^(−age / half_life) in [0, 1]; 0 when `age` exceeds `max_age`. All in own updates.

    An age below 0 counts as 0: after a crash a node resumes from a checkpoint that is older than
    some groups it holds. A half-life of `math.inf` switches the fall off.

    Raises:
        ValueError: the half-life is not positive, or the greatest age is negative.
    """
    if not half_life > 0:  # written so that NaN fails it
        raise ValueError("half_life must be positive; use math.inf for no fall")
    if max_age < 0:
        raise ValueError("max_age must be 0 or more")
    if age > max_age:
        return 0.0
    return 1.0 if math.isinf(half_life) else math.exp2(-max(age, 0) / half_life)


def draw_weight(
    group: VerifiedGroup,
    *,
    version: int,
    half_life: float,
    max_age: int,
    own_families: Mapping[str, int],
    quality: Quality,
) -> float:
    """Spread of rewards · staleness · novelty of the family · quality of the author, in [0, 1]."""
    return (
        spread(group.rewards)
        * staleness_weight(version - group.arrived, half_life, max_age)
        * novelty(group.group.task.family, own_families)
        * min(1.0, max(0.0, quality(group.author)))
    )
