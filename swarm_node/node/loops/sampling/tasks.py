"""Choice of the tasks that a node samples next."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import structlog

from swarm_node.config import Sampling
from swarm_node.environments.host import EnvironmentInfo
from swarm_node.environments.splits.seeds import task_seed
from swarm_node.errors import ConfigError, meant
from swarm_node.node.loops.node_parts import Parts, Tally
from swarm_node.node.loops.sampling.levels import Levels
from swarm_node.rollout import TaskRef
from swarm_node.storage import Storage

_log = structlog.get_logger(__name__)


class TaskChooser(Protocol):
    """Chooses tasks for the rollout maker."""

    async def choose(self, count: int) -> list[TaskRef]:
        """Return the next `count` tasks; a restart repeats none of them."""
        ...


class SeededTasks:
    """Tasks in the order of a stored counter. Family and seed of each follow from the node's seed
    and its peer id, so no two nodes choose the same task."""

    def __init__(
        self,
        info: EnvironmentInfo,
        families: Sequence[str],
        storage: Storage,
        *,
        seed: int,
        peer_id: str,
        levels: Levels | None = None,
    ) -> None:
        """The node samples `families` of the environment, or those of its `levels` if these are
        active."""
        self._levels = levels
        self._info = info
        self._families = tuple(families)
        self._storage = storage
        self._seed = seed
        self._peer_id = peer_id

    async def choose(self, count: int) -> list[TaskRef]:
        storage, info = self._storage, self._info
        first = await storage.run(storage.advance, "tasks", count)
        indices = range(first, first + count)
        seeds = [task_seed("train", self._seed, self._peer_id, index) for index in indices]
        if self._levels is not None and self._levels.is_active:
            families = self._levels.choose(seeds)
        else:
            families = [self._families[seed % len(self._families)] for seed in seeds]
        tasks = zip(families, seeds, strict=True)
        return [TaskRef(info.name, info.version, family, seed) for family, seed in tasks]


class FittingTasks:
    """The chosen tasks with their prompts, without those that are too long for the model."""

    def __init__(
        self,
        sampling: Sampling,
        parts: Parts,
        tally: Tally,
        tasks: TaskChooser,
        turns: int = 1,
    ) -> None:
        """The policy has up to `turns` turns for each task, each as long as the longest answer."""
        self._answer_limit = turns * sampling.max_new_tokens
        self._parts = parts
        self._tally = tally
        self._tasks = tasks

    async def next(self, count: int) -> list[tuple[TaskRef, str, tuple[int, ...]]]:
        """Return reference, prompt and the prompt's token ids of the next tasks. A task is left out
        if its prompt and the longest answer exceed the model's positions."""
        parts = self._parts
        refs = await self._tasks.choose(count)
        prompts = await parts.environment.render(refs)
        tasks = [
            (ref, prompt, parts.codec.encode_prompt(prompt))
            for ref, prompt in zip(refs, prompts, strict=True)
        ]
        fitting_tasks = [task for task in tasks if parts.codec.fits(task[2], self._answer_limit)]
        if len(fitting_tasks) < len(tasks):
            if not self._tally.faults["prompt_too_long"]:
                self._tell(next(task for task in tasks if task not in fitting_tasks))
            self._tally.faults["prompt_too_long"] += len(tasks) - len(fitting_tasks)
        return fitting_tasks

    def _tell(self, task: tuple[TaskRef, str, tuple[int, ...]]) -> None:
        ref, _, prompt_ids = task
        _log.warning(
            "skipped: prompt and completion exceed the context length; take shorter prompts, "
            "leave that family out, or lower sampling.max_new_tokens (logged once, counted)",
            family=ref.family,
            prompt_tokens=len(prompt_ids),
            completion_tokens=self._answer_limit,
            context_length=self._parts.codec.positions,
        )


def chosen_families(names: Sequence[str], info: EnvironmentInfo) -> tuple[str, ...]:
    """Return the task families that a node samples: those of `names`, or all of the environment's.

    Raises:
        ConfigError: the environment has no family of that name.
    """
    unknown_names = sorted(set(names) - set(info.families))
    if unknown_names:
        raise ConfigError(
            f"environment.families: {', '.join(unknown_names)} is not among "
            f"{', '.join(info.families)}",
            *meant(unknown_names[0], info.families),
        )
    return tuple(names) or info.families
