"""The arms, ways to compose a batch of own and peers' groups, and the regimes that studies run in.
Pure, but for the models that a regime builds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from research.scenario import StudyScenario
from research.skeleton import Experiment, Key
from swarm_node.errors import ConfigError
from swarm_node.policy.models.build_tiny import Noise, Recipe
from swarm_node.policy.models.model import TINY
from swarm_node.simulation.building import build_once
from swarm_node.simulation.report import SimulationReport


def batch_of(local_groups: int, external_groups: int, size: int = 8) -> dict[str, Any]:
    """Settings of a batch of `local_groups` own and `external_groups` peers' groups, each of `size`
    answers."""
    mixture = {"experience.local": local_groups, "experience.external": external_groups}
    calls = {"sampling.group_size": size, "sampling.max_concurrent_groups": 64 // size}
    return {**mixture, **calls}


@dataclass(frozen=True, slots=True)
class Arm:
    """One way to compose a batch: `settings` of the nodes by dotted key. `paper` is the cumulative
    reward that arXiv 2509.08721 reports for it. Nodes of a `filtered` arm drop own groups of equal
    rewards. `supervised` nodes are told right answers, as the reference line of all arms. Other
    nodes are told them in the first `told` updates."""

    name: str
    settings: Mapping[str, Any] = field(default_factory=dict, hash=False)
    paper: float | None = None
    filtered: bool = False
    supervised: bool = False
    told: int = 0

    @property
    def directory(self) -> str:
        """The name of its directory."""
        return self.name.replace("/", "-").replace("+", "-")

    def scenario(self, scenario: StudyScenario) -> StudyScenario:
        """`scenario` with the nodes of this arm."""
        filtered, supervised, told_updates = self.filtered, self.supervised, self.told
        return replace(scenario, filtered=filtered, supervised=supervised, told=told_updates)

    def flags(self, base_settings: Mapping[str, Any]) -> dict[str, Any]:
        """The settings of this arm's nodes. `base_settings` are those of all arms; the arm's own
        `settings` override them."""
        return {**base_settings, **self.settings}


#: The arm whose differences from the others are tabled.
DEFAULT = "default"
ARMS = (
    # The smallest batch, since this node needs no samples.
    Arm("supervised", batch_of(1, 0, 2), supervised=True),
    Arm("8/0", batch_of(8, 0), paper=561.79),
    Arm("8/0+filter", batch_of(8, 0), filtered=True),
    Arm("6/2", batch_of(6, 2), paper=854.43),
    Arm("4/4", batch_of(4, 4), paper=1093.31),
    Arm("2/6", batch_of(2, 6), paper=945.87),
    Arm("1/7", batch_of(1, 7)),
    Arm(DEFAULT),
    # Supervised updates come first.
    Arm("sft+default", told=20),
)


def chosen_arms(names: Sequence[str]) -> list[Arm]:
    """The arms named, in the order of ARMS; all if there are no names.

    Raises:
        ConfigError: there is no such arm.
    """
    unknown_names = sorted(set(names) - {arm.name for arm in ARMS})
    if unknown_names:
        known_names = ", ".join(arm.name for arm in ARMS)
        raise ConfigError(f"there is no arm {unknown_names[0]}: choose from {known_names}")
    return [arm for arm in ARMS if not names or arm.name in names]


def expected_informative(
    local_groups: float, external_groups: float, nodes: int, p: float
) -> float:
    """Informative groups per update if a share `p` of own groups is: p·I + min(J, (N−1)·p·I).

    A node borrows J groups per update, and each node's informative groups reach N−1 others at most.
    """
    return p * local_groups + min(external_groups, (nodes - 1) * p * local_groups)


def informative_counts(report: SimulationReport) -> tuple[float, float]:
    """Informative groups per update: as counted, and as `expected_informative` predicts them.

    The prediction is made round by round. Its p is the share of informative groups among those made
    in the round. Its I is the number of groups that nodes made, up to a batch, because they make up
    for what peers did not send in time. With a filter all groups trained on are informative.
    """
    rounds, experience = report.rounds, report.settings["experience"]
    local_groups, external_groups = experience["local"], experience["external"]
    size = 2 * local_groups if external_groups == "auto" else local_groups + external_groups
    if report.settings["plan"].get("filtered"):
        return report.mixed_per_step, float(size)
    predictions = []
    for mixed, round_groups in zip(rounds.mixed_sampled, rounds.sampled, strict=True):
        if round_groups:
            local_groups = min(round_groups, size)
            predictions.append(
                expected_informative(
                    local_groups, size - local_groups, len(report.nodes), mixed / round_groups
                )
            )
    return report.mixed_per_step, sum(predictions) / max(1, len(predictions))


@dataclass(frozen=True, slots=True)
class Regime:
    """The nodes begin with the model of `recipe`, or with the one that ships, on the tasks of a
    `preset`. Each node samples `families_per_node` task families; 0 means all of them."""

    recipe: Recipe | None = None
    families_per_node: int = 0
    preset: str = "short"

    def model(self, directory: Path) -> str:
        """The model that the nodes begin with; it is built once below `directory`.

        Raises:
            SwarmNodeError: it cannot be built.
        """
        return TINY if self.recipe is None else str(build_once(self.recipe, directory, self.preset))


_SPARSE = Recipe(noise=Noise(bare_share=0.005, wrong_share=0.04, evasive_share=0.20))
REGIMES: Mapping[str, Regime] = {
    "dense": Regime(),
    "sparse": Regime(_SPARSE),
    "very-sparse": Regime(
        Recipe(noise=Noise(bare_share=0.002, wrong_share=0.02, evasive_share=0.25))
    ),
    "specialised": Regime(_SPARSE, families_per_node=2),
    "headroom": Regime(Recipe(), preset="long"),
}


@dataclass(frozen=True)
class RegimeExperiment(Experiment[Key]):
    """An experiment that starts in one of REGIMES.

    Raises:
        ConfigError: there is no such regime.
    """

    regime: str

    def __post_init__(self) -> None:
        if self.regime not in REGIMES:
            raise ConfigError(f"there is no regime {self.regime}: use {', '.join(REGIMES)}")

    @property
    def shared(self) -> dict[str, Any]:
        """The settings that every case shares: those of the regime, then those that were given."""
        preset = REGIMES[self.regime].preset
        settings = {} if preset == "short" else {"environment.options.preset": preset}
        return {**settings, **self.flags}

    @property
    def place(self) -> str:
        return f"{self.regime}-{super().place}"
