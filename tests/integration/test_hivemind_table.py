"""Calls of the DHT over a real daemon: who gets records, and how many."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator
from pathlib import Path

import msgpack
import pytest
from dht_peers import Peer
from swarm_keys import Swarm
from transports import PATIENT, hivemind

from swarm_node.clock import SYSTEM_CLOCK, Clock
from swarm_node.p2p.transports.hivemind.calls import MAX_CALL_BYTES
from swarm_node.p2p.transports.hivemind.records import MAX_RECORDS, SAMPLE_RECORDS
from swarm_node.p2p.transports.hivemind.transport import HivemindTransport
from swarm_node.p2p.wire.wire import MAX_PRESENCE_BYTES

pytestmark = pytest.mark.slow(reason="network daemons")


async def ask(asker: HivemindTransport, peer: str, method: str, keys: int = 1) -> tuple[int, bytes]:
    """Send one call for the heartbeats as hivemind packs it. Return the bytes sent and received."""
    from hivemind.p2p import PeerID
    from hivemind.proto import dht_pb2

    assert asker._records is not None
    node = asker._node._node
    request = {"rpc_ping": dht_pb2.PingRequest, "rpc_find": dht_pb2.FindRequest}[method]()
    request.peer.CopyFrom(node.protocol.node_info)
    if method == "rpc_find":
        request.keys.extend([asker._records[0]._key] * keys)
    await asker._authorizer.sign_request(request, None)
    raw = request.SerializeToString()
    answer = await asker._node._p2p._client.call_unary_handler(
        PeerID.from_base58(peer), f"DHTProtocol.{method}", raw
    )
    return len(raw), answer


@contextlib.asynccontextmanager
async def swarm_of_one(place: Path) -> AsyncGenerator[tuple[Swarm, Peer, HivemindTransport]]:
    """A node whose table is full of other members, and somebody with the swarm's secret only. No
    budget of the node fills again, so that none depends on how fast it is asked."""
    swarm = Swarm(begin=int(time.time()) - 60)
    stopped = Clock(now=lambda: 0.0, wall=SYSTEM_CLOCK.wall)
    peer = Peer(place, swarm.member(1, swarm.issuer("one"), "one"), stopped)
    stranger = hivemind(place, swarm_id=swarm.info.swarm_id, secret=swarm.info.secret)
    async with contextlib.AsyncExitStack() as stack:
        stack.callback(peer.storage.close)
        for transport in (peer.transport, stranger):
            stack.push_async_callback(transport.stop)
            await transport.start()
        assert peer.transport._records is not None
        _, store = peer.transport._records
        many, now = swarm.issuer("many"), SYSTEM_CLOCK.wall()
        for index in range(2, MAX_RECORDS + 2):
            member = swarm.member(index, many, "many")
            presence = swarm.presence(member)
            assert peer.members.proves_membership(presence, member.identity.peer_id)
            value = bytes(64) + msgpack.packb(presence)
            assert store.store_subkey(store._key, member.identity.peer_id, value, now + 3000)
        assert await stranger.dial(peer.transport.addresses(), PATIENT) == 1
        yield swarm, peer, stranger


async def test_a_find_of_a_stranger_gets_nothing_and_of_a_member_a_sample(tmp_path: Path) -> None:
    from hivemind.proto import dht_pb2

    async with swarm_of_one(tmp_path) as (swarm, peer, stranger):
        protocol = peer.transport._node._node.protocol
        sent, answer = await ask(stranger, peer.peer_id, "rpc_find")
        refusal = dht_pb2.FindResponse.FromString(answer)
        assert len(answer) <= sent
        assert (len(refusal.results), refusal.peer.node_id) == (1, b"")
        assert refusal.results[0] == dht_pb2.FindResult()
        assert await stranger.heartbeats() == {}
        # Not in its table either: hivemind would give it a place, and all records.
        assert not protocol.routing_table.peer_id_to_uid

        foreign = swarm.member(1000).chain
        peer.members.admit(foreign, stranger.peer_id)  # a certificate of another key
        assert len((await ask(stranger, peer.peer_id, "rpc_find"))[1]) <= sent
        mine = swarm.chain(stranger._identity, swarm.issuer("two"), "two")
        peer.members.admit(mine, stranger.peer_id)
        assert peer.members.is_member(stranger.peer_id)
        sent, answer = await ask(stranger, peer.peer_id, "rpc_find")
        found = protocol.serializer.loads(dht_pb2.FindResponse.FromString(answer).results[0].value)
        assert len(dict(found.items())) == SAMPLE_RECORDS
        assert len(answer) < SAMPLE_RECORDS * (MAX_PRESENCE_BYTES + 200)


@pytest.mark.parametrize("member", [False, True])
async def test_who_goes_on_finding_is_refused_and_then_cut_off(
    tmp_path: Path, member: bool
) -> None:
    async with swarm_of_one(tmp_path) as (swarm, peer, stranger):
        if member:
            mine = swarm.chain(stranger._identity, swarm.issuer("two"), "two")
            peer.members.admit(mine, stranger.peer_id)
            assert peer.members.is_member(stranger.peer_id)
        asked = answered = 0
        for _ in range(200):
            try:
                async with asyncio.timeout(5.0):
                    sent, answer = await ask(stranger, peer.peer_id, "rpc_find")
            except Exception:  # noqa: BLE001 - hivemind's error of a link that was cut
                break
            asked, answered = asked + sent, answered + len(answer)
            if not answer:
                break
        assert peer.rejected["flood"] == 1
        assert stranger.peer_id in peer.transport._admission.severed_peers
        # A peer's calls: 40 at once. Refusals are no longer than requests.
        most = SAMPLE_RECORDS * (MAX_PRESENCE_BYTES + 200)
        assert answered <= asked + (40 * most if member else 0)


async def test_a_call_that_asks_much_at_once_cuts_its_caller_off(tmp_path: Path) -> None:
    async with swarm_of_one(tmp_path) as (_, peer, stranger):
        sent, answer = await ask(stranger, peer.peer_id, "rpc_find", keys=2)
        assert (sent < MAX_CALL_BYTES, answer) == (True, b"")
        assert peer.rejected["schema"] == 1
        assert stranger.peer_id in peer.transport._admission.severed_peers
