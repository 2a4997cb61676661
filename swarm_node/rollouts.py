"""Making experience: the node's own stream of tasks, completed and scored."""

from __future__ import annotations

from collections.abc import Sequence

from swarm_node.config import Settings
from swarm_node.environments.common import common_tasks, first_number, is_common
from swarm_node.environments.host import EnvironmentInfo, Judgement
from swarm_node.environments.seeds import task_seed
from swarm_node.parts import Parts, Tally
from swarm_node.policy.sampler import SampleRequest
from swarm_node.rollout import PolicyRef, RolloutGroup, TaskRef


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

    async def make(self, count: int) -> list[tuple[RolloutGroup, str]]:
        """Groups of `count` new tasks, each with its prompt; `claimed` are the local rewards.

        Raises:
            ChildError: the environment's process cannot be kept alive.
        """
        sampling, parts = self._settings.sampling, self._parts
        started = parts.clock.now()
        refs = await self._next_tasks(count)
        prompts = await parts.environment.render(refs)
        version = parts.sampler.version
        sampled = await parts.sampler.sample(
            [
                SampleRequest(
                    parts.codec.encode_prompt(prompt),
                    n=sampling.group_size,
                    # Peers may sample the same task, from nearly the same weights.
                    seed=task_seed("sample", self._settings.run.seed, self._peer_id, ref.seed),
                    max_new_tokens=sampling.max_new_tokens,
                    temperature=sampling.temperature,
                )
                for ref, prompt in zip(refs, prompts, strict=True)
            ]
        )
        policy = PolicyRef(parts.policy.model, parts.policy.tokenizer, version)
        scored = []
        for ref, prompt, completions in zip(refs, prompts, sampled, strict=True):
            judged = await self._judge(ref, [completion.text for completion in completions])
            scored.append((RolloutGroup(ref, policy, completions, judged.rewards), prompt))
        self._tally.sampling.add(parts.clock.now() - started, count)
        return scored

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
