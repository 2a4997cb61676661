"""A swarm of whole nodes expels and renews while it runs, on a virtual clock."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
from in_memory import Sampler, World, small_settings, tiny
from swarm_keys import DAY, Swarm
from virtual import in_virtual_time

from swarm_node.node.loops.node import Node
from swarm_node.node.preflight.network import check_network
from swarm_node.node.start.assembly import assemble
from swarm_node.p2p.membership.credentials import Credentials, MemoryOffice
from swarm_node.p2p.membership.delegates import next_list
from swarm_node.p2p.reach.probe import Knock
from swarm_node.p2p.reach.reachability import Outcome
from swarm_node.p2p.transports.memory import MemoryNetwork, MemoryTransport
from swarm_node.p2p.wire.protocols import LIST, PEERS, PULL
from swarm_node.simulation.virtual_time import VirtualTimeLoop

#: poll_seconds is 1 in `small_settings`.
HEARTBEAT = 10.0


class Recorded(MemoryNetwork):
    """Remembers when which peer was sent how many bytes by which protocol."""

    def __init__(self, *args: object, **more: object) -> None:
        super().__init__(*args, **more)  # type: ignore[arg-type]
        self.replies: list[tuple[float, str, str, int]] = []

    async def exchange(
        self, source: MemoryTransport, target: str, protocol: str, payload: bytes, max_reply: int
    ) -> bytes:
        reply = await super().exchange(source, target, protocol, payload, max_reply)
        now = asyncio.get_running_loop().time()
        self.replies.append((now, source.peer_id, protocol, len(reply)))
        return reply

    def bytes_to(self, peer: str, since: float, *protocols: str) -> int:
        return sum(
            size
            for when, source, protocol, size in self.replies
            if source == peer and when >= since and protocol in protocols
        )


class Connectivity:
    """`count` nodes of one swarm; the first is the owner's, the others came by tickets."""

    def __init__(self, place: Path, loop: VirtualTimeLoop, swarm: Swarm, count: int) -> None:
        self.swarm = swarm
        self.world = World(place, loop)
        self.network = self.world.network = Recorded(random.Random(0))
        owner = swarm.member(1)
        self.world.memberships = [
            owner,
            *(
                swarm.member(n, swarm.issuer(f"guest {n}"), f"guest {n}")
                for n in range(2, count + 1)
            ),
        ]
        self.offices = [MemoryOffice(swarm.delegate if n == 0 else None) for n in range(count)]
        self.nodes: list[Node] = []
        self.tasks: list[asyncio.Task[None]] = []

    async def start(
        self, poll_seconds: float = 1.0, token_seconds: float = 0.2, knock: Knock | None = None
    ) -> None:
        """Start all nodes. With a knock the owner's address is in their settings."""
        settings = small_settings(experience__external=2, network__poll_seconds=poll_seconds)
        if knock is not None:
            address = f"/ip4/11.0.0.1/tcp/7/p2p/{self.peer(0)}"
            settings = settings.model_copy(
                update={"network": settings.network.model_copy(update={"bootstrap": (address,)})}
            )
        for index, membership in enumerate(self.world.memberships):
            home = self.world.home(index)
            parts = self.world.parts(
                settings,
                index,
                office=self.offices[index],
                knock=knock,
                sampler=Sampler(tiny().sampler(), token_seconds, 0, home),
            )
            node = assemble(settings, membership, parts)
            self.nodes.append(node)
            self.tasks.append(asyncio.create_task(node.run()))

    async def stop(self) -> None:
        for node in self.nodes:
            node.stop()
        await asyncio.gather(*self.tasks)

    def revoke(self, index: int) -> None:
        """Do what `swarm-node revoke` does at the owner's."""
        keys, wall = [self.world.memberships[index].identity.public_key], self.world.clock.wall()
        made = next_list(self.swarm.delegate, self.swarm.info, None, keys, wall)
        self.offices[0].save("revoked", made.raw)

    def peer(self, index: int) -> str:
        return self.world.memberships[index].identity.peer_id

    def own(self, index: int) -> Credentials:
        return self.nodes[index]._work.exchange.discovery._credentials


def in_company(
    count: int, member_seconds: int = 30 * DAY
) -> Callable[[Callable[..., Coroutine[Any, Any, None]]], Callable[..., None]]:
    """Run a test with a company, whose memberships last so long."""
    swarm = Swarm(member_seconds=member_seconds)
    return in_virtual_time(lambda loop, place, **_: Connectivity(place, loop, swarm, count))


@pytest.mark.slow(reason="ten whole nodes")
@in_company(10)
async def test_ten_nodes_refuse_an_expelled_member_within_two_heartbeats(
    company: Connectivity,
) -> None:
    await company.start()
    await asyncio.sleep(60)
    expelled, others = company.peer(9), company.nodes[:9]
    network = company.network
    assert network.bytes_to(expelled, 0, PULL, LIST) > 0
    assert all(any(row.peer_id == expelled for row in n.snapshot().peers) for n in others)
    company.revoke(9)
    await asyncio.sleep(2 * HEARTBEAT)
    ended = company.world.clock.now()
    for index, node in enumerate(others):
        assert company.own(index).lists.number == 1
        assert all(row.peer_id != expelled for row in node.snapshot().peers)
        assert node._buffer.held_external(expelled) == 0
    await asyncio.sleep(6 * HEARTBEAT)
    assert network.bytes_to(expelled, ended, PULL, LIST, PEERS) == 0
    assert network.bytes_to(company.peer(8), ended, PULL) > 0
    assert all(node._buffer.held_external(expelled) == 0 for node in others)
    assert all(company.own(index).lists.number == 1 for index in range(9))


async def _open(host: str, port: int, peer_id: str) -> Outcome:
    return "open"


@in_company(2)
async def test_an_expelled_node_reaches_nobody_though_all_connect(company: Connectivity) -> None:
    await company.start(poll_seconds=5.0, token_seconds=5.0, knock=_open)
    await asyncio.sleep(60)
    expelled = company.nodes[1]
    well = list(check_network(await expelled.network()))
    assert (well[0].subject, well[0].level) == ("sharing", "ok")
    assert not [found for found in well if found.level == "error"]
    company.revoke(1)
    await asyncio.sleep(3 * HEARTBEAT)
    report = await expelled.network()
    first, *others = check_network(report)
    said = expelled.snapshot().findings[0]
    assert (first.subject, first.level, first.found) == ("membership", "error", said.text)
    causes = {row.kind: row.cause for row in report.tried}
    assert [kind for kind, cause in causes.items() if cause and cause.code == "revoked"] == [
        "address",
        "peer",
    ]
    assert "revoked" in {cause.code for cause in report.causes}
    assert ("peers", "error") in {(found.subject, found.level) for found in others}


@pytest.mark.slow(reason="three nodes for a thousand seconds of virtual time")
@in_company(3, member_seconds=600)
async def test_members_are_renewed_while_they_run(company: Connectivity) -> None:
    await company.start(poll_seconds=5.0, token_seconds=5.0)  # hardly any work
    await asyncio.sleep(1000)  # the first certificates ended 100 seconds ago
    for index in range(3):
        me = company.own(index).me()
        assert me.until > company.swarm.begin + 1000
        assert me.name == ("owner" if index == 0 else f"guest {index + 1}")
        assert company.offices[index].load("membership") is not None
        assert len(company.nodes[index].snapshot().peers) == 2
        assert company.network.bytes_to(company.peer(index), 950, LIST) > 0
