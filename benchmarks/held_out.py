"""Held-out reward of weights in a file, by the tasks and the rule of a node's own evaluation."""

from __future__ import annotations

import asyncio
import statistics
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from swarm_node.environments.registry import create_environment
from swarm_node.environments.splits.seeds import held_out_seed
from swarm_node.policy.models.model import resolve
from swarm_node.policy.models.text.codec import Codec
from swarm_node.policy.sampling.sampler import SampleRequest
from swarm_node.policy.sampling.torch_sampler import TorchSampler
from swarm_node.rollout import TaskRef


class HeldOutTasks:
    """`tasks` held-out tasks of each family of an environment, by default the short preset of the
    drills, one completion each (pass@1), always drawn with the same random numbers."""

    def __init__(
        self,
        tasks: int,
        max_new_tokens: int,
        *,
        model: Path | None = None,
        environment: str = "drills",
        options: Mapping[str, Any] = MappingProxyType({"preset": "short"}),
        temperature: float = 1.0,
    ) -> None:
        model = model or resolve("tiny")
        self._sampler = TorchSampler.from_directory(model, threads=1)
        self._codec = Codec.from_directory(model)
        self._environment = create_environment(environment, options)
        self._temperature = temperature
        names = self._environment.name, self._environment.version
        self._tasks = [
            self._environment.derive(TaskRef(*names, family, held_out_seed(family, index)))
            for family in self._environment.families
            for index in range(tasks)
        ]
        self._max_new_tokens = max_new_tokens

    def reward(self, weights: Path | None) -> float:
        """Mean over tasks of the model with these weights or this adapter's directory. None stands
        for its own weights, before any others."""
        return statistics.fmean(asyncio.run(self._rewards(weights)))

    def families(self, weights: Path | None) -> dict[str, float]:
        """The same, by family."""
        rewards_of_family: dict[str, list[float]] = {}
        rewards = asyncio.run(self._rewards(weights))
        for task, reward in zip(self._tasks, rewards, strict=True):
            rewards_of_family.setdefault(task.ref.family, []).append(reward)
        return {family: statistics.fmean(rewards) for family, rewards in rewards_of_family.items()}

    async def _rewards(self, weights: Path | None) -> list[float]:
        if weights is not None:
            await self._sampler.load(weights, 1)
        requests = [
            SampleRequest(
                self._codec.encode_prompt(self._environment.render(task)),
                1,
                task.ref.seed,
                self._max_new_tokens,
                self._temperature,
            )
            for task in self._tasks
        ]
        groups = await self._sampler.sample(requests)
        return [
            self._environment.score(task, group[0].text)
            for task, group in zip(self._tasks, groups, strict=True)
        ]
