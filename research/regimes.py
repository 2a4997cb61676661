"""Regimes: the difficulty at the start of an experiment."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from research.skeleton import Experiment, Key
from swarm_node.errors import ConfigError
from swarm_node.policy.models.build_tiny import Noise, Recipe
from swarm_node.policy.models.model import TINY
from swarm_node.simulation.building import build_once


@dataclass(frozen=True, slots=True)
class Regime:
    """The nodes begin with the model of `recipe`, or with the one that ships, on the tasks of a
    `preset`. Each node samples `specialised` task families; 0 means all of them."""

    recipe: Recipe | None = None
    specialised: int = 0
    preset: str = "short"

    def model(self, directory: Path) -> str:
        """The model that the nodes begin with; it is built once below `directory`.

        Raises:
            SwarmNodeError: it cannot be built.
        """
        return TINY if self.recipe is None else str(build_once(self.recipe, directory, self.preset))


_SPARSE = Recipe(noise=Noise(bare=0.005, wrong=0.04, evasive=0.20))
REGIMES: Mapping[str, Regime] = {
    "dense": Regime(),
    "sparse": Regime(_SPARSE),
    "very-sparse": Regime(Recipe(noise=Noise(bare=0.002, wrong=0.02, evasive=0.25))),
    "specialised": Regime(_SPARSE, specialised=2),
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
        chosen = {} if preset == "short" else {"environment.options.preset": preset}
        return {**chosen, **self.flags}

    @property
    def place(self) -> str:
        return f"{self.regime}-{super().place}"
