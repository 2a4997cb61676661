"""Keys of one ticket, shown at several nodes at once."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

from light_nodes import LightNode, virtual
from swarm_keys import Swarm
from virtual import virtual_time

from swarm_node.errors import TransportError
from swarm_node.node.home.home import Membership
from swarm_node.p2p.transports.memory import MemoryNetwork, MemoryTransport
from swarm_node.p2p.wire import wire
from swarm_node.p2p.wire.protocols import HELLO
from swarm_node.simulation.virtual_time import VirtualTimeLoop

SWARM = Swarm()


async def greet(network: MemoryNetwork, guest: Membership, node: LightNode) -> bool:
    """Show the ticket's certificate to a node. Return True if it is admitted."""
    transport = MemoryTransport(network, guest.identity)
    await transport.start()
    hello = wire.HelloRequest(guest.chain, "swarm-node", (), 0, 0)
    try:
        await transport.request(node.peer_id, HELLO, wire.pack(hello))
    except TransportError as refusal:
        return not str(refusal).endswith("used_up")
    finally:
        await transport.stop()
    return True


@virtual_time
async def test_of_six_keys_of_a_ticket_one_stays_and_every_node_knows_who_tried(
    loop: VirtualTimeLoop, tmp_path: Path
) -> None:
    network = MemoryNetwork(random.Random(0))
    clock = virtual(loop)
    nodes = [
        LightNode(tmp_path, clock, MemoryTransport(network, member.identity), member)
        for member in (SWARM.member(i, SWARM.issuer(f"n{i}"), f"n{i}") for i in range(3))
    ]
    for node in nodes:
        await node.reaching.start()
    for node in nodes:
        for other in nodes:
            if other is not node:
                assert await node.exchange.asker.introduce(other.peer_id)
    ticket = SWARM.issuer("guest", uses=1)
    guests = [SWARM.member(10 + index, ticket, "guest") for index in range(6)]
    admitted = []
    for index, guest in enumerate(guests):
        admitted.append(await greet(network, guest, nodes[index % 3]))
        await asyncio.sleep(0.01)
    assert admitted == [True] * 3 + [False] * 3
    for _ in range(2):
        for node in nodes:
            await node.exchange.discovery.send_heartbeat(0, 20.0)
    for node in nodes:
        tried = node.members.late_peer_ids(ticket.key.public_key)
        assert set(tried) == {guest.identity.peer_id for guest in guests[1:]}
    for node in nodes:
        answers = [await greet(network, guest, node) for guest in guests]
        assert answers == [True] + [False] * 5
    for node in nodes:
        await node.reaching.stop()
        node.storage.close()
