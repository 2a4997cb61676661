"""Pass rates with their intervals: pass@k of several answers a task. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import fmean

import msgspec
import numpy as np

#: Resamples of a bootstrap, and the quantile of a normal distribution for 95%.
_RESAMPLES = 2000
_Z = 1.959963984540054

#: Family -> for each of its tasks, the rewards of its answers.
Rewards = Mapping[str, Sequence[Sequence[float]]]


class PassRate(msgspec.Struct, frozen=True):
    """A mean over the tasks of a family, then over families, with its 95% confidence interval from
    `low` to `high`. `interval` is its method, "wilson" or "bootstrap"."""

    rate: float
    low: float
    high: float
    interval: str


class PassRates(msgspec.Struct, frozen=True):
    """Pass rates of one part of the tasks, unseen or seen texts. `pass_k` is None where k is 1."""

    tasks: int
    pass_1: PassRate
    pass_k: PassRate | None


def pass_at_k(rewards: Sequence[float], k: int) -> float:
    """Estimate without bias the best reward of `k` answers, from the rewards of at least as many.

    The mean of the largest reward over all subsets of `k` answers. For rewards of 0 and 1 it is
    1 - C(n-c, k) / C(n, k) of Chen et al. (arXiv 2107.03374), and for k = 1 the mean reward.
    """
    if not 1 <= k <= len(rewards):
        raise ValueError("pass@k needs at least k completions")
    ranks = enumerate(sorted(rewards))
    return sum(r * math.comb(rank, k - 1) for rank, r in ranks) / math.comb(len(rewards), k)


def pass_rates(rewards: Rewards, k: int, seed: int = 0) -> PassRates | None:
    """Pass rates of these tasks, None if there are none. `seed` is that of the bootstrap."""
    family_rewards = {family: tasks for family, tasks in rewards.items() if tasks}
    if not family_rewards:
        return None

    def rate(k: int) -> PassRate:
        values = [[pass_at_k(answers, k) for answers in tasks] for tasks in family_rewards.values()]
        return pass_rate(values, seed)

    return PassRates(sum(map(len, family_rewards.values())), rate(1), rate(k) if k > 1 else None)


def pass_rate(values: Sequence[Sequence[float]], seed: int = 0) -> PassRate:
    """The mean of one value a task over each family's tasks, then over families.

    If every task has 0 or 1 and all families have as many tasks, the mean is a proportion, and the
    interval is Wilson's score interval, which holds for 0 and for 1 too. Otherwise tasks are drawn
    again within their families, and the interval is that of the percentiles."""
    mean = fmean(map(fmean, values))
    is_balanced = len({len(tasks) for tasks in values}) == 1
    if is_balanced and all(value in (0.0, 1.0) for tasks in values for value in tasks):
        low, high = wilson(mean, sum(map(len, values)))
        return PassRate(mean, low, high, "wilson")
    rng = np.random.default_rng(seed)
    resampled = np.mean([_resample_means(tasks, rng) for tasks in values], axis=0)
    low, high = np.quantile(resampled, [0.025, 0.975])
    return PassRate(mean, float(low), float(high), "bootstrap")


def wilson(proportion: float, count: int) -> tuple[float, float]:
    """Wilson's 95% score interval of a proportion of `count` trials."""
    square = _Z * _Z
    centre = proportion + square / (2 * count)
    half_width = _Z * math.sqrt(
        proportion * (1 - proportion) / count + square / (4 * count * count)
    )
    low, high = ((centre + sign * half_width) / (1 + square / count) for sign in (-1, 1))
    return max(0.0, low), min(1.0, high)


def _resample_means(tasks: Sequence[float], rng: np.random.Generator) -> list[float]:
    """Means of tasks that were drawn again. Tasks of one value are drawn together, so that a
    million of them take no longer than a hundred."""
    values, counts = np.unique(np.asarray(tasks, np.float64), return_counts=True)
    shares = counts / counts.sum()
    return [
        float(rng.multinomial(len(tasks), shares) @ values) / len(tasks) for _ in range(_RESAMPLES)
    ]
