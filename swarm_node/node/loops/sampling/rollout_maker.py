"""Rollout groups of the node's own: choose tasks, sample completions, score them.

A `TaskChooser` chooses the tasks. Answers of one turn come from `PartialRollouts`, group by group,
or from a `Sampler` in one batch; multi-turn rollouts from a `Player`.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial

import structlog

from swarm_node.config import Sampling
from swarm_node.environments.splits.seeds import task_seed
from swarm_node.errors import SwarmNodeError
from swarm_node.node.loops.node_parts import Parts, Tally, at_sampler
from swarm_node.node.loops.sampling.multi_turn import CHANGED, TOO_LONG, Player, join_turns
from swarm_node.node.loops.sampling.partial_rollouts import PartialRollouts, PendingGroup
from swarm_node.node.loops.sampling.remedy_trials import TASKS, Change, advice, try_changes
from swarm_node.node.loops.sampling.scoring import Scoring
from swarm_node.node.loops.sampling.tasks import FittingTasks
from swarm_node.node.metrics.first_groups import Beginning, FirstGroups
from swarm_node.p2p.exchange.publishing import LocalGroup
from swarm_node.policy.experience.slots import Slots
from swarm_node.policy.sampling.sampler import InterruptibleSampler, Row, SampleRequest
from swarm_node.rollout import Completion, PolicyRef, RolloutGroup, TaskRef

Deliver = Callable[[Sequence[LocalGroup]], Awaitable[None]]

#: The pause after a batch without a group.
PAUSE_SECONDS = 1.0
_log = structlog.get_logger(__name__)


class RolloutMaker:
    """Samples a group of completions for each chosen task and has the group scored. A completion is
    an answer, or a multi-turn rollout."""

    def __init__(
        self,
        sampling: Sampling,
        parts: Parts,
        tally: Tally,
        scoring: Scoring,
        tasks: FittingTasks,
        slots: Slots,
        partial_rollouts: PartialRollouts | None,
        *,
        turns: int = 1,
        seed: int,
        peer_id: str,
    ) -> None:
        """Every group takes its slots from `slots` when its sampling begins. `partial_rollouts`
        gathers the answers of a sampler that can be interrupted. Without it, groups are sampled in
        batches: of answers, or of multi-turn rollouts with up to `turns` turns of the policy."""
        self._sampling = sampling
        self._parts = parts
        self._tally = tally
        self._scoring = scoring
        self._tasks = tasks
        self._slots = slots
        self._partial_rollouts = partial_rollouts
        self._seed = seed
        self._peer_id = peer_id
        self._player = Player(parts.sampler, parts.codec, scoring.rerun, parts.clock)
        self._turns = turns
        self._first = FirstGroups()
        #: Requests of the newest groups, and the first groups' results if they teach nothing.
        self._recent_requests: dict[TaskRef, SampleRequest] = {}
        self._poor_start: Beginning | None = None

    async def make(self, count: int, deliver: Deliver) -> None:
        """Complete and score `count` groups. `deliver` takes them, with their prompts, rewards and
        observations, as soon as they are scored. The group's `claimed` are the rewards found here.

        Groups are left out if their prompt and the longest answers, or a multi-turn rollout of
        them, exceed the model's positions, so there may be fewer. The groups of interrupted tasks
        keep their slots.

        Raises:
            ChildError: the environment's process cannot be kept alive.
            SwarmNodeError: from the sampler or `deliver`.
        """
        clock, group_count, drawing = self._parts.clock, 0, 0.0
        started_at = clock.now()

        async def hand_on(groups: Sequence[LocalGroup]) -> None:
            nonlocal group_count
            group_count += len(groups)
            await deliver(groups)
            self._slots.end(len(groups))

        try:
            if self._partial_rollouts is not None:
                drawing = await self._gather(self._partial_rollouts, count, hand_on)
            elif groups := await self._begin(count):
                sample = self._answer if self._turns == 1 else self._talk
                drawing = await sample(groups, hand_on)
        finally:
            # Groups that failed are dropped; interrupted ones keep their slots.
            pending_count = (
                len(self._partial_rollouts.interrupted_groups)
                if self._partial_rollouts is not None
                else 0
            )
            self._slots.end(self._slots.sampling - pending_count)
        if group_count:
            self._tally.drawing.add(drawing, group_count)
            self._tally.sampling.add(clock.now() - started_at, group_count)
        else:
            await asyncio.sleep(PAUSE_SECONDS)  # the next ones may be as long: do not spin
        if self._poor_start is not None:
            beginning, self._poor_start = self._poor_start, None
            await self._try(beginning)

    async def _try(self, beginning: Beginning) -> None:
        """Find what would help, and tell the owner, also if nothing could be tried."""
        parts, tally = self._parts, self._tally
        trials: dict[Change, float] = {}
        try:
            # Tasks that are too easy need no trial, and multi-turn rollouts have none.
            if beginning.pass_at_1 <= 0.5 and self._turns == 1:
                calls = partial(at_sampler, parts, tally)
                trials = await try_changes(
                    beginning,
                    self._recent_requests,
                    parts.sampler,
                    self._scoring,
                    parts.codec,
                    calls,
                )
        except SwarmNodeError:
            self._advise(beginning, trials)
            raise
        self._advise(beginning, trials)

    def _advise(self, beginning: Beginning, trials: Mapping[Change, float]) -> None:
        self._tally.advice = advice(beginning, trials)
        tell(beginning, self._tally.advice)

    async def _gather(
        self, partial_rollouts: PartialRollouts, count: int, deliver: Deliver
    ) -> float:
        """Sample with an engine that interleaves groups; deliver each group when it is complete.
        Returns the seconds that the engine sampled."""
        clock = self._parts.clock
        started_at = clock.now()

        async def fresh(limit: int) -> list[PendingGroup]:
            nonlocal started_at
            free = self._slots.free(self._parts.trainer.version)
            groups = await self._begin(min(limit, free))
            started_at = clock.now()
            return groups

        async def hand_on(group: PendingGroup) -> None:
            completions = tuple(map(self._completion, group.rows))
            scores = await self._scoring.score_local(group.ref, _texts(completions))
            await deliver(
                [self._finish_local_group(group, group.version, completions, scores.rewards)]
            )

        with self._note_sampling(count):
            await partial_rollouts.gather(count, fresh, hand_on)
        return clock.now() - started_at

    async def _answer(self, groups: Sequence[PendingGroup], deliver: Deliver) -> float:
        """Sample all answers of all groups in one batch. Returns the seconds that the sampler
        sampled."""
        clock, sampler = self._parts.clock, self._parts.sampler
        version, started_at = sampler.version, clock.now()
        with self._note_sampling(len(groups)):
            results = await sampler.sample([group.request for group in groups])
        drawing = clock.now() - started_at
        texts = [(group.ref, _texts(item)) for group, item in zip(groups, results, strict=True)]
        all_scores = await self._scoring.own_all(texts)
        await deliver(
            [
                self._finish_local_group(group, version, completions, item.rewards)
                for group, completions, item in zip(groups, results, all_scores, strict=True)
            ]
        )
        return drawing

    async def _talk(self, groups: Sequence[PendingGroup], deliver: Deliver) -> float:
        """Play all multi-turn rollouts of all groups. Returns the seconds that the sampler
        sampled."""
        version, local_groups = self._parts.sampler.version, []
        with self._note_sampling(len(groups)):
            played_groups, drawing = await self._player.play(
                [(item.ref, item.request) for item in groups]
            )
        for group, rollouts in zip(groups, played_groups, strict=True):
            faults = Counter(item.last_rerun.fault for item in rollouts)
            self._scoring.record_changed_observations(group.ref, faults[CHANGED])
            if faults[TOO_LONG]:
                self._tally.faults["prompt_too_long"] += 1
                continue
            # Peers score a text on which the scorer fails as this node does, and re-run no
            # multi-turn rollout in which an observation failed or a text ended the scoring worker.
            local_groups.append(
                self._finish_local_group(
                    group,
                    version,
                    tuple(join_turns(item.turns) for item in rollouts),
                    tuple(item.last_rerun.reward for item in rollouts),
                    tuple(tuple(item.observations) for item in rollouts),
                    is_sound=faults.keys() <= {"", "out_of_range"},
                )
            )
        await deliver(local_groups)
        return drawing

    async def _begin(self, count: int) -> list[PendingGroup]:
        """Return the next `count` tasks as groups that hold their slots."""
        sampling = self._sampling
        groups = [
            PendingGroup(
                ref,
                prompt,
                SampleRequest(
                    prompt_ids,
                    n=sampling.group_size,
                    seed=task_seed("sample", self._seed, self._peer_id, ref.seed),
                    max_new_tokens=sampling.max_new_tokens,
                    temperature=sampling.temperature,
                ),
            )
            for ref, prompt, prompt_ids in await self._tasks.next(count)
        ]
        self._slots.begin(len(groups))
        return groups

    def _note_sampling(self, groups: int) -> AbstractContextManager[None]:
        sampling = self._sampling
        answers, max_tokens = groups * sampling.group_size, sampling.max_new_tokens
        return at_sampler(self._parts, self._tally, max_tokens, groups=groups, answers=answers)

    def _completion(self, row: Row) -> Completion:
        assert isinstance(self._parts.sampler, InterruptibleSampler)
        return self._parts.sampler.completion(row)

    def _finish_local_group(
        self,
        group: PendingGroup,
        version: int,
        completions: tuple[Completion, ...],
        rewards: tuple[float, ...],
        observations: tuple[tuple[str, ...], ...] = (),
        *,
        is_sound: bool = True,
    ) -> LocalGroup:
        """Make the rollout group to publish. `version` is the policy version of its first
        tokens."""
        policy = PolicyRef(self._parts.policy.model, self._parts.policy.tokenizer, version)
        rollout_group = RolloutGroup(group.ref, policy, completions, rewards)
        self._tally.record_sampled_group(rollout_group, group.prompt, observations)
        self._recent_requests = dict(
            [*self._recent_requests.items(), (group.ref, group.request)][-TASKS:]
        )
        beginning = self._first.add(rollout_group)
        if beginning is not None and beginning.advice:
            self._poor_start = beginning
        elif beginning is not None:
            tell(beginning, "")
        return LocalGroup(rollout_group, group.prompt, observations, is_sound)


def _texts(completions: Sequence[Completion]) -> list[str]:
    return [completion.text for completion in completions]


def tell(beginning: Beginning, advice: str) -> None:
    """Log the results before training, with the `advice` if there is no training signal."""
    fields = {
        "reward": round(beginning.pass_at_1, 3),
        "mixed_rewards": f"{beginning.mixed_rewards} of {beginning.groups}",
    }
    if advice:
        answers = list(beginning.answers)
        _log.warning("no training signal", **fields, remedy=advice, completions=answers)
    else:
        _log.info("base-model eval", **fields)
