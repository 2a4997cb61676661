"""Making experience: the node's own stream of tasks, completed and scored."""

from __future__ import annotations

from collections.abc import Sequence

from swarm_node.config import Settings
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
    ) -> None:
        self._settings = settings
        self._parts = parts
        self._tally = tally
        self._info = info
        self._families = tuple(families)
        self._peer_id = peer_id

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
        drawing = parts.clock.now()
        sampled = await parts.sampler.sample(
            [
                SampleRequest(
                    parts.codec.encode_prompt(prompt),
                    n=sampling.group_size,
                    seed=task_seed("sample", self._settings.run.seed, ref.seed),
                    max_new_tokens=sampling.max_new_tokens,
                    temperature=sampling.temperature,
                )
                for ref, prompt in zip(refs, prompts, strict=True)
            ]
        )
        self._tally.drawing.add(parts.clock.now() - drawing, count)
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
        """The next tasks of this node's own stream, which no restart repeats."""
        storage = self._parts.storage
        first = await storage.run(storage.advance, "tasks", count)
        refs = []
        for index in range(first, first + count):
            seed = task_seed("train", self._settings.run.seed, self._peer_id, index)
            family = self._families[seed % len(self._families)]
            refs.append(TaskRef(self._info.name, self._info.version, family, seed))
        return refs
