"""A tiny model learns the games of two turns: with the environment's observations, and with false
ones.

False observations are of the same form and say nothing, so that nobody can be right at guess more
than two times of three, or at weigh more than one time of three. Sampler, trainer and batches are a
node's, in one process: groups of one version, so many for each update. Reward is measured on
held-out texts. A run with true observations ends with the cost of a row for a multi-turn rollout
beside a row for each turn. With --three-turns, only that cost is measured, on multi-turn rollouts
of three turns each.

    python benchmarks/multi_turn.py --updates 300
    python benchmarks/multi_turn.py --three-turns
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from swarm_node.clock import SYSTEM_CLOCK
from swarm_node.config import Settings, load_settings, parse_assignments
from swarm_node.environments.base import MultiTurnEnvironment, Task
from swarm_node.environments.bundled.games import create
from swarm_node.environments.host import InlineEnvironmentHost
from swarm_node.environments.scores import Rerun
from swarm_node.environments.splits.seeds import held_out_seed, task_seed
from swarm_node.environments.splits.splitting import SplitEnvironment
from swarm_node.environments.workers.scoring_worker import Transcript
from swarm_node.node.loops.sampling.multi_turn import MultiTurnRollout, Player, join_turns
from swarm_node.node.start.derive import trainer_settings
from swarm_node.policy.experience.batch import Batch, TrainRow, build_batch
from swarm_node.policy.models.decoder.causal_lm import CausalLM
from swarm_node.policy.models.model import Model, resolve
from swarm_node.policy.sampling.sampler import SampleRequest
from swarm_node.policy.sampling.torch_sampler import TorchSampler
from swarm_node.policy.training.objective.logprobs import completion_logprobs
from swarm_node.policy.training.processes.inline import InlineTrainer
from swarm_node.rollout import Provenance, RolloutGroup, TaskRef, VerifiedGroup


class FalseReplies:
    """The games with observations that depend on nothing that would help."""

    def __init__(self, games: MultiTurnEnvironment) -> None:
        self._games = games
        self.name, self.families, self.turns = games.name, games.families, games.turns
        self.version = games.version

    def derive(self, ref: TaskRef) -> Task:
        return self._games.derive(ref)

    def render(self, task: Task) -> str:
        return self._games.render(task)

    def observation(self, task: Task, completions: Sequence[str]) -> str | None:
        observation = self._games.observation(task, completions)
        if observation is None:
            return None
        key = f"{task.ref.family}/{task.ref.seed}/{completions}".encode()
        number = int.from_bytes(hashlib.sha256(key).digest()[:8], "big")
        if observation.isdigit():
            return str((10 + number % 90) * (10 + number // 90 % 90))
        if task.ref.family == "weigh":
            return ("left is heavier", "right is heavier", "equal")[number % 3]
        return ("higher", "lower")[number % 2]

    def reward(self, task: Task, completions: Sequence[str]) -> float:
        return self._games.reward(task, completions)


class ThreeTurns:
    """Guesses at a number that end after three, right or wrong. Half of all last ones count, so
    that groups have unlike rewards."""

    name, version, turns = "three-turns", "1", 3
    families: tuple[str, ...] = ("guess",)

    def derive(self, ref: TaskRef) -> Task:
        return Task(ref, 10 + ref.seed % 88)

    def render(self, task: Task) -> str:
        return f"Guess my number from {task.payload} to {task.payload + 2}."

    def observation(self, task: Task, completions: Sequence[str]) -> str | None:
        return ("higher", "lower")[hashlib.sha256(completions[-1].encode()).digest()[0] % 2]

    def reward(self, task: Task, completions: Sequence[str]) -> float:
        return float(hashlib.sha256(completions[-1].encode()).digest()[1] % 2)


class Learner:
    """One node's sampler and trainer on one environment."""

    def __init__(
        self, model: Model, games: MultiTurnEnvironment, settings: Settings, place: Path
    ) -> None:
        self._model, self._settings = model, settings
        self._sampler = TorchSampler(
            CausalLM.from_directory(model.directory), model.codec, inline=True
        )
        (place / "weights").mkdir(parents=True)
        train_settings = replace(trainer_settings(settings), device="cpu", dtype="float32")
        self._trainer = InlineTrainer(
            model.directory, place / "checkpoints", place / "weights", train_settings
        )
        self.start = self._trainer.start
        self._take(games)

    def _take(self, games: MultiTurnEnvironment) -> None:
        self._environment = SplitEnvironment(games)
        self._host = InlineEnvironmentHost(self._environment)
        self._player = Player(self._sampler, self._model.codec, self._rerun, SYSTEM_CLOCK)

    async def _rerun(self, ref: TaskRef, transcripts: Sequence[Transcript]) -> list[Rerun]:
        return list((await self._host.rerun(ref, transcripts)).reruns)

    async def _play(
        self, refs: Sequence[TaskRef], n: int, draw: int
    ) -> tuple[list[str], list[list[MultiTurnRollout]]]:
        prompts = await self._host.render(refs)
        sampling = self._settings.sampling
        openings = [
            (
                ref,
                SampleRequest(
                    self._model.codec.encode_prompt(prompt),
                    n,
                    task_seed(draw, ref.seed),
                    sampling.max_new_tokens,
                    sampling.temperature,
                ),
            )
            for ref, prompt in zip(refs, prompts, strict=True)
        ]
        return prompts, (await self._player.play(openings))[0]

    def _ref(self, family: str, seed: int) -> TaskRef:
        return TaskRef(self._environment.name, self._environment.version, family, seed)

    async def measure(
        self, tasks: int, games: MultiTurnEnvironment | None = None
    ) -> Mapping[str, float]:
        """Reward by family on so many held-out tasks, with the observations of other `games` if
        they are given."""
        if games is not None:
            self._take(games)
        rewards = {}
        for family in self._environment.families:
            refs = [self._ref(family, held_out_seed("benchmark", n)) for n in range(tasks)]
            _, rollouts = await self._play(refs, 1, 1)
            rewards[family] = float(np.mean([rollout.last_rerun.reward for (rollout,) in rollouts]))
        return rewards

    async def update(self, number: int, groups: int) -> Batch:
        """Play `groups` tasks, train on them, and return what was trained on."""
        families = self._environment.families
        refs = [
            self._ref(families[n % len(families)], task_seed(self._settings.run.seed, number, n))
            for n in range(groups)
        ]
        codec = self._model.codec
        prompts, rollouts = await self._play(refs, self._settings.sampling.group_size, number)
        local_groups = [self._group(*parts) for parts in zip(refs, prompts, rollouts, strict=True)]
        batch = build_batch(
            local_groups,
            codec.encode_prompt,
            codec.encode_answer,
            codec.eos_id,
            bridge=codec.bridge,
        )
        result = await self._trainer.update(batch)
        await self._sampler.load(result.weights, self._trainer.version)
        return batch

    def _group(
        self, ref: TaskRef, prompt: str, rollouts: Sequence[MultiTurnRollout]
    ) -> VerifiedGroup:
        rewards = tuple(rollout.last_rerun.reward for rollout in rollouts)
        version = self._sampler.version
        group = RolloutGroup(
            ref,
            replace(self._model.policy, version=version),
            tuple(join_turns(rollout.turns) for rollout in rollouts),
            rewards,
        )
        observations = tuple(tuple(rollout.observations) for rollout in rollouts)
        group_id = f"{ref.seed}/{version}".encode()
        return VerifiedGroup(
            group_id, "own", Provenance.LOCAL, group, prompt, rewards, version, observations
        )


def by_turn(rows: Sequence[TrainRow]) -> list[TrainRow]:
    """The same multi-turn rollouts with a row for each turn: its prompt is all that was read
    before."""
    turn_rows = []
    for row in rows:
        context_ids, begin = row.prompt_ids, 0
        for end, observation in (*row.observations, (row.completion_ids.size, ())):
            turn_ids = row.completion_ids[begin:end]
            turn_rows.append(
                replace(
                    row,
                    prompt_ids=context_ids,
                    completion_ids=turn_ids,
                    observations=(),
                    logprobs=None,
                    versions=None,
                )
            )
            context_ids, begin = (
                np.concatenate([context_ids, turn_ids, np.asarray(observation, np.uint32)]),
                end,
            )
    return turn_rows


def cost(model: Model, rows: Sequence[TrainRow]) -> tuple[int, float, torch.Tensor]:
    """Tokens of the rows, CPU milliseconds of forward and backward, and the gradient."""
    policy = CausalLM.from_directory(model.directory)
    weights = torch.cat([torch.full((row.completion_ids.size,), row.advantage) for row in rows])
    start = time.process_time()
    torch.autograd.backward((completion_logprobs(policy, rows, 1.0) * weights).sum())
    milliseconds = 1000 * (time.process_time() - start)
    gradient = torch.cat([p.grad.flatten() for p in policy.parameters() if p.grad is not None])
    return sum(map(len, rows)), milliseconds, gradient


def show_rows(model: Model, rows: Sequence[TrainRow]) -> None:
    """Print what a row for a multi-turn rollout saves."""
    cost(model, rows[:1])  # the first product of a process takes longer
    tokens, row_ms, gradient = cost(model, rows)
    turn_tokens, turn_ms, turn_gradient = cost(model, by_turn(rows))
    gap = float((gradient - turn_gradient).abs().max() / gradient.abs().max())
    print(
        f"{len(rows)} rollouts: {tokens} tokens and {row_ms:.0f} ms in a row each, "
        f"{turn_tokens} and {turn_ms:.0f} ms in a row for each turn ({tokens / turn_tokens:.2f}); "
        f"gradients differ by {gap:.0e} of the largest"
    )


async def three_turns(model: Model, options: argparse.Namespace) -> None:
    """Show what a row for a multi-turn rollout saves at three turns."""
    settings = load_settings(
        {"run.seed": options.seed, **parse_assignments(options.set)}, environ={}
    )
    with tempfile.TemporaryDirectory() as place:
        learner = Learner(model, ThreeTurns(), settings, Path(place))
        await learner.start()
        rows = (await learner.update(0, options.groups)).rows
        show_rows(model, [row for row in rows if len(row.observations) == 2])


async def curve(
    name: str, model: Model, games: MultiTurnEnvironment, options: argparse.Namespace
) -> None:
    settings = load_settings(
        {"run.seed": options.seed, **parse_assignments(options.set)}, environ={}
    )
    with tempfile.TemporaryDirectory() as place:
        learner = Learner(model, games, settings, Path(place))
        await learner.start()
        cpu_time, longest_batch = 0.0, Batch(())
        for number in range(options.updates + 1):
            if number % options.every == 0 or number == options.updates:
                rewards = await learner.measure(options.tasks)
                line = "  ".join(f"{family} {value:.3f}" for family, value in rewards.items())
                print(f"{name:5}  {number:5} updates {cpu_time:5.0f} CPU s  {line}", flush=True)
            if number == options.updates:
                break
            start = time.process_time()
            batch = await learner.update(number, options.groups)
            cpu_time += time.process_time() - start
            longest_batch = max(
                longest_batch, batch, key=lambda candidate: sum(map(len, candidate.rows))
            )
        if name == "true":
            rewards = await learner.measure(options.tasks, FalseReplies(games))
            line = "  ".join(f"{family} {value:.3f}" for family, value in rewards.items())
            print(f"the same model, given false observations {line}")
            show_rows(model, longest_batch.rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="tiny-talk")
    parser.add_argument("--updates", type=int, default=300)
    parser.add_argument("--groups", type=int, default=8, help="groups of an update")
    parser.add_argument("--every", type=int, default=50, help="updates between measurements")
    parser.add_argument("--tasks", type=int, default=256, help="held-out tasks of a family")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", choices=("true", "false"))
    parser.add_argument("--set", action="append", default=[], help="a setting, KEY=VALUE")
    parser.add_argument("--three-turns", action="store_true", help="the cost of rows alone")
    options = parser.parse_args()
    torch.set_num_threads(1)
    directory = resolve(options.model)
    model = Model.read(options.model, directory)
    if options.three_turns:
        asyncio.run(three_turns(model, options))
        return
    for name, games in (("true", create()), ("false", FalseReplies(create()))):
        if options.only in (None, name):
            asyncio.run(curve(name, model, games, options))


if __name__ == "__main__":
    main()
