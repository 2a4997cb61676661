"""What `swarm-node experiment` compares, and how its figures are summed up. Pure."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from swarm_node.errors import ConfigError
from swarm_node.policy.models.build_tiny import Noise, Recipe
from swarm_node.simulation.report import SimulationReport

#: Two-sided 95% quantiles of Student's t for 1, 2, … degrees of freedom; 1.96 beyond.
_T95 = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160)


@dataclass(frozen=True, slots=True)
class Arm:
    """One way to compose a batch; `settings` are further keys of the nodes' settings. `paper` is
    the cumulative reward that arXiv 2509.08721 reports for it."""

    name: str
    own: int
    external: int
    settings: Mapping[str, Any] = field(default_factory=dict, hash=False)
    paper: float | None = None

    @property
    def directory(self) -> str:
        """A file name."""
        return self.name.replace("/", "-").replace("+", "-")


ARMS = (
    Arm("8/0", 8, 0, paper=561.79),
    Arm("8/0+filter", 8, 0, {"experience.filter_own": True}),
    Arm("6/2", 6, 2, paper=854.43),
    Arm("4/4", 4, 4, paper=1093.31),
    Arm("2/6", 2, 6, paper=945.87),
    Arm("1/7", 1, 7),
    Arm("adaptive", 4, 4, {"experience.external": "auto"}),
)


@dataclass(frozen=True, slots=True)
class Regime:
    """How hard the start is: the model it begins with (None: the one that ships) and how many task
    families each node samples (0: all)."""

    recipe: Recipe | None = None
    specialised: int = 0


_SPARSE = Recipe(noise=Noise(bare=0.01, wrong=0.06, evasive=0.20), steps=1450)
REGIMES: Mapping[str, Regime] = {
    "dense": Regime(),
    "sparse": Regime(_SPARSE),
    "very-sparse": Regime(Recipe(noise=Noise(bare=0.004, wrong=0.02, evasive=0.25), steps=1450)),
    "specialised": Regime(_SPARSE, specialised=2),
}


class Estimate(NamedTuple):
    """A mean over seeds with the half-width of its 95% confidence interval (NaN for one seed)."""

    mean: float
    half: float

    def __format__(self, spec: str) -> str:
        mean = format(self.mean, spec)
        return mean if math.isnan(self.half) else f"{mean} ± {self.half:{spec.lstrip('+')}}"


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


def declared_seeds(count: int, experiment: str = "sapo") -> list[int]:
    """The first `count` seeds of an experiment: fixed before any run, and hashed, so that nobody
    picked them."""
    names = (f"swarm-node/experiment/{experiment}/{index}" for index in range(count))
    digests = (hashlib.sha256(name.encode()) for name in names)
    return [int.from_bytes(digest.digest()[:4], "big") for digest in digests]


def estimate(values: Sequence[float]) -> Estimate:
    """Mean and 95% confidence interval by Student's t.

    Raises:
        ValueError: there are no values.
    """
    count = len(values)
    if not count:
        raise ValueError("nothing to estimate from")
    mean = sum(values) / count
    if count == 1:
        return Estimate(mean, math.nan)
    variance = sum((value - mean) ** 2 for value in values) / (count - 1)
    quantile = _T95[count - 2] if count - 2 < len(_T95) else 1.96
    return Estimate(mean, quantile * math.sqrt(variance / count))


def expected_informative(own: float, external: float, nodes: int, p: float) -> float:
    """Informative groups per update if a share `p` of own groups is: p·I + min(J, (N−1)·p·I).

    With J borrowed groups per update every node's informative groups go round at most N−1 times.
    """
    return p * own + min(external, (nodes - 1) * p * own)


def informative_counts(report: SimulationReport, arm: Arm) -> tuple[float, float]:
    """Informative groups per update as counted, and as `expected_informative` says round by round
    from the share of informative ones among the groups made. I is what nodes made, within a batch:
    they make up for what peers did not send in time. A filter leaves nothing else."""
    rounds, size = report.rounds, arm.own + arm.external
    if arm.settings.get("experience.filter_own"):
        return report.informative_per_update, float(size)
    predicted = []
    for mixed, made in zip(rounds.mixed, rounds.made, strict=True):
        if made:
            own = min(made, size)
            predicted.append(expected_informative(own, size - own, len(report.nodes), mixed / made))
    return report.informative_per_update, sum(predicted) / max(1, len(predicted))
