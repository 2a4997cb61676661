"""py-libp2p's Noise, multistream-select and Yamux, with the limits that they lack.

py-libp2p 0.8.1 also offers plaintext, over which any peer can claim any identity, and its swarm
dials addresses that peers name. So this program uses the three protocols alone, and `host.py` keeps
the links. The limits here and their reasons were measured against that version, which
pyproject.toml pins.
"""

from __future__ import annotations

import logging
import socket
import struct
from collections.abc import Callable
from typing import Any

import trio
from libp2p.crypto import serialization
from libp2p.crypto.ed25519 import Ed25519PublicKey
from libp2p.crypto.keys import KeyPair, KeyType, PrivateKey, PublicKey
from libp2p.crypto.x25519 import X25519PrivateKey
from libp2p.io.exceptions import ConnectionClosedError
from libp2p.io.trio import TrioTCPStream
from libp2p.network.connection.raw_connection import RawConnection
from libp2p.peer.id import ID
from libp2p.protocol_muxer.multiselect import MULTISELECT_PROTOCOL_ID, PROTOCOL_NOT_FOUND_MSG
from libp2p.protocol_muxer.multiselect_communicator import MultiselectCommunicator
from libp2p.security.noise.transport import PROTOCOL_ID as NOISE
from libp2p.security.noise.transport import Transport as NoiseTransport
from libp2p.stream_muxer.yamux import yamux
from libp2p.transport.upgrader import TransportUpgrader
from libp2p.utils import encode_delim

from swarm_node.errors import NotServedError
from swarm_node.p2p.addresses.internet import site
from swarm_node.p2p.transports.libp2p.messages import LinkKey

CHUNK_BYTES = 1 << 16
#: Payload of one Noise message, without Yamux's header.
PIECE_BYTES = 65_519 - yamux.HEADER_SIZE
#: Bytes that a peer may send before its link stands: Noise's three messages and two negotiations.
_HANDSHAKE_BYTES = 16 * 1024
#: Limit of bytes read from a stream before its protocol is known.
_NEGOTIATION_BYTES = 1024
#: First pause between two checks of a stream's window.
_LEAST_PAUSE_SECONDS = 0.0005
#: Seconds without a read after which a peer counts as gone.
STALL_SECONDS = 30.0
_PING_EVERY_SECONDS, PING_SECONDS = 15.0, 10.0
#: Limits of received bytes that nobody has read, per link and for all links. py-libp2p only logs a
#: peer that sends more than its windows allow.
MAX_HELD, MAX_HELD_IN_ALL = 64 << 20, 256 << 20
#: Unread bytes that any link may hold.
_FREE = yamux.DEFAULT_WINDOW_SIZE
#: py-libp2p lets a stream's window grow to 16 MiB.
yamux.MAX_WINDOW_SIZE = 1 << 20
_PING = struct.pack(yamux.YAMUX_HEADER_FORMAT, 0, yamux.TYPE_PING, yamux.FLAG_SYN, 0, 1)

# Remove parsers for kinds of keys that no peer of this swarm has. One of them is plain Python.
for _kind in (KeyType.RSA, KeyType.Secp256k1):
    serialization.key_type_to_public_key_deserializer.pop(_kind.value)
# Faults of peers are no faults of this node, and must not fill its log.
logging.getLogger("libp2p").setLevel(logging.CRITICAL)


class _SignedKey(PrivateKey):  # type: ignore[misc]
    """Stand-in for the node's key in py-libp2p. It holds one signature, that of the Noise key."""

    def __init__(self, key: LinkKey) -> None:
        self._key = key

    def get_type(self) -> KeyType:
        return KeyType.Ed25519

    def get_public_key(self) -> PublicKey:
        return Ed25519PublicKey.from_bytes(self._key.public)

    def sign(self, data: bytes) -> bytes:
        """Return the signature, which is valid for the Noise key only."""
        return self._key.signature

    def to_bytes(self) -> bytes:
        raise NotImplementedError("the node's key is in another process")


def make_upgrader(key: LinkKey) -> TransportUpgrader:
    """Build the upgrader from TCP connections to links: Noise and Yamux, nothing else."""
    signed = _SignedKey(key)
    pair = KeyPair(signed, signed.get_public_key())
    noise = NoiseTransport(pair, X25519PrivateKey.from_bytes(key.private))
    return TransportUpgrader({NOISE: noise}, {yamux.PROTOCOL_ID: Link})


class Scant:
    """A stream with a read limit of `left` bytes, because multistream-select accepts any length. It
    reads whatever has arrived, because py-libp2p would acknowledge each single byte. `rest` holds
    bytes that were read beyond the negotiation."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        self.left = _NEGOTIATION_BYTES
        self.rest = b""

    async def read(self, n: int | None = None) -> bytes:
        if not self.rest:
            if self.left <= 0:
                raise ConnectionClosedError("the peer negotiates without end")
            self.rest = await self._stream.read(self.left)
            self.left -= len(self.rest)
        data, self.rest = self.rest[:n], self.rest[n:] if n is not None else b""
        return data

    async def write(self, data: bytes) -> None:
        await self._stream.write(data)


async def select(stream: Any, protocol: str) -> bytes:
    """Agree on a protocol with the accepting end of the stream, in one round trip. Return the bytes
    received beyond the negotiation. Raises whatever py-libp2p raises.

    Raises:
        NotServedError: the other end does not serve the protocol.
    """
    limited_stream = Scant(stream)
    lines = (MULTISELECT_PROTOCOL_ID, protocol)
    await limited_stream.write(b"".join(encode_delim(line.encode()) for line in lines))
    communicator = MultiselectCommunicator(limited_stream)
    answers = await communicator.read(), await communicator.read()
    if answers == (MULTISELECT_PROTOCOL_ID, PROTOCOL_NOT_FOUND_MSG):
        raise NotServedError(f"the peer does not serve {protocol}")
    if answers != lines:
        raise ConnectionError("the peer does not answer as multistream-select says")
    return limited_stream.rest


class Socket(TrioTCPStream):  # type: ignore[misc]
    """A TCP connection. A write is complete or ends the connection, because Noise counts
    messages."""

    def __init__(self, stream: trio.SocketStream) -> None:
        super().__init__(stream)
        #: Bytes that the peer may still send. None: any number.
        self.left: int | None = _HANDSHAKE_BYTES
        self._buffer = bytearray()
        host, port = stream.socket.getpeername()[:2]
        #: The multiaddr of the other end. py-libp2p gives none for IPv6.
        self.peer_address = f"/ip{6 if ':' in host else 4}/{host.partition('%')[0]}/tcp/{port}"
        self.site = site(host.partition("%")[0])
        _notice_dead_peers(stream)

    async def read(self, n: int | None = None) -> bytes:
        """Read `n` bytes, at most CHUNK_BYTES, fewer if the connection ends. py-libp2p's own read
        abandons a message that arrives in more than a hundred pieces."""
        size = min(CHUNK_BYTES if n is None else n, CHUNK_BYTES)
        while len(self._buffer) < size:
            data = await super().read(CHUNK_BYTES)
            if not data:
                break
            self._buffer += data
            if self.left is not None:
                self.left -= len(data)
                if self.left < 0:
                    raise ConnectionClosedError("the peer says too much before it is known")
        data = bytes(self._buffer[:size])
        del self._buffer[:size]
        return data

    async def write(self, data: bytes) -> None:
        with trio.move_on_after(STALL_SECONDS, shield=True) as scope:
            await super().write(data)
        if scope.cancelled_caught:
            await self.close()
            raise ConnectionClosedError("the peer reads nothing")


class Link(yamux.Yamux):  # type: ignore[misc]
    """A connection of many streams to a peer. `held_in_all` returns the unread bytes of all
    links."""

    def __init__(
        self, secure_conn: Any, peer: ID, stream: Socket, held_in_all: Callable[[], int]
    ) -> None:
        super().__init__(secure_conn, peer, is_initiator=secure_conn.is_initiator)
        self.peer = str(peer)
        self.stream = stream
        self.started_at = trio.current_time()
        #: Cancels the tasks of the link, which do not all notice that its connection was closed.
        self.scope: trio.CancelScope | None = None
        self._given_up = False
        #: Running streams that the peer opened.
        self.served_streams = 0
        self._held_in_all = held_in_all
        self._asking = trio.Lock()

    @property
    def held_bytes(self) -> int:
        """Received bytes that nobody has read."""
        return sum(map(len, self.stream_buffers.values()))

    @property
    def has_ended(self) -> bool:
        return self._given_up or bool(self.event_shutting_down.is_set())

    async def end(self) -> None:
        """Close the connection without a message to the peer, which may not read."""
        self._given_up = True
        await self.stream.close()
        if self.scope is not None:
            self.scope.cancel()

    async def answers(self) -> bool:
        """Ping the peer. Return True if it answers. Otherwise the link is cut."""
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
        return not self.has_ended

    async def _measure_rtt_loop(self) -> None:
        """Replace py-libp2p's loop, which waits for ever for a frozen peer."""
        pause = 0.5  # windows grow by the round trip's time
        while True:
            await trio.sleep(pause)
            if not await self.answers():
                return
            pause = _PING_EVERY_SECONDS

    async def _read_data_body(self, length: int) -> bytes:
        held_bytes = self.held_bytes + length
        if held_bytes > MAX_HELD or (
            held_bytes > _FREE and self._held_in_all() + length > MAX_HELD_IN_ALL
        ):
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
    """Run Noise and Yamux over a TCP connection, to `peer` if this node dialled. Raises whatever
    py-libp2p raises. The caller closes the connection."""
    stream = Socket(tcp)
    raw = RawConnection(stream, peer is not None)
    secure_conn = await upgrader.upgrade_security(raw, raw.is_initiator, peer)
    await upgrader.muxer_multistream.select_transport(secure_conn)
    stream.left = None
    return Link(secure_conn, secure_conn.get_remote_peer(), stream, held_in_all)


async def send(stream: Any, data: bytes) -> None:
    """Write to a stream as fast as its reader reads.

    Raises:
        trio.TooSlowError: it reads nothing. py-libp2p itself gives up after five seconds, and does
            not say how much it wrote.
    """
    view, pause = memoryview(data), _LEAST_PAUSE_SECONDS
    while view:
        with trio.fail_after(2 * STALL_SECONDS):
            while stream.send_window <= 0 and not stream.closed:
                await trio.sleep(pause)
                pause = min(2 * pause, 0.02)
        piece = view[: max(1, min(stream.send_window, PIECE_BYTES))]
        await stream.write(bytes(piece))
        view, pause = view[len(piece) :], _LEAST_PAUSE_SECONDS


def _notice_dead_peers(stream: trio.SocketStream) -> None:
    """Let the kernel end a connection to a machine that is gone."""
    stream.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    if hasattr(socket, "TCP_USER_TIMEOUT"):
        stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(STALL_SECONDS * 1000))
