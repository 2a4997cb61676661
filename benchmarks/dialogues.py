"""A tiny model learns the games of two turns: with the environment's replies, and with false ones.

False replies are of the same form and say nothing, so that nobody can be right at guess more than
two times of three, or at weigh more than one time of three. Sampler, trainer and batches are a
node's, in one process: groups of one version, so many for each update. Reward is measured on
held-out texts. A run with true replies ends with the cost of a row for a dialogue beside a row for
each turn. With --three-turns, only that cost is measured, on dialogues of three turns each.

    python benchmarks/dialogues.py --updates 300
    python benchmarks/dialogues.py --three-turns
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
from swarm_node.environments.base import Dialogue, Task
from swarm_node.environments.games import create
from swarm_node.environments.host import InlineEnvironmentHost
from swarm_node.environments.judgement import ReplayedDialogue
from swarm_node.environments.seeds import held_out_seed, task_seed
from swarm_node.environments.splitting import SplitEnvironment
from swarm_node.environments.workers.scoring_worker import Transcript
from swarm_node.node.loops.sampling.dialogues import PlayedDialogue, Player, joined
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
    """The games with replies that depend on nothing that would help."""

    def __init__(self, games: Dialogue) -> None:
        self._games = games
        self.name, self.families, self.turns = games.name, games.families, games.turns
        self.version = games.version

    def derive(self, ref: TaskRef) -> Task:
        return self._games.derive(ref)

    def render(self, task: Task) -> str:
        return self._games.render(task)

    def reply(self, task: Task, said: Sequence[str]) -> str | None:
        reply = self._games.reply(task, said)
        if reply is None:
            return None
        named = f"{task.ref.family}/{task.ref.seed}/{said}".encode()
        drawn = int.from_bytes(hashlib.sha256(named).digest()[:8], "big")
        if reply.isdigit():
            return str((10 + drawn % 90) * (10 + drawn // 90 % 90))
        if task.ref.family == "weigh":
            return ("left is heavier", "right is heavier", "equal")[drawn % 3]
        return ("higher", "lower")[drawn % 2]

    def judge(self, task: Task, said: Sequence[str]) -> float:
        return self._games.judge(task, said)


class ThreeTurns:
    """Guesses at a number that end after three, right or wrong. Half of all last ones count, so
    that groups have unlike rewards."""

    name, version, turns = "three-turns", "1", 3
    families: tuple[str, ...] = ("guess",)

    def derive(self, ref: TaskRef) -> Task:
        return Task(ref, 10 + ref.seed % 88)

    def render(self, task: Task) -> str:
        return f"Guess my number from {task.payload} to {task.payload + 2}."

    def reply(self, task: Task, said: Sequence[str]) -> str | None:
        return ("higher", "lower")[hashlib.sha256(said[-1].encode()).digest()[0] % 2]

    def judge(self, task: Task, said: Sequence[str]) -> float:
        return float(hashlib.sha256(said[-1].encode()).digest()[1] % 2)


class Learner:
    """One node's sampler and trainer on one environment."""

    def __init__(self, model: Model, games: Dialogue, settings: Settings, place: Path) -> None:
        self._model, self._settings = model, settings
        self._sampler = TorchSampler(
            CausalLM.from_directory(model.directory), model.codec, inline=True
        )
        (place / "weights").mkdir(parents=True)
        trained = replace(trainer_settings(settings), device="cpu", dtype="float32")
        self._trainer = InlineTrainer(
            model.directory, place / "checkpoints", place / "weights", trained
        )
        self.start = self._trainer.start
        self._take(games)

    def _take(self, games: Dialogue) -> None:
        self._environment = SplitEnvironment(games)
        self._host = InlineEnvironmentHost(self._environment)
        self._player = Player(self._sampler, self._model.codec, self._replay, SYSTEM_CLOCK)

    async def _replay(self, ref: TaskRef, said: Sequence[Transcript]) -> list[ReplayedDialogue]:
        return list((await self._host.replay(ref, said)).dialogues)

    async def _play(
        self, refs: Sequence[TaskRef], n: int, draw: int
    ) -> tuple[list[str], list[list[PlayedDialogue]]]:
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

    async def measure(self, tasks: int, games: Dialogue | None = None) -> Mapping[str, float]:
        """Reward by family on so many held-out tasks, with the replies of other `games` if they
        are given."""
        if games is not None:
            self._take(games)
        found = {}
        for family in self._environment.families:
            refs = [self._ref(family, held_out_seed("benchmark", n)) for n in range(tasks)]
            _, played = await self._play(refs, 1, 1)
            found[family] = float(np.mean([each.last_replay.reward for (each,) in played]))
        return found

    async def update(self, number: int, groups: int) -> Batch:
        """Play `groups` tasks, train on them, and return what was trained on."""
        families = self._environment.families
        refs = [
            self._ref(families[n % len(families)], task_seed(self._settings.run.seed, number, n))
            for n in range(groups)
        ]
        codec = self._model.codec
        prompts, played = await self._play(refs, self._settings.sampling.group_size, number)
        own = [self._group(*each) for each in zip(refs, prompts, played, strict=True)]
        batch = build_batch(
            own, codec.encode_prompt, codec.encode_answer, codec.eos_id, bridge=codec.bridge
        )
        result = await self._trainer.update(batch)
        await self._sampler.load(result.weights, self._trainer.version)
        return batch

    def _group(
        self, ref: TaskRef, prompt: str, dialogues: Sequence[PlayedDialogue]
    ) -> VerifiedGroup:
        rewards = tuple(each.last_replay.reward for each in dialogues)
        version = self._sampler.version
        group = RolloutGroup(
            ref,
            replace(self._model.policy, version=version),
            tuple(joined(each.turns) for each in dialogues),
            rewards,
        )
        replies = tuple(tuple(each.replies) for each in dialogues)
        named = f"{ref.seed}/{version}".encode()
        return VerifiedGroup(
            named, "own", Provenance.LOCAL, group, prompt, rewards, version, replies
        )


def by_turn(rows: Sequence[TrainRow]) -> list[TrainRow]:
    """The same dialogues with a row for each turn: its prompt is all that was read before."""
    found = []
    for row in rows:
        read, begin = row.prompt_ids, 0
        for end, given in (*row.observations, (row.completion_ids.size, ())):
            said = row.completion_ids[begin:end]
            found.append(
                replace(
                    row,
                    prompt_ids=read,
                    completion_ids=said,
                    observations=(),
                    logprobs=None,
                    versions=None,
                )
            )
            read, begin = np.concatenate([read, said, np.asarray(given, np.uint32)]), end
    return found


def cost(model: Model, rows: Sequence[TrainRow]) -> tuple[int, float, torch.Tensor]:
    """Tokens of the rows, CPU milliseconds of forward and backward, and the gradient."""
    policy = CausalLM.from_directory(model.directory)
    weights = torch.cat([torch.full((row.completion_ids.size,), row.advantage) for row in rows])
    began = time.process_time()
    torch.autograd.backward((completion_logprobs(policy, rows, 1.0) * weights).sum())
    took = 1000 * (time.process_time() - began)
    gradient = torch.cat([p.grad.flatten() for p in policy.parameters() if p.grad is not None])
    return sum(map(len, rows)), took, gradient


def show_rows(model: Model, rows: Sequence[TrainRow]) -> None:
    """Print what a row for a dialogue saves."""
    cost(model, rows[:1])  # the first product of a process takes longer
    tokens, took, gradient = cost(model, rows)
    more, longer, other = cost(model, by_turn(rows))
    gap = float((gradient - other).abs().max() / gradient.abs().max())
    print(
        f"{len(rows)} dialogues: {tokens} tokens and {took:.0f} ms in a row each, {more} and "
        f"{longer:.0f} ms in a row for each turn ({tokens / more:.2f}); gradients differ by "
        f"{gap:.0e} of the largest"
    )


async def three_turns(model: Model, given: argparse.Namespace) -> None:
    """Show what a row for a dialogue saves at three turns."""
    settings = load_settings({"run.seed": given.seed, **parse_assignments(given.set)}, environ={})
    with tempfile.TemporaryDirectory() as place:
        learner = Learner(model, ThreeTurns(), settings, Path(place))
        await learner.start()
        rows = (await learner.update(0, given.groups)).rows
        show_rows(model, [row for row in rows if len(row.observations) == 2])


async def curve(name: str, model: Model, games: Dialogue, given: argparse.Namespace) -> None:
    settings = load_settings({"run.seed": given.seed, **parse_assignments(given.set)}, environ={})
    with tempfile.TemporaryDirectory() as place:
        learner = Learner(model, games, settings, Path(place))
        await learner.start()
        spent, longest = 0.0, Batch(())
        for number in range(given.updates + 1):
            if number % given.every == 0 or number == given.updates:
                found = await learner.measure(given.tasks)
                shown = "  ".join(f"{family} {value:.3f}" for family, value in found.items())
                print(f"{name:5}  {number:5} updates {spent:5.0f} CPU s  {shown}", flush=True)
            if number == given.updates:
                break
            began = time.process_time()
            batch = await learner.update(number, given.groups)
            spent += time.process_time() - began
            longest = max(longest, batch, key=lambda each: sum(map(len, each.rows)))
        if name == "true":
            found = await learner.measure(given.tasks, FalseReplies(games))
            shown = "  ".join(f"{family} {value:.3f}" for family, value in found.items())
            print(f"the same model, told false replies     {shown}")
            show_rows(model, longest.rows)


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
    given = parser.parse_args()
    torch.set_num_threads(1)
    directory = resolve(given.model)
    model = Model.read(given.model, directory)
    if given.three_turns:
        asyncio.run(three_turns(model, given))
        return
    for name, games in (("true", create()), ("false", FalseReplies(create()))):
        if given.only in (None, name):
            asyncio.run(curve(name, model, games, given))


if __name__ == "__main__":
    main()
