"""`python -m research flood`: members whose volume or choice of groups would buy them draws.

Three honest nodes stand alone, beside one hostile member of four and beside three of six. The
hostile ones flood easy groups, or withhold their wrong answers. The table has the honest nodes'
reward on unseen texts, less that of the same nodes with the others missing, paired by seed.
docs/research/flood.md was written before the first run and says what counts.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from research.estimates import declared_seeds, estimate, paired
from research.frontier_raw import (
    Raw,
    RunKey,
    all_raw,
    claimed,
    commit_of,
    make_run,
    packed,
)
from research.scenario import StudyScenario
from research.skeleton import results_table
from swarm_node.simulation.run import quiet, simulation_settings

HONEST = 3
MISSING = "missing"
#: Hostile members of each arm; the first three arms come first for every seed.
ARMS: Mapping[str, tuple[str, ...]] = {
    MISSING: (),
    "one-of-four-floods": ("easy",),
    "three-of-six-flood": ("easy",) * 3,
    "one-of-four-withholds": ("withheld",),
    "three-of-six-withhold": ("withheld",) * 3,
}
SEEDS = 16
ROUNDS = 40
_EVAL_TASKS = 32
_STAGE, _REGIME = "flood", "dense"


@dataclass(frozen=True)
class Flood:
    """The declared runs; their files go to `raw`. Tests make fewer and shorter ones."""

    raw: Path
    seeds: int = SEEDS
    rounds: int = ROUNDS
    tasks: int = _EVAL_TASKS

    def run(self) -> None:
        """Make the missing runs, all arms of a seed before the next seed, and print the table.

        Raises:
            SwarmNodeError: a file cannot be written.
        """
        quiet()
        commit, packed_runs = commit_of(Path(__file__).parents[1]), packed(self.raw)
        for key in self.places():
            if key.file in packed_runs:
                continue
            with claimed(self.raw / key.file) as mine:
                if mine:
                    self._make(key, commit)
        self.show()

    def places(self) -> Iterator[RunKey]:
        """The runs, all arms of one seed before the next seed."""
        for index, seed in enumerate(declared_seeds(self.seeds, "flood")):
            for arm, hostile in ARMS.items():
                yield RunKey(_STAGE, _REGIME, arm, HONEST + len(hostile), index, seed)

    def show(self) -> None:
        """Print the table of the files that are there.

        Raises:
            SwarmNodeError: a file is not whole.
        """
        all_runs = all_raw(self.raw, _STAGE, _REGIME)
        by_arm = {arm: {raw.index: raw for raw in all_runs if raw.arm == arm} for arm in ARMS}
        title = "reward on unseen texts at the end, mean ± 95% interval over seeds"
        headings = ("seeds", "reward", "less missing", "answers", "hostile share")
        table = results_table(title, ("arm",), headings)
        for arm, runs in by_arm.items():
            both = sorted(runs.keys() & by_arm[MISSING].keys())
            if both:
                chosen = [runs[index] for index in both]
                alone = [by_arm[MISSING][index] for index in both]
                table.add_row(arm, str(len(both)), *_figures(chosen, alone))
        Console(highlight=False).print(table)

    def _make(self, key: RunKey, commit: str) -> None:
        scenario = StudyScenario(
            nodes=key.nodes,
            rounds=self.rounds,
            seed=key.seed,
            eval_rounds=self.rounds,
            eval_tasks=self.tasks,
            hostile=ARMS[key.arm],
            fresh_tasks=True,
            eval_nodes=HONEST,
        )
        make_run(self.raw, key, scenario, simulation_settings(key.seed, {}), commit)


def _figures(chosen: list[Raw], alone: list[Raw]) -> tuple[str, ...]:
    ends = [raw.unseen[-1] for raw in chosen]
    return (
        f"{estimate(ends):.3f}",
        f"{paired(ends, [raw.unseen[-1] for raw in alone]):+.3f}",
        f"{estimate([raw.answers[-1] for raw in chosen]):.0f}",
        f"{estimate([raw.hostile for raw in chosen]):.1%}",
    )
