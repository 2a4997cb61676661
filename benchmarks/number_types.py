"""Learning in bfloat16 beside float32: adapters of the tiny model, the same seeds in both.

    python benchmarks/number_types.py [--seeds 11 12 13 14 15 16] [--updates 150]

One node's sampler and trainer in one process, groups of one version: 16 groups of 4 answers an
update, LoRA 16, learning rate 3e-3, drills of the preset `short`. In the arm `bfloat16` the frozen
base, the products and the sampler are bfloat16, as `training.dtype = "bfloat16"` has them;
adapters and their moments, norms, softmax and losses are float32 in both. A pair of runs has one
seed: the same tasks, the same first adapter and the same random numbers of the draw. Reward is
measured before and after, on held-out texts, by the sampler of the arm. The figure is the mean of
the paired differences of the last reward, with its 95% interval.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch
from defaults import trainer_settings

from research.estimates import estimate
from swarm_node.environments.base import Task
from swarm_node.environments.registry import create_environment
from swarm_node.environments.splits.seeds import held_out_seed, task_seed
from swarm_node.policy.experience.batch import build_batch
from swarm_node.policy.models.model import resolve
from swarm_node.policy.models.text.codec import Codec
from swarm_node.policy.placement import Placement, Precision
from swarm_node.policy.sampling.sampler import SampleRequest
from swarm_node.policy.sampling.torch_sampler import TorchSampler
from swarm_node.policy.training.update.trainer import TrainerCore
from swarm_node.rollout import PolicyRef, Provenance, RolloutGroup, TaskRef, VerifiedGroup

GROUPS, GROUP, NEW, RANK, RATE = 16, 4, 24, 16, 3e-3
_TYPES: tuple[Precision, ...] = ("float32", "bfloat16")


class Run(NamedTuple):
    """Reward on held-out texts before and after, and processor seconds of the updates."""

    before: float
    after: float
    seconds: float


class Learner:
    """Sampler and trainer in one number type."""

    def __init__(self, dtype: Precision, seed: int, place: Path) -> None:
        path, placement = resolve("tiny"), Placement("cpu", dtype)
        self._environment = create_environment("drills", {"preset": "short"})
        self._codec = Codec.from_directory(path)
        self._sampler = TorchSampler.from_directory(path, placement, codec=self._codec, threads=1)
        settings = trainer_settings(
            lora_rank=RANK, dtype=dtype, seed=seed, learning_rate=RATE, longest_answer=NEW
        )
        self._core = TrainerCore(path, settings)
        self._seed, self._place = seed, place

    async def measure(self, tasks: int) -> float:
        """Reward on `tasks` held-out texts of each family."""
        names = self._environment.families
        refs = [self._ref(name, held_out_seed(name, n)) for name in names for n in range(tasks)]
        groups = await self._sampled(refs, 1)
        return statistics.fmean(group.rewards[0] for group in groups)

    async def update(self, number: int) -> None:
        """Sample the groups of one update, and train on them."""
        names = self._environment.families
        seeds = [task_seed("number types", self._seed, number, n) for n in range(GROUPS)]
        groups = await self._sampled(
            [self._ref(names[seed % len(names)], seed) for seed in seeds], GROUP
        )
        encode = self._codec.encode_prompt
        batch = build_batch(groups, encode, self._codec.encode_answer, self._codec.eos_id)
        stats = self._core.update(batch)
        if stats.skipped is not None:  # all rewards of each group were alike, as early ones may be
            return
        assert self._core.adapter is not None
        version = self._place / f"adapter-{stats.version}"
        version.mkdir()
        self._core.adapter.save(version)
        await self._sampler.load(version, stats.version)

    async def close(self) -> None:
        await self._sampler.close()

    def _ref(self, family: str, seed: int) -> TaskRef:
        return TaskRef(self._environment.name, self._environment.version, family, seed)

    async def _sampled(self, refs: Sequence[TaskRef], n: int) -> list[VerifiedGroup]:
        tasks = [self._environment.derive(ref) for ref in refs]
        prompts = [self._environment.render(task) for task in tasks]
        requests = [
            SampleRequest(self._codec.encode_prompt(prompt), n, task_seed(ref.seed, "draw"), NEW)
            for ref, prompt in zip(refs, prompts, strict=True)
        ]
        version, sampled_groups = self._sampler.version, await self._sampler.sample(requests)
        policy = PolicyRef(bytes(32), bytes(32), version)
        return [
            self._judged(RolloutGroup(task.ref, policy, completions, (0.0,) * n), task, prompt)
            for task, prompt, completions in zip(tasks, prompts, sampled_groups, strict=True)
        ]

    def _judged(self, group: RolloutGroup, task: Task, prompt: str) -> VerifiedGroup:
        rewards = tuple(
            self._environment.score(task, completion.text) for completion in group.completions
        )
        return VerifiedGroup(bytes(34), "own", Provenance.LOCAL, group, prompt, rewards, 0)


async def learnt(dtype: Precision, seed: int, updates: int, tasks: int) -> Run:
    with tempfile.TemporaryDirectory() as directory:
        learner = Learner(dtype, seed, Path(directory))
        start_reward, start = await learner.measure(tasks), time.process_time()
        for number in range(updates):
            await learner.update(number)
        seconds = time.process_time() - start
        end_reward = await learner.measure(tasks)
        await learner.close()
        return Run(start_reward, end_reward, seconds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, nargs="+", default=[11, 12, 13, 14, 15, 16])
    parser.add_argument("--updates", type=int, default=150)
    parser.add_argument("--tasks", type=int, default=64)
    options = parser.parse_args()
    torch.set_num_threads(1)
    print(f"{'seed':>6} " + "".join(f"{name:>24}" for name in _TYPES))
    pairs = []
    for seed in options.seeds:
        pair = [asyncio.run(learnt(name, seed, options.updates, options.tasks)) for name in _TYPES]
        pairs.append(pair)
        cells = (f"{run.before:.3f} to {run.after:.3f}, {run.seconds:.0f} s" for run in pair)
        print(f"{seed:>6} " + "".join(f"{text:>24}" for text in cells), flush=True)
    difference = estimate([bfloat16.after - float32.after for float32, bfloat16 in pairs])
    print(f"bfloat16 less float32 at the end: {difference:+.3f}")


if __name__ == "__main__":
    main()
