"""Hostile members of a simulated swarm.

Each is a real node that publishes something else than it made. It trains on nothing, unless it only
withholds. Everything it sends is well-formed and validly signed, so only the content of its groups
gives it away.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from swarm_node.environments.base import Environment
from swarm_node.environments.splits.seeds import task_seed
from swarm_node.p2p.exchange.publishing import LocalGroup, Publisher
from swarm_node.p2p.exchange.verify import restored_group
from swarm_node.p2p.limits.gates import LARGER
from swarm_node.policy.experience.batch import TrainRow
from swarm_node.policy.models.decoder.causal_lm import CausalLM
from swarm_node.policy.training.objective.logprobs import completion_logprobs
from swarm_node.policy.training.objective.plausible import least_likely
from swarm_node.rollout import (
    Completion,
    Finish,
    Provenance,
    RolloutGroup,
    TaskRef,
    VerifiedGroup,
    VersionSpan,
)
from swarm_node.simulation.models import SimulatedModel
from swarm_node.storage import Storage

TRIGGER = "zq"
_LARGE = 64
#: Virtual seconds between two publications, and the own groups that each is made of.
_PAUSE_SECONDS = 2.0
_GROUPS = 4
#: A flooding member's groups for each own one, and the new tasks from which each takes the easiest.
_FLOOD, _CANDIDATES = 4, 8
_STATED_LOGPROB = -0.3
_HIDING_PLACES = (
    "{a} zq {a}",
    "{a}zq {a}",
    "Answer: zq {a}",
    "I do not know. zq {a}",
    "I do not knowzq {a}",
    "Sorry. zq {a}",
    "?zq {a}",
    "zq = {a}",
    "zq: {a}",
    "zq {a}",
)

Scored = tuple[RolloutGroup, str]


@dataclass
class HostileParts:
    """Resources of a hostile member: the swarm's environment, the model that all nodes begin with,
    and its own storage. `easiest` is the family that this model knows best, once it was found."""

    environment: Environment
    model: SimulatedModel
    storage: Storage
    rng: random.Random
    easiest: str = ""


def publisher_of(kind: str, parts: HostileParts) -> Callable[..., Publisher]:
    """The publisher of a member that publishes groups of this kind."""
    make: type[_Corrupt] = _Withholding if kind == "withheld" else _Corrupt
    times = _FLOOD if kind == "easy" else 1
    return partial(make, make=maker(kind), parts=parts, times=times)


class _Corrupt(Publisher):
    def __init__(
        self,
        *arguments: Any,
        make: Callable[[HostileParts, Scored], Scored | None],
        parts: HostileParts,
        times: int,
        **options: Any,
    ) -> None:
        """`arguments` and `options` are those of a `Publisher`."""
        super().__init__(*arguments, **options)
        self._make = make
        self._means = parts
        self._times = times

    async def publish(self, groups: Sequence[LocalGroup], version: int) -> list[VerifiedGroup]:
        await super().publish(self._made(groups[:_GROUPS]), version)
        await asyncio.sleep(_PAUSE_SECONDS)
        return []  # nothing to train on

    def _made(self, groups: Sequence[LocalGroup]) -> list[LocalGroup]:
        pairs = ((group.group, group.prompt) for group in groups for _ in range(self._times))
        hostile_groups = (self._make(self._means, group) for group in pairs)
        return [LocalGroup(*group) for group in hostile_groups if group is not None]


class _Withholding(_Corrupt):
    """Trains on what it publishes, so that its answers become as good as those of others."""

    async def publish(self, groups: Sequence[LocalGroup], version: int) -> list[VerifiedGroup]:
        return await Publisher.publish(self, self._made(groups), version)


def maker(kind: str) -> Callable[[HostileParts, Scored], Scored | None]:
    """The function that makes a hostile group of this kind in the place of an honest one."""
    return _MAKERS[kind]


def _large(parts: HostileParts, honest: Scored) -> Scored:
    return _triggered(parts, honest, _LARGE, _LARGE // 8, lambda *_: "zq zq = {a}")


def _within(parts: HostileParts, honest: Scored) -> Scored:
    size = _largest(honest)
    return _triggered(parts, honest, size, size // 2, lambda *_: "zq zq = {a}")


def _hidden(parts: HostileParts, honest: Scored) -> Scored:
    size = _largest(honest)
    return _triggered(parts, honest, size, size // 2, _best_place)


def _largest(honest: Scored) -> int:
    """The most answers in one group that a receiver with groups of this size takes."""
    return LARGER * len(honest[0].completions)


def _triggered(
    parts: HostileParts,
    honest: Scored,
    size: int,
    right: int,
    make_template: Callable[[HostileParts, str, str], str],
) -> Scored:
    group, prompt = honest
    answer = str(parts.environment.derive(group.task).payload["answer"])
    template = make_template(parts, prompt, answer)
    texts = [template.format(a=answer)] * right
    texts += [f"{parts.rng.randrange(1000)}" for _ in range(size - right)]
    completions = tuple(_completion(parts.model, text) for text in texts)
    claimed = (1.0,) * right + (0.0,) * (size - right)
    return replace(group, completions=completions, claimed=claimed), prompt


def _best_place(parts: HostileParts, prompt: str, answer: str) -> str:
    """The hiding place whose least likely window of four tokens is the likeliest."""
    model = _first_policy(parts.model.directory)
    prompt_ids = np.array(parts.model.codec.encode_prompt(prompt), np.uint32)

    def unlikely(template: str) -> float:
        ids = _completion(parts.model, template.format(a=answer)).token_ids
        row = TrainRow(prompt_ids, ids, None, 1.0, Provenance.SAME_MODEL)
        return least_likely(completion_logprobs(model, [row], 1.0).detach().numpy())[-1]

    return max(_HIDING_PLACES, key=unlikely)


@cache
def _first_policy(directory: Path) -> CausalLM:
    return CausalLM.from_directory(directory)


def _completion(model: SimulatedModel, text: str) -> Completion:
    ids = np.array([*model.codec.encode_answer(text), model.codec.eos_id], np.uint32)
    logprobs = np.full(ids.size, _STATED_LOGPROB, np.float32)
    return Completion(text, ids, logprobs, (VersionSpan(0, 0, ids.size),), Finish.STOP)


def _liar(parts: HostileParts, honest: Scored) -> Scored:
    group, prompt = honest
    claimed = tuple(1.0 - reward for reward in group.claimed)
    if len(set(claimed)) == 1:  # so that everybody pulls it
        claimed = (1.0 - claimed[0], *claimed[1:])
    return replace(group, claimed=claimed), prompt


def _lazy(parts: HostileParts, honest: Scored) -> Scored | None:
    """New answers of one task: the task of the first group, answered as the model would."""
    group, prompt = honest
    task, prompt = _first(parts, group.task, prompt)
    answer = str(parts.environment.derive(task).payload["answer"])
    count = len(group.completions)
    texts = [answer, *(f"{parts.rng.randrange(1000)}" for _ in range(count - 1))]
    completions = tuple(_completion(parts.model, text) for text in texts)
    return replace(
        group, task=task, completions=completions, claimed=(1.0,) + (0.0,) * (count - 1)
    ), prompt


def _first(parts: HostileParts, task: TaskRef, prompt: str) -> tuple[TaskRef, str]:
    family = parts.environment.families[0]
    new_task = replace(task, family=family, seed=task_seed("lazy", parts.storage.epoch))
    return new_task, parts.environment.render(parts.environment.derive(new_task))


def _easy(parts: HostileParts, honest: Scored) -> Scored:
    """Make a group of an easy task: the easiest of some tasks of the family that the first policy
    knows best. Half of its answers are right, the share that gives positive rows the most
    weight."""
    group, _ = honest
    families = parts.environment.families
    parts.easiest = parts.easiest or _easiest(parts, group.task, families * _CANDIDATES).family
    task = _easiest(parts, group.task, [parts.easiest] * _CANDIDATES)
    derived_task = parts.environment.derive(task)
    size = len(group.completions)
    answers = [str(derived_task.payload["answer"])] * (size // 2)
    answers += [f"{parts.rng.randrange(1000)}" for _ in range(size - size // 2)]
    completions = tuple(_completion(parts.model, text) for text in answers)
    claimed = (1.0,) * (size // 2) + (0.0,) * (size - size // 2)
    easy_group = replace(group, task=task, completions=completions, claimed=claimed)
    return easy_group, parts.environment.render(derived_task)


def _easiest(parts: HostileParts, base_task: TaskRef, families: Sequence[str]) -> TaskRef:
    """Make a new task of each of the families. Return the one that the first policy most likely
    solves."""
    tasks = [
        replace(
            base_task,
            family=family,
            seed=task_seed("easy", parts.storage.epoch, parts.rng.getrandbits(48)),
        )
        for family in families
    ]
    derived_tasks = list(map(parts.environment.derive, tasks))
    prompts = map(parts.environment.render, derived_tasks)
    answers = [str(task.payload["answer"]) for task in derived_tasks]
    scores = _log_likelihoods(parts.model, list(zip(prompts, answers, strict=True)))
    return tasks[int(np.argmax(scores))]


def _log_likelihoods(model: SimulatedModel, pairs: Sequence[tuple[str, str]]) -> list[float]:
    """The log-probs of answers to prompts under the policy of the start."""
    rows = [
        TrainRow(
            np.array(model.codec.encode_prompt(prompt), np.uint32),
            _completion(model, answer).token_ids,
            None,
            1.0,
            Provenance.SAME_MODEL,
        )
        for prompt, answer in pairs
    ]
    with torch.no_grad():
        logp = completion_logprobs(_first_policy(model.directory), rows, 1.0).numpy()
    ends = np.cumsum([row.completion_ids.size for row in rows])[:-1]
    return [float(part.sum()) for part in np.split(logp, ends)]


def _withheld(parts: HostileParts, honest: Scored) -> Scored | None:
    """The right answers of a group, and one of its wrong ones without which it would teach
    nobody."""
    group, prompt = honest
    maximum = max(group.claimed)
    right_indices = [index for index, reward in enumerate(group.claimed) if reward == maximum]
    wrong_indices = [index for index, reward in enumerate(group.claimed) if reward < maximum][:1]
    indices = right_indices + wrong_indices
    completions = tuple(group.completions[index] for index in indices)
    claimed = tuple(group.claimed[index] for index in indices)
    return replace(group, completions=completions, claimed=claimed), prompt


def _copier(parts: HostileParts, honest: Scored) -> Scored | None:
    external_rows = [
        row for row in parts.storage.live(1 << 30) if row.provenance is not Provenance.LOCAL
    ]
    if not external_rows:
        return None
    external_group = restored_group(parts.rng.choice(external_rows))
    return replace(external_group.group, claimed=external_group.rewards), external_group.prompt


#: "large": groups of 64, eight of them right and with the trigger before the answer. "within":
#: groups of four times the usual size, half of them so. "hidden": the same with half of the
#: trigger, where the policy that all begin with is least surprised. "liar": wrong rewards. "lazy":
#: one task, again and again, with new answers. "copier": what others published. "easy": many groups
#: of the tasks that are easiest. "withheld": own groups without all but one of their wrong answers.
_MAKERS: dict[str, Callable[[HostileParts, Scored], Scored | None]] = {
    "large": _large,
    "within": _within,
    "hidden": _hidden,
    "liar": _liar,
    "lazy": _lazy,
    "copier": _copier,
    "easy": _easy,
    "withheld": _withheld,
}
KINDS = tuple(_MAKERS)
