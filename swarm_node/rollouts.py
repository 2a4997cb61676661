"""Making experience: the node's own stream of tasks, completed and scored."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import structlog

from swarm_node.config import Settings
from swarm_node.environments.common import common_tasks, first_number, is_common
from swarm_node.environments.host import EnvironmentInfo, Judgement
from swarm_node.environments.seeds import task_seed
from swarm_node.parts import Parts, Tally
from swarm_node.policy.sampler import SampleRequest
from swarm_node.rollout import PolicyRef, RolloutGroup, TaskRef

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

    async def make(self, count: int) -> list[tuple[RolloutGroup, str]]:
        """Groups of `count` new tasks, each with its prompt; `claimed` are the local rewards.
        Fewer where a prompt leaves the model no room for an answer: such tasks are left out.

        Raises:
            ChildError: the environment's process cannot be kept alive.
        """
        sampling, parts = self._settings.sampling, self._parts
        started = parts.clock.now()
        tasks = await self._next_tasks(count)
        if not tasks:
            await asyncio.sleep(_PAUSE_SECONDS)  # the next ones are no shorter: do not spin
            return []
        version = parts.sampler.version
        drawing = parts.clock.now()
        sampled = await parts.sampler.sample(
            [
                SampleRequest(
                    prompt_ids,
                    n=sampling.group_size,
                    # Peers may sample the same task, from nearly the same weights.
                    seed=task_seed("sample", self._settings.run.seed, self._peer_id, ref.seed),
                    max_new_tokens=sampling.max_new_tokens,
                    temperature=sampling.temperature,
                )
                for ref, _, prompt_ids in tasks
            ]
        )
        self._tally.drawing.add(parts.clock.now() - drawing, count)
        policy = PolicyRef(parts.policy.model, parts.policy.tokenizer, version)
        scored = []
        for (ref, prompt, _), completions in zip(tasks, sampled, strict=True):
            judged = await self._judge(ref, [completion.text for completion in completions])
            scored.append((RolloutGroup(ref, policy, completions, judged.rewards), prompt))
        self._tally.sampling.add(parts.clock.now() - started, len(tasks))
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
