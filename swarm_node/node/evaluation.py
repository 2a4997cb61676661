"""Held-out reward, which says whether a node got better, measured on the node's own samples."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress

from swarm_node.config import Sampling
from swarm_node.environments.host import EnvironmentInfo
from swarm_node.environments.seeds import held_out_seed
from swarm_node.node.parts import Parts, Timing
from swarm_node.node.snapshot import EvalPoint
from swarm_node.policy.sampling.sampler import SampleRequest
from swarm_node.rollout import TaskRef

#: The largest share of the sampler's time that evaluation takes.
_SHARE = 0.1
#: One task in so many gets several answers.
_EVERY = 4


def pause(least: float, cost: float) -> float:
    """Seconds between two evaluations that take `cost` seconds of the sampler's time each: `least`,
    or so many that evaluation takes a tenth of its time."""
    return max(least, cost * (1 / _SHARE - 1))


def cost(took: float, rows: int, seconds_per_row: float) -> float:
    """Seconds of the sampler's time for an evaluation of `rows` answers that took `took` seconds.
    It may have waited for other answers, so it costs no more than as many of the node's own, which
    take `seconds_per_row` each (0: not known yet)."""
    return min(took, rows * seconds_per_row) if seconds_per_row else took


class Evaluator:
    """Samples completions for each of a fixed set of held-out tasks, at the temperature of
    training: one, or several of every fourth task. Their seeds are the same in every node and run,
    and training refuses them."""

    def __init__(
        self,
        *,
        sampling: Sampling,
        parts: Parts,
        info: EnvironmentInfo,
        own_families: Sequence[str],
        tasks: int,
        earlier: float,
        drawing: Timing,
        least: float,
        tries: int = 1,
    ) -> None:
        """`tasks` of each family are measured. `earlier` is the time of the last point before a
        restart, in seconds. `drawing` is the sampler's time per own group. `least` is the shortest
        pause between two measurements, in seconds. Every fourth task gets `tries` answers, for
        pass@k."""
        self._parts = parts
        self._drawing = drawing
        self._took, self._rows = 0.0, 0
        self._least = least
        self._info = info
        self._own = frozenset(own_families)
        self._tasks = tasks
        self._tries = tries
        self._sampling = sampling
        self._started = parts.clock.now() - earlier
        self._one_at_a_time = asyncio.Lock()
        self._adopted = asyncio.Event()

    def adopt(self, tasks: int, least: float) -> None:
        """Go on with these, also in a pause that has begun."""
        self._tasks, self._least = tasks, least
        self._adopted.set()

    async def rest(self) -> None:
        """Wait until the next point is due, by what the last one cost."""
        clock = self._parts.clock
        began, seconds_per_row = clock.now(), self._drawing.mean / self._sampling.group_size
        spent = cost(self._took, self._rows, seconds_per_row)
        while (left := began + pause(self._least, spent) - clock.now()) > 0:
            self._adopted.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(left):
                    await self._adopted.wait()

    async def measure(self) -> EvalPoint:
        """One point of the curve, from one sampling batch over all families. A task counts as
        answered wrongly if its prompt and the longest answer exceed the model's positions."""
        async with self._one_at_a_time:
            refs = {
                TaskRef(
                    self._info.name, self._info.version, family, held_out_seed(family, index)
                ): self._tries if index % _EVERY == _EVERY - 1 else 1
                for family in self._info.families
                for index in range(self._tasks)
            }
            prompts = await self._parts.environment.render(list(refs))
            version = self._parts.sampler.version
            codec, longest = self._parts.codec, self._sampling.max_new_tokens
            requests = {
                ref: SampleRequest(
                    codec.encode_prompt(prompt),
                    n=refs[ref],
                    seed=ref.seed,
                    max_new_tokens=longest,
                    temperature=self._sampling.temperature,
                )
                for ref, prompt in zip(refs, prompts, strict=True)
            }
            fitting = [ref for ref in refs if codec.fits(requests[ref].prompt_ids, longest)]
            began = self._parts.clock.now()
            groups = await self._parts.sampler.sample([requests[ref] for ref in fitting])
            self._took = self._parts.clock.now() - began
            self._rows = sum(refs[ref] for ref in fitting)
            rewards: dict[TaskRef, Sequence[float]] = {ref: [0.0] * n for ref, n in refs.items()}
            for ref, answers in zip(fitting, groups, strict=True):
                texts = [completion.text for completion in answers]
                rewards[ref] = (await self._parts.environment.judge(ref, texts)).rewards
        return self._point(version, rewards)

    def _point(self, version: int, rewards: Mapping[TaskRef, Sequence[float]]) -> EvalPoint:
        once: dict[str, list[float]] = {family: [] for family in self._info.families}
        best: dict[str, list[float]] = {family: [] for family in self._info.families}
        for ref, answers in rewards.items():
            once[ref.family].append(_mean(answers))
            if len(answers) > 1:
                best[ref.family].append(max(answers))
        families = {family: _mean(values) for family, values in once.items()}
        own = [value for family, value in families.items() if family in self._own]
        unseen = [value for family, value in families.items() if family not in self._own]
        return EvalPoint(
            seconds=self._parts.clock.now() - self._started,
            version=version,
            all=_mean(list(families.values())),
            own=_mean(own),
            unseen=_mean(unseen) if unseen else None,
            families=families,
            pass_k={family: _mean(values) for family, values in best.items() if values},
            k=self._tries,
        )


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
