"""A node and peers of another wire version: docs/protocol.md, "Versions"."""

from __future__ import annotations

import random
from pathlib import Path

import msgpack
import pytest
from light_nodes import LightNode, heartbeat
from swarm_keys import Swarm
from virtual import virtual_time

from swarm_node.clock import Clock
from swarm_node.errors import Rejected, TransportError
from swarm_node.p2p.membership.members import Members
from swarm_node.p2p.peers.peers import Peer
from swarm_node.p2p.transports.memory import MemoryNetwork, MemoryTransport
from swarm_node.p2p.wire.envelope import Kind, open_sealed, seal
from swarm_node.p2p.wire.identity import Identity
from swarm_node.p2p.wire.protocols import HELLO, LIST
from swarm_node.p2p.wire.reasons import REASONS, Blame
from swarm_node.p2p.wire.wire import Presence, pack, unpack
from swarm_node.simulation.seeded import EPOCH
from swarm_node.simulation.virtual_time import VirtualTimeLoop

SWARM = Swarm()
ID = SWARM.info.swarm_id
OTHER = {kind: kind.replace(".v1+", ".v2+") for kind in Kind}


def resealed(raw: bytes, kind: str) -> bytes:
    """An envelope under another kind. Its signature is never looked at."""
    packed: bytes = msgpack.packb([kind, *msgpack.unpackb(raw)[1:]])
    return packed


@virtual_time
async def test_neither_asks_the_other_with_success_and_neither_is_blamed(
    loop: VirtualTimeLoop, tmp_path: Path
) -> None:
    network = MemoryNetwork(random.Random(0))
    clock = Clock(now=loop.time, wall=lambda: EPOCH + loop.time())
    members = [SWARM.member(index) for index in range(3)]
    ours, same = (
        LightNode(tmp_path, clock, MemoryTransport(network, member.identity), member)
        for member in members[:2]
    )
    theirs = MemoryTransport(network, members[2].identity)

    async def later(caller: str, payload: bytes) -> bytes:
        return b""

    theirs.serve(HELLO.replace("/1", "/2"), later)
    for transport in (ours.transport, same.transport, theirs):
        await transport.start()

    asked = Peer(theirs.peer_id, 0.0)
    assert not await ours.exchange.asker.greet(asked)
    assert ours.rejected == {"unreachable": 1}
    assert asked.standing.offences == 0
    for protocol in (HELLO, LIST):
        with pytest.raises(TransportError):
            await theirs.request(ours.peer_id, protocol.replace("/1", "/2"), b"")
    assert ours.rejected == {"unreachable": 1}
    assert ours.directory.get(theirs.peer_id) is None
    assert await same.exchange.asker.greet(Peer(ours.peer_id, 0.0))
    for node in (ours, same):
        node.storage.close()


@pytest.mark.parametrize("kind", Kind)
def test_a_statement_of_another_version_is_another_kind(kind: Kind) -> None:
    sealed = resealed(seal(Identity.from_seed(bytes(32)), ID, kind, b"body"), OTHER[kind])
    opened = open_sealed(sealed, ID, kind)
    assert opened.reason == "kind"


def test_a_presence_of_another_version_is_nobody_and_its_teller_is_blamed() -> None:
    """So who speaks two versions must not pass the later one on to peers of the earlier one."""
    member = SWARM.member(1)
    known = unpack(Presence, heartbeat(member, EPOCH), max_bytes=2000)
    later = pack(Presence(resealed(known.head, OTHER[Kind.HEAD]), known.issuer, known.member))
    heard = Members(SWARM.info, lambda: EPOCH).read_presence(later)
    assert isinstance(heard, Rejected)
    assert REASONS[heard.reason] is Blame.VIOLATION
