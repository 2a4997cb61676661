"""The learner with a real trainer and sampler: what an update, a failure and a restart leave."""

from __future__ import annotations

import asyncio
import shutil
import weakref
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from builders import completion, verified
from in_memory import Sampler, World, small_settings, tiny
from virtual import virtual_time

from swarm_node.config import Settings
from swarm_node.errors import CheckpointError, ChildError, ModelError, Rejected, WeightsError
from swarm_node.node.loops.node_parts import Parts
from swarm_node.node.metrics.snapshot import EvalPoint
from swarm_node.node.start.assembly import make_learner, make_shared
from swarm_node.policy.experience.batch import Batch
from swarm_node.policy.experience.mixture import Mixture
from swarm_node.policy.sampling.torch_sampler import TorchSampler
from swarm_node.policy.training.checkpoints.stored import newest_valid
from swarm_node.policy.training.processes.inline import InlineTrainer
from swarm_node.policy.training.processes.messages import UpdateResult
from swarm_node.rollout import VerifiedGroup
from swarm_node.storage import StoredGroup

MIXED, EQUAL = (0.0, 1.0), (1.0, 1.0)


class Life:
    """A learner and what it works with, for as long as its node runs."""

    def __init__(self, world: World, settings: Settings, parts: Parts) -> None:
        membership = world.memberships[0]
        self.parts = parts
        self.rejected: list[tuple[str, str | None]] = []
        self.shared = make_shared(settings, membership, parts)
        self.tally = self.shared.tally
        self.learner = make_learner(settings, parts, self.shared)

    def offer(self, count: int = 2, rewards: tuple[float, ...] = MIXED) -> None:
        """Store new own groups and admit them, as the node does."""
        storage = self.parts.storage
        first = storage.published_count() + 1
        for number in range(first, first + count):
            group = own_group(number, rewards, self.parts.trainer.version)
            storage.publish([(stored(group, storage.epoch, storage.next_seq()), None)])
            assert self.shared.buffer.admit(group, self.parts.trainer.version) is None

    async def step(self) -> bool:
        return await self.learner.step(lambda: False, self.reject)

    def reject(self, rejected: Rejected, author: str | None) -> None:
        self.rejected.append((rejected.reason, author))

    async def close(self) -> None:
        await self.parts.trainer.close()
        self.parts.storage.close()


@asynccontextmanager
async def learning(
    world: World, settings: Settings | None = None, **parts: Any
) -> AsyncIterator[Life]:
    """A learner that was started, with these `parts` in the place of the usual ones."""
    settings = settings or small_settings()
    life = Life(world, settings, world.parts(settings, **parts))
    await life.learner.start()
    yield life
    await life.close()


class Unsteady(InlineTrainer):
    """A trainer whose first `crashes` updates fail, and then its first `refusals` restarts."""

    def __init__(self, crashes: int, refusals: int = 0, **arguments: Any) -> None:
        super().__init__(**arguments)
        self.crashes = crashes
        self.refusals = refusals

    async def update(self, batch: Batch) -> UpdateResult:
        if self.crashes:
            self.crashes -= 1
            raise ChildError("the trainer died")
        return await super().update(batch)

    async def start(self) -> tuple[Path, int]:
        if self.refusals and self._host is not None:
            self.refusals -= 1
            raise ModelError("out of memory")
        return await super().start()


class Sharing(Unsteady):
    """A trainer that shares its base with `sampler`. It notes whether that maps the base of the
    trainer that died while the next one starts."""

    mapped: bool | None = None

    def __init__(self, sampler: TorchSampler, **arguments: Any) -> None:
        arguments["settings"] = replace(arguments["settings"], published="shared", lora_rank=4)
        super().__init__(crashes=1, **arguments)
        self._sampler = sampler

    async def update(self, batch: Batch) -> UpdateResult:
        self.base = weakref.ref(self._sampler._model)
        return await super().update(batch)

    async def start(self) -> tuple[Path, int]:
        if self._host is not None:
            self.mapped = self.base() is not None
        return await super().start()


class Resting(Sampler):
    """A sampler that gives its memory back when asked, if it `can`."""

    can = True

    async def rest(self) -> bool:
        return self.can

    async def load(self, weights: Path, version: int) -> None:
        self.loaded = version
        await super().load(weights, version)


class Fleeting(Unsteady):
    """A trainer that ends again after its first restart, and what it published with it."""

    gone = False

    async def start(self) -> tuple[Path, int]:
        is_first = self._host is None
        weights, version = await super().start()
        if not (is_first or self.gone):
            self.gone = True
            weights.unlink()
        return weights, version


def own_group(seq: int, rewards: tuple[float, ...], version: int) -> VerifiedGroup:
    answers = [completion([5 + n, 6 + n], versions=[version] * 2) for n in range(len(rewards))]
    return verified(
        f"group {seq}",
        seed=seq,
        rewards=rewards,
        completions=answers,
        arrived=version,
        prompt="What is 1 + 1?",
        policy=tiny().policy,
    )


def stored(group: VerifiedGroup, epoch: int, seq: int) -> StoredGroup:
    return StoredGroup(
        group.id,
        "me",
        epoch,
        seq,
        group.provenance,
        b"",
        group.prompt,
        group.rewards,
        group.arrival_version,
    )


@virtual_time
async def test_an_update_moves_the_sampler_to_the_new_weights(world: World) -> None:
    async with learning(world) as life:
        assert (life.parts.sampler.version, life.tally.steps) == (0, 0)
        assert not await life.step()
        life.offer(1)
        assert not await life.step()
        life.offer(1)
        assert await life.step()
        assert life.parts.sampler.version == life.parts.trainer.version == 1
        assert (life.tally.steps, life.tally.groups.trained_local) == (1, 2)
        assert life.tally.last_update.mean_reward == 0.5
        assert life.tally.last_update.entropy > 0
        assert life.tally.updating.count == 1
        assert not await life.step()


@virtual_time
async def test_a_use_is_stored_before_the_update_and_while_it_runs_slots_are_held(
    world: World,
) -> None:
    seen: list[tuple[int, int]] = []

    class Watched(InlineTrainer):
        life: Life

        async def update(self, batch: Batch) -> UpdateResult:
            unused = self.life.parts.storage.live(max_uses=1)
            seen.append((len(unused), self.life.shared.slots.free(self.version)))
            return await super().update(batch)

    settings = small_settings(experience__max_staleness=0)
    trainer = Watched(**world.training(settings))
    trainer.life = life = Life(world, settings, world.parts(settings, trainer=trainer))
    await life.learner.start()
    life.offer()
    assert len(life.parts.storage.live(max_uses=1)) == 2
    await life.step()
    # With a `max_staleness` of 0, sampling waits for the update.
    assert seen == [(0, 0)]
    assert life.shared.slots.free(1) == 2
    await life.close()


@virtual_time
async def test_a_batch_that_teaches_nothing_is_skipped_and_counted(world: World) -> None:
    async with learning(world, small_settings(run__save_steps=1)) as life:
        life.offer(rewards=EQUAL)
        assert await life.step()
        assert (life.tally.steps, life.tally.skipped_batches) == (0, 1)
        assert life.tally.groups.trained_local == 0
        assert not life.tally.trained_by
        assert (life.tally.sums.staleness, life.tally.sums.local_rollouts) == (0, 4)
        assert life.parts.sampler.version == 0
    # The end waits for what is written meanwhile.
    assert not any(world.home().glob("checkpoints/*"))


@virtual_time
async def test_a_checkpoint_is_stored_after_a_time_where_updates_are_slow(world: World) -> None:
    for pause, stored in ((9.0, False), (11.0, True)):
        async with learning(world, small_settings(), checkpoint_seconds=10.0) as life:
            await asyncio.sleep(pause)
            life.offer()
            assert await life.step()
        # The end waits for what is written meanwhile.
        assert any(world.home().glob("checkpoints/*")) == stored


@virtual_time
async def test_a_sampler_that_rested_gets_weights_after_a_skipped_update_too(world: World) -> None:
    sampler = Resting(tiny().sampler(), 0.01, 0, world.home())
    async with learning(world, small_settings(), sampler=sampler) as life:
        for sampler.can, loaded in ((True, 0), (False, -1)):
            sampler.loaded = -1
            life.offer(rewards=EQUAL)
            assert await life.step()
            assert sampler.loaded == loaded
        assert life.tally.skipped_batches == 2


@virtual_time
async def test_words_that_this_policy_would_hardly_say_are_their_authors_fault(
    world: World,
) -> None:
    question = "Spell abcd backward. End with a full stop."
    async with learning(world, small_settings(experience__external=2)) as life:
        for author, right in (("poisoner", "zq zq dcba."), ("honest", "dcba.")):
            life.shared.directory.meet(author, 0.0).standing.strikes = 3
            codec, texts = tiny().codec, (right, "abcd.")
            answers = [completion([*codec.encode_answer(text), codec.eos_id]) for text in texts]
            group = verified(
                author, author, completions=answers, prompt=question, policy=tiny().policy
            )
            assert life.shared.buffer.admit(replace(group, rewards=(1.0, 0.0)), 0) is None
        life.offer()
        assert await life.step()
        assert life.tally.groups.trained_external == 2
        assert life.rejected == [("implausible", "poisoner")]
        strikes = {peer.peer_id: peer.standing.strikes for peer in life.shared.directory.live(0, 1)}
        assert strikes == {"poisoner": 3, "honest": 0}, "only what was trained on was of use"


@virtual_time
async def test_own_groups_of_the_past_are_counted_apart_and_blame_and_teach_nobody(
    world: World,
) -> None:
    async with learning(world, small_settings(experience__replay=8)) as life:
        fresh = life.shared.buffer.mixture.own
        for again in (0, fresh, 2 * fresh):
            life.offer(fresh)
            before = life.tally.groups.trained_replay
            assert await life.step()
            assert life.tally.groups.trained_replay - before == again
        assert life.tally.groups.trained_local == 3 * fresh
        assert life.tally.groups.trained_external == 0
        assert life.tally.sums.local_rollouts == 3 * fresh * len(MIXED)
        assert (life.rejected, life.tally.trained_groups.rows()) == ([], [])


@virtual_time
async def test_a_trainer_that_dies_is_restarted_and_its_batch_is_not_reused(world: World) -> None:
    settings = small_settings()
    trainer = Unsteady(crashes=1, refusals=2, **world.training(settings))
    async with learning(world, settings, trainer=trainer) as life:
        life.offer()
        began = world.clock.now()
        assert await life.step()
        # The pauses double: 1, 2 and 4 seconds.
        assert world.clock.now() - began == 7
        assert life.tally.faults == {"trainer": 3}
        assert (life.tally.trainer_restarts, life.tally.steps) == (3, 0)
        assert life.tally.groups.trained_local == 0
        assert not life.learner.is_restarting
        assert life.parts.storage.live(max_uses=1) == []
        assert not await life.step()
        life.offer()
        assert await life.step()
        assert (life.tally.steps, life.parts.sampler.version) == (1, 1)


@virtual_time
async def test_the_sampler_lets_go_of_a_dead_trainers_base_before_the_next_one_starts(
    world: World,
) -> None:
    settings = small_settings()
    sampler = tiny().sampler()
    sampler._shares = True
    trainer = Sharing(sampler, **world.training(settings))
    async with learning(world, settings, trainer=trainer, sampler=sampler) as life:
        life.offer()
        assert await life.step()
        assert trainer.mapped is False
        life.offer()
        assert await life.step()
        assert (life.tally.steps, sampler.version) == (1, 1)


@virtual_time
async def test_weights_that_are_gone_before_a_load_cost_another_restart(world: World) -> None:
    settings = small_settings()
    trainer = Fleeting(crashes=1, **world.training(settings))
    async with learning(world, settings, trainer=trainer) as life:
        life.offer()
        assert await life.step()
        assert life.tally.trainer_restarts == 2
        life.offer()
        assert await life.step()
        assert (life.tally.steps, life.parts.sampler.version) == (1, 1)


@virtual_time
async def test_weights_that_cannot_be_written_end_the_learner(world: World) -> None:
    async with learning(world) as life:
        life.offer()
        shutil.rmtree(world.home() / "weights")
        with pytest.raises(WeightsError, match=r"weights: "):
            await life.step()
        assert life.tally.trainer_restarts == 0


@virtual_time
async def test_a_node_that_stops_does_not_wait_for_its_trainer(world: World) -> None:
    settings = small_settings()
    trainer = Unsteady(crashes=1, refusals=99, **world.training(settings))
    async with learning(world, settings, trainer=trainer) as life:
        life.offer()
        assert await life.learner.step(lambda: world.clock.now() > 10, life.reject)
        assert 10 < world.clock.now() < 20
        assert life.tally.steps == 0


@virtual_time
async def test_a_learner_resumes_from_the_newest_checkpoint(world: World) -> None:
    settings = small_settings(experience__external="auto", run__save_steps=2)
    first = Life(world, settings, world.parts(settings))
    await first.learner.start()
    first.tally.evals.append(EvalPoint(3.0, 0, 0.1, 0.1, None, {}))
    for own in (2, 3, 4):  # the third update comes after the checkpoint
        first.offer(4)
        assert await first.step()
        assert first.shared.buffer.mixture == Mixture(own, 4 - own)
    await first.close()
    second = Life(world, settings, world.parts(settings))
    await second.learner.start()
    assert second.parts.sampler.version == second.parts.trainer.version == 2
    assert second.tally.steps == 2
    assert second.tally.groups.trained_local == 8
    assert second.tally.evals == first.tally.evals
    assert second.shared.buffer.mixture == Mixture(3, 1)
    second.offer(4)
    assert await second.step()
    assert (second.tally.steps, second.parts.sampler.version) == (3, 3)
    await second.close()


@virtual_time
async def test_a_checkpoint_of_another_program_is_refused(world: World) -> None:
    settings = small_settings()
    trainer = InlineTrainer(**world.training(settings))
    await trainer.start()
    await trainer.checkpoint({"epoch": 3})
    await trainer.close()
    life = Life(world, settings, world.parts(settings))
    with pytest.raises(CheckpointError, match="another program"):
        await life.learner.start()
    await life.close()


@virtual_time
async def test_a_checkpoint_that_cannot_be_written_is_counted_and_learning_goes_on(
    world: World,
) -> None:
    async with learning(world, small_settings(run__save_steps=1)) as life:
        (world.home() / "checkpoints").write_text("no directory")
        for _ in range(3):
            life.offer()
            assert await life.step()
        # It is written beside the next update, whose result tells.
        told = life.tally.faults["checkpoint"]
        assert told >= 1
        assert life.parts.sampler.version == 3
        assert not await life.learner.checkpoint()
        assert life.tally.faults == {"checkpoint": told + 1}
        (world.home() / "checkpoints").unlink()
        assert await life.learner.checkpoint()
        assert newest_valid(world.home() / "checkpoints") is not None, "it is there on return"
