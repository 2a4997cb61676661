"""The real vLLM on a CPU plays dialogues: what it reads before each turn is what this node derives.

One engine serves the whole module, because starting one takes long.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import pytest
import torch
from integration.engines import ON_CPUS

from swarm_node.clock import SYSTEM_CLOCK
from swarm_node.environments.base import Task
from swarm_node.environments.bundled.games import create
from swarm_node.environments.host import InlineEnvironmentHost
from swarm_node.environments.scores import Rerun
from swarm_node.environments.splits.seeds import task_seed
from swarm_node.environments.splits.splitting import SplitEnvironment
from swarm_node.environments.workers.scoring_worker import Transcript
from swarm_node.node.loops.sampling.multi_turn import MultiTurnRollout, Player, join_turns
from swarm_node.policy.experience.batch import TrainRow
from swarm_node.policy.models.decoder.causal_lm import CausalLM
from swarm_node.policy.models.model import resolve
from swarm_node.policy.models.text.codec import Codec
from swarm_node.policy.placement import ON_CPU
from swarm_node.policy.sampling.sampler import Sampler, SampleRequest
from swarm_node.policy.sampling.torch_sampler import TorchSampler
from swarm_node.policy.sampling.vllm.engine import plan_engine
from swarm_node.policy.sampling.vllm.sampler import VllmSampler
from swarm_node.policy.training.objective.logprobs import completion_logprobs, measure_canary
from swarm_node.policy.weights.store import WeightStore
from swarm_node.rollout import Completion, Provenance, TaskRef

pytestmark = [
    pytest.mark.nightly(reason="engines of their own: test_vllm_sampler has one"),
    *ON_CPUS,
]
TALK = resolve("tiny-talk")
CODEC = Codec.from_directory(TALK)
POSITIONS, BLOCK, GROUP, TASKS = 512, 32, 4, 6
#: Below 1, for a question of this form is one that the model has not seen.
HEAT = 0.5


class Repeated:
    """calc, asked so often that the prefix cache keeps whole blocks of the question. Whatever is
    said first, a second turn follows."""

    name, version, turns = "repeated", "1", 2
    families: tuple[str, ...] = ("calc",)
    games = create()

    def derive(self, ref: TaskRef) -> Task:
        asked = replace(ref, environment=self.games.name, version=self.games.version)
        return Task(ref, self.games.derive(asked).payload)

    def render(self, task: Task) -> str:
        return " ".join([self.games.render(task)] * 5)

    def observation(self, task: Task, said: Sequence[str]) -> str | None:
        return f"not {said[-1]}, {self.games.render(task)}"

    def reward(self, task: Task, said: Sequence[str]) -> float:
        return self.games.reward(task, said)


ENVIRONMENT = SplitEnvironment(Repeated())


@dataclass
class Asked:
    """A sampler that keeps what it was asked for, and what an engine had `cached` before each
    turn."""

    sampler: Sampler
    requests: list[SampleRequest] = field(default_factory=list)
    cached: list[int] = field(default_factory=list)

    async def sample(self, requests: Sequence[SampleRequest]) -> list[tuple[Completion, ...]]:
        self.requests += requests
        if isinstance(self.sampler, VllmSampler):
            self.cached.append((await self.sampler.stats())["cached_tokens"])
        return await self.sampler.sample(requests)


@dataclass
class Bench:
    """An engine with the weights of tiny-talk, or with others."""

    runner: asyncio.Runner
    sampler: VllmSampler
    store: WeightStore
    version: int = -1

    def load(self, model: CausalLM) -> None:
        self.version += 1
        canary = measure_canary(model).to_metadata()
        path = self.store.publish(self.version, model.hf_state(), canary)
        self.runner.run(self.sampler.load(path, self.version))

    def cached(self) -> int:
        return self.runner.run(self.sampler.stats())["cached_tokens"]


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    torch.set_num_threads(1)
    config = CausalLM.from_directory(TALK).config
    plan = plan_engine(config, placement=ON_CPU, max_rows=64, max_new_tokens=POSITIONS, lora_rank=0)
    with asyncio.Runner() as runner:
        sampler = VllmSampler.from_directory(TALK, plan)
        yield Bench(runner, sampler, WeightStore(tmp_path_factory.mktemp("weights")))
        runner.run(sampler.close())


async def played(sampler: Asked, temperature: float) -> list[MultiTurnRollout]:
    """Dialogues with a sampler, played as a node plays its own."""
    host = InlineEnvironmentHost(ENVIRONMENT)

    async def hear(ref: TaskRef, said: Sequence[Transcript]) -> Sequence[Rerun]:
        return (await host.rerun(ref, said)).reruns

    seeds = [task_seed("vllm", index) for index in range(TASKS)]
    refs = [TaskRef(ENVIRONMENT.name, ENVIRONMENT.version, "calc", seed) for seed in seeds]
    openings = [
        (ref, SampleRequest(CODEC.encode_prompt(prompt), GROUP, ref.seed, 24, temperature))
        for ref, prompt in zip(refs, await host.render(refs), strict=True)
    ]
    player = Player(sampler, CODEC, hear, SYSTEM_CLOCK)  # type: ignore[arg-type]
    groups, _ = await player.play(openings)
    return [dialogue for group in groups for dialogue in group]


def test_both_samplers_read_the_same_contexts_token_for_token(bench: Bench) -> None:
    """Of weights whose likeliest token is by far the likeliest, so that no seed decides."""
    model = CausalLM.from_directory(TALK)
    with torch.no_grad():
        model.norm.mul_(1000.0)
    bench.load(model)
    engine, built_in = Asked(bench.sampler), Asked(TorchSampler(model, CODEC, inline=True))
    ours = bench.runner.run(played(engine, 0.01))
    theirs = asyncio.run(played(built_in, 0.01))
    second = [request for request in engine.requests if request.n == 1]
    assert len(second) > TASKS, "most dialogues have two turns"
    assert [each.prompt_ids for each in engine.requests] == [
        each.prompt_ids for each in built_in.requests
    ]
    for one, other in zip(ours, theirs, strict=True):
        assert one.observations == other.observations
        for turn, same in zip(one.turns, other.turns, strict=True):
            assert turn.token_ids.tolist() == same.token_ids.tolist()
            assert (turn.text, turn.finish) == (same.text, same.finish)


@torch.no_grad()
def test_the_second_turn_is_sampled_from_the_derived_context_in_the_prefix_cache(
    bench: Bench,
) -> None:
    """Its log-probs are the trainer's of one row, and whole blocks before it were not computed
    again."""
    model = CausalLM.from_directory(TALK)
    bench.load(model)
    engine = Asked(bench.sampler)
    rollouts = bench.runner.run(played(engine, HEAT))
    second = [request for request in engine.requests if request.n == 1]
    assert len(second) > TASKS
    cached = bench.cached() - engine.cached[1]
    shortest = min(len(dialogue.request.prompt_ids) for dialogue in rollouts)
    assert shortest >= 2 * BLOCK
    assert cached >= len(second) * (shortest // BLOCK * BLOCK)
    for dialogue in rollouts:
        said, ends = join_turns(dialogue.turns), join_turns(dialogue.turns).ends
        row = TrainRow(
            prompt_ids=np.asarray(dialogue.request.prompt_ids, np.uint32),
            completion_ids=said.token_ids,
            logprobs=None,
            advantage=0.0,
            provenance=Provenance.LOCAL,
            observations=tuple(
                (end, CODEC.bridge(reply))
                for end, reply in zip(ends[:-1], dialogue.observations, strict=True)
            ),
        )
        trained = completion_logprobs(model, [row], HEAT).numpy()
        assert float(np.abs(trained - said.logprobs).max()) < 1e-4
