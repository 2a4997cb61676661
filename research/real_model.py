"""`python -m research real-model`: a swarm of a language model that people use, beside one node.

The plan is docs/research/real-model.md. The pilot tries the recipes of a node alone on one seed of
its own, and the best one in each regime is the rival of the final. A run leaves a small file; the
tables read these files alone. SmolLM2-135M-Instruct comes by `make setup-real`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.table import Table

from research.arms import batch_of
from research.estimates import declared_seeds, estimate, holm, p_different
from research.few_families import EASIEST
from research.frontier_choice import by_arm, reward_at
from research.frontier_raw import (
    Raw,
    RunKey,
    all_raw,
    claimed,
    commit_of,
    make_run,
    packed,
    run_in_processes,
)
from research.prediction import between
from research.scenario import StudyScenario
from research.skeleton import results_table
from swarm_node.errors import ConfigError
from swarm_node.simulation.report import save_picture
from swarm_node.simulation.run import quiet, simulation_settings

STAGES = ("pilot", "changes", "final")
_SEEDS = {"pilot": "real-model-pilot", "changes": "real-model-changes", "final": "real-model"}
#: Seeds of the comparison that is claimed, and of arms that are described.
SEEDS, DESCRIBED_SEEDS = 8, 3
#: Answers of a group, updates of a member, and the size of the swarm that is claimed.
GROUP, ROUNDS, SIZE = 8, 30, 4
#: Answers that a node alone makes: more than a member's, so that the rival is known beyond them.
SOLO_ANSWERS = 576
EVAL_TASKS = 32
_SHARED: Mapping[str, Any] = {
    "environment.name": "research.few_families:create",
    "environment.options.families": list(EASIEST),
    "sampling.temperature": 0.7,
    "training.lora_rank": 16,
}


@dataclass(frozen=True, slots=True)
class Regime:
    """A node samples `families_per_node` of the families (0: all). An answer has `tokens` at most.
    A solo run has `alone` nodes that share nothing: several where nodes are unlike."""

    tokens: int = 12
    families_per_node: int = 0
    alone: int = 1


REGIMES: Mapping[str, Regime] = {
    "same": Regime(),
    # Only a model that does not repeat the question has room for the number.
    "rare": Regime(tokens=6),
    "private": Regime(families_per_node=1, alone=2),
}


@dataclass(frozen=True, slots=True)
class Arm:
    """One arm. `kind` is solo, swarm or central. A solo arm and a central learner have batches of
    `own` groups. A node of the others makes `longer` times ROUNDS updates."""

    name: str
    kind: str
    settings: Mapping[str, Any] = field(default_factory=dict, hash=False)
    own_groups: int = 0
    longer: float = 1.0


def _solo(rate: float, own_groups: int, past: int) -> Arm:
    name = f"solo-{own_groups}x{GROUP}" + "-past" * (past > 0) + f"-{rate:.0e}".replace("e-0", "e-")
    settings = {**batch_of(own_groups, 0, GROUP), "experience.replay": past}
    settings |= {"sampling.max_concurrent_groups": own_groups, "training.learning_rate": rate}
    return Arm(name, "solo", settings, own_groups)


#: What a node alone does by default, at two rates, and the toy's best: small batches and the past.
SOLO = tuple(
    _solo(rate, own_groups, past) for rate in (1e-4, 3e-4) for own_groups, past in ((4, 0), (2, 2))
)
DEFAULT = Arm("default", "swarm")
CENTRAL = Arm("central", "central", batch_of(8, 0, GROUP), own_groups=8)
#: What could help a member where all have all families: a lower rate, fewer own answers in an
#: update, more of peers', the own past.
CHANGES = (
    Arm("rate-1e-4", "swarm", {"training.learning_rate": 1e-4}),
    Arm("1-own-3-external", "swarm", {"experience.local": 1, "experience.external": 3}, longer=1.5),
    Arm("6-external", "swarm", {"experience.external": 6}),
    Arm("2-past", "swarm", {"experience.replay": 2}),
)
ARMS = {arm.name: arm for arm in (*SOLO, DEFAULT, CENTRAL, *CHANGES)}


@dataclass(frozen=True)
class RealModel:
    """Runs of one stage in these `regimes` with the `model`, of swarms of these `sizes`. Files go
    to `raw`.

    Raises:
        ConfigError: there is no such stage, regime or arm.
    """

    stage: str
    regimes: tuple[str, ...]
    sizes: tuple[int, ...]
    arms: tuple[str, ...]
    raw: Path
    model: str
    seeds: int = SEEDS

    def __post_init__(self) -> None:
        for name, choices in (
            *((regime, REGIMES) for regime in self.regimes),
            *((arm, ARMS) for arm in self.arms),
            (self.stage, dict.fromkeys(STAGES)),
        ):
            if name not in choices:
                raise ConfigError(f"there is no {name}: choose from {', '.join(choices)}")

    def run(self, jobs: int = 1) -> None:
        """Make the missing runs, in `jobs` processes.

        Raises:
            SwarmNodeError: a file cannot be written, or the pilot is not there.
        """
        run_in_processes(self._work, jobs)

    def places(self) -> Iterator[tuple[RunKey, Arm]]:
        """The runs asked for, all arms of one seed before the next seed.

        Raises:
            ConfigError: the pilot of a regime is not there.
        """
        count = self.seeds if self.stage == "final" else 1
        for index, seed in enumerate(declared_seeds(count, _SEEDS[self.stage])):
            for regime in self.regimes:
                for arm, nodes in self._cases(regime, index):
                    if not self.arms or arm.name in self.arms:
                        yield RunKey(self.stage, regime, arm.name, nodes, index, seed), arm

    def _cases(self, regime: str, index: int) -> Iterator[tuple[Arm, int]]:
        alone = REGIMES[regime].alone
        if self.stage == "pilot":
            yield from ((arm, alone) for arm in SOLO)
            return
        if self.stage == "changes":
            yield from ((arm, SIZE) for arm in (DEFAULT, *CHANGES))
            return
        yield best_solo(self.raw, regime), alone
        yield from ((DEFAULT, n) for n in self.sizes if n == SIZE or index < DESCRIBED_SEEDS)
        if index < DESCRIBED_SEEDS:
            yield CENTRAL, SIZE

    def _work(self) -> None:
        quiet()
        commit, packed_runs = commit_of(Path(__file__).parents[1]), packed(self.raw)
        for place, arm in self.places():
            if place.file in packed_runs:
                continue
            with claimed(self.raw / place.file) as is_claimed:
                if is_claimed:
                    self._make(place, arm, commit)

    def _make(self, place: RunKey, arm: Arm, commit: str) -> None:
        regime = REGIMES[place.regime]
        scenario = scenario_of(arm, regime, place.nodes, place.seed, self.model)
        rate = {}
        if arm.kind != "solo":
            best = best_solo(self.raw, place.regime)
            rate = {"training.learning_rate": best.settings["training.learning_rate"]}
        settings = simulation_settings(place.seed, {**rate, **settings_of(arm, regime)})
        make_run(self.raw, place, scenario, settings, commit)


def settings_of(arm: Arm, regime: Regime) -> dict[str, Any]:
    """The settings of the nodes by dotted key. A member's are the defaults of a pretrained model on
    a CPU; the simulator takes them from here."""
    common_settings = {**_SHARED, "sampling.max_new_tokens": regime.tokens}
    if arm.kind == "swarm":
        member = {
            "experience.local": 2,
            "sampling.group_size": GROUP,
            "sampling.max_concurrent_groups": 4,
        }
        return {**common_settings, **member, **arm.settings}
    turns = {"experience.max_staleness": 0} if arm.kind == "central" else {}
    return {**common_settings, **arm.settings, **turns}


def scenario_of(arm: Arm, regime: Regime, nodes: int, seed: int, model: str) -> StudyScenario:
    """The scenario of a run in a swarm of `nodes`, or of the rival of such a swarm."""
    central = arm.kind == "central"
    families_per_node = regime.families_per_node * (not central)
    if arm.kind == "solo":
        rounds = math.ceil(SOLO_ANSWERS / (arm.own_groups * GROUP))
        at = tuple(math.ceil(rounds * share) for share in (1 / 4, 1 / 2, 3 / 4))
    else:
        rounds = round(arm.longer * ROUNDS)
        at = rounds // 3, 2 * rounds // 3
    return StudyScenario(
        nodes=1 if central else nodes,
        rounds=rounds,
        seed=seed,
        families_per_node=families_per_node,
        samplers=nodes if central else 0,
        eval_at=at,
        eval_tasks=EVAL_TASKS,
        eval_nodes=2,
        models=(model,),
        fresh_tasks=True,
    )


def best_solo(raw: Path, regime: str) -> Arm:
    """The recipe that had the highest reward at equal answers in the pilot of a regime.

    Raises:
        ConfigError: the pilot is not whole.
    """
    runs = by_arm(all_raw(raw, "pilot", regime))
    if runs.keys() != {arm.name for arm in SOLO}:
        raise ConfigError(f"the pilot of {regime} is not whole: --stage pilot makes it")
    answers = ROUNDS * 2 * GROUP
    return ARMS[max(runs, key=lambda arm: reward_at(runs[arm][0], answers))]


def tables(raw: Path) -> Iterator[Table]:
    """Rewards of each arm by regime, then the claims."""
    for regime in REGIMES:
        runs = by_arm_and_nodes(all_raw(raw, "final", regime))
        swarms = {run.index: run for run in runs.get((DEFAULT.name, SIZE), [])}
        if not swarms:
            continue
        title = f"{regime}: unseen texts, as a member of {SIZE} at as many answers or CPU seconds"
        headings = ("nodes", "end", "equal answers", "equal CPU", "answers", "CPU s", "seeds")
        table = results_table(title, ("arm",), headings)
        for (arm, nodes), arm_runs in runs.items():
            compared = [(run, swarms[run.index]) for run in arm_runs if run.index in swarms]
            table.add_row(
                arm,
                str(nodes),
                f"{estimate([run.unseen[-1] for run in arm_runs]):.3f}",
                f"{estimate([reward_at(run, other.answers[-1]) for run, other in compared]):.3f}",
                f"{estimate([at_equal_cpu(run, other) for run, other in compared]):.3f}",
                f"{estimate([run.answers[-1] for run in arm_runs]).mean:.0f}",
                f"{estimate([run.cpu / run.learners for run in arm_runs]).mean:.0f}",
                str(len(arm_runs)),
            )
        yield table
    yield changes_table(raw)
    yield claims_table(raw)


def draw(raw: Path, path: Path) -> list[Path]:
    """Reward on held-out prompts over a learner's own completions, of a member of SIZE and of the
    node alone, one panel a regime; returns the file that was written. Thin lines are seeds."""
    runs_of_regime = {regime: by_arm_and_nodes(all_raw(raw, "final", regime)) for regime in REGIMES}

    def fill(figure: Any) -> None:
        for panel, (regime, runs) in zip(
            figure.subplots(1, len(runs_of_regime), sharey=True),
            runs_of_regime.items(),
            strict=True,
        ):
            for (arm, nodes), of in runs.items():
                if ARMS[arm].kind == "solo":
                    label, colour = "isolated node, best of four recipes", "tab:grey"
                elif (arm, nodes) == (DEFAULT.name, SIZE):
                    label, colour = f"member of a swarm of {SIZE}", "tab:blue"
                else:
                    continue
                for run in of:
                    panel.plot(run.answers, run.unseen, color=colour, alpha=0.25, linewidth=1)
                mean_rewards = [
                    sum(v) / len(of) for v in zip(*(run.unseen for run in of), strict=True)
                ]
                mean_answers = [
                    sum(v) / len(of) for v in zip(*(run.answers for run in of), strict=True)
                ]
                panel.plot(
                    mean_answers, mean_rewards, color=colour, marker=".", linewidth=2, label=label
                )
            seeds = max((len(of) for of in runs.values()), default=0)
            panel.set(title=_TITLES[regime].format(seeds=seeds), xlabel="completions of its own")
            panel.grid(alpha=0.3)
        figure.axes[0].set(ylabel="reward on held-out prompts", ylim=(0, 1))
        figure.axes[0].legend(loc="upper left")

    return save_picture(path, (12, 4), fill)


_TITLES = {
    "same": "common rewards ({seeds} seeds)",
    "rare": "rare rewards ({seeds} seeds)",
    "private": "private families ({seeds} seeds)",
}


def changes_table(raw: Path) -> Table:
    """Rewards of a member with each of CHANGES, at as many answers as one without made."""
    title = f"changes of a member of {SIZE}: unseen texts at as many answers as the default"
    headings = ("regime", "end", "equal answers", "answers", "CPU s")
    table = results_table(title, ("arm",), headings)
    for regime in REGIMES:
        runs = by_arm(all_raw(raw, "changes", regime))
        for arm in [DEFAULT.name, *(arm.name for arm in CHANGES)] if DEFAULT.name in runs else ():
            for run, other in zip(runs.get(arm, []), runs[DEFAULT.name], strict=False):
                table.add_row(
                    arm,
                    regime,
                    f"{run.unseen[-1]:.3f}",
                    f"{reward_at(run, other.answers[-1]):.3f}",
                    f"{run.answers[-1]:.0f}",
                    f"{run.cpu / run.learners:.0f}",
                )
    return table


def claims_table(raw: Path) -> Table:
    """A member of the swarm of SIZE less the solo arm, and p after Holm's correction over the
    regimes that have two seeds."""
    gains: dict[str, dict[str, list[float]]] = {}
    for regime in REGIMES:
        runs = all_raw(raw, "final", regime)
        swarms = {run.index: run for run in runs if (run.arm, run.nodes) == (DEFAULT.name, SIZE)}
        pairs = [
            (swarms[run.index], run)
            for run in runs
            if ARMS[run.arm].kind == "solo" and run.index in swarms
        ]
        if len(pairs) > 1:
            gains[regime] = {
                "answers": [s.unseen[-1] - reward_at(run, s.answers[-1]) for s, run in pairs],
                "CPU": [s.unseen[-1] - at_equal_cpu(run, s) for s, run in pairs],
            }
    corrected = holm({regime: p_different(of["answers"]) for regime, of in gains.items()})
    headings = ("at equal answers", "p, corrected", "at equal CPU", "seeds")
    table = results_table("a member less the best node alone", ("regime",), headings)
    for regime, of in gains.items():
        equal, cpu = estimate(of["answers"]), estimate(of["CPU"])
        seeds = str(len(of["answers"]))
        table.add_row(regime, f"{equal:+.3f}", f"{corrected[regime]:.2g}", f"{cpu:+.3f}", seeds)
    return table


def at_equal_cpu(run: Raw, member: Raw) -> float:
    """Reward of a learner of `run` after the CPU seconds of a learner of `member`. Beyond the last
    measurement the last one stands."""
    cpu_seconds = [seconds / run.learners for seconds in run.seconds]
    return between(cpu_seconds, run.unseen, member.cpu / member.learners)


def by_arm_and_nodes(runs: Sequence[Raw]) -> dict[tuple[str, int], list[Raw]]:
    """The runs of each arm and number of nodes, in the order of their seeds."""
    runs_of_arm: dict[tuple[str, int], list[Raw]] = {}
    for run in sorted(runs, key=lambda run: (run.arm, run.nodes, run.index)):
        runs_of_arm.setdefault((run.arm, run.nodes), []).append(run)
    return runs_of_arm
