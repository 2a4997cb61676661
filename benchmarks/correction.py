"""What to do with peers' rows: three specialised nodes in one process, held-out reward by arm.

    python benchmarks/correction.py [--updates 200] [--seeds 3] [--arms alone own sampler positive]

Node i samples three of the nine short families; everybody trains on I = 4 own groups and J = 4
drawn from the replay buffer of a real node, into which the others' groups go (alone: 8 own).
Synchronous and without a network, so the arms differ in `experience.correction` only.
"own" is SAPO as published.
Prints reward on the families a node samples and on those it never samples, mean over nodes, with a
95% interval over seeds.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import time
from collections.abc import Sequence
from dataclasses import replace
from itertools import chain

import numpy as np
import torch

from swarm_node.environments.host import InlineEnvironmentHost
from swarm_node.environments.reasoning_gym.environment import create
from swarm_node.environments.seeds import held_out_seed, task_seed
from swarm_node.policy.experience.batch import Correction, build_batch
from swarm_node.policy.experience.replay import ReplayBuffer, ReplaySettings
from swarm_node.policy.models.codec import Codec
from swarm_node.policy.models.model import resolve
from swarm_node.policy.models.qwen2 import Qwen2
from swarm_node.policy.sampling.sampler import SampleRequest
from swarm_node.policy.sampling.torch_sampler import TorchSampler
from swarm_node.policy.training.trainer import TrainerCore, TrainerSettings
from swarm_node.rollout import PolicyRef, Provenance, RolloutGroup, TaskRef, VerifiedGroup

NODES, OWN, EXTERNAL, GROUP, TOKENS, HELD_OUT = 3, 4, 4, 8, 24, 32
ARMS: list[tuple[str, int, Correction]] = [
    ("alone", 0, "own"),
    ("own", EXTERNAL, "own"),
    ("sampler", EXTERNAL, "sampler"),
    ("positive", EXTERNAL, "positive"),
]
T95 = {2: 12.71, 3: 4.30, 4: 3.18, 5: 2.78}


class Learner:
    """One node's policy and its stream of tasks."""

    def __init__(self, index: int, seed: int, environment: InlineEnvironmentHost, codec: Codec):
        self.index, self.seed, self.environment, self.codec = index, seed, environment, codec
        self.model = Qwen2.from_directory(resolve("tiny"))
        self.sampler = TorchSampler(self.model, codec, threads=1)
        self.trainer = TrainerCore(resolve("tiny"), TrainerSettings(seed=seed))
        self.position = 0
        self.buffer: ReplayBuffer

    async def start(self) -> None:
        info = await self.environment.start()
        self.info = info
        self.families = sorted(info.families)[self.index :: NODES]

    async def groups(self, refs: list[TaskRef], size: int) -> list[VerifiedGroup]:
        prompts = await self.environment.render(refs)
        requests = [
            SampleRequest(self.codec.encode_prompt(p), size, task_seed(self.seed, r.seed), TOKENS)
            for p, r in zip(prompts, refs, strict=True)
        ]
        made = []
        for ref, completions in zip(refs, await self.sampler.sample(requests), strict=True):
            judged = await self.environment.judge(ref, [c.text for c in completions])
            group = RolloutGroup(ref, PolicyRef(b"", b"", 0), completions, judged.rewards)
            identifier = f"{self.index}:{ref.family}:{ref.seed}".encode()
            made.append(
                VerifiedGroup(
                    *(identifier, str(self.index), Provenance.OWN, group),
                    *(judged.prompt, judged.rewards, 0),
                )
            )
        return made

    async def experience(self, count: int) -> list[VerifiedGroup]:
        refs = []
        for _ in range(count):
            seed = task_seed("correction", self.seed, self.index, self.position)
            self.position += 1
            family = self.families[seed % len(self.families)]
            refs.append(TaskRef(self.info.name, self.info.version, family, seed))
        return await self.groups(refs, GROUP)

    async def held_out(self) -> tuple[float, float]:
        """(reward on sampled families, on never-sampled ones)."""
        refs = [
            TaskRef(self.info.name, self.info.version, family, held_out_seed(family, i))
            for family in self.info.families
            for i in range(HELD_OUT)
        ]
        scores: dict[str, list[float]] = {family: [] for family in self.info.families}
        for group in await self.groups(refs, 1):
            scores[group.group.task.family].append(group.rewards[0])
        own = [np.mean(v) for f, v in scores.items() if f in self.families]
        unseen = [np.mean(v) for f, v in scores.items() if f not in self.families]
        return float(np.mean(own)), float(np.mean(unseen))

    def learn(self, groups: Sequence[VerifiedGroup], correction: Correction) -> None:
        codec = self.codec
        batch = build_batch(
            groups, codec.encode_prompt, codec.encode_answer, codec.eos_id, correction
        )
        self.trainer.update(batch)
        self.model.load_hf_state(self.trainer.weights())


def as_kin(group: VerifiedGroup, version: int) -> VerifiedGroup:
    return replace(group, provenance=Provenance.KIN, arrived=version)


async def run(
    external: int, correction: Correction, updates: int, seed: int
) -> tuple[float, float]:
    environment, codec = InlineEnvironmentHost(create()), Codec.from_directory(resolve("tiny"))
    nodes = [Learner(index, seed, environment, codec) for index in range(NODES)]
    rng = random.Random(f"correction:{seed}")
    for node in nodes:
        await node.start()
        node.buffer = ReplayBuffer(ReplaySettings(own=0, external=max(external, 1)))
    for version in range(updates):
        fresh = [await node.experience(OWN + EXTERNAL - external) for node in nodes]
        for node, own in zip(nodes, fresh, strict=True):
            for group in chain.from_iterable(groups for groups in fresh if groups is not own):
                node.buffer.admit(as_kin(group, version), version)
            drawn = node.buffer.draw(version, rng) if external else None
            node.learn([*own, *(drawn.groups if drawn else ())], correction)
    rewards = [await node.held_out() for node in nodes]
    for node in nodes:
        await node.sampler.close()
    own, unseen = np.mean(rewards, axis=0)
    return float(own), float(unseen)


def interval(values: list[float]) -> str:
    if len(values) < 2:
        return f"{values[0]:.3f}"
    half = T95.get(len(values), 2.0) * float(np.std(values, ddof=1)) / len(values) ** 0.5
    return f"{np.mean(values):.3f} ± {half:.3f}"


def main(updates: int, seeds: int, arms: list[str]) -> None:
    torch.set_num_threads(1)
    print(f"{NODES} nodes, {updates} updates, {seeds} seeds, {HELD_OUT} held-out tasks per family")
    print(f"{'arm':12} {'families it samples':>22} {'never samples':>18} {'CPU s':>7}")
    for name, external, correction in ARMS:
        if name not in arms:
            continue
        started = time.process_time()
        results = [asyncio.run(run(external, correction, updates, seed)) for seed in range(seeds)]
        own, unseen = ([r[i] for r in results] for i in range(2))
        spent = (time.process_time() - started) / seeds
        print(f"{name:12} {interval(own):>22} {interval(unseen):>18} {spent:7.0f}", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--updates", type=int, default=200)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--arms", nargs="+", default=[name for name, *_ in ARMS])
    arguments = parser.parse_args()
    main(arguments.updates, arguments.seeds, arguments.arms)
