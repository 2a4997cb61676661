"""The libp2p transport: py-libp2p's streams, without a table of heartbeats.

A process of its own carries TCP, Noise and the streams. Nodes of this stack and of hivemind's are
peers in one swarm: the streams, their protocols and their frames are the same. This stack has no
DHT. So a node meets others at configured addresses and through the peers that it asks.
"""

from __future__ import annotations

from collections.abc import Sequence

from swarm_node.p2p.transports.libp2p.daemon import Libp2pDaemon
from swarm_node.p2p.transports.streams import StreamTransport
from swarm_node.p2p.wire.frames import check_size
from swarm_node.p2p.wire.wire import MAX_PRESENCE_BYTES


class Libp2pTransport(StreamTransport[Libp2pDaemon]):
    """Transport on py-libp2p 0.8.1 (TCP only). See `StreamTransport`."""

    has_table = False

    def use_secret(self, secret: bytes) -> None:
        """Do nothing. The secret guards the DHT, and this stack has none."""

    async def publish_heartbeat(self, heartbeat: bytes, ttl: float) -> None:
        """Do nothing, because this stack has no table. Partners ask for it
        (p2p/exchange/discovery.py)."""
        self._running()
        check_size("heartbeat", len(heartbeat), MAX_PRESENCE_BYTES)

    async def heartbeats(self) -> dict[str, bytes]:
        self._running()
        return {}

    async def _start_node(self, listen: Sequence[str], patience: float) -> Libp2pDaemon:
        return await Libp2pDaemon.start(
            self._identity,
            listen=listen,
            announce=self._announce,
            protocols=[*self._handlers, *self._routes],
            server=self._serve_stream,
            on_refusal=self._count_over_limit,
            patience=patience,
        )
