"""The snapshot of a node: its sums, its times and its names."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import ClassVar

import pytest
from in_memory import Sampler, World, living, small_settings, tiny
from shown_cases import printed
from virtual import virtual_time

from swarm_node.cli.views.live import Pages
from swarm_node.node.loops.reporting.snapshots import name_of, take_report
from swarm_node.node.start.assembly import assemble
from swarm_node.p2p.membership.members import Member, Members
from swarm_node.p2p.reach.relay_links import _Kept
from swarm_node.p2p.wire.identity import short_id
from swarm_node.policy.experience.batch import Batch
from swarm_node.policy.training.processes.inline import InlineTrainer
from swarm_node.policy.training.processes.messages import UpdateResult
from swarm_node.simulation.paced import PacedSampler, PacedTrainer


@virtual_time
async def test_faults_of_all_parts_are_added_up(world: World, tmp_path: Path) -> None:
    class Repaired(PacedSampler):
        faults: ClassVar = {"sampler_memory": 2, "trainer": 1}

    settings = small_settings()
    parts = world.parts(settings, sampler=Repaired(tiny().sampler(), 0.01, 0, tmp_path))
    node = assemble(settings, world.memberships[0], parts)
    node._tally.faults["trainer"] += 3
    parts.storage.faults["storage"] += 4
    shot = node.snapshot()
    assert shot.faults == {"sampler_memory": 2, "trainer": 4, "storage": 4}
    assert (shot.busy, shot.seconds_since_step, shot.seconds_between_steps) == (None,) * 3
    await parts.trainer.close()
    parts.storage.close()


@virtual_time
async def test_times_count_from_the_last_update_and_from_when_the_node_began_to_run(
    world: World,
) -> None:
    ends: list[float] = []

    class Timed(InlineTrainer):
        async def update(self, batch: Batch) -> UpdateResult:
            ends.append(world.clock.now())
            return await super().update(batch)

    async def passed(weights: Path) -> None:
        return None

    await asyncio.sleep(1000)
    settings = small_settings()
    trainer = PacedTrainer(Timed(**world.training(settings)), 5.0, 3, passed)
    node = world.node(settings, trainer=trainer)
    async with living(node):
        await asyncio.sleep(200)
        shot, began, now = node.snapshot(), node._running_since, world.clock.now()
    assert shot.busy.seconds == now - began <= shot.seconds <= 200
    assert shot.busy.trainer == pytest.approx(15)
    assert shot.seconds_since_step == pytest.approx(now - ends[2])
    assert shot.seconds_between_steps == pytest.approx((ends[2] - began) / 3)


@virtual_time
async def test_the_owners_names_count_before_those_in_certificates_at_once(world: World) -> None:
    settings, given = small_settings(), dict[str, str]()
    slow = [Sampler(tiny().sampler(), 0.1, 0, world.home(index)) for index in range(2)]
    node = world.node(settings, sampler=slow[0], names=lambda: given)
    other = world.node(settings, 1, sampler=slow[1])
    async with living(node, other):
        await asyncio.sleep(8.0)
        (before,) = node.snapshot().peers
        assert before.name not in ("", "carol")
        given[before.issuer_key] = "carol"
        shot = node.snapshot()
    (row,) = shot.peers
    pages = Pages()
    pages.turn("p")
    shown = printed(pages.render(shot), 160)
    assert row.name == "carol"
    assert f"carol {short_id(row.peer_id)}" in " ".join(shown.split()), shown
    assert "(by" not in shown


@virtual_time
async def test_each_relay_is_tried_for_the_report(world: World) -> None:
    settings = small_settings()
    node = world.node(settings)
    gone = world.memberships[1].identity.peer_id
    node._reaching.relays._kept_relays[gone] = _Kept(f"/ip4/11.0.0.1/tcp/1/p2p/{gone}")
    report = await take_report(node._parts, node._shared_state, node._reaching)
    (row,) = report.tried
    assert (row.kind, row.name) == ("relay", name_of(node._shared_state.members, gone))
    assert (row.cause.code, row.cause.peer) == ("no_answer", gone)
    await node.close()


@virtual_time
async def test_a_peer_is_named_by_its_certificate_else_by_the_end_of_its_id(world: World) -> None:
    own, peer = world.memberships
    members = Members(own.swarm, world.clock.wall)
    assert name_of(members, peer.identity.peer_id) == f"…{peer.identity.peer_id[-8:]}"
    member = members.admit(peer.chain, peer.identity.peer_id)
    assert isinstance(member, Member)
    assert name_of(members, peer.identity.peer_id) == member.name != ""
