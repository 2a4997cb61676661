"""The snapshot of a node: its sums, its times and its names."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any, ClassVar

import pytest
from in_memory import World, small_settings, tiny

from swarm_node.node.loops.overview import name_of
from swarm_node.node.start.assembly import assemble
from swarm_node.p2p.membership.members import Member, Members
from swarm_node.policy.experience.batch import Batch
from swarm_node.policy.training.process import InlineTrainer
from swarm_node.policy.training.worker import UpdateResult
from swarm_node.simulation.paced import PacedSampler, PacedTrainer
from swarm_node.simulation.virtual_time import VirtualTimeLoop, run_virtual


def test_faults_of_all_parts_are_added_up(tmp_path: Path) -> None:
    class Repaired(PacedSampler):
        faults: ClassVar = {"sampler_memory": 2, "trainer": 1}

    async def scenario(loop: VirtualTimeLoop) -> None:
        world, settings = World(tmp_path, loop), small_settings()
        parts = world.parts(settings, sampler=Repaired(tiny().sampler(), 0.01, 0, tmp_path))
        node = assemble(settings, world.memberships[0], parts)
        node._tally.faults["trainer"] += 3
        parts.storage.faults["storage"] += 4
        shot = node.snapshot()
        assert shot.faults == {"sampler_memory": 2, "trainer": 4, "storage": 4}
        assert (shot.busy, shot.seconds_since_update, shot.seconds_between_updates) == (None,) * 3
        await parts.trainer.close()
        parts.storage.close()

    run_virtual(scenario)


def test_times_count_from_the_last_update_and_from_when_the_node_began_to_run(
    tmp_path: Path,
) -> None:
    ends: list[float] = []

    class Timed(InlineTrainer):
        async def update(self, batch: Batch) -> UpdateResult:
            ends.append(world.clock.now())
            return await super().update(batch)

    async def scenario(loop: VirtualTimeLoop) -> None:
        nonlocal world
        await asyncio.sleep(1000)
        world, settings = World(tmp_path, loop), small_settings()

        async def passed(weights: Path) -> None:
            return None

        trainer = PacedTrainer(Timed(**world.training(settings)), 5.0, 3, passed)
        parts = world.parts(settings, trainer=trainer)
        node = assemble(settings, world.memberships[0], parts)
        life = asyncio.create_task(node.run())
        await asyncio.sleep(200)
        shot, began = node.snapshot(), node._running_since
        assert began is not None
        assert shot.busy is not None
        assert shot.busy.seconds == world.clock.now() - began <= shot.seconds <= 200
        assert shot.busy.trainer == pytest.approx(15)
        assert shot.seconds_since_update == pytest.approx(world.clock.now() - ends[2])
        assert shot.seconds_between_updates == pytest.approx((ends[2] - began) / 3)
        life.cancel()
        await asyncio.wait({life})

    world: Any = None
    run_virtual(scenario)


def test_a_peer_is_named_by_its_certificate_else_by_the_end_of_its_id(tmp_path: Path) -> None:
    async def scenario(loop: VirtualTimeLoop) -> None:
        world = World(tmp_path, loop, members=2)
        own, peer = world.memberships
        members = Members(own.swarm, world.clock.wall)
        assert name_of(members, peer.identity.peer_id) == peer.identity.peer_id[-8:]
        member = members.admit(peer.chain, peer.identity.peer_id)
        assert isinstance(member, Member)
        assert name_of(members, peer.identity.peer_id) == member.name != ""

    run_virtual(scenario)
