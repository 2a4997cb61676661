"""Refusals between two real nodes in memory: both ends know the cause."""

from __future__ import annotations

import asyncio
import dataclasses
import random
import re
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path

import pytest
from light_nodes import LightNode, address_of
from swarm_keys import DAY, Swarm

from swarm_node.clock import Clock
from swarm_node.node.home.home import Membership
from swarm_node.p2p.membership.membership import create_swarm
from swarm_node.p2p.membership.statements import Revocations, revocations
from swarm_node.p2p.peers.causes import text_here, text_there
from swarm_node.p2p.peers.peers import Peer
from swarm_node.p2p.transports.memory import MemoryNetwork, MemoryTransport
from swarm_node.p2p.wire.identity import Identity
from swarm_node.p2p.wire.protocols import HELLO
from swarm_node.p2p.wire.reasons import BAD_REQUEST, NO_MEMBER
from swarm_node.p2p.wire.transport import Handler
from swarm_node.simulation.seeded import EPOCH
from swarm_node.simulation.virtual_time import VirtualTimeLoop, run_virtual

#: (swarm, newcomer, host)
Scene = Callable[[Swarm, LightNode, LightNode], Awaitable[None]]


def _later(loop: VirtualTimeLoop, begin: float) -> float:
    return begin + loop.time()


def _play(
    place: Path,
    scene: Scene,
    newcomer: Membership | None = None,
    ahead: float = 0.0,
    greets: Handler | None = None,
) -> None:
    """A newcomer, whose clock is `ahead` of its host's, and the host."""

    async def run(loop: VirtualTimeLoop) -> None:
        swarm, network = Swarm(), MemoryNetwork(random.Random(0))
        begin = EPOCH + DAY
        nodes = []
        for number, offset in ((1, ahead), (2, 0.0)):
            clock = Clock(loop.time, partial(_later, loop, begin + offset))
            member = swarm.member(number, name="newcomer" if number == 1 else "host")
            if number == 1 and newcomer is not None:
                member = newcomer
            elif number == 1 and ahead:
                chain = swarm.chain(member.identity, swarm.delegate, "newcomer", DAY + ahead)
                member = dataclasses.replace(member, chain=chain)
            transport = MemoryTransport(network, member.identity)
            nodes.append(LightNode(place, clock, transport, member))
        if greets is not None:
            nodes[1].transport.serve(HELLO, greets)
        for node in nodes:
            await node.transport.start()
        await scene(swarm, *nodes)
        for node in nodes:
            await node.transport.stop()
            node.storage.close()

    run_virtual(run)


async def _greet(one: LightNode, other: LightNode) -> bool:
    peer = Peer(other.peer_id, 0.0, (address_of(other.membership),))
    return await one.exchange.asker.greet(peer)


def _list(number: int, *expelled: LightNode) -> Revocations:
    keys = [node.membership.identity.public_key for node in expelled]
    return revocations(number, EPOCH, EPOCH + DAY, keys)


def _told(node: LightNode) -> list[str]:
    return [text_here(cause) for cause in node.directory.failures.causes(node.clock.now())]


def _tried(node: LightNode) -> list[str]:
    return [
        text_there(cause) for cause in node.directory.failures.recent_refusals(node.clock.now())
    ]


@pytest.mark.parametrize("reason", ["revoked", "used_up", "expired"])
def test_a_member_that_is_none_is_told_and_so_is_its_host(tmp_path: Path, reason: str) -> None:
    swarm = Swarm()
    newcomer = swarm.member(1, name="newcomer")
    if reason == "used_up":
        once = swarm.issuer("once", uses=1)
        newcomer = swarm.member(1, once, name="once")
    if reason == "expired":
        newcomer = Swarm(member_seconds=DAY // 2).member(1, name="newcomer")

    async def scene(swarm: Swarm, one: LightNode, host: LightNode) -> None:
        if reason == "revoked":
            host.members.obey(_list(1, one))
        if reason == "used_up":
            first = swarm.member(3, swarm.issuer("once", uses=1), name="once")
            assert not hasattr(host.members.admit(first.chain, first.identity.peer_id), "reason")
        assert not await _greet(one, host)
        (cause,) = one.directory.failures.causes(one.clock.now())
        assert (cause.code, cause.peer) == (reason, host.peer_id)
        (seen,) = host.directory.failures.recent_refusals(host.clock.now())
        told = {"revoked": "(list of ", "used_up": "1 of 1 nodes", "expired": "ended on "}[reason]
        assert told in text_here(cause)
        assert "20" in text_there(seen) or reason == "used_up", "it names a date"
        name = "once" if reason == "used_up" else "newcomer"
        assert (seen.code, seen.peer, seen.name) == (reason, one.peer_id, name)
        assert host.directory.failures.refusals == {reason: 1}

    _play(tmp_path, scene, newcomer)


def test_a_clock_an_hour_ahead_is_named_at_both_ends(tmp_path: Path) -> None:
    async def scene(swarm: Swarm, one: LightNode, host: LightNode) -> None:
        assert not await _greet(one, host)
        (here,) = _told(one)
        assert re.search(r"\b3,600 s ahead", here)
        await asyncio.sleep(60.0)
        assert not await _greet(one, host)  # its chain begins in less time now, its clock stays
        assert re.search(r"newcomer .*\b3,600 s ahead", "".join(_tried(host)))

    _play(tmp_path, scene, ahead=3600.0)


def test_a_clock_an_hour_behind_hears_times_ahead_of_it(tmp_path: Path) -> None:
    async def scene(swarm: Swarm, one: LightNode, host: LightNode) -> None:
        presence = swarm.presence(host.membership, issued=float(DAY))
        one.exchange.discovery._add_presence(presence, author_id=host.peer_id, teller=None)
        (here,) = _told(one)
        assert re.search(r"\b3,600 s behind", here)

    member = Swarm().member(1, name="newcomer")
    _play(tmp_path, scene, member, ahead=-3600.0)


@pytest.mark.parametrize(("ahead", "way"), [(3600.0, "ahead"), (-3600.0, "behind")])
def test_clocks_of_two_members_that_differ_are_named_at_both_ends(
    tmp_path: Path, ahead: float, way: str
) -> None:
    """The chains are of a time before the clock was set wrong, so both admit each other."""

    async def scene(swarm: Swarm, one: LightNode, host: LightNode) -> None:
        for node in (one, host):
            await node.exchange.discovery.send_heartbeat(0, 20.0)
        assert await _greet(one, host)
        assert await _greet(host, one)
        for node, other in ((one, host), (host, one)):
            node.directory.meet(other.peer_id, node.clock.now()).is_greeted = True
            await node.exchange.discovery.send_heartbeat(0, 20.0)
        (here,), (there,) = _told(one), _told(host)
        opposite = {"ahead": "behind", "behind": "ahead"}[way]
        assert re.search(rf"\b3,600 s {way} .*\bhost$", here)
        assert re.search(rf"\b3,600 s {opposite} .*\bnewcomer$", there)

    # It began two days ago by the host's clock, and ends in years.
    _play(tmp_path, scene, Swarm().member(1, name="newcomer"), ahead=ahead)


def test_a_membership_that_ended_by_the_hosts_clock_alone_is_a_clock(tmp_path: Path) -> None:
    async def scene(swarm: Swarm, one: LightNode, host: LightNode) -> None:
        one.members.admit(one.membership.chain, one.peer_id)
        assert not await _greet(one, host)
        (here,) = _told(one)
        assert re.search(r"\b64,800 s behind", here)

    newcomer = Swarm(member_seconds=DAY // 2).member(1, name="newcomer")
    _play(tmp_path, scene, newcomer, ahead=-0.75 * DAY)


@pytest.mark.parametrize(
    ("refusal", "code"),
    [
        *((NO_MEMBER.error(f"{why} 999999999"), "") for why in ("revoked", "used_up", "expired")),
        (NO_MEMBER.error("not_yet_valid 999999999"), ""),
        (BAD_REQUEST.error("schema"), "wire_version"),
    ],
    ids=str,
)
def test_a_liar_ends_nothing_and_who_cannot_read_a_greeting_has_another_version(
    tmp_path: Path, refusal: Exception, code: str
) -> None:
    async def refuses(caller: str, payload: bytes) -> bytes:
        raise refusal

    async def scene(swarm: Swarm, one: LightNode, host: LightNode) -> None:
        assert not await _greet(one, host)
        assert len(_told(one)) == 1
        (cause,) = one.directory.failures.causes(one.clock.now())
        assert code in ("", cause.code)

    _play(tmp_path, scene, greets=refuses)


def test_another_swarm_is_named(tmp_path: Path) -> None:
    stranger = Swarm()
    stranger.info = create_swarm("day shift", Identity.from_seed(b"q" * 32), b"s" * 32)
    stranger.root = dataclasses.replace(stranger.root, key=Identity.from_seed(b"q" * 32))
    stranger.delegate = stranger.issuer("owner", delegate=True)

    async def scene(swarm: Swarm, one: LightNode, host: LightNode) -> None:
        assert not await _greet(one, host)
        (cause,) = one.directory.failures.causes(one.clock.now())
        assert cause.code == "other_swarm"
        (seen,) = host.directory.failures.recent_refusals(host.clock.now())
        assert seen.code == "other_swarm"

    _play(tmp_path, scene, stranger.member(1))


def test_once_it_is_admitted_both_ends_forget(tmp_path: Path) -> None:
    async def scene(swarm: Swarm, one: LightNode, host: LightNode) -> None:
        host.members.obey(_list(1, one))
        assert not await _greet(one, host)
        assert _told(one)
        assert _tried(host)
        host.members.obey(_list(2))
        assert await _greet(one, host)
        assert _told(one) == _tried(host) == []

    _play(tmp_path, scene)
