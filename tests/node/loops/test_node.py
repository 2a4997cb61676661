"""A whole node of in-memory parts: it starts, learns, survives its parts, stops and closes them."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from in_memory import Host, Sampler, World, environment, small_settings, tiny
from virtual import virtual_time

from swarm_node.environments.host import EnvironmentInfo, Whose
from swarm_node.environments.scores import GroupScores
from swarm_node.errors import (
    ChildError,
    ConfigError,
    HomeError,
    ModelError,
    SwarmNodeError,
    TransportError,
)
from swarm_node.node.loops.node import Node
from swarm_node.p2p.transports.memory import MemoryTransport
from swarm_node.policy.experience.batch import Batch
from swarm_node.policy.models.decoder.causal_lm import CausalLM
from swarm_node.policy.sampling.sampler import Row, SampleRequest, finish_row
from swarm_node.policy.sampling.torch_sampler import TorchSampler
from swarm_node.policy.training.processes.inline import InlineTrainer
from swarm_node.policy.training.processes.messages import UpdateResult
from swarm_node.rollout import Completion, TaskRef
from swarm_node.simulation.paced import PacedTrainer
from swarm_node.simulation.virtual_time import VirtualTimeLoop
from swarm_node.storage import Storage, StoredGroup


@virtual_time
async def test_a_node_learns_until_its_last_update_and_a_later_one_continues(world: World) -> None:
    async def live(world: World, updates: int) -> Node:
        settings = small_settings(run__max_steps=updates)
        node = world.node(settings)
        steps: list[str] = []
        ended = await node.run(on_step=steps.append)
        assert steps == ["tasks", "trainer", "sampler", "network"]
        assert (ended.steps, ended.stored) == (updates, True)
        assert_closed(world, node)
        return node

    first = (await live(world, 2)).snapshot()
    assert (first.state, first.steps, first.version) == ("stopping", 2, 2)
    assert first.groups.trained_local == 2 * first.steps <= first.groups.sampled
    assert first.last_step.tokens > 0
    assert [point.version for point in first.evals] == [0]
    assert first.peer_id == world.memberships[0].identity.peer_id
    assert first.local_families == first.families != []
    assert first.faults == first.rejected == {}
    later = (await live(world, 3)).snapshot()
    assert (later.steps, later.version) == (3, 3)
    assert later.groups.trained_local > first.groups.trained_local
    # The log counts what was published after the checkpoint, too.
    assert later.groups.sampled >= first.groups.sampled
    assert later.evals[0] == first.evals[0]
    assert later.evals[1].seconds > first.evals[0].seconds
    again = (await live(world, 3)).snapshot()  # which has been reached
    assert (again.steps, again.version) == (3, 3)
    assert again.groups.trained_local == later.groups.trained_local


@virtual_time
async def test_a_sampler_that_can_be_cut_is_given_half_as_many_groups_again(world: World) -> None:
    class Interleaving(Sampler):
        """Samples every group to its end, and counts how many are under way."""

        running = most = 0

        async def complete(
            self,
            request: SampleRequest,
            begun: Sequence[Row] = (),
            cut: asyncio.Event | None = None,
        ) -> list[Row]:
            self.running += 1
            self.most = max(self.most, self.running)
            (group,) = await self.sample([request])
            self.running -= 1
            return [Row(one.token_ids, one.logprobs, one.spans, one.finish) for one in group]

        def completion(self, row: Row) -> Completion:
            return finish_row(row, tiny().codec.decode)

    settings = small_settings(run__max_steps=1)
    sampler = Interleaving(tiny().sampler(), 0.01, 0, world.home())
    node = world.node(settings, sampler=sampler)
    await node.run()
    assert node.snapshot().steps == 1
    assert sampler.most == 3  # of 2 that a sampling batch awaits


@virtual_time
async def test_a_node_says_that_it_starts_and_a_stop_meanwhile_ends_it_at_once(
    world: World, loop: VirtualTimeLoop
) -> None:
    class Slow(Host):
        async def start(self) -> EnvironmentInfo:
            await asyncio.sleep(10)
            return await super().start()

    settings = small_settings()
    node = world.node(settings, environment=Slow(environment()))
    running: list[str] = []
    life = asyncio.create_task(node.run(running.extend))
    await asyncio.sleep(5)
    seen = node.snapshot()
    assert (seen.state, seen.seconds, seen.families, seen.busy) == ("starting", 5.0, [], None)
    assert running == seen.addresses == []
    with pytest.raises(SwarmNodeError, match="still starting"):
        await node.evaluate()
    node.stop()
    assert await life is None
    assert running == []
    assert loop.time() == 5
    assert_closed(world, node)


@pytest.mark.parametrize("starts", [False, True], ids=["at its start", "at a restart"])
@virtual_time
async def test_a_stop_does_not_wait_for_a_trainer_that_waits_for_others(
    world: World, starts: bool, loop: VirtualTimeLoop
) -> None:
    class Waiting(InlineTrainer):
        async def start(self) -> tuple[Path, int]:
            if not starts or self._host is not None:
                await asyncio.Event().wait()
            return await super().start()

        async def update(self, batch: Batch) -> UpdateResult:
            raise ChildError("another host is gone")

    settings = small_settings()
    node = world.node(settings, trainer=Waiting(**world.training(settings)))
    life = asyncio.create_task(node.run())
    await asyncio.sleep(100)
    assert node.snapshot().state == ("running" if starts else "starting")
    node.stop()
    await life
    assert loop.time() <= 101
    assert_closed(world, node)


@virtual_time
async def test_a_stop_is_bounded_if_the_trainer_hangs(world: World, loop: VirtualTimeLoop) -> None:
    async def nothing(_: Path) -> None: ...

    settings = small_settings()
    inline = InlineTrainer(**world.training(settings))
    node = world.node(settings, trainer=PacedTrainer(inline, 1.0, 1, nothing))
    life = asyncio.create_task(node.run())
    await asyncio.sleep(100)
    seen = node.snapshot()
    assert (seen.state, seen.steps + seen.skipped_batches) == ("running", 1)
    node.stop()
    await life
    assert loop.time() <= 100 + 20 + 1
    assert any(world.home().glob("checkpoints/*"))
    assert_closed(world, node)


Broken = Callable[[World, Path], tuple[dict[str, Any], dict[str, Any]]]


def broken_environment(*_: object) -> tuple[dict[str, Any], dict[str, Any]]:
    class Dead(Host):
        async def start(self) -> EnvironmentInfo:
            raise ChildError("the environment's process does not start")

    return {}, {"environment": Dead(environment())}


def unknown_family(*_: object) -> tuple[dict[str, Any], dict[str, Any]]:
    return {"environment__families": ["nonsense"]}, {}


def no_model(world: World, _: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    arguments = {**world.training(small_settings()), "model_dir": world.home() / "nothing"}
    return {}, {"trainer": InlineTrainer(**arguments)}


def other_model(world: World, other: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    sampler = TorchSampler(CausalLM.from_directory(other), tiny().codec, inline=True)
    return {}, {"sampler": Sampler(sampler, 0.01, 0, world.home())}


def taken_identity(world: World, _: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    world.network.attach(MemoryTransport(world.network, world.memberships[0].identity))
    return {}, {}


@pytest.mark.parametrize(
    ("broken", "error"),
    [
        (broken_environment, ChildError),
        (unknown_family, ConfigError),
        (no_model, ModelError),
        (other_model, ModelError),
        (taken_identity, TransportError),
    ],
)
@virtual_time
async def test_a_start_that_fails_half_way_closes_every_part(
    world: World, random_qwen2: Path, broken: Broken, error: type[SwarmNodeError]
) -> None:
    flags, changes = broken(world, random_qwen2)
    settings = small_settings(**flags)
    others = world.network.peers()
    node = world.node(settings, **changes)
    with pytest.raises(error):
        await node.run()
    assert world.network.peers() == others
    assert_closed(world, node, others)


@pytest.mark.parametrize("raised", [TransportError("gone already"), RuntimeError("a bug")])
@virtual_time
async def test_a_part_that_fails_to_close_keeps_none_open(world: World, raised: Exception) -> None:
    class Sticky(MemoryTransport):
        async def stop(self) -> None:
            await super().stop()
            raise raised

    settings = small_settings(run__max_steps=1)
    transport = Sticky(world.network, world.memberships[0].identity)
    node = world.node(settings, transport=transport)
    if isinstance(raised, SwarmNodeError):
        await node.run()
    else:
        with pytest.raises(RuntimeError, match="a bug"):
            await node.run()
    assert_closed(world, node)


@virtual_time
async def test_the_environments_failures_are_counted_and_survived(
    world: World, loop: VirtualTimeLoop
) -> None:
    class Flaky(Host):
        left = 3

        async def score(
            self, ref: TaskRef, texts: Sequence[str], whose: Whose = "own"
        ) -> GroupScores:
            if self.left:
                self.left -= 1
                raise ChildError("the environment's process died")
            return await super().score(ref, texts, whose)

    settings = small_settings(run__max_steps=1)
    node = world.node(settings, environment=Flaky(environment()))
    await node.run()
    seen = node.snapshot()
    assert seen.faults == {"environment": 3}
    assert seen.steps == 1
    assert loop.time() >= 2  # it pauses after each failure


@virtual_time
async def test_an_error_in_a_loop_ends_the_node_with_that_error(world: World) -> None:
    class Damaged(Storage):
        def publish(self, entries: Sequence[tuple[StoredGroup, bytes | None]]) -> None:
            raise HomeError("node.db is damaged")

    settings = small_settings()
    storage = Damaged(world.home() / "full.db", wall=world.clock.wall, threads=False)
    node = world.node(settings, storage=storage)
    with pytest.raises(HomeError, match="is damaged"):
        await node.run()
    assert_closed(world, node)


@pytest.mark.slow(reason="two nodes sample and train")
@virtual_time
async def test_two_nodes_meet_and_train_on_each_others_groups(world: World) -> None:
    settings = small_settings(experience__external=1)
    nodes = [world.node(settings, index) for index in range(2)]
    lives = [asyncio.create_task(node.run()) for node in nodes]
    await asyncio.sleep(12)
    seen = [node.snapshot() for node in nodes]
    assert all(each.groups.trained_external for each in seen)
    assert [[row.peer_id for row in each.peers] for each in seen] == [
        [seen[1].peer_id],
        [seen[0].peer_id],
    ]
    assert all(each.peers[0].accepted == each.groups.accepted > 0 for each in seen)
    assert all(each.evals[0].isolated for each in seen)
    assert not (await nodes[0].evaluate()).isolated
    for node in nodes:
        node.stop()
    await asyncio.gather(*lives)


def assert_closed(world: World, node: Node, others: Sequence[str] = ()) -> None:
    """Every part of a node is closed, and the network has `others` alone."""
    parts = node._parts
    assert world.network.peers() == list(others)
    assert parts.sampler.closed
    assert not (world.home() / "weights").exists()  # the trainer removes it
    assert parts.environment.closed
    with pytest.raises(sqlite3.ProgrammingError, match="closed"):
        parts.storage.blob(b"")
