"""Four methods beside the default, on tasks held out by text: levels, tokens, pairs and a vote.

The plan is docs/research/methods-plan.md. No node has these methods: the classes and functions
below take the place of a node's own while a run lasts. A run leaves a small file, and an
interrupted series goes on where it stopped.

    python benchmarks/methods.py --raw docs/research/methods --models models --seeds 6
    python benchmarks/methods.py --raw docs/research/methods --table
"""

from __future__ import annotations

import argparse
import random
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import fmean as mean
from statistics import pstdev
from typing import Any

import msgspec
import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from swarm_node.environments.drills import PRESETS, Draws
from swarm_node.environments.judgement import Judgement
from swarm_node.environments.registry import create_environment
from swarm_node.environments.seeds import task_seed
from swarm_node.environments.splitting import SplitTask
from swarm_node.errors import Rejected
from swarm_node.node.loops import judging, learner
from swarm_node.node.loops.tasks import SeededTasks
from swarm_node.node.start import assembly
from swarm_node.policy.experience.advantage import EQUAL_WITHIN
from swarm_node.policy.experience.batch import Batch, TrainRow, build_batch
from swarm_node.policy.experience.mixture import Mixture
from swarm_node.policy.experience.replay import Drawn, ReplayBuffer, _Held
from swarm_node.policy.experience.slots import Slots
from swarm_node.policy.models.qwen2 import Qwen2
from swarm_node.policy.training.objective import logprobs
from swarm_node.policy.training.objective.logprobs import ReferencePolicy, RowReference
from swarm_node.policy.training.objective.losses import (
    LOSSES,
    BatchSize,
    ClipBounds,
    LossSums,
    Tokens,
    row_means,
    row_sums,
)
from swarm_node.policy.training.update import trainer
from swarm_node.rollout import Provenance, TaskRef, VerifiedGroup
from swarm_node.simulation import swarm
from swarm_node.simulation.experiments.estimates import declared_seeds, estimate, paired
from swarm_node.simulation.experiments.frontier_raw import commit_of
from swarm_node.simulation.experiments.prediction import between
from swarm_node.simulation.experiments.regimes import REGIMES
from swarm_node.simulation.history import RoundHistory
from swarm_node.simulation.run import quiet, simulation_settings
from swarm_node.simulation.scenario import Scenario
from swarm_node.simulation.swarm import simulate
from swarm_node.simulation.variants import VariantBuffer

NODES, UPDATES, EVAL_TASKS = 4, 60, 64
MEASURED = (40,)
#: Families of the graded regime: from the short preset's least lengths to five more.
GRADED = {name: [least, least + 5] for name, (least, _) in PRESETS["short"].items()}
#: Lengths that are one level.
STEPS = {"dense": 1, "sparse": 1, "graded": 2}
#: Answers that a level's evidence remembers.
MEMORY = 32
#: Tokens that fill a batch with a budget. With the last group it has as many as the default's.
BUDGET = 165
BETA = 0.1
#: Updates on right answers before the vote.
TOLD = 24


@contextmanager
def instead(place: Any, name: str, other: Any) -> Iterator[None]:
    """Let `other` take the place of an attribute meanwhile."""
    kept = getattr(place, name)
    setattr(place, name, other)
    try:
        yield
    finally:
        setattr(place, name, kept)


class Levels:
    """The levels of an environment's families, and what each node's own answers said of them."""

    def __init__(self, lengths: Mapping[str, Sequence[int]], options: Mapping[str, Any], step: int):
        self._environment = create_environment("drills", options)
        self._lengths, self._step = lengths, step
        self.all = [
            (family, level)
            for family, (least, most) in sorted(lengths.items())
            for level in range((most - least) // step + 1)
        ]
        self._counts: dict[str, dict[tuple[str, int], tuple[float, float]]] = defaultdict(dict)

    def of(self, ref: TaskRef) -> tuple[str, int]:
        """The level of a training task, by the length that its seed draws."""
        task = self._environment.derive(ref)
        assert isinstance(task, SplitTask)
        least, most = self._lengths[ref.family]
        length = Draws(ref.family, task.inner.ref.seed).within(least, most)
        return ref.family, (length - least) // self._step

    def note(self, node: str, ref: TaskRef, rewards: Sequence[float]) -> None:
        """Add the rewards of an own group; older ones fade."""
        level, right = self.of(ref), sum(rewards)
        had = self._counts[node].get(level, (0.0, 0.0))
        kept = max(0.0, 1.0 - len(rewards) / MEMORY)
        self._counts[node][level] = (
            kept * had[0] + right,
            kept * had[1] + len(rewards) - right,
        )

    def weight(self, node: str, level: tuple[str, int]) -> float:
        """E[p(1 − p)] of a level under Beta(1 + right, 1 + wrong)."""
        right, wrong = (1.0 + count for count in self._counts[node].get(level, (0.0, 0.0)))
        both = right + wrong
        return right * wrong / (both * (both + 1.0))


class LevelTasks(SeededTasks):
    """Own tasks whose level is drawn in proportion to `Levels.weight`."""

    levels: Levels

    async def choose(self, count: int) -> list[TaskRef]:
        first = await self._storage.run(self._storage.advance, "tasks", count)
        return [self._chosen(index) for index in range(first, first + count)]

    def _chosen(self, index: int) -> TaskRef:
        levels, info = self.levels, self._info
        rng = random.Random(task_seed("level", self._seed, self._peer_id, index))
        offered = [level for level in levels.all if level[0] in self._families]
        weights = [levels.weight(self._peer_id, level) for level in offered]
        (wanted,) = rng.choices(offered, weights)
        while True:
            seed = task_seed("train", self._seed, self._peer_id, index, rng.getrandbits(32))
            ref = TaskRef(info.name, info.version, wanted[0], seed)
            if levels.of(ref) == wanted:
                return ref


@contextmanager
def levels(regime: str, options: Mapping[str, Any]) -> Iterator[None]:
    """Nodes choose tasks by level."""
    found = Levels(options.get("families", PRESETS["short"]), options, STEPS[regime])
    admit = ReplayBuffer.admit

    def noted(self: ReplayBuffer, group: VerifiedGroup, version: int) -> Rejected | None:
        if group.provenance is Provenance.OWN:
            found.note(group.author, group.group.task, group.rewards)
        return admit(self, group, version)

    chooser = type("Chooser", (LevelTasks,), {"levels": found})
    with instead(assembly, "SeededTasks", chooser), instead(ReplayBuffer, "admit", noted):
        yield


class BudgetBuffer(VariantBuffer):
    """A buffer whose batches take groups until they have `budget` sampled tokens. Own and peers'
    groups have the parts of it that the mixture gives them in groups."""

    budget: int

    def ready(self, version: int) -> bool:
        part = self.budget * self.mixture.own / self.mixture.size
        return super().ready(version) and (
            len(self._own) >= 2 * self.mixture.own
            or sum(_tokens(held.group) for held in self._own.values()) >= part
        )

    def draw(self, version: int, rng: random.Random) -> Drawn | None:
        if not self.ready(version):
            return None
        mixture = self.mixture
        # As many groups again, because they may be short.
        self.mixture = Mixture(mixture.own, 2 * mixture.external)
        offered = self._draw_external(rng)
        self.mixture = mixture
        external = _until(offered, self.budget * mixture.external / mixture.size)
        self.left += len(offered) - len(external)
        own = _until(
            list(self._own.values()), self.budget - sum(_tokens(held.group) for held in external)
        )
        for held in (*own, *external):
            self._depart(held)
        self._credit(len(own), external)
        self._totals["own_drawn"] += len(own)
        self._totals["external_drawn"] += len(external)
        groups = tuple(held.group for held in (*own, *external))
        drawn = Drawn(groups, len(own), len(external), ((),) * len(groups))
        self._on_draw(drawn)
        return drawn


def _tokens(group: VerifiedGroup) -> int:
    return sum(each.token_ids.size for each in group.group.completions)


def _until(offered: Sequence[_Held], tokens: float) -> list[_Held]:
    taken: list[_Held] = []
    for held in offered:
        if tokens <= 0:
            break
        taken.append(held)
        tokens -= _tokens(held.group)
    return taken


@contextmanager
def tokens(*_: Any) -> Iterator[None]:
    """Batches have a budget of tokens."""
    budgeted = type("Budgeted", (BudgetBuffer,), {"budget": BUDGET})
    slots = Slots._not_ready

    def more(self: Slots, version: int) -> int:
        # A batch may need twice the groups, which must find slots.
        return slots(self, version) + self._buffer.mixture.own

    with instead(swarm, "VariantBuffer", budgeted), instead(Slots, "_not_ready", more):
        yield


def pairs_of(*arguments: Any) -> Batch:
    """A batch with two rows of each group: the first of the best and the first of the worst
    answers. In a group of equal rewards neither has an advantage."""
    groups: defaultdict[int, list[TrainRow]] = defaultdict(list)
    for row in build_batch(*arguments).rows:
        groups[row.group].append(row)
    rows: list[TrainRow] = []
    for answers in groups.values():
        best = max(answers, key=lambda row: row.advantage)
        worst = min(answers, key=lambda row: row.advantage)
        if best.advantage - worst.advantage > EQUAL_WITHIN:
            rows += [replace(best, advantage=1.0), replace(worst, advantage=-1.0)]
        else:
            rows += answers[:2]
    return Batch(tuple(rows))


def dpo(tokens: Tokens, bounds: ClipBounds, size: BatchSize) -> tuple[Tensor, LossSums]:
    """Online DPO (arXiv 2402.04792): −Σ log σ(β(D₊ − D₋)) / groups, where D is the sum of
    log π − log π_ref over an answer, and π_ref the model of the start. `drift` is the number of the
    group. A pair that lost a row, because its good answer is unlikely here, is left out."""
    distance = row_sums(tokens.logp - tokens.reference, tokens.row)
    signs = row_means(tokens.advantage, tokens.row).tolist()
    groups = row_means(tokens.drift, tokens.row).tolist()
    found: defaultdict[float, dict[float, int]] = defaultdict(dict)
    for row, (sign, group) in enumerate(zip(signs, groups, strict=True)):
        if sign:
            found[group][sign] = row
    margins = [distance[of[1.0]] - distance[of[-1.0]] for of in found.values() if len(of) == 2]
    if not margins:
        return 0.0 * tokens.logp.sum(), LossSums()
    lost = -logsigmoid(BETA * torch.stack(margins)).sum() / (size.rows / 2)
    return lost.to(tokens.logp.dtype), LossSums()


@torch.no_grad()
def base_only(
    self: ReferencePolicy,
    _: Qwen2,
    rows: Sequence[TrainRow],
    temperature: float,
    rounds: Sequence[Sequence[int]],
) -> dict[int, RowReference]:
    """One forward pass of the base model over the rows. `drift` becomes the group's number."""
    found: dict[int, RowReference] = {}
    for indices in rounds:
        part = [rows[index] for index in indices]
        sizes = [row.completion_ids.size for row in part]
        base = logprobs.completion_logprobs(self._model, part, temperature)
        for index, logp in zip(indices, torch.split(base, sizes), strict=True):
            found[index] = RowReference(logp.numpy(), float(rows[index].group))
    return found


@contextmanager
def pairs(*_: Any) -> Iterator[None]:
    """Nodes learn from a pair of each group. The loss takes the place of one that has the base
    model."""
    with ExitStack() as stack:
        stack.enter_context(instead(learner, "build_batch", pairs_of))
        stack.enter_context(instead(trainer, "LOSSES", {**LOSSES, "tba": dpo}))
        stack.enter_context(instead(ReferencePolicy, "judge", base_only))
        yield


def voted(texts: Sequence[str]) -> tuple[float, ...]:
    """TTRL (arXiv 2504.16084): 1 for texts of the majority, 0 for others, and where two texts are
    equally frequent, 0 for all."""
    (most, count), *others = Counter(texts).most_common(2)
    if others and others[0][1] == count:
        return (0.0,) * len(texts)
    return tuple(float(text == most) for text in texts)


@contextmanager
def vote(*_: Any) -> Iterator[None]:
    """A group's majority takes the place of the scorer, for own groups and for peers'. Evaluation
    keeps the scorer."""
    ask = judging.Judging._judge

    async def asked(self: judging.Judging, ref: TaskRef, texts: Any, whose: Any) -> Judgement:
        return replace(await ask(self, ref, texts, whose), rewards=voted(texts))

    with instead(judging.Judging, "_judge", asked):
        yield


@contextmanager
def nothing(*_: Any) -> Iterator[None]:
    """The default."""
    yield


@dataclass(frozen=True)
class Arm:
    """A method in nodes with these settings. `regimes` are those that it runs in, on so many
    `seeds`."""

    method: Any = nothing
    settings: Mapping[str, Any] = field(default_factory=dict)
    regimes: tuple[str, ...] = ("dense", "sparse", "graded")
    told: int = 0
    seeds: int = 8


_PAIRS = {"training.loss": "tba", "experience.correction": "own"}
ARMS = {
    "default": Arm(),
    "levels": Arm(levels),
    "tokens": Arm(tokens, regimes=("dense", "sparse")),
    "pairs": Arm(pairs, _PAIRS, ("dense",), seeds=3),
    "told+vote": Arm(vote, regimes=("dense",), told=TOLD, seeds=3),
}


class Run(msgspec.Struct):
    """One run. Lists have an entry for each measurement, means over the nodes. `cpu` are a node's
    processor seconds. `passes` are tokens that its trainer computed: three times those with a
    gradient. `tokens` are those of the answers of a batch."""

    regime: str
    arm: str
    index: int
    seed: int
    commit: str
    updates: list[int]
    unseen: list[float]
    answers: list[float]
    cpu: float
    passes: float
    tokens: float
    spread: float


class Counted:
    """Counts what the trainers compute, and the tokens of batches."""

    def __init__(self) -> None:
        self.passes = 0
        self.batches: list[int] = []

    @contextmanager
    def counting(self) -> Iterator[None]:
        """Count meanwhile."""
        arrange, note = logprobs.arrange, RoundHistory.draw

        def arranged(rows: Sequence[TrainRow]) -> Any:
            made = arrange(rows)
            self.passes += made.ids.size * (3 if torch.is_grad_enabled() else 1)
            return made

        def drew(history: RoundHistory, drawn: Drawn) -> None:
            note(history, drawn)
            self.batches.append(sum(map(_tokens, drawn.groups)))

        with (
            instead(logprobs, "arrange", arranged),
            instead(RoundHistory, "draw", drew),
        ):
            yield


def make(regime: str, name: str, index: int, seed: int, models: Path) -> Run:
    """Make one run."""
    arm, graded = ARMS[name], regime == "graded"
    options: dict[str, Any] = {"families": GRADED, "strict": True} if graded else {}
    flags = {f"environment.options.{key}": value for key, value in options.items()}
    model = REGIMES["dense" if graded else regime].model(models)
    scenario = Scenario(
        nodes=NODES,
        rounds=UPDATES,
        seed=seed,
        models=(model,),
        eval_at=MEASURED if not arm.told else (TOLD, *MEASURED),
        eval_tasks=EVAL_TASKS,
        fresh_tasks=True,
        told=arm.told,
    )
    counted = Counted()
    with arm.method(regime, options), counted.counting():
        report = simulate(scenario, simulation_settings(seed, {**flags, **arm.settings}))
    at = [entry for entry, _ in report.held_out.curve]
    made = [sum(report.rounds.made[:entry]) * 4 for entry in at]
    middle, spread = mean(counted.batches), pstdev(counted.batches)
    return Run(
        *(regime, name, index, seed, commit_of(Path(__file__).parents[1]), at),
        unseen=[round(reward, 4) for _, reward in report.held_out.curve],
        answers=made,
        cpu=round(report.cpu_seconds / NODES, 3),
        passes=counted.passes / NODES,
        tokens=round(middle, 1),
        spread=round(spread, 1),
    )


def series(raw: Path, models: Path, stage: str, seeds: range, arms: Sequence[str]) -> None:
    """Make the missing runs, all of one seed before the next one."""
    quiet()
    raw.mkdir(parents=True, exist_ok=True)
    drawn = declared_seeds(seeds.stop, stage)
    for index in seeds:
        for regime in STEPS:
            for name in arms:
                path = raw / f"{stage}-{regime}-{name}-s{index}.json"
                late = index >= ARMS[name].seeds
                if late or regime not in ARMS[name].regimes or path.exists():
                    continue
                began = time.monotonic()
                run = make(regime, name, index, drawn[index], models)
                path.write_bytes(msgspec.json.encode(run) + b"\n")
                print(
                    f"{path.name} {run.unseen} {run.cpu} {time.monotonic() - began:.0f} s",
                    flush=True,
                )


def table(raw: Path, stage: str) -> None:
    """Print each arm beside the default, over the seeds that all arms of a regime have."""
    runs: defaultdict[str, dict[tuple[str, int], Run]] = defaultdict(dict)
    for path in sorted(raw.glob(f"{stage}-*.json")):
        run = msgspec.json.decode(path.read_bytes(), type=Run)
        runs[run.regime][run.arm, run.index] = run
    for regime, found in runs.items():
        arms = [
            name for name in ARMS if any(arm == name for arm, _ in found) and not ARMS[name].told
        ]
        seeds = [
            index
            for index in sorted({index for _, index in found})
            if all((arm, index) in found for arm in arms)
        ]
        print(f"\n{regime}, seeds {seeds}")
        base = [found[arms[0], index] for index in seeds]
        for name in arms if seeds else ():
            mine = [found[name, index] for index in seeds]
            print(f"{name:10}", *_figures(mine, base), sep="  ")
        for (name, index), run in found.items():
            if ARMS[name].told:
                print(f"{name:10}  seed {index}: {dict(zip(run.updates, run.unseen, strict=True))}")


def _figures(mine: Sequence[Run], base: Sequence[Run]) -> Iterator[str]:
    """The end, the difference from the default there, at equal answers and at equal
    tokens computed, and the costs of an update."""
    yield f"end {estimate([run.unseen[-1] for run in mine]):.3f}"
    yield f"{paired([r.unseen[-1] for r in mine], [r.unseen[-1] for r in base]):+.3f}"
    answers = min(mean(run.answers[-1] for run in runs) for runs in (mine, base))
    passes = min(mean(run.passes for run in runs) for runs in (mine, base))
    for what, here, there in (
        ("answers", *([between(r.answers, r.unseen, answers) for r in of] for of in (mine, base))),
        ("passes", *(list(_within(of, passes)) for of in (mine, base))),
    ):
        yield f"at equal {what} {estimate(here):.3f} | {estimate(there):.3f}"
        yield f"{paired(here, there):+.3f}"
    yield f"answers {mean(run.answers[-1] for run in mine):.0f}"
    yield f"{mean(run.cpu for run in mine) / UPDATES * 1000:.1f} ms"
    yield f"passes {mean(run.passes for run in mine) / UPDATES:.0f} an update"
    yield f"tokens {mean(run.tokens for run in mine):.0f} (sd {mean(r.spread for r in mine):.0f})"
    curve = zip(*(run.unseen for run in mine), strict=True)
    yield f"curve {[round(mean(each), 3) for each in curve]}"


def _within(runs: Sequence[Run], passes: float) -> Iterator[float]:
    """Rewards when a trainer had computed so many tokens, of which each update of an arm takes the
    mean over its updates and seeds."""
    share = passes / mean(run.passes for run in runs)
    for run in runs:
        at = [float(entry) for entry in run.updates]
        yield between(at, run.unseen, share * run.updates[-1])


def main() -> None:
    """Make runs, or print the table of those that are there."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--raw", type=Path, required=True)
    parser.add_argument("--models", type=Path, default=Path("models"))
    parser.add_argument("--stage", default="methods")
    parser.add_argument("--seeds", type=int, default=8)
    parser.add_argument("--arms", nargs="+", default=list(ARMS))
    parser.add_argument("--table", action="store_true")
    given = parser.parse_args()
    if not given.table:
        series(given.raw, given.models, given.stage, range(given.seeds), given.arms)
    table(given.raw, given.stage)


if __name__ == "__main__":
    main()
