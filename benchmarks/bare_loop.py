"""A whole node beside the bare loop of its parts: samples per CPU second on the tiny model.

The bare loop is one process with the node's sampler, scorer and trainer, and nothing else: it
derives tasks, samples, scores, updates, and copies the new weights into the sampler. The node is
whole: `swarm-node init` and `join`, a swarm of one, with its network daemon, trainer, environment
and scoring workers. Both have the same environment, batch shape, settings of the trainer and one
thread, and begin with the same weights. CPU is user and system time of all processes, after the
first updates. Pairs alternate. The node's evaluation is off.

    python benchmarks/bare_loop.py [--seconds 20] [--pairs 3] [--set KEY=VALUE ...]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

import psutil
import torch
from node_process import NodeProcess, cpu_seconds

from swarm_node.config import Settings
from swarm_node.config.sources import load_settings, parse_assignments
from swarm_node.environments.registry import create_environment
from swarm_node.environments.splits.seeds import task_seed
from swarm_node.environments.workers.scoring_worker import derive_prompt, score_text
from swarm_node.node.start.derive import trainer_settings
from swarm_node.policy.experience.batch import build_batch
from swarm_node.policy.models.model import resolve
from swarm_node.policy.models.text.codec import Codec
from swarm_node.policy.placement import ON_CPU
from swarm_node.policy.sampling.sampler import SampleRequest
from swarm_node.policy.sampling.torch_sampler import TorchSampler
from swarm_node.policy.training.update.stats import UpdateStats
from swarm_node.policy.training.update.trainer import TrainerCore
from swarm_node.policy.weights.base import make_base
from swarm_node.rollout import PolicyRef, Provenance, RolloutGroup, TaskRef, VerifiedGroup

SETTINGS = (
    "experience.local=16",
    "experience.external=0",  # nobody else is there
    "run.threads=1",
    "run.eval_seconds=86400",
    "run.eval_tasks=1",
)
#: Updates before the measurement: the first ones allocate and compile.
WARM_UP = 20


@dataclass(frozen=True)
class LoopFigures:
    """CPU seconds, updates, samples and sampled tokens of one run; CPU milliseconds of an update by
    process, user and system."""

    cpu: float
    updates: int
    samples: int
    tokens: float
    wall: float
    parts: dict[str, tuple[float, float]] = field(default_factory=dict)

    @property
    def rate(self) -> float:
        """Samples per CPU second."""
        return self.samples / self.cpu

    def rate_without(self, part: str) -> float:
        """Samples per CPU second, without the CPU of one process and its children."""
        part_cpu = sum(self.parts.get(part, (0.0, 0.0))) * self.updates / 1e3
        return self.samples / (self.cpu - part_cpu)


class BareLoop:
    """The node's sampler, scorer and trainer in this thread."""

    def __init__(self, settings: Settings) -> None:
        directory = resolve("tiny")
        table = settings.environment
        self._settings = settings
        self._environment = create_environment(table.name, table.options)
        self._codec = Codec.from_directory(directory)
        self._model = make_base(directory, None, ON_CPU)
        self._sampler = TorchSampler(self._model, self._codec, inline=True)
        self._trainer = TrainerCore(directory, trainer_settings(settings))
        self._rng = random.Random(settings.run.seed)
        self._tasks = 0

    async def step(self) -> UpdateStats:
        """Sample one batch and train on it."""
        environment, codec, sampling = self._environment, self._codec, self._settings.sampling
        tasks = []
        for _ in range(self._settings.experience.local):
            self._tasks += 1
            family, seed = self._rng.choice(environment.families), task_seed("bare", self._tasks)
            ref = TaskRef(environment.name, environment.version, family, seed)
            tasks.append((ref, *derive_prompt(environment, ref)))
        requests = [
            SampleRequest(
                codec.encode_prompt(prompt),
                sampling.group_size,
                ref.seed,
                sampling.max_new_tokens,
                sampling.temperature,
            )
            for ref, _, prompt in tasks
        ]
        policy = PolicyRef(bytes(32), bytes(32), self._trainer.version)
        groups = []
        sampled_groups = await self._sampler.sample(requests)
        for (ref, task, prompt), completions in zip(tasks, sampled_groups, strict=True):
            rewards = tuple(
                score_text(environment, task, completion.text).reward for completion in completions
            )
            group = RolloutGroup(ref, policy, completions, rewards)
            groups.append(VerifiedGroup(b"", "own", Provenance.LOCAL, group, prompt, rewards, 0))
        batch = build_batch(
            groups,
            codec.encode_prompt,
            codec.encode_answer,
            codec.eos_id,
            group_size=sampling.group_size,
        )
        stats = self._trainer.update(batch)
        if stats.skipped is None:
            self._model.load_hf_state(self._trainer.weights())
        return stats

    async def run(self, seconds: float) -> LoopFigures:
        for _ in range(WARM_UP):
            await self.step()
        tokens = updates = 0
        cpu_start, wall_start = time.process_time(), time.monotonic()
        while time.process_time() - cpu_start < seconds:
            tokens += (await self.step()).tokens
            updates += 1
        samples = updates * self._settings.experience.local * self._settings.sampling.group_size
        cpu = time.process_time() - cpu_start
        return LoopFigures(cpu, updates, samples, tokens / samples, time.monotonic() - wall_start)


def run_bare(assignments: Sequence[str], seconds: float) -> LoopFigures:
    """The bare loop in a process of its own."""
    options = [part for text in assignments for part in ("--set", text)]
    result = subprocess.run(
        [sys.executable, __file__, "--alone", "--seconds", str(seconds), *options],
        stdout=subprocess.PIPE,
        check=True,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONHASHSEED": "0"},
    )
    return LoopFigures(**json.loads(result.stdout))


def spent(pid: int, names: dict[int, str]) -> dict[str, tuple[float, float]]:
    """User and system seconds of the process and of its named children with all of theirs."""
    user: dict[str, list[float]] = {}

    def add(process: psutil.Process, name: str) -> None:
        times = process.cpu_times()
        sums = user.setdefault(name, [0.0, 0.0])
        sums[0] += times.user + times.children_user
        sums[1] += times.system + times.children_system
        for child in process.children():
            add(child, names.get(child.pid, name))

    add(psutil.Process(pid), "node")
    return {name: (sums[0], sums[1]) for name, sums in user.items()}


def run_node(assignments: Sequence[str], seconds: float, group_size: int) -> LoopFigures:
    """A node until its processes have used up the seconds."""
    with tempfile.TemporaryDirectory(prefix="swarm-node-bench-") as directory:
        node = NodeProcess(Path(directory), assignments)
        try:
            first = node.start()
            while first.steps + first.skipped_batches < WARM_UP:
                time.sleep(0.2)
                first = node.status()
            pid, wall = node.process.pid, time.monotonic()
            names = {child: _part(name) for name, child in first.processes.items()}
            start_times, cpu_start = spent(pid, names), cpu_seconds(pid)
            while cpu_seconds(pid) - cpu_start < seconds:
                time.sleep(0.2)
            cpu, end_times = cpu_seconds(pid) - cpu_start, spent(pid, names)
            last = node.status()
            wall = time.monotonic() - wall
        finally:
            node.stop()
    updates = last.steps + last.skipped_batches - first.steps - first.skipped_batches
    samples = (last.groups.trained_local - first.groups.trained_local) * group_size
    assert last.last_step is not None
    parts = {
        name: _per_update(start_times.get(name, (0.0, 0.0)), sums, updates)
        for name, sums in end_times.items()
    }
    tokens = last.last_step.tokens * updates / samples
    return LoopFigures(cpu, updates, samples, tokens, wall, parts)


def _per_update(
    start_times: tuple[float, float], end_times: tuple[float, float], updates: int
) -> tuple[float, float]:
    """Milliseconds of an update, user and system."""
    return (
        1e3 * (end_times[0] - start_times[0]) / updates,
        1e3 * (end_times[1] - start_times[1]) / updates,
    )


def _part(name: str) -> str:
    """Scoring workers count with the process that forks them."""
    return "scoring workers" if "scoring" in name or name == "environment" else name


def show(pairs: Sequence[tuple[LoopFigures, LoopFigures]]) -> None:
    headings = "samples/CPU-s", "ms/update", "tokens", "updates", "wall s"
    print(f"{'':10}", *(f"{heading:>13}" for heading in headings))
    for pair in pairs:
        for name, run in zip(("bare loop", "node"), pair, strict=True):
            print(
                f"{name:10} {run.rate:13,.0f} {1e3 * run.cpu / run.updates:13.1f} "
                f"{run.tokens:13.2f} {run.updates:13,} {run.wall:13.1f}"
            )
    parts = sorted({name for _, node in pairs for name in node.parts})
    print("CPU ms of an update in the node, user + system (medians):")
    for name in parts:
        user, system = (
            statistics.median(node.parts.get(name, (0.0, 0.0))[kind] for _, node in pairs)
            for kind in (0, 1)
        )
        print(f"  {name:10} {user:6.1f} + {system:.1f}")
    ratios = [node.rate / loop.rate for loop, node in pairs]
    net_ratios = [node.rate_without("scoring workers") / loop.rate for loop, node in pairs]
    print(f"ratio, node to bare loop: {statistics.median(ratios):.3f} ({_listed(ratios)})")
    print(
        f"the same, scoring workers not counted: {statistics.median(net_ratios):.3f} "
        f"({_listed(net_ratios)})"
    )


def _listed(values: Sequence[float]) -> str:
    return ", ".join(f"{value:.3f}" for value in values)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=20.0, help="CPU seconds of each run")
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--set", action="append", default=[], help="one more setting of both")
    parser.add_argument("--alone", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    assignments = [*SETTINGS, *arguments.set]
    settings = load_settings(parse_assignments(assignments), environ={})
    if arguments.alone:
        torch.set_num_threads(1)
        torch.manual_seed(settings.run.seed)
        figures = asyncio.run(BareLoop(settings).run(arguments.seconds))
        print(json.dumps(asdict(figures)))
        return
    sampling, local_groups = settings.sampling, settings.experience.local
    print(
        f"python {platform.python_version()}, torch {torch.__version__}, one thread; "
        f"{local_groups} groups of {sampling.group_size} per update; "
        f"load {os.getloadavg()[0]:.1f} at the start; "
        f"{arguments.seconds:g} CPU seconds each"
    )
    pairs = [
        (
            run_bare(assignments, arguments.seconds),
            run_node(assignments, arguments.seconds, sampling.group_size),
        )
        for _ in range(arguments.pairs)
    ]
    show(pairs)


if __name__ == "__main__":
    main()
