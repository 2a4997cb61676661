"""`python -m research frontier`: the swarm beside its rivals, reward on unseen texts over cost.

The plan is docs/research/frontier-plan.md. A stage makes runs and leaves a small file for each;
tables and pictures read these files alone.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from research.estimates import declared_seeds
from research.frontier_arms import (
    CANDIDATES,
    CENTRAL,
    DEFAULT,
    GROUNDS,
    LATE,
    PILOT_GROUPS,
    SIZE,
    SIZES,
    SOLO,
    SOURCE,
    SUPERVISED,
    Rival,
    rivals,
    scenario_of,
    settings_of,
)
from research.frontier_choice import (
    PilotDecision,
    choose,
    read_choices,
    write_choices,
)
from research.frontier_raw import (
    RunKey,
    all_raw,
    claimed,
    commit_of,
    make_run,
    packed,
    run_in_processes,
)
from swarm_node.errors import ConfigError
from swarm_node.simulation.run import quiet, simulation_settings

STAGES = ("pilot", "final")
_SEEDS = {"pilot": "frontier-pilot", "final": "frontier"}
PILOT_SEEDS = 1


@dataclass(frozen=True)
class Frontier:
    """Runs of one stage: in these `regimes`, with swarms of these `sizes`, of the `arms` named
    (none: all of the stage). The seeds are those of the regime from `first` to `last`. Files go to
    `raw`, models to `models`.

    Raises:
        ConfigError: there is no such stage, regime or arm.
    """

    stage: str
    regimes: tuple[str, ...]
    sizes: tuple[int, ...]
    arms: tuple[str, ...]
    raw: Path
    models: Path
    rounds: int = 120
    first: int = 0
    last: int = 1 << 16

    def __post_init__(self) -> None:
        unknown = sorted(set(self.regimes) - GROUNDS.keys())
        if self.stage not in STAGES or unknown:
            raise ConfigError(
                f"stages are {', '.join(STAGES)}, regimes {', '.join(GROUNDS)}, not "
                f"{unknown[0] if unknown else self.stage}"
            )
        rivals(self.arms)

    def run(self, jobs: int = 1) -> None:
        """Make the missing runs, in `jobs` processes.

        Raises:
            SwarmNodeError: a model cannot be made, a file cannot be written, or the pilot has not
                decided yet what the final needs.
        """
        for regime in self.regimes:
            GROUNDS[regime].models(self.models)  # before several processes want it
        run_in_processes(self._work, jobs)

    def decide(self, levels: Sequence[float] = ()) -> Path:
        """Write what the pilot decides for the final; `levels` take the place of the rule's.

        Raises:
            ConfigError: the pilot is not complete enough.
        """
        choices = read_choices(self.raw)
        for regime in self.regimes:
            choices[regime] = choose(all_raw(self.raw, "pilot", regime), levels)
        return write_choices(self.raw, choices)

    def places(self) -> Iterator[tuple[RunKey, Rival]]:
        """The runs asked for, all arms of one seed before the next seed.

        Raises:
            ConfigError: the pilot has not decided yet which solo arms enter.
        """
        choices = read_choices(self.raw)
        seed_count = max(self._seeds(regime) for regime in self.regimes)
        for index, seed in enumerate(declared_seeds(seed_count, _SEEDS[self.stage])):
            for regime in self.regimes:
                if self.first <= index <= self.last and index < self._seeds(regime):
                    for rival, nodes in self._cases(regime, choices.get(regime)):
                        if not self.arms or rival.name in self.arms:
                            yield (
                                RunKey(self.stage, regime, rival.name, nodes, index, seed),
                                rival,
                            )

    def _seeds(self, regime: str) -> int:
        return PILOT_SEEDS if self.stage == "pilot" else GROUNDS[regime].seeds

    def _cases(self, regime: str, choice: PilotDecision | None) -> Iterator[tuple[Rival, int]]:
        """The arms of a stage, with the number of nodes of the swarm that each is compared with."""
        yield from ((DEFAULT, nodes) for nodes in self.sizes)
        if self.stage == "pilot":
            if not GROUNDS[regime].regime.families_per_node:
                yield SOURCE, SIZES[0]
            whole = regime == "dense"
            yield from (
                (rival, GROUNDS[regime].alone)
                for rival in SOLO
                if whole or rival.own <= PILOT_GROUPS
            )
            return
        if choice is None:
            raise ConfigError(f"nothing is decided for {regime}: --stage pilot, then --decide")
        yield from ((rival, GROUNDS[regime].alone) for rival in rivals(choice.solo))
        yield from ((rival, SIZE) for rival in CANDIDATES)
        if GROUNDS[regime].unlike:
            return  # no single learner has two models
        yield SUPERVISED, 1
        yield from ((rival, nodes) for rival in CENTRAL for nodes in self.sizes)
        yield from ((rival, SIZE) for rival in LATE)

    def _work(self) -> None:
        quiet()
        choices = read_choices(self.raw)
        commit, packed_runs = commit_of(Path(__file__).parents[1]), packed(self.raw)
        for place, rival in self.places():
            if place.file in packed_runs:
                continue
            choice = choices.get(place.regime)
            answers = math.nan if choice is None else choice.answers.get(place.nodes, math.nan)
            if rival.kind == "central" and math.isnan(answers):
                raise ConfigError(f"the pilot had no swarm of {place.nodes} in {place.regime}")
            with claimed(self.raw / place.file) as mine:
                if mine:
                    self._make(place, rival, answers, commit)

    def _make(self, place: RunKey, rival: Rival, answers: float, commit: str) -> None:
        ground = GROUNDS[place.regime]
        models = ground.models(self.models)
        scenario = scenario_of(rival, ground, place.nodes, place.seed, self.rounds, models, answers)
        flags = settings_of(rival, ground, place.nodes, answers)
        settings = simulation_settings(place.seed, flags)
        make_run(self.raw, place, scenario, settings, commit)
