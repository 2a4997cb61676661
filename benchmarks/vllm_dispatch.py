"""Gain of over-provisioning with resumption (APRIL).

    python benchmarks/vllm_dispatch.py [--calls 6] [--repetitions 3] [--places 16]

A long-tailed workload on vLLM on this machine's CPU: eight families whose answers have median
lengths of 8 to 384 tokens, log-normal within a family. Each arm makes the same number of calls of
16 groups from the same stream of tasks; the arms take turns, so that a busy machine slows all.
Counted are tokens of whole groups and of interrupted ones, which are kept: all are used in the end.
Ratios are to the arm without it, within one turn: of tokens per second, and of tokens per second of
the engine's core, which others on the machine disturb less.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import psutil
import torch
from endless import endless

from swarm_node.node.loops.sampling.partial_rollouts import PartialRollouts, PendingGroup
from swarm_node.policy.models.model import resolve
from swarm_node.policy.placement import ON_CPU
from swarm_node.policy.sampling.sampler import SampleRequest
from swarm_node.policy.sampling.vllm.engine import plan_engine
from swarm_node.policy.sampling.vllm.sampler import VllmSampler
from swarm_node.policy.training.objective.logprobs import measure_canary
from swarm_node.policy.weights.store import WeightStore
from swarm_node.rollout import TaskRef

TARGET, GROUP, LONGEST = 16, 4, 896
MEDIANS = (8, 12, 16, 24, 48, 96, 192, 384)
#: Groups begun per group awaited.
ARMS = {"without": 1.0, "over-provision 1.5": 1.5}

Rates = tuple[float, float, float]


class TaskStream:
    """An endless stream of tasks, the same for every arm."""

    def __init__(self, prompt: tuple[int, ...], seed: int) -> None:
        self._prompt = prompt
        self._rng = random.Random(seed)
        self._count = 0

    async def draw(self, count: int) -> list[PendingGroup]:
        jobs = []
        for _ in range(count):
            family = self._rng.randrange(len(MEDIANS))
            length = int(MEDIANS[family] * self._rng.lognormvariate(0.0, 0.4))
            self._count += 1
            request = SampleRequest(self._prompt, GROUP, self._count, max(1, min(length, LONGEST)))
            jobs.append(PendingGroup(TaskRef("bench", "1", str(family), self._count), "", request))
        return jobs


def tokens_of(jobs: Sequence[PendingGroup]) -> int:
    return sum(len(row.token_ids) for job in jobs for row in job.rows)


async def run_arm(
    sampler: VllmSampler, prompt: tuple[int, ...], arm: str, calls: int, seed: int
) -> Rates:
    """Tokens per second, tokens per second of the core's processor time, groups per second."""
    partial_rollouts = PartialRollouts(sampler, over_provision=ARMS[arm], max_staleness=1 << 30)
    tasks, delivered_jobs = TaskStream(prompt, seed), list[PendingGroup]()

    async def deliver(job: PendingGroup) -> None:
        delivered_jobs.append(job)

    await partial_rollouts.gather(TARGET, tasks.draw, deliver)  # warms up; not counted
    start_tokens = tokens_of(delivered_jobs) + tokens_of(partial_rollouts.interrupted_groups)
    start_groups = len(delivered_jobs)
    core = psutil.Process((await sampler.stats())["core"])
    start, core_seconds = time.perf_counter(), sum(core.cpu_times()[:2])
    for _ in range(calls):
        await partial_rollouts.gather(TARGET, tasks.draw, deliver)
    seconds = time.perf_counter() - start
    tokens = (
        tokens_of(delivered_jobs) + tokens_of(partial_rollouts.interrupted_groups) - start_tokens
    )
    core_seconds = sum(core.cpu_times()[:2]) - core_seconds
    return tokens / seconds, tokens / core_seconds, (len(delivered_jobs) - start_groups) / seconds


async def main(calls: int, repetitions: int, places: int) -> None:
    torch.set_num_threads(1)
    model, codec = endless(resolve("tiny"))
    plan = plan_engine(model.config, placement=ON_CPU, max_rows=places, max_new_tokens=LONGEST)
    sampler = VllmSampler(model.config, codec, plan)
    with tempfile.TemporaryDirectory() as directory:
        canary = measure_canary(model).to_metadata()
        weights = WeightStore(Path(directory)).publish(0, model.hf_state(), canary)
        try:
            await sampler.load(weights, 0)
            prompt = codec.encode_prompt("How long does it take?")
            rates: dict[str, list[Rates]] = {arm: [] for arm in ARMS}
            for turn in range(repetitions):
                for arm in ARMS:
                    rates[arm].append(await run_arm(sampler, prompt, arm, calls, turn))
        finally:
            await sampler.close()
    print(f"{calls} calls of {TARGET} groups of {GROUP}, {places} places, {repetitions} turns")
    print(f"{'arm':20} {'tokens/s':>9} {'groups/s':>9}   ratios by turn: tokens/s; per core second")
    for arm, arm_rates in rates.items():
        pairs = list(zip(arm_rates, rates["without"], strict=True))
        ratios = ["  ".join(f"{rate[n] / base[n]:.2f}" for rate, base in pairs) for n in (0, 1)]
        print(
            f"{arm:20} {statistics.median(m[0] for m in arm_rates):9.0f} "
            f"{statistics.median(m[2] for m in arm_rates):9.2f}   {';   '.join(ratios)}"
        )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--calls", type=int, default=6)
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--places", type=int, default=16)
    arguments = parser.parse_args()
    asyncio.run(main(arguments.calls, arguments.repetitions, arguments.places))
