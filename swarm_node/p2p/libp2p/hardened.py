"""py-libp2p's Noise, multistream-select and Yamux, with the limits that they lack.

py-libp2p 0.8.1 also offers plaintext, over which anybody can claim to be anybody, and its swarm
dials what peers name. So this program takes the three protocols, and `host.py` keeps the links.
What is limited here, and why, was measured against that version, which pyproject.toml pins.
"""

from __future__ import annotations

import logging
import socket
import struct
from collections.abc import Callable
from typing import Any

import trio
from libp2p.crypto import serialization
from libp2p.crypto.ed25519 import create_new_key_pair
from libp2p.crypto.keys import KeyType
from libp2p.crypto.x25519 import create_new_key_pair as create_noise_key_pair
from libp2p.io.exceptions import ConnectionClosedError
from libp2p.io.trio import TrioTCPStream
from libp2p.network.connection.raw_connection import RawConnection
from libp2p.peer.id import ID
from libp2p.security.noise.transport import PROTOCOL_ID as NOISE
from libp2p.security.noise.transport import Transport as NoiseTransport
from libp2p.stream_muxer.yamux import yamux
from libp2p.transport.upgrader import TransportUpgrader

CHUNK_BYTES = 1 << 16
#: What a peer may send before its link stands: Noise's three messages and two negotiations.
_HANDSHAKE_BYTES = 16 * 1024
#: A peer that reads nothing for so long has gone.
STALL_SECONDS = 30.0
_PING_EVERY_SECONDS, PING_SECONDS = 15.0, 10.0
#: Received bytes that nobody has read, of one link and of all: py-libp2p only logs that a peer
#: sends more than its windows allow.
MAX_HELD, MAX_HELD_IN_ALL = 64 << 20, 256 << 20
#: What any link may hold.
_FREE = yamux.DEFAULT_WINDOW_SIZE
#: py-libp2p lets a stream's window grow to 16 MiB.
yamux.MAX_WINDOW_SIZE = 1 << 20
_PING = struct.pack(yamux.YAMUX_HEADER_FORMAT, 0, yamux.TYPE_PING, yamux.FLAG_SYN, 0, 1)

# Parsers for the keys of strangers that no peer of this swarm has. One of them is plain Python.
for _kind in (KeyType.RSA, KeyType.Secp256k1):
    serialization.key_type_to_public_key_deserializer.pop(_kind.value)
# What peers do is no fault of this node, and must not fill its log.
logging.getLogger("libp2p").setLevel(logging.CRITICAL)


def make_upgrader(seed: bytes) -> TransportUpgrader:
    """What makes links of TCP connections: Noise and Yamux, nothing else."""
    noise = NoiseTransport(create_new_key_pair(seed), create_noise_key_pair().private_key)
    return TransportUpgrader({NOISE: noise}, {yamux.PROTOCOL_ID: Link})


class Scant:
    """A stream that is read up to a number of bytes: multistream-select believes any length."""

    def __init__(self, stream: Any, most: int = 1024) -> None:
        self._stream = stream
        self._left = most

    async def read(self, n: int | None = None) -> bytes:
        if self._left <= 0:
            raise ConnectionClosedError("the peer negotiates without end")
        data: bytes = await self._stream.read(min(n or self._left, self._left))
        self._left -= len(data)
        return data

    async def write(self, data: bytes) -> None:
        await self._stream.write(data)


class Socket(TrioTCPStream):  # type: ignore[misc]
    """A TCP connection. Writes end whole or end the connection, because Noise counts messages."""

    def __init__(self, stream: trio.SocketStream) -> None:
        super().__init__(stream)
        #: Bytes that the peer may still send; None: any number.
        self.left: int | None = _HANDSHAKE_BYTES
        self._buffer = bytearray()
        _notice_dead_peers(stream)

    async def read(self, n: int | None = None) -> bytes:
        """`n` bytes, but at most CHUNK_BYTES; fewer where the connection ends. py-libp2p itself
        gives a message up that comes in more than a hundred pieces."""
        wanted = min(CHUNK_BYTES if n is None else n, CHUNK_BYTES)
        while len(self._buffer) < wanted:
            data = await super().read(CHUNK_BYTES)
            if not data:
                break
            self._buffer += data
            if self.left is not None:
                self.left -= len(data)
                if self.left < 0:
                    raise ConnectionClosedError("the peer says too much before it is known")
        data = bytes(self._buffer[:wanted])
        del self._buffer[:wanted]
        return data

    async def write(self, data: bytes) -> None:
        with trio.move_on_after(STALL_SECONDS, shield=True) as scope:
            await super().write(data)
        if scope.cancelled_caught:
            await self.close()
            raise ConnectionClosedError("the peer reads nothing")


class Link(yamux.Yamux):  # type: ignore[misc]
    """A connection of many streams to a peer. `held_in_all` says what all links hold unread."""

    def __init__(
        self, secured: Any, peer: ID, stream: Socket, held_in_all: Callable[[], int]
    ) -> None:
        super().__init__(secured, peer, is_initiator=secured.is_initiator)
        self.peer = str(peer)
        self.stream = stream
        self.used = trio.current_time()
        #: Streams that the peer opened and that run.
        self.served = 0
        self._held_in_all = held_in_all
        self._asking = trio.Lock()

    @property
    def held(self) -> int:
        """Received bytes that nobody has read."""
        return sum(map(len, self.stream_buffers.values()))

    @property
    def ended(self) -> bool:
        return bool(self.event_shutting_down.is_set())

    async def end(self) -> None:
        """Close the connection, without a word to the peer, which may not read."""
        await self.stream.close()

    async def answers(self) -> bool:
        """Whether the peer answers a ping. One that does not is cut off."""
        async with self._asking:
            self._ping_event = trio.Event()
            try:
                with trio.fail_after(PING_SECONDS):
                    self._ping_sent_time = trio.current_time()
                    await self._write_frame(_PING)
                    await self._ping_event.wait()
            except Exception:  # noqa: BLE001 - whatever it is, the link does not work
                await self.end()
                return False
        return not self.ended

    async def _measure_rtt_loop(self) -> None:
        """In the place of py-libp2p's, which waits for ever for who is frozen."""
        pause = 0.5  # windows grow by the round trip's time
        while True:
            await trio.sleep(pause)
            if not await self.answers():
                return
            pause = _PING_EVERY_SECONDS

    async def _read_data_body(self, length: int) -> bytes:
        held = self.held + length
        if held > MAX_HELD or (held > _FREE and self._held_in_all() + length > MAX_HELD_IN_ALL):
            raise trio.TooSlowError  # the one error after which py-libp2p closes the connection
        data: bytes = await super()._read_data_body(length)
        return data

    async def _write_frame(self, data: bytes) -> None:
        with trio.CancelScope(shield=True):
            await super()._write_frame(data)


async def upgrade(
    upgrader: TransportUpgrader,
    tcp: trio.SocketStream,
    peer: ID | None,
    held_in_all: Callable[[], int],
) -> Link:
    """Noise and Yamux over a TCP connection, to `peer` where this node dialled. Raises whatever
    py-libp2p raises; the caller closes the connection."""
    stream = Socket(tcp)
    raw = RawConnection(stream, peer is not None)
    secured = await upgrader.upgrade_security(raw, raw.is_initiator, peer)
    await upgrader.muxer_multistream.select_transport(secured)
    stream.left = None
    return Link(secured, secured.get_remote_peer(), stream, held_in_all)


async def send(stream: Any, data: bytes) -> None:
    """Write to a stream as fast as its reader reads.

    Raises:
        trio.TooSlowError: it reads nothing. py-libp2p itself gives up after five seconds, and does
            not say how much it wrote.
    """
    view = memoryview(data)
    while view:
        with trio.fail_after(2 * STALL_SECONDS):
            while stream.send_window <= 0 and not stream.closed:  # noqa: ASYNC110 - no event says
                await trio.sleep(0.01)
        piece = view[: max(1, min(stream.send_window, CHUNK_BYTES))]
        await stream.write(bytes(piece))
        view = view[len(piece) :]


def _notice_dead_peers(stream: trio.SocketStream) -> None:
    """Let the kernel end a connection to a machine that is gone."""
    stream.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    if hasattr(socket, "TCP_USER_TIMEOUT"):
        stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(STALL_SECONDS * 1000))
