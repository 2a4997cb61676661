"""Held-out reward: the figure that says whether a node got better. The node's own samples only."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from swarm_node.clock import Clock
from swarm_node.environments.host import EnvironmentHost, EnvironmentInfo
from swarm_node.environments.seeds import held_out_seed
from swarm_node.policy.models import Codec
from swarm_node.policy.sampler import Sampler, SampleRequest
from swarm_node.rollout import TaskRef
from swarm_node.snapshot import EvalPoint


class Evaluator:
    """Samples one completion (temperature as in training: pass@1) for each of a fixed set of
    held-out tasks; their seeds are the same in every node and run, and refused in training."""

    def __init__(
        self,
        *,
        environment: EnvironmentHost,
        info: EnvironmentInfo,
        sampler: Sampler,
        codec: Codec,
        own_families: Sequence[str],
        tasks: int,
        max_new_tokens: int,
        temperature: float,
        clock: Clock,
    ) -> None:
        self._environment = environment
        self._info = info
        self._sampler = sampler
        self._codec = codec
        self._own = frozenset(own_families)
        self._tasks = tasks
        self._max_new_tokens = max_new_tokens
        self._temperature = temperature
        self._clock = clock
        self._started = clock.now()
        self._one_at_a_time = asyncio.Lock()

    async def measure(self) -> EvalPoint:
        """One point of the curve; takes a sampling call over all families."""
        async with self._one_at_a_time:
            refs = [
                TaskRef(self._info.name, self._info.version, family, held_out_seed(family, index))
                for family in self._info.families
                for index in range(self._tasks)
            ]
            prompts = await self._environment.render(refs)
            version = self._sampler.version
            groups = await self._sampler.sample(
                [
                    SampleRequest(
                        self._codec.encode_prompt(prompt),
                        n=1,
                        seed=ref.seed,
                        max_new_tokens=self._max_new_tokens,
                        temperature=self._temperature,
                    )
                    for ref, prompt in zip(refs, prompts, strict=True)
                ]
            )
            judged = [
                await self._environment.judge(ref, [completion.text for completion in group])
                for ref, group in zip(refs, groups, strict=True)
            ]
        scores: dict[str, list[float]] = {family: [] for family in self._info.families}
        for ref, result in zip(refs, judged, strict=True):
            scores[ref.family].extend(result.rewards)
        return self._point(version, {family: _mean(values) for family, values in scores.items()})

    def _point(self, version: int, families: dict[str, float]) -> EvalPoint:
        own = [value for family, value in families.items() if family in self._own]
        unseen = [value for family, value in families.items() if family not in self._own]
        return EvalPoint(
            seconds=self._clock.now() - self._started,
            version=version,
            all=_mean(list(families.values())),
            own=_mean(own),
            unseen=_mean(unseen) if unseen else None,
            families=families,
        )


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
