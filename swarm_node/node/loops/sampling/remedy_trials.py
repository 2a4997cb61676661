"""Tries what would help a model whose first answers teach nothing, before anything is advised."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Protocol

from swarm_node.node.loops.sampling.scoring import Scoring
from swarm_node.node.metrics.first_groups import Beginning
from swarm_node.policy.models.text.codec import Codec
from swarm_node.policy.sampling.sampler import Sampler, SampleRequest
from swarm_node.rollout import TaskRef

#: Tasks of a trial, and answers to each.
TASKS, ANSWERS = 6, 4
_COOLER = 0.7
#: Longer answers are tried from this share of cut ones on.
_SOME_CUT = 0.2
#: A change helps if it makes this much more of the answers right.
_LEAST_GAIN = 0.08


@dataclass(frozen=True)
class Change:
    """A change of `sampling` that may help, as its owner would set it. The likeliest answers, at a
    temperature of 0, are all alike: they show what the model can do, and no group learns from
    them."""

    temperature: float | None = None
    max_new_tokens: int | None = None

    @property
    def description(self) -> str:
        if self.temperature == 0:
            return "greedy"
        if self.temperature is not None:
            return f"sampling.temperature={self.temperature:g}"
        return f"sampling.max_new_tokens={self.max_new_tokens}"

    def apply(self, request: SampleRequest) -> SampleRequest:
        """Return `request` with this change, for as many completions as a trial samples."""
        n = 1 if self.temperature == 0 else ANSWERS
        heat = request.temperature if self.temperature is None else self.temperature
        max_tokens = self.max_new_tokens or request.max_new_tokens
        return replace(request, n=n, temperature=heat, max_new_tokens=max_tokens)


def changes(beginning: Beginning, request: SampleRequest) -> Iterator[Change]:
    """The changes to try after this beginning with requests such as `request`."""
    if request.temperature > _COOLER:
        yield Change(temperature=_COOLER)
    if request.temperature > 0:
        yield Change(temperature=0.0)
    if beginning.truncated_ratio > _SOME_CUT:
        yield Change(max_new_tokens=2 * request.max_new_tokens)


class Noted(Protocol):
    """Notes a call to the sampler, in whose body it is made (`node_parts.at_sampler`)."""

    def __call__(self, max_tokens: int, *, answers: int) -> AbstractContextManager[None]: ...


async def try_changes(
    beginning: Beginning,
    requests: Mapping[TaskRef, SampleRequest],
    sampler: Sampler,
    scoring: Scoring,
    codec: Codec,
    note_call: Noted,
) -> dict[Change, float]:
    """Return the mean reward of some answers to the first tasks with each change. They are no
    groups, and change no count but that of the sampler's calls.

    Raises:
        SwarmNodeError: from the sampler or the scoring worker.
    """
    tasks = dict([*requests.items()][:TASKS])
    mean_rewards = {}
    for change in changes(beginning, next(iter(tasks.values()))):
        variants = {ref: change.apply(request) for ref, request in tasks.items()}
        candidates = {
            r: q for r, q in variants.items() if codec.fits(q.prompt_ids, q.max_new_tokens)
        }
        if not candidates:
            continue
        calls = [*candidates.values()]
        max_tokens, answers = calls[0].max_new_tokens, sum(item.n for item in calls)
        with note_call(max_tokens, answers=answers):
            sampled_groups = await sampler.sample(calls)
        texts = [[completion.text for completion in group] for group in sampled_groups]
        all_scores = await scoring.own_all([*zip(candidates, texts, strict=True)])
        rewards = [reward for item in all_scores for reward in item.rewards]
        mean_rewards[change] = sum(rewards) / len(rewards)
    return mean_rewards


def advice(beginning: Beginning, trials: Mapping[Change, float]) -> str:
    """Return what to do: the change that helped most if one did, else the general advice, and in
    both cases what was tried."""
    summary = ", ".join(f"{change.description} {right:.0%}" for change, right in trials.items())
    summary = f"tried: {summary} right, {beginning.pass_at_1:.0%} as it is"
    best_change = _best(beginning, [pair for pair in trials.items() if pair[0].temperature != 0])
    if best_change is not None:
        return f"set {best_change.description} ({summary})"
    return f"{beginning.advice} ({summary})" if trials else beginning.advice


def _best(beginning: Beginning, trials: Sequence[tuple[Change, float]]) -> Change | None:
    helped = [pair for pair in trials if pair[1] >= beginning.pass_at_1 + _LEAST_GAIN]
    return max(helped, key=lambda pair: pair[1])[0] if helped else None
