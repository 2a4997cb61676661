"""Making experience: the node's own stream of tasks, completed and scored."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

import structlog

from swarm_node.config import Settings
from swarm_node.environments.common import common_tasks, first_number, is_common
from swarm_node.environments.host import EnvironmentInfo, Judgement, Whose
from swarm_node.environments.seeds import task_seed
from swarm_node.node.harvest import Harvest, Job
from swarm_node.node.parts import Parts, Tally
from swarm_node.policy.sampling.rows import Row
from swarm_node.policy.sampling.sampler import InterruptibleSampler, SampleRequest
from swarm_node.rollout import Completion, PolicyRef, RolloutGroup, TaskRef

Scored = tuple[RolloutGroup, str]
Deliver = Callable[[Sequence[Scored]], Awaitable[None]]

_PAUSE_SECONDS = 1.0
_log = structlog.get_logger(__name__)


class RolloutMaker:
    """Draws tasks of `families`, samples a group for each and has it judged."""

    def __init__(
        self,
        settings: Settings,
        parts: Parts,
        tally: Tally,
        info: EnvironmentInfo,
        families: Sequence[str],
        peer_id: str,
        swarm_id: bytes,
    ) -> None:
        self._settings = settings
        self._parts = parts
        self._tally = tally
        self._info = info
        self._families = tuple(families)
        self._peer_id = peer_id
        self._swarm_id = swarm_id
        self._told_of_raising = False
        self._harvest: Harvest | None = None
        if isinstance(parts.sampler, InterruptibleSampler):
            self._harvest = Harvest(
                parts.sampler,
                over_provision=settings.sampling.over_provision,
                max_lag=settings.experience.max_lag,
            )

    async def make(self, count: int, deliver: Deliver) -> None:
        """Have groups of `count` tasks made and given to `deliver`, each with its prompt, as soon
        as they are there; `claimed` are the local rewards. Fewer where a prompt leaves the model no
        room for an answer: such tasks are left out.

        Raises:
            ChildError: the environment's process cannot be kept alive.
            SwarmNodeError: from the sampler or `deliver`.
        """
        clock, made = self._parts.clock, 0
        started = clock.now()

        async def hand_on(scored: Sequence[Scored]) -> None:
            nonlocal made
            made += len(scored)
            await deliver(scored)

        if self._harvest is not None:
            drawing = await self._gather(self._harvest, count, hand_on)
        else:
            drawing = await self._sample(count, hand_on)
        if made:
            self._tally.drawing.add(drawing, made)
            self._tally.sampling.add(clock.now() - started, made)
        else:
            await asyncio.sleep(_PAUSE_SECONDS)  # the next tasks are no shorter: do not spin

    async def _gather(self, harvest: Harvest, count: int, deliver: Deliver) -> float:
        """By a sampler that works on many groups at once: each as soon as it is whole. Seconds that
        the sampler worked."""
        clock = self._parts.clock
        began = clock.now()

        async def fresh(count: int) -> list[Job]:
            nonlocal began
            jobs = await self._jobs(count)
            began = clock.now()
            return jobs

        async def hand_on(job: Job) -> None:
            completions = tuple(map(self._completion, job.rows))
            await deliver([await self._score(job, completions, job.version)])

        await harvest.gather(count, fresh, hand_on)
        return clock.now() - began

    async def _sample(self, count: int, deliver: Deliver) -> float:
        """All in one batch. Seconds that the sampler worked."""
        clock, sampler, jobs = self._parts.clock, self._parts.sampler, await self._jobs(count)
        if not jobs:
            return 0.0
        version, began = sampler.version, clock.now()
        sampled = await sampler.sample([job.request for job in jobs])
        drawing = clock.now() - began
        await deliver(
            [
                await self._score(job, completions, version)
                for job, completions in zip(jobs, sampled, strict=True)
            ]
        )
        return drawing

    async def _jobs(self, count: int) -> list[Job]:
        sampling = self._settings.sampling
        return [
            Job(
                ref,
                prompt,
                SampleRequest(
                    prompt_ids,
                    n=sampling.group_size,
                    # Peers may sample the same task, from nearly the same weights.
                    seed=task_seed("sample", self._settings.run.seed, self._peer_id, ref.seed),
                    max_new_tokens=sampling.max_new_tokens,
                    temperature=sampling.temperature,
                ),
            )
            for ref, prompt, prompt_ids in await self._next_tasks(count)
        ]

    def _completion(self, row: Row) -> Completion:
        assert isinstance(self._parts.sampler, InterruptibleSampler)
        return self._parts.sampler.completion(row)

    async def _score(self, job: Job, completions: tuple[Completion, ...], version: int) -> Scored:
        """The group of a job as it is published; `version` is that of its first tokens."""
        policy = PolicyRef(self._parts.policy.model, self._parts.policy.tokenizer, version)
        texts = [completion.text for completion in completions]
        judged = await self._judge(job.ref, texts, "own")
        return RolloutGroup(job.ref, policy, completions, judged.rewards), job.prompt

    async def judge(self, ref: TaskRef, texts: Sequence[str]) -> Judgement:
        """Score a peer's texts, and count what the scorer failed on."""
        started = self._parts.clock.now()
        judged = await self._judge(ref, texts, "peers")
        self._tally.judging.add(self._parts.clock.now() - started, 1)
        return judged

    async def _judge(self, ref: TaskRef, texts: Sequence[str], whose: Whose) -> Judgement:
        judged = await self._parts.environment.judge(ref, texts, whose)
        if judged.faults:
            self._tally.faults[f"scorer_{judged.fault_reason}"] += judged.faults
        if judged.raised and not self._told_of_raising:
            self._told_of_raising = True
            _log.warning(
                "the environment's score() raised on an answer, which counts as wrong (told once)",
                family=ref.family,
                raised=judged.raised,
            )
        return judged

    async def _next_tasks(self, count: int) -> list[tuple[TaskRef, str, tuple[int, ...]]]:
        """Reference, prompt and its token ids of the next tasks that leave room for an answer."""
        parts = self._parts
        refs = await self._next_refs(count)
        prompts = await parts.environment.render(refs)
        tasks = [
            (ref, prompt, parts.codec.encode_prompt(prompt))
            for ref, prompt in zip(refs, prompts, strict=True)
        ]
        longest = self._settings.sampling.max_new_tokens
        fitting = [task for task in tasks if parts.codec.fits(task[2], longest)]
        if len(fitting) < len(tasks):
            if not self._tally.faults["prompt_too_long"]:
                _log.warning(
                    "left out: a prompt and its answer exceed the model's positions; lower "
                    "sampling.max_new_tokens or leave that family out (told once, counted)",
                    family=next(ref.family for ref, *_ in tasks if (ref, *_) not in fitting),
                    positions=parts.codec.positions,
                    max_new_tokens=longest,
                )
            self._tally.faults["prompt_too_long"] += len(tasks) - len(fitting)
        return fitting

    async def _next_refs(self, count: int) -> list[TaskRef]:
        """The next tasks of this node's own stream and of the swarm's, which no restart repeats."""
        storage, share = self._parts.storage, self._settings.sampling.common_share
        first = await storage.run(storage.advance, "tasks", count)
        own = [index for index in range(first, first + count) if not is_common(index, share)]
        tasks = await self._common_tasks(count - len(own)) if len(own) < count else []
        for index in own:
            seed = task_seed("train", self._settings.run.seed, self._peer_id, index)
            tasks.append((self._families[seed % len(self._families)], seed))
        info = self._info
        return [TaskRef(info.name, info.version, family, seed) for family, seed in tasks]

    async def _common_tasks(self, count: int) -> list[tuple[str, int]]:
        storage = self._parts.storage
        used = await storage.run(storage.counter, "common")
        first = first_number(used, self._parts.clock.wall())
        tasks, after = common_tasks(
            self._swarm_id, self._info.families, self._families, first, count
        )
        await storage.run(storage.advance, "common", after - used)
        return tasks
