"""Which of the peers' groups a batch takes. Pure.

"uniform" is SAPO's policy (arXiv 2509.08721): all groups that passed the filter for groups without
advantage are equally likely. "weighted" prefers groups with a larger `draw_weight`.

Staleness counts this node's own updates since the group arrived. Two nodes' version numbers do not
compare, and nobody's clock decides. A weight that falls with staleness is the smooth form of the
bound on version lag in AReaL (arXiv 2505.24298); the bound itself stays, as a hard limit. Slots
bound the staleness of own groups instead (`slots.py`).

The weight decides how likely a group is drawn, and not how much it is learnt from: multiplied with
the advantages it cost held-out reward (docs/mixture.md).
"""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Literal, TypeVar

from swarm_node.rollout import VerifiedGroup

DrawPolicy = Literal["uniform", "weighted"]
#: An author's quality in [0, 1]: the share of its groups that were admitted.
Quality = Callable[[str], float]

#: Largest population standard deviation of rewards within [0, 1].
_LARGEST_STD = 0.5
#: Positive weights count as this at least, so that 1/weight stays finite.
_SMALLEST_WEIGHT = 1e-12

Item = TypeVar("Item")


def weighted_sample(
    items: Sequence[Item], weights: Sequence[float], count: int, rng: random.Random
) -> list[Item]:
    """Up to `count` of `items`, drawn without replacement: each draw takes one of the items left,
    with a probability proportional to its weight. Items of weight 0 are never drawn.

    Algorithm A-ES of Efraimidis & Spirakis, "Weighted random sampling with a reservoir" (2006):
    the largest keys u^(1/w), here log(u)/w, with u uniform in (0, 1].

    Raises:
        ValueError: the lengths differ, or a weight is negative or not finite.
    """
    if not all(math.isfinite(weight) and weight >= 0 for weight in weights):
        raise ValueError("weights must be finite and 0 or more")
    keyed = []
    for index, (item, weight) in enumerate(zip(items, weights, strict=True)):
        uniform = 1.0 - rng.random()  # one number per item, whatever the others are
        if weight > 0:
            keyed.append((math.log(uniform) / max(weight, _SMALLEST_WEIGHT), index, item))
    keyed.sort(key=lambda entry: entry[:2], reverse=True)
    return [item for *_, item in keyed[: max(count, 0)]]


def novelty(family: str, own_families: Mapping[str, int]) -> float:
    """1 for a task family that this node does not sample, 1/2 for one that it samples as often as
    its average family, and less the more it samples it. `own_families` counts own groups."""
    total = sum(own_families.values())
    mine = own_families.get(family, 0)
    if not total or not mine:
        return 1.0
    return 1.0 / (1.0 + mine * len(own_families) / total)


def spread(rewards: Sequence[float]) -> float:
    """The population standard deviation of rewards within [0, 1], over the largest possible one;
    in [0, 1]. Advantages are normalised within their group, so without this factor a partial credit
    of 0.01 would weigh as much as a difference of 1."""
    return min(1.0, statistics.pstdev(rewards) / _LARGEST_STD)


def staleness_weight(age: int, half_life: float, max_age: int) -> float:
    """2^(−age / half_life) in [0, 1]; 0 when `age` exceeds `max_age`. All are own updates.

    An age below 0 counts as 0: after a crash a node resumes from a checkpoint that is older than
    some groups it holds. With a half-life of `math.inf` the weight does not fall.

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
