"""No node relays for strangers: p2pd does on its own, and its flag -relay=0 does not stop it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest
from transports import hivemind

from swarm_node.errors import TransportError
from swarm_node.p2p.transports.hivemind.daemon import DhtNode

#: libp2p's circuit relay, version 2: a peer asks here to be reached through the relay.
HOP = "/libp2p/circuit/relay/0.2.0/hop"
#: HopMessage{type: RESERVE}, after its length.
RESERVE = bytes.fromhex("020800")
#: How its answer ends: field 5, `status`, with the value OK.
STATUS_OK = bytes.fromhex("2864")


@contextlib.asynccontextmanager
async def bare_daemon() -> AsyncGenerator[DhtNode]:
    """A p2pd as hivemind starts it when it is told not to relay. It knows no swarm."""
    from hivemind.p2p import P2P

    daemon = DhtNode(await P2P.create(use_relay=False, auto_nat=False, nat_port_map=False), None)
    try:
        yield daemon
    finally:
        await daemon.stop()


async def reserve(stranger: DhtNode, address: str) -> bytes:
    """The answer when `stranger` asks the p2pd at `address` to be its relay."""
    from hivemind.p2p import PeerID
    from hivemind.utils.multiaddr import Multiaddr

    where, _, peer = address.rpartition("/p2p/")
    await stranger._p2p._client.connect(PeerID.from_base58(peer), [Multiaddr(where)])
    reader, writer = await stranger.open_stream(peer, HOP, patience=10.0)
    try:
        writer.write(RESERVE)
        first = (await reader.readexactly(1))[0]
        # The length is a varint: of one byte, or of two when it is over 127.
        more = (await reader.readexactly(1))[0] if first > 127 else 0
        return await reader.readexactly((first & 127) + (more << 7))
    finally:
        writer.close()


async def test_a_stranger_cannot_reserve_a_relay_slot(tmp_path: Path) -> None:
    node = hivemind(tmp_path)
    async with asyncio.timeout(60), bare_daemon() as careless, bare_daemon() as stranger:
        # The probe works: a p2pd without the remedy does relay.
        (address,) = await careless._p2p.get_visible_maddrs()
        assert (await reserve(stranger, str(address))).endswith(STATUS_OK)
        await node.start()
        try:
            (address,) = node.addresses()
            with pytest.raises(TransportError, match="not serve"):
                await reserve(stranger, address)
        finally:
            await node.stop()
