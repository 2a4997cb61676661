"""Reward on unseen and on seen texts, measured on the node's own samples.

A task of a held-out seed has a text that no training task can have: reward on these tasks shows if
the node got better. Reward on texts that training may draw is measured beside it. The
difference of the two shows how much the node knows by heart.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from swarm_node.clock import Clock
from swarm_node.config import Sampling
from swarm_node.environments.host import EnvironmentHost, EnvironmentInfo
from swarm_node.environments.scores import Rerun
from swarm_node.environments.splits.seeds import held_out_seed, task_seed
from swarm_node.environments.splits.split import SPLIT
from swarm_node.environments.workers.scoring_worker import Transcript
from swarm_node.node.loops.node_parts import Parts, Tally, at_sampler
from swarm_node.node.loops.sampling.levels import Levels
from swarm_node.node.loops.sampling.multi_turn import Player
from swarm_node.node.metrics.snapshot import EvalPoint
from swarm_node.policy.models.text.codec import Codec
from swarm_node.policy.sampling.sampler import Sampler, SampleRequest
from swarm_node.rollout import TaskRef

#: The largest share of the sampler's time that evaluation takes.
_SHARE = 0.1
#: Unseen tasks for each one that gets several answers.
_EVERY = 4
#: Unseen tasks for each measured seen one. Seen ones make an evaluation a quarter dearer, and a
#: mean over families needs no more.
_UNSEEN_PER_SEEN = 4
#: A family's seen reward needs more than a single task.
_LEAST_SEEN = 2
#: The shortest time after which the cost of the last evaluation is estimated again, in seconds.
_ESTIMATE_SECONDS = 1.0


def pause(min_pause: float, cost: float) -> float:
    """Return the seconds between two evaluations that take `cost` seconds of the sampler's time
    each: at least `min_pause`, and enough that evaluation takes at most a tenth of the time."""
    return max(min_pause, cost * (1 / _SHARE - 1))


def evaluation_seconds(elapsed: float, rows: int, seconds_per_row: float) -> float:
    """Return the seconds of the sampler's time for an evaluation of `rows` answers that took
    `elapsed` seconds. It may have waited for other answers, so the cost is at most that of as many
    own answers at `seconds_per_row` each (0: not known yet)."""
    return min(elapsed, rows * seconds_per_row) if seconds_per_row else elapsed


def seen_tasks(tasks: int) -> int:
    """Return the number of seen tasks of a family that are measured beside `tasks` unseen ones."""
    return min(tasks, max(_LEAST_SEEN, tasks // _UNSEEN_PER_SEEN))


@dataclass(frozen=True)
class Examiner:
    """Has a policy answer tasks, in multi-turn rollouts of up to `turns` turns of its own."""

    sampler: Sampler
    codec: Codec
    environment: EnvironmentHost
    sampling: Sampling
    turns: int
    clock: Clock

    async def requests(self, answers: Mapping[TaskRef, int]) -> dict[TaskRef, SampleRequest]:
        """Return requests for the number of `answers` to each task. A task is left out if its
        prompt and the longest answers exceed the model's positions."""
        prompts = await self.environment.render(list(answers))
        task_requests = {
            ref: SampleRequest(
                self.codec.encode_prompt(prompt),
                n=answers[ref],
                seed=ref.seed,
                max_new_tokens=self.sampling.max_new_tokens,
                temperature=self.sampling.temperature,
            )
            for ref, prompt in zip(answers, prompts, strict=True)
        }
        max_tokens = self.sampling.max_new_tokens * self.turns
        return {
            ref: r for ref, r in task_requests.items() if self.codec.fits(r.prompt_ids, max_tokens)
        }

    async def rewards(
        self, requests: Mapping[TaskRef, SampleRequest]
    ) -> tuple[dict[TaskRef, Sequence[float]], float]:
        """Return the rewards of the answers to each task, or of the multi-turn rollouts that begin
        with it, and the seconds that the sampler sampled."""
        player = Player(self.sampler, self.codec, self._rerun, self.clock)
        groups, seconds = await player.play(requests.items())
        rewards = ([rollout.last_rerun.reward for rollout in rollouts] for rollouts in groups)
        return dict(zip(requests, rewards, strict=True)), seconds

    async def _rerun(self, ref: TaskRef, transcripts: Sequence[Transcript]) -> Sequence[Rerun]:
        return (await self.environment.rerun(ref, transcripts)).reruns


class Evaluator:
    """Samples answers to a fixed set of tasks at the temperature of training: one answer a task,
    and several for every fourth unseen task. The seeds are the same in every node and run. Training
    refuses the seeds of unseen texts. Those of seen texts lie in the training pool like all
    others."""

    def __init__(
        self,
        *,
        sampling: Sampling,
        parts: Parts,
        info: EnvironmentInfo,
        own_families: Sequence[str],
        levels: Levels | None = None,
        tasks: int,
        elapsed: float,
        tally: Tally,
        min_pause: float,
        tries: int = 1,
        draw: str = "",
    ) -> None:
        """With active `levels`, their main families are measured and those sampled now; otherwise
        all. `tasks` of each family are measured on unseen texts, and `seen_tasks` of them on seen
        ones. An experiment draws both anew with another `draw`. `elapsed` is the time of the last
        point before a restart, in seconds. `tally` has the sampler's time per own group.
        `min_pause` is the shortest pause between two measurements, in seconds. Every fourth unseen
        task gets `tries` answers, for pass@k."""
        self._parts = parts
        self._tally = tally
        self._last_seconds, self._rows = 0.0, 0
        self._min_pause = min_pause
        self._info = info
        self._local_families = frozenset(own_families)
        self._levels = levels
        self._families = self._main = tuple(info.families)
        self._tasks = tasks
        self._tries = tries
        self._draw = draw
        self._sampling = sampling
        self._started_at = parts.clock.now() - elapsed
        self._one_at_a_time = asyncio.Lock()
        self._settings_event = asyncio.Event()

    def adopt(self, tasks: int, min_pause: float) -> None:
        """Apply a new number of tasks and a new shortest pause, also to a pause that has begun."""
        self._tasks, self._min_pause = tasks, min_pause
        self._settings_event.set()

    async def rest(self) -> None:
        """Wait until the next point is due. The pause depends on the cost of the last one, which is
        estimated again meanwhile: the sampler's first answers, which wait until an engine is warm,
        say little of those that follow."""
        clock = self._parts.clock
        started_at = clock.now()
        while (
            left := started_at + pause(self._min_pause, self._last_cost_seconds()) - clock.now()
        ) > 0:
            self._settings_event.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(min(left, max(self._min_pause, _ESTIMATE_SECONDS))):
                    await self._settings_event.wait()

    def _last_cost_seconds(self) -> float:
        """Seconds of the sampler's time that the last point cost, by what is known now."""
        return evaluation_seconds(
            self._last_seconds, self._rows, self._tally.drawing.mean / self._sampling.group_size
        )

    async def measure(self) -> EvalPoint:
        """Measure one point of the curve, in one sampling batch over all families. A task counts as
        answered wrongly if its prompt and the longest answer exceed the model's positions."""
        parts = self._parts
        examiner = Examiner(
            parts.sampler,
            parts.codec,
            parts.environment,
            self._sampling,
            self._info.turns,
            parts.clock,
        )
        async with self._one_at_a_time:
            if self._levels is not None and self._levels.is_active:
                evals = self._tally.evals
                self._main = self._levels.main(evals[-1].main if evals else ())
                self._families = tuple(
                    dict.fromkeys((*self._main, *self._levels.sampled_families()))
                )
            refs = self._unseen() | self._training_prompts()
            requests = await examiner.requests(refs)
            version = parts.sampler.version
            self._rows = sum(refs[ref] for ref in requests)
            max_tokens = self._sampling.max_new_tokens
            with at_sampler(parts, self._tally, max_tokens, answers=self._rows):
                results, self._last_seconds = await examiner.rewards(requests)
            rewards = {ref: [0.0] * n for ref, n in refs.items()} | results
        return self._point(version, rewards)

    def _unseen(self) -> dict[TaskRef, int]:
        """Return the number of answers to each unseen task."""
        seed_parts = [self._draw] if self._draw else []
        return {
            self._ref(family, held_out_seed(*seed_parts, family, index)): self._tries
            if index % _EVERY == _EVERY - 1
            else 1
            for family in self._families
            for index in range(self._tasks)
        }

    def _training_prompts(self) -> dict[TaskRef, int]:
        return {
            self._ref(family, task_seed("seen", self._draw, family, index)): 1
            for family in self._families
            for index in range(seen_tasks(self._tasks))
        }

    def _ref(self, family: str, seed: int) -> TaskRef:
        return TaskRef(self._info.name, self._info.version, family, seed)

    def _point(self, version: int, rewards: Mapping[TaskRef, Sequence[float]]) -> EvalPoint:
        eval_rewards: dict[str, list[float]] = {family: [] for family in self._families}
        best_rewards: dict[str, list[float]] = {family: [] for family in self._families}
        train_rewards: dict[str, list[float]] = {family: [] for family in self._families}
        for ref, answers in rewards.items():
            (eval_rewards if ref.held_out else train_rewards)[ref.family].append(_mean(answers))
            if len(answers) > 1:
                best_rewards[ref.family].append(max(answers))
        families = {family: _mean(values) for family, values in eval_rewards.items()}
        main = {family: families[family] for family in self._main}
        local_rewards = [value for family, value in main.items() if family in self._local_families]
        external_rewards = [
            value for family, value in main.items() if family not in self._local_families
        ]
        return EvalPoint(
            seconds=self._parts.clock.now() - self._started_at,
            version=version,
            reward=_mean(list(main.values())),
            local=_mean(local_rewards) if local_rewards else 0.0,
            external_only=_mean(external_rewards) if external_rewards else None,
            families=families,
            best_of_k={family: _mean(values) for family, values in best_rewards.items() if values},
            k=self._tries,
            train=_mean([_mean(train_rewards[family]) for family in self._main]),
            split_version=SPLIT,
            main=[] if self._main == self._info.families else list(self._main),
        )


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
