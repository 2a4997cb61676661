"""Expelling a member and changing the secret over real links and a real DHT."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path

import pytest
from dht_peers import Peer
from swarm_keys import Swarm
from transports import PATIENT

from swarm_node.clock import SYSTEM_CLOCK
from swarm_node.errors import TransportError
from swarm_node.p2p.membership.delegates import next_list, next_secret
from swarm_node.p2p.wire import wire
from swarm_node.p2p.wire.protocols import PEERS


@pytest.mark.slow(reason="four network daemons")
async def test_an_expelled_member_is_out_and_the_others_change_the_secret(tmp_path: Path) -> None:
    swarm = Swarm(begin=int(time.time()) - 60)
    owner, other, expelled, away = peers = [
        Peer(tmp_path, swarm.member(index, swarm.issuer(f"guest {index}"), f"guest {index}"))
        for index in range(1, 5)
    ]
    async with contextlib.AsyncExitStack() as stack:
        for peer in peers:
            stack.callback(peer.storage.close)
            stack.push_async_callback(peer.transport.stop)
            await peer.transport.start()
        for peer in (other, expelled):
            assert await peer.transport.dial(owner.transport.addresses(), PATIENT) == 1
        for _ in range(2):
            for peer in (owner, other, expelled):
                await peer.send_heartbeat()
        assert await owner.found() == {other.peer_id, expelled.peer_id}
        assert owner.directory.get(expelled.peer_id) is not None

        now = SYSTEM_CLOCK.wall()
        key = expelled.own.identity.public_key
        owner.office.save("revoked", next_list(swarm.delegate, swarm.info, None, [key], now).raw)
        secret = next_secret(swarm.delegate, swarm.info, b"n" * 32, now)
        owner.office.save("secret", secret.raw)
        await owner.send_heartbeat()
        await other.send_heartbeat()
        assert [peer.own.lists.number for peer in (owner, other)] == [1, 1]
        assert [peer.own.secrets.number for peer in peers] == [1, 1, 0, 0]
        for peer in (owner, other):
            assert peer.directory.get(expelled.peer_id) is None
        assert await owner.found() == {other.peer_id}
        assert await other.found() == {owner.peer_id}
        request = wire.pack(wire.PeersRequest(limit=8))
        for peer in (owner, other):
            with pytest.raises(TransportError, match="hello"):
                await expelled.transport.request(peer.peer_id, PEERS, request)
        await expelled.send_heartbeat()
        assert expelled.own.secrets.number == 0
        assert await owner.found() == {other.peer_id}

        for peer in (owner, other):  # the time of the old secret is over
            peer.transport._authorizer._previous_key = None
        known = away.directory.meet(owner.peer_id, SYSTEM_CLOCK.now())
        known.addresses = tuple(owner.transport.addresses())
        for _ in range(3):
            await away.send_heartbeat()
        assert away.own.secrets.number == 1
        assert owner.peer_id in await away.found()
