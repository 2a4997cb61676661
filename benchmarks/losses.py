"""Held-out reward per loss and lag: one process, the tiny model, own rollouts only.

Batches wait in a queue L long, so that each is trained on L updates after it was sampled (the first
L with the weights of the start). All arms get the same number of updates of 8 groups of 8; arms of
one seed differ in nothing but loss and lag: same tasks, same held-out tasks, same warm start, the
node's default settings. `dr_grpo` and `tba` take the advantage without deviation, as published. The
CPU seconds of an arm show what a loss costs.

    python benchmarks/losses.py [--losses NAME,...] [--lags 0,4,16] [--seeds N] [--updates N]
"""

from __future__ import annotations

import argparse
import asyncio
import platform
import statistics
import tempfile
import time
from collections import deque
from pathlib import Path

import torch

from swarm_node.environments.reasoning_gym.environment import create
from swarm_node.environments.seeds import held_out_seed, task_seed
from swarm_node.policy.choices import LOSS_CHOICES, AdvantageName, LossName
from swarm_node.policy.experience.batch import build_batch
from swarm_node.policy.models.codec import Codec
from swarm_node.policy.models.model import resolve
from swarm_node.policy.sampling.sampler import SampleRequest
from swarm_node.policy.sampling.torch_sampler import TorchSampler
from swarm_node.policy.training.process import InlineTrainer
from swarm_node.policy.training.trainer import TrainerSettings
from swarm_node.rollout import PolicyRef, Provenance, RolloutGroup, TaskRef, VerifiedGroup

GROUPS, COMPLETIONS, MAX_NEW_TOKENS = 8, 8, 24
EVAL_TASKS = 64
WITHOUT_DEVIATION = ("dr_grpo", "tba")


class Arm:
    """One run of one loss at one lag."""

    def __init__(self, loss: LossName, lag: int, seed: int, directory: Path) -> None:
        self.lag, self.seed = lag, seed
        self.advantage: AdvantageName = "dr_grpo" if loss in WITHOUT_DEVIATION else "grpo"
        model = resolve("tiny")
        self.codec = Codec.from_directory(model)
        self.sampler = TorchSampler.from_directory(model, threads=1)
        self.environment = create(preset="short", scoring="binary")
        settings = TrainerSettings(loss=loss, longest_answer=MAX_NEW_TOKENS)
        self.trainer = InlineTrainer(model, directory / "checkpoints", directory, settings)
        self.sampled = 0

    async def run(self, updates: int, eval_every: int) -> tuple[list[float], float, float]:
        """Held-out rewards, the share of clipped tokens, and the CPU seconds of learning."""
        weights, version = await self.trainer.start()
        await self.sampler.load(weights, version)
        waiting = deque([await self.groups() for _ in range(self.lag)])
        curve, clipped, seconds = [await self.held_out()], [], 0.0
        for update in range(1, updates + 1):
            begun = time.process_time()
            waiting.append(await self.groups())
            codec = self.codec
            batch = build_batch(
                waiting.popleft(),
                codec.encode_prompt,
                codec.encode_answer,
                codec.eos_id,
                advantage=self.advantage,
            )
            result = await self.trainer.update(batch)
            await self.sampler.load(result.weights, result.stats.version)
            seconds += time.process_time() - begun
            clipped.append(result.stats.clipped_share)
            if update % eval_every == 0 or update == updates:
                curve.append(await self.held_out())
        await self.sampler.close()
        await self.trainer.close()
        return curve, statistics.mean(clipped), seconds

    async def groups(self) -> list[VerifiedGroup]:
        """The next batch of the seed's own stream of tasks."""
        refs = []
        for _ in range(GROUPS):
            number = task_seed("benchmarks/losses", self.seed, self.sampled)
            family = self.environment.families[number % len(self.environment.families)]
            refs.append(self.ref(family, number))
            self.sampled += 1
        return await self.complete(refs, COMPLETIONS)

    async def held_out(self) -> float:
        """Mean reward of one answer to each held-out task, over families."""
        refs = [
            self.ref(family, held_out_seed(family, index))
            for family in self.environment.families
            for index in range(EVAL_TASKS)
        ]
        return statistics.mean(group.rewards[0] for group in await self.complete(refs, 1))

    def ref(self, family: str, seed: int) -> TaskRef:
        return TaskRef(self.environment.name, self.environment.version, family, seed)

    async def complete(self, refs: list[TaskRef], n: int) -> list[VerifiedGroup]:
        tasks = [self.environment.derive(ref) for ref in refs]
        prompts = [self.environment.render(task) for task in tasks]
        sampled = await self.sampler.sample(
            [
                SampleRequest(self.codec.encode_prompt(p), n, ref.seed ^ self.seed, MAX_NEW_TOKENS)
                for ref, p in zip(refs, prompts, strict=True)
            ]
        )
        policy = PolicyRef(b"", b"", self.sampler.version)
        groups = []
        for task, prompt, completions in zip(tasks, prompts, sampled, strict=True):
            rewards = tuple(self.score(task, completion.text) for completion in completions)
            group = RolloutGroup(task.ref, policy, completions, rewards)
            groups.append(VerifiedGroup(b"", "", Provenance.OWN, group, prompt, rewards, 0))
        return groups

    def score(self, task: object, text: str) -> float:
        try:
            return self.environment.score(task, text)  # type: ignore[arg-type]
        except (ValueError, TypeError, IndexError, KeyError, ArithmeticError):
            return 0.0  # as the environment's host does


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--losses", default=",".join(LOSS_CHOICES))
    parser.add_argument("--lags", default="0,4,16")
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--updates", type=int, default=60)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    print(
        f"python {platform.python_version()}, torch {torch.__version__}, 1 thread, "
        f"{arguments.updates} updates of {GROUPS} groups of {COMPLETIONS}, "
        f"{arguments.seeds} seeds, {9 * EVAL_TASKS} held-out tasks"
    )
    print("held-out reward at a third, two thirds and the end; mean over seeds (each at the end)")
    print(f"{'loss':10} {'lag':>3} {'1/3':>6} {'2/3':>6} {'end':>6}  {'each':15} clipped  CPU s")
    for lag in map(int, arguments.lags.split(",")):
        for loss in arguments.losses.split(","):
            curves, clipped, seconds = [], [], []
            for seed in range(arguments.seeds):
                with tempfile.TemporaryDirectory() as directory:
                    arm = Arm(loss, lag, seed, Path(directory))
                    third = max(1, arguments.updates // 3)
                    curve, share, cpu = asyncio.run(arm.run(arguments.updates, third))
                curves.append(curve)
                clipped.append(share)
                seconds.append(cpu)
            points = [statistics.mean(values) for values in zip(*curves, strict=True)]
            each = " ".join(f"{curve[-1]:.3f}" for curve in curves)
            print(
                f"{loss:10} {lag:>3} {points[1]:>6.3f} {points[2]:>6.3f} {points[-1]:>6.3f}  "
                f"{each:15} {statistics.mean(clipped):>7.3f} {statistics.mean(seconds):>6.1f}",
                flush=True,
            )
    print(f"held-out reward before the first update: {points[0]:.3f}")


if __name__ == "__main__":
    main()
