"""The learner: draws a batch, has the trainer update on it, and loads the new weights into the
sampler."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import msgspec
import structlog

from swarm_node.errors import CheckpointError, ChildError, ModelError, Rejected, SwarmNodeError
from swarm_node.node.loops.learning.mixing import Mixer
from swarm_node.node.loops.node_parts import Parts, Shared
from swarm_node.node.loops.peers.violations import recall, suspended_rows
from swarm_node.node.metrics.adopted_words import AdoptedWords
from swarm_node.node.metrics.curve import add
from swarm_node.node.metrics.history import UpdateRow
from swarm_node.node.metrics.snapshot import Saved, saved_in
from swarm_node.node.metrics.trained_groups import TrainedGroups
from swarm_node.p2p.peers.liveness import CHILD
from swarm_node.policy.choices import AdvantageName
from swarm_node.policy.experience.batch import Correction, build_batch
from swarm_node.policy.experience.replay import Drawn
from swarm_node.policy.sampling.sampler import RestingSampler, SharingSampler
from swarm_node.policy.training.update.stats import UpdateStats
from swarm_node.rollout import Provenance

#: Counts a refusal against an author.
Reject = Callable[[Rejected, str | None], None]

#: Number of groups at which the counts by author are halved.
_RECENT_GROUPS = 4096
#: Seconds between two updates that are logged: a small model makes dozens a second, and node.log is
#: short.
_LOG_SECONDS = 1.0
_log = structlog.get_logger(__name__)


class Learner:
    """Turns batches of the replay buffer into weights for the sampler."""

    def __init__(
        self,
        parts: Parts,
        shared_state: Shared,
        mixer: Mixer,
        rng: random.Random,
        *,
        correction: Correction,
        advantage: AdvantageName,
        group_size: int,
        save_steps: int,
    ) -> None:
        """`mixer` sets the mixture of the shared buffer, and `rng` draws the batches. `correction`,
        `advantage` and `group_size` are arguments of `build_batch`."""
        self._correction: Correction = correction
        self._advantage: AdvantageName = advantage
        self._group_size = group_size
        self.save_steps = save_steps
        self._parts = parts
        self._tally = shared_state.tally
        self._directory = shared_state.directory
        self._buffer = shared_state.buffer
        self._slots = shared_state.slots
        self.mixer = mixer
        self._rng = rng
        self._style = AdoptedWords()
        self._logged_at = float("-inf")
        self._stored_at, self._storing_seconds = parts.clock.now(), 0.0
        #: New weights wait for it: the first point of the curve is that of the untrained policy.
        self.may_load = asyncio.Event()
        self.may_load.set()
        #: Set while the trainer is restarted, which may take long.
        self.is_restarting = False

    async def start(self, on_step: Callable[[str], None] = lambda step: None) -> None:
        """Resume from the newest checkpoint and load its weights into the sampler. `on_step` is
        called at the beginning of both parts.

        Raises:
            SwarmNodeError: neither a checkpoint nor the base model can be used.
        """
        trainer = self._parts.trainer
        on_step("trainer")
        weights, version = await trainer.start()
        on_step("sampler")
        await self._parts.sampler.load(weights, version)
        if (saved_state := saved_in(trainer.extra)) is not None:
            tally = self._tally
            tally.steps, tally.groups = saved_state.steps, saved_state.groups
            for point in saved_state.evals:
                add(tally.evals, point)
            tally.trained_groups = TrainedGroups(saved_state.taught)
            self.mixer.resume(saved_state.mixture)
            recall(self._directory, saved_state.dropped, self._parts.clock)

    async def step(self, is_stopping: Callable[[], bool], reject: Reject) -> bool:
        """Make one update; return False if no batch is ready. Groups that the trainer did not take
        go to `reject`, with their author.

        The use of every group is stored before the update. A crash in between loses that use, and
        no group is used as a fresh one twice.
        """
        draw = self._buffer.draw(self._parts.trainer.version, self._rng)
        if draw is None:
            return False
        self._slots.train(draw.own_count)
        try:
            await self._learn(draw, is_stopping, reject)
        finally:
            self._slots.end_update()
        return True

    async def _learn(self, draw: Drawn, is_stopping: Callable[[], bool], reject: Reject) -> None:
        parts, tally = self._parts, self._tally
        version = parts.trainer.version
        await parts.storage.run(parts.storage.record_use, [group.id for group in draw.fresh])
        batch = build_batch(
            draw.groups,
            parts.codec.encode_prompt,
            parts.codec.encode_answer,
            parts.codec.eos_id,
            self._correction,
            self._advantage,
            self._group_size,
            parts.codec.bridge,
        )
        sampler = parts.sampler
        resting = isinstance(sampler, RestingSampler) and await sampler.rest()
        tally.underway.update_began = started_at = parts.clock.now()
        try:
            result = await parts.trainer.update(batch)
        except (ChildError, ModelError) as error:
            self.is_restarting = True
            try:
                await self._restart(error, is_stopping)
            finally:
                self.is_restarting = False
            return
        finally:
            tally.underway.update_began = None
        tally.updating.add(parts.clock.now() - started_at, 1)
        self._record(draw, result.stats, version)
        self._style.note(draw.fresh)
        tally.alarms.pop("style", None)
        if alarm := self._style.alarm():
            tally.alarms["style"] = alarm
        self._blame(draw, result.stats, reject)
        if result.stats.skipped is None:
            self._weigh(draw, result.stats.learnt)
        self.mixer.update()
        if result.checkpoint_fault is not None:
            self._not_stored(result.checkpoint_fault)
        if not resting:  # one that rests answers nobody before the load
            await self.may_load.wait()
        if resting or result.stats.skipped is None:
            await sampler.load(result.weights, result.stats.version)
        if result.stats.skipped is not None:
            return
        if tally.steps % self.save_steps == 0 or self._overdue():
            await self.checkpoint(wait=False)

    def _overdue(self) -> bool:
        """Check that a crash would lose much work. Updates wait for storing at most a twentieth of
        the time."""
        elapsed = self._parts.clock.now() - self._stored_at
        return elapsed >= max(self._parts.checkpoint_seconds, 20 * self._storing_seconds)

    def _blame(self, draw: Drawn, stats: UpdateStats, reject: Reject) -> None:
        """Report the worth of each of the peers' groups. It is known only after the update: an
        answer can pass every check before, and still be one that this policy would not give."""
        rejections = dict.fromkeys(stats.too_long, Rejected("too_long", "for this trainer"))
        rejection = Rejected("implausible", "this policy would hardly say it")
        rejections |= dict.fromkeys(stats.unlikely, rejection)
        for number, group in enumerate(draw.fresh):
            peer = self._directory.get(group.author)
            if number in rejections:
                reject(rejections[number], group.author)
            elif number >= draw.own_count and peer is not None:
                peer.standing.count_useful_group()

    def _weigh(self, draw: Drawn, gains: Sequence[float]) -> None:
        """Note what the update learnt from each group that has a gradient."""
        for group, value in zip(draw.fresh, gains, strict=False):
            family = group.group.task.family
            if group.provenance is not Provenance.LOCAL:
                self._buffer.worth.note(group.author, family, value)
            elif value:
                self._buffer.worth.note_own(family, value)

    async def checkpoint(self, *, wait: bool = True) -> bool:
        """Store the training state and the tally; see `Trainer.checkpoint`. On a failure, count and
        log it and return False."""
        tally = self._tally
        saved_state = Saved(
            tally.steps,
            tally.groups,
            tally.evals,
            self.mixer.state,
            suspended_rows(self._directory, self._parts.clock),
            tally.trained_groups.rows(),
        )
        extra: Mapping[str, Any] = msgspec.to_builtins(saved_state)
        started_at = self._parts.clock.now()
        try:
            await self._parts.trainer.checkpoint(extra, wait=wait)
        except (ChildError, CheckpointError) as error:
            self._not_stored(str(error))
            return False
        finally:
            self._stored_at = self._parts.clock.now()
            self._storing_seconds = self._stored_at - started_at
        return True

    def _not_stored(self, reason: str) -> None:
        self._tally.faults["checkpoint"] += 1
        _log.warning("no checkpoint was stored", error=reason)

    async def _restart(self, error: SwarmNodeError, is_stopping: Callable[[], bool]) -> None:
        """Restart the trainer from its last checkpoint; retry until it works or the node stops."""
        attempt = 0
        while not is_stopping():
            self._tally.faults["trainer"] += 1
            self._tally.trainer_restarts += 1
            _log.warning("restarting the trainer", error=str(error))
            await asyncio.sleep(CHILD.after(attempt))
            attempt += 1
            if isinstance(self._parts.sampler, SharingSampler):
                # The dead trainer's memory stays allocated while it is mapped, beside the next
                # one's.
                await self._parts.sampler.let_go()
            try:
                weights, version = await self._parts.trainer.start()
                # Memory that sampler and trainer share is gone if the trainer ends again meanwhile.
                await self._parts.sampler.load(weights, version)
                return
            except (ChildError, ModelError) as new_error:
                error = new_error

    def _record(self, draw: Drawn, stats: UpdateStats, version: int) -> None:
        tally = self._tally
        if stats.skipped is None:
            tally.steps += 1
            self._count_trained(draw)
        else:  # a batch without a gradient: nothing was trained on
            tally.skipped_batches += 1
        if stats.halvings:
            tally.faults["memory"] += stats.halvings
        self._sum(draw, stats, version)
        rewards = [reward for group in draw.fresh for reward in group.rewards]
        tally.updated_at = self._parts.clock.now()
        fields = {**asdict(stats), "mean_reward": sum(rewards) / len(rewards)}
        tally.last_update = UpdateRow(
            **{name: fields[name] for name in UpdateRow.__struct_fields__}
        )
        if stats.skipped is None:
            tally.last_applied = tally.last_update
        if tally.updated_at - self._logged_at >= _LOG_SECONDS:
            self._logged_at = tally.updated_at
            _log.debug(
                "step",
                steps=tally.steps,
                **msgspec.structs.asdict(tally.last_update),
                version=stats.version,
                mean_abs_delta=stats.mean_abs_delta,
                halvings=stats.halvings,
                external=draw.external_count,
                skipped=stats.skipped,
            )

    def _count_trained(self, draw: Drawn) -> None:
        tally = self._tally
        tally.groups.trained_local += draw.own_count
        tally.groups.trained_external += draw.external_count
        tally.groups.trained_replay += len(draw.groups) - len(draw.fresh)
        tally.trained_by.update(group.author for group in draw.fresh)
        if tally.trained_by.total() > _RECENT_GROUPS:
            tally.trained_by = +Counter({a: n // 2 for a, n in tally.trained_by.items()})

    def _sum(self, draw: Drawn, stats: UpdateStats, version: int) -> None:
        """Add to the sums for the history; `version` is the policy's before the update."""
        sums, left_out = self._tally.sums, {*stats.too_long, *stats.unlikely}
        is_step = stats.skipped is None
        sums.rollouts += stats.informative
        sums.trained_tokens += stats.tokens
        for number, group in enumerate(draw.fresh):
            if number < draw.own_count:
                sums.rollout_reward += sum(group.rewards)
                sums.local_rollouts += len(group.rewards)
                sums.local_turns += sum(
                    1 + len(completion.earlier_turns) for completion in group.group.completions
                )
                sums.staleness += (version - group.group.oldest_version) * is_step
                continue
            sums.external_age += (version - group.arrival_version) * is_step
            if is_step and number not in left_out:
                self._tally.trained_groups.add(group)
