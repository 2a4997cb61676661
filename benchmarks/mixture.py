"""Arms of own/external groups per update, fixed and adaptive, in a small synchronous swarm.

All nodes live in this process and take turns: every round each samples its own groups, meets the
informative groups that the others made and makes one update. Replay buffer,
draw, controller, batch and trainer are the node's own code; only network and asynchrony are left
out. A run is deterministic for a seed. Held-out rewards are means over all nodes, of one completion
for each of 32 tasks per family that nobody trains on; the adaptive arm's probe uses other ones.

    python benchmarks/mixture.py --nodes 3 --families specialised --rounds 150 --seeds 2 \
        --arms 8/0 4/4 2/6 auto [--lag 8]

Prints a JSON object per run, with the curve, and a table of means in the end.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from swarm_node.environments.base import Environment
from swarm_node.environments.reasoning_gym.environment import create
from swarm_node.environments.seeds import held_out_seed, task_seed
from swarm_node.policy.experience import mixture as mix
from swarm_node.policy.experience.batch import Batch, build_batch
from swarm_node.policy.experience.replay import ReplayBuffer, ReplaySettings
from swarm_node.policy.models.codec import Codec
from swarm_node.policy.models.model import resolve
from swarm_node.policy.sampling.sampler import SampleRequest
from swarm_node.policy.sampling.torch_sampler import TorchSampler
from swarm_node.policy.training.trainer import TrainerCore, TrainerSettings
from swarm_node.rollout import PolicyRef, Provenance, RolloutGroup, TaskRef, VerifiedGroup

BATCH, GROUP, MAX_NEW_TOKENS = 8, 8, 24
EVAL_ROUNDS, EVAL_TASKS, PROBE_TASKS = 20, 32, 16
PROBE_OFFSET = 10_000  # the probe's tasks are not those that are reported
MAX_AGE = 32


@dataclass(frozen=True)
class Arm:
    """One way of making batches; `own` None means adaptive."""

    own: int | None

    @property
    def name(self) -> str:
        return "auto" if self.own is None else f"{self.own}/{BATCH - self.own}"


@dataclass
class Totals:
    """Sums over nodes and rounds."""

    made: int = 0
    mixed: int = 0
    drawn: int = 0
    informative: int = 0
    own_reward: float = 0.0
    own_chosen: int = 0
    sample_seconds: float = 0.0
    learn_seconds: float = 0.0


@dataclass
class Member:
    """One node: policy, buffer, and the controller's state where it is adaptive."""

    index: int
    families: tuple[str, ...]
    sampler: TorchSampler
    core: TrainerCore
    buffer: ReplayBuffer
    rng: random.Random
    state: mix.MixtureState | None
    tasks: int = 0
    probe: float | None = None
    inbox: list[tuple[int, VerifiedGroup]] = field(default_factory=list)


class Swarm:
    """All members and the task environment."""

    def __init__(self, nodes: int, specialised: bool, seed: int, arm: Arm, weights: Path) -> None:
        directory = resolve("tiny")
        self.arm, self.seed, self.weights = arm, seed, weights
        self.environment: Environment = create()
        self.codec = Codec.from_directory(directory)
        self.policy = PolicyRef(b"m" * 32, b"t" * 32, 0)
        self.totals = Totals()
        self.controller = mix.MixtureSettings(batch=BATCH)
        names = tuple(sorted(self.environment.families))
        self.members = [
            Member(
                index=index,
                families=names[index::nodes] if specialised else names,
                sampler=TorchSampler.from_directory(directory, threads=1),
                core=TrainerCore(directory, TrainerSettings()),
                buffer=self._buffer(),
                rng=random.Random(f"{seed}:{index}"),
                state=mix.start(self.controller, BATCH // 2) if arm.own is None else None,
            )
            for index in range(nodes)
        ]

    async def round(self, number: int, lag: int) -> None:
        """Everybody samples, then everybody learns."""
        made = [await self._make(member) for member in self.members]
        for member, groups in zip(self.members, made, strict=True):
            for other in self.members:
                if other is not member:
                    self._deliver(groups, other, number, lag)
        for member, groups in zip(self.members, made, strict=True):
            await self._learn(member, groups, number)

    async def held_out(self) -> dict[str, float]:
        """Reward over all families, the node's own and the others, mean over nodes."""
        rows = []
        for member in self.members:
            scores = await self._score(member, self.environment.families, 0, EVAL_TASKS)
            own = statistics.fmean(scores[name] for name in member.families)
            unseen = [scores[name] for name in scores if name not in member.families]
            rows.append((statistics.fmean(scores.values()), own, unseen))
        unseen_means = [statistics.fmean(unseen) for *_, unseen in rows if unseen]
        return {
            "all": statistics.fmean(row[0] for row in rows),
            "own": statistics.fmean(row[1] for row in rows),
            "unseen": statistics.fmean(unseen_means) if unseen_means else math.nan,
        }

    async def probe(self) -> None:
        """What a node's own evaluator would tell the controller."""
        for member in self.members:
            if member.state is not None:
                scores = await self._score(member, member.families, PROBE_OFFSET, PROBE_TASKS)
                member.probe = statistics.fmean(scores.values())

    def _deliver(self, groups: Sequence[VerifiedGroup], to: Member, number: int, lag: int) -> None:
        version = to.core.version
        for group in groups:
            if group.informative:
                kin = replace(group, provenance=Provenance.KIN, arrived=version)
                to.inbox.append((number + to.rng.randint(0, lag), kin))

    def _buffer(self) -> ReplayBuffer:
        arm, most = self.arm, self.controller.most_external
        own = BATCH - most if arm.own is None else arm.own
        return ReplayBuffer(ReplaySettings(own=own, external=BATCH - own, max_age=MAX_AGE))

    async def _make(self, member: Member) -> list[VerifiedGroup]:
        own = member.buffer.mixture.own if member.state is None else member.state.current.own
        refs = []
        for _ in range(own):
            seed = task_seed("train", self.seed, member.index, member.tasks)
            family = member.families[seed % len(member.families)]
            refs.append(TaskRef(self.environment.name, self.environment.version, family, seed))
            member.tasks += 1
        started = time.process_time()
        groups = await self._sample(member, refs, GROUP)
        self.totals.sample_seconds += time.process_time() - started
        self.totals.made += len(groups)
        self.totals.mixed += sum(group.informative for group in groups)
        self.totals.own_reward += sum(statistics.fmean(g.rewards) for g in groups) / max(1, own)
        return groups

    async def _learn(self, member: Member, groups: Sequence[VerifiedGroup], number: int) -> None:
        version = member.core.version
        arrivals = [group for due, group in member.inbox if due <= number]
        member.inbox = [(due, group) for due, group in member.inbox if due > number]
        for group in groups:
            member.buffer.admit(group, version)
        for group in member.rng.sample(arrivals, len(arrivals)):
            member.buffer.admit(group, version)
        if member.state is not None:
            member.buffer.aim(member.state.current)
        drawn = member.buffer.draw(version, member.rng)
        if member.state is not None:
            self._control(member, groups, len(arrivals))
        if drawn is None:
            return
        self.totals.drawn += 1
        self.totals.informative += sum(group.informative for group in drawn.groups)
        self.totals.own_chosen += drawn.own_count
        batch = self._batch(drawn.groups)
        started = time.process_time()
        if member.core.update(batch).skipped is None:
            save_file(member.core.weights(), self.weights)
            await member.sampler.load(self.weights, member.core.version)
        self.totals.learn_seconds += time.process_time() - started

    def _batch(self, groups: Sequence[VerifiedGroup]) -> Batch:
        codec = self.codec
        return build_batch(groups, codec.encode_prompt, codec.encode_answer, codec.eos_id)

    def _control(self, member: Member, groups: Sequence[VerifiedGroup], offered: int) -> None:
        assert member.state is not None
        seen = mix.Observation(
            made=len(groups),
            mixed=sum(group.informative for group in groups),
            offered=offered,
            probe=member.probe,
        )
        member.probe = None
        member.state = mix.observe(member.state, seen, self.controller)

    async def _score(
        self, member: Member, families: Sequence[str], first: int, count: int
    ) -> dict[str, float]:
        name, version = self.environment.name, self.environment.version
        refs = [
            TaskRef(name, version, family, held_out_seed(family, index))
            for family in families
            for index in range(first, first + count)
        ]
        scores: dict[str, list[float]] = {family: [] for family in families}
        for group in await self._sample(member, refs, 1):
            scores[group.group.task.family] += group.rewards
        return {family: statistics.fmean(values) for family, values in scores.items()}

    async def _sample(
        self, member: Member, refs: Sequence[TaskRef], count: int
    ) -> list[VerifiedGroup]:
        tasks = [self.environment.derive(ref) for ref in refs]
        prompts = [self.environment.render(task) for task in tasks]
        requests = [
            SampleRequest(
                self.codec.encode_prompt(prompt),
                count,
                task_seed("sample", self.seed, ref.seed),
                MAX_NEW_TOKENS,
            )
            for prompt, ref in zip(prompts, refs, strict=True)
        ]
        groups = []
        sampled = await member.sampler.sample(requests)
        for ref, task, prompt, completions in zip(refs, tasks, prompts, sampled, strict=True):
            rewards = tuple(_reward(self.environment, task, each.text) for each in completions)
            groups.append(
                VerifiedGroup(
                    id=f"{member.index}:{ref.seed}".encode(),
                    author=str(member.index),
                    provenance=Provenance.OWN,
                    group=RolloutGroup(ref, self.policy, completions, rewards),
                    prompt=prompt,
                    rewards=rewards,
                    arrived=member.core.version,
                )
            )
        return groups


def _reward(environment: Environment, task: Any, text: str) -> float:
    try:
        return float(environment.score(task, text))
    except (ArithmeticError, LookupError, TypeError, ValueError):
        # reasoning-gym's scorers raise on junk; the node's environment process scores 0 then, too
        return 0.0


async def run(arm: Arm, options: argparse.Namespace, seed: int) -> dict[str, Any]:
    """One arm and seed: the curve and totals."""
    curve = []
    started = time.process_time()
    with tempfile.TemporaryDirectory() as directory:
        specialised = options.families == "specialised"
        weights = Path(directory) / "weights.safetensors"
        swarm = Swarm(options.nodes, specialised, seed, arm, weights)
        for number in range(options.rounds + 1):
            if number % EVAL_ROUNDS == 0:
                curve.append({"round": number, **(await swarm.held_out())})
            if number % (EVAL_ROUNDS // 2) == 0:
                await swarm.probe()
            if number < options.rounds:
                await swarm.round(number, options.lag)
    totals, updates = swarm.totals, max(1, swarm.totals.drawn)
    return {
        "arm": arm.name,
        "nodes": options.nodes,
        "families": options.families,
        "lag": options.lag,
        "seed": seed,
        **{name: curve[-1][name] for name in ("all", "own", "unseen")},
        "area": statistics.fmean(point["all"] for point in curve[1:]),
        "cumulative_own": totals.own_reward,
        "groups_made": totals.made,
        "share_mixed": totals.mixed / max(1, totals.made),
        "informative_per_update": totals.informative / updates,
        "own_per_update": totals.own_chosen / updates,
        "cpu_sampling": totals.sample_seconds,
        "cpu_learning": totals.learn_seconds,
        "cpu": time.process_time() - started,
        "curve": curve,
    }


def table(rows: Sequence[dict[str, Any]]) -> str:
    """Means over seeds, arm by arm."""
    names = ("all", "own", "unseen", "area", "informative_per_update", "own_per_update",
             "share_mixed", "groups_made", "cpu_sampling", "cpu_learning")  # fmt: skip
    lines = ["arm | " + " | ".join(names)]
    for arm in dict.fromkeys(row["arm"] for row in rows):
        mine = [row for row in rows if row["arm"] == arm]
        means = [statistics.fmean(float(row[name]) for row in mine) for name in names]
        lines.append(f"{arm} | " + " | ".join(f"{mean:.3g}" for mean in means))
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=3)
    parser.add_argument("--families", choices=("same", "specialised"), default="specialised")
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--arms", nargs="+", default=["8/0", "4/4", "2/6", "auto"])
    parser.add_argument(
        "--lag", type=int, default=0, help="Groups wait 0 to LAG rounds, at random."
    )
    options = parser.parse_args()
    torch.set_num_threads(1)
    rows = []
    for text in options.arms:
        own = None if text == "auto" else int(text.partition("/")[0])
        arm = Arm(own)
        for seed in range(options.seeds):
            rows.append(asyncio.run(run(arm, options, seed)))
            print(json.dumps(rows[-1]), flush=True)
    print(table(rows), file=sys.stderr)


if __name__ == "__main__":
    main()
