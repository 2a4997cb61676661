"""Making experience: the node's own stream of tasks, completed and scored."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from swarm_node.config import Settings
from swarm_node.environments.host import EnvironmentInfo, Judgement
from swarm_node.environments.seeds import task_seed
from swarm_node.harvest import Harvest, Job
from swarm_node.parts import Parts, Tally
from swarm_node.policy.rows import Row
from swarm_node.policy.sampler import InterruptibleSampler, SampleRequest
from swarm_node.rollout import Completion, PolicyRef, RolloutGroup, TaskRef

Scored = tuple[RolloutGroup, str]


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
    ) -> None:
        self._settings = settings
        self._parts = parts
        self._tally = tally
        self._info = info
        self._families = tuple(families)
        self._peer_id = peer_id
        self._harvest: Harvest | None = None
        if isinstance(parts.sampler, InterruptibleSampler):
            self._harvest = Harvest(
                parts.sampler,
                over_provision=settings.sampling.over_provision,
                max_lag=settings.policy.max_lag,
            )

    async def make(
        self, count: int, deliver: Callable[[Sequence[Scored]], Awaitable[None]]
    ) -> None:
        """Have groups of `count` tasks made and given to `deliver`, each with its prompt, as soon
        as they are there; `claimed` are the local rewards.

        Raises:
            ChildError: the environment's process cannot be kept alive.
            SwarmNodeError: from the sampler or `deliver`.
        """
        clock = self._parts.clock
        started = clock.now()
        if self._harvest is not None:

            async def hand_on(job: Job) -> None:
                completions = tuple(map(self._completion, job.rows))
                await deliver([await self._score(job, completions, job.version)])

            await self._harvest.gather(count, self._jobs, hand_on)
            self._tally.sampling.add(clock.now() - started, count)
            return
        jobs = await self._jobs(count)
        version = self._parts.sampler.version
        sampled = await self._parts.sampler.sample([job.request for job in jobs])
        scored = [
            await self._score(job, completions, version)
            for job, completions in zip(jobs, sampled, strict=True)
        ]
        self._tally.sampling.add(clock.now() - started, count)
        await deliver(scored)

    async def _jobs(self, count: int) -> list[Job]:
        sampling, codec = self._settings.sampling, self._parts.codec
        refs = await self._next_tasks(count)
        prompts = await self._parts.environment.render(refs)
        return [
            Job(
                ref,
                prompt,
                SampleRequest(
                    codec.encode_prompt(prompt),
                    n=sampling.group_size,
                    seed=task_seed("sample", self._settings.run.seed, ref.seed),
                    max_new_tokens=sampling.max_new_tokens,
                    temperature=sampling.temperature,
                ),
            )
            for ref, prompt in zip(refs, prompts, strict=True)
        ]

    def _completion(self, row: Row) -> Completion:
        assert isinstance(self._parts.sampler, InterruptibleSampler)
        return self._parts.sampler.completion(row)

    async def _score(self, job: Job, completions: tuple[Completion, ...], version: int) -> Scored:
        """The group of a job as it is published; `version` is that of its first tokens."""
        policy = PolicyRef(self._parts.policy.model, self._parts.policy.tokenizer, version)
        judged = await self._judge(job.ref, [completion.text for completion in completions])
        return RolloutGroup(job.ref, policy, completions, judged.rewards), job.prompt

    async def judge(self, ref: TaskRef, texts: Sequence[str]) -> Judgement:
        """Score a peer's texts, and count what the scorer failed on."""
        started = self._parts.clock.now()
        judged = await self._judge(ref, texts)
        self._tally.judging.add(self._parts.clock.now() - started, 1)
        return judged

    async def _judge(self, ref: TaskRef, texts: Sequence[str]) -> Judgement:
        judged = await self._parts.environment.judge(ref, texts)
        if judged.faults:
            self._tally.faults[f"scorer_{judged.fault_reason}"] += judged.faults
        return judged

    async def _next_tasks(self, count: int) -> list[TaskRef]:
        """The next tasks of this node's own stream, which no restart repeats."""
        storage = self._parts.storage
        first = await storage.run(storage.advance, "tasks", count)
        refs = []
        for index in range(first, first + count):
            seed = task_seed("train", self._settings.run.seed, self._peer_id, index)
            family = self._families[seed % len(self._families)]
            refs.append(TaskRef(self._info.name, self._info.version, family, seed))
        return refs
