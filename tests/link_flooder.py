"""A member that opens links and streams as fast as it can, and keeps them.

    python tests/link_flooder.py KINDS HOST PORT SOURCE SEED HELLO

It connects from the address SOURCE, and greets as the member whose key has the hexadecimal SEED,
with the hexadecimal request HELLO. What the node closes is opened again at once. KINDS are some of
these, with commas between them:

    links    links that stay open: their pings are answered
    streams  one link, and on it streams whose request never ends
    silent   connections that stop in the middle of Noise's handshake

Each second it prints as JSON what it has open, and what it had. Neither stack is used here: both
limit what they open.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import struct
import sys
from collections import Counter

from noise.connection import Keypair, NoiseConnection

from swarm_node.p2p.wire.identity import Identity
from swarm_node.p2p.wire.protocols import HELLO, LIST

#: Links, and silent connections, that are being opened at a time.
WORKERS = 32
#: Streams that one write opens.
BATCH = 16
PATIENCE_SECONDS = 30.0
_GREETING = b"\x13/multistream/1.0.0\n"
_HEAD = struct.Struct(">BBHII")
_DATA, _WINDOW, _PING = 0, 1, 2
_SYN, _ACK, _FIN, _RESET = 1, 2, 4, 8


def line(text: str) -> bytes:
    """A line of multistream-select."""
    return bytes([len(text) + 1]) + text.encode() + b"\n"


def frame(kind: int, flags: int, stream: int, length: int, payload: bytes = b"") -> bytes:
    """A frame of Yamux."""
    return _HEAD.pack(0, kind, flags, stream, length) + payload


class Link:
    """One connection. `streams` are those that this end opened and the node has not closed."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self.writer = reader, writer
        self._noise = NoiseConnection.from_name(b"Noise_XX_25519_ChaChaPoly_SHA256")
        self._buffer = b""
        self._next = 1
        self.streams: set[int] = set()

    @classmethod
    async def open(cls, host: str, port: int, source: str, identity: Identity) -> Link:
        """Open a link as the owner of this key, from the address `source`."""
        reader, writer = await asyncio.open_connection(host, port, local_addr=(source, 0))
        link = cls(reader, writer)
        try:
            await link.shake(identity)
        except BaseException:
            writer.transport.abort()
            raise
        return link

    async def shake(self, identity: Identity, *, silent: bool = False) -> None:
        """Agree on Noise and Yamux. A silent link stops before it says who it is."""
        self._noise.set_as_initiator()
        self._noise.set_keypair_from_private_bytes(Keypair.STATIC, identity.seed()[::-1])
        self._noise.start_handshake()
        self.writer.write(_GREETING + line("/noise") + self._sized(self._noise.write_message()))
        await self._reader.readexactly(len(_GREETING + line("/noise")))
        self._noise.read_message(await self._message())
        if silent:
            return
        public = self._noise.noise_protocol.keypairs["s"].public_bytes
        signature = identity.sign(b"noise-libp2p-static-key:" + public)
        payload = bytes.fromhex("0a2408011220") + identity.public_key + b"\x12\x40" + signature
        self.writer.write(self._sized(self._noise.write_message(payload)))
        await self.send(_GREETING + line("/yamux/1.0.0"))

    async def greet(self, hello: bytes) -> None:
        """Send the request that makes this peer a member."""
        await self._open(HELLO, len(hello).to_bytes(8, "big") + hello)

    async def open_streams(self) -> None:
        """Open some streams whose request of a thousand bytes does not come."""
        for _ in range(BATCH - 1):
            self.writer.write(self._stream(LIST, (1000).to_bytes(8, "big")))
        await self._open(LIST, (1000).to_bytes(8, "big"))

    async def open_silent(self) -> None:
        """Open some streams that do not even name a protocol."""
        for _ in range(BATCH):
            self.writer.write(self._sealed(frame(_WINDOW, _SYN, self._next, 0)))
            self._next += 2
        await self.writer.drain()

    async def established(self) -> None:
        """Wait until the node has agreed to Yamux."""
        agreed = len(_GREETING + line("/yamux/1.0.0"))
        while len(self._buffer) < agreed:
            await self._fill()
        self._buffer = self._buffer[agreed:]

    async def serve(self) -> None:
        """Answer pings, and note which streams the node closes, until it closes the link."""
        await self.established()
        while True:
            while len(self._buffer) < _HEAD.size:
                await self._fill()
            _, kind, flags, stream, length = _HEAD.unpack(self._buffer[: _HEAD.size])
            self._buffer = self._buffer[_HEAD.size :]
            if kind == _PING and flags & _SYN:
                await self.send(frame(_PING, _ACK, 0, length))
            if kind == _DATA:
                while len(self._buffer) < length:
                    await self._fill()
                self._buffer = self._buffer[length:]
            if flags & (_FIN | _RESET):
                self.streams.discard(stream)

    async def send(self, data: bytes) -> None:
        self.writer.write(self._sealed(data))
        await self.writer.drain()

    async def _open(self, protocol: str, data: bytes) -> None:
        self.writer.write(self._stream(protocol, data))
        await self.writer.drain()

    def _stream(self, protocol: str, data: bytes) -> bytes:
        number, self._next = self._next, self._next + 2
        self.streams.add(number)
        data = _GREETING + line(protocol) + data
        return self._sealed(frame(_DATA, _SYN, number, len(data), data))

    def _sealed(self, data: bytes) -> bytes:
        return self._sized(self._noise.encrypt(data))

    async def _fill(self) -> None:
        self._buffer += self._noise.decrypt(await self._message())

    async def _message(self) -> bytes:
        length = int.from_bytes(await self._reader.readexactly(2), "big")
        return await self._reader.readexactly(length)

    @staticmethod
    def _sized(message: bytes) -> bytes:
        return len(message).to_bytes(2, "big") + message


class Flooder:
    """Opens and counts. `had` counts what it opened, `failed` what the node refused."""

    def __init__(self, host: str, port: int, source: str, identity: Identity) -> None:
        self._target, self._source = (host, port), source
        self._identity = identity
        self.links: set[Link] = set()
        self.silent = 0
        self.had: Counter[str] = Counter()

    async def keep_links(self) -> None:
        """Open one link after the other, and keep each."""
        async with asyncio.TaskGroup() as group:
            while True:
                link = await self._linked("links")
                if link is not None:
                    group.create_task(self._held(link))

    async def keep_streams(self, hello: bytes) -> None:
        """Greet on a link, and open streams on it until it is cut."""
        while True:
            link = await self._linked("links with streams")
            if link is None:
                continue
            served = asyncio.create_task(self._held(link))
            with contextlib.suppress(OSError):
                await link.greet(hello)
                await asyncio.sleep(0.5)  # until the node knows the member
                while link in self.links:
                    await link.open_streams()
                    self.had["streams"] += BATCH
            await served

    async def keep_silent(self) -> None:
        """Open one connection after the other, half of Noise on each, and keep it."""
        async with asyncio.TaskGroup() as group:
            while True:
                opened = await self._connected()
                if opened is None:
                    continue
                with contextlib.suppress(OSError, EOFError, TimeoutError):
                    async with asyncio.timeout(PATIENCE_SECONDS):
                        await Link(*opened).shake(self._identity, silent=True)
                    self.had["silent"] += 1
                    group.create_task(self._hushed(*opened))

    def said(self) -> dict[str, int]:
        streams = sum(len(link.streams) for link in self.links)
        now = {"links": len(self.links), "streams": streams, "silent": self.silent}
        return {**now, **{f"had {name}": count for name, count in self.had.items()}}

    async def _connected(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter] | None:
        try:
            return await asyncio.open_connection(*self._target, local_addr=(self._source, 0))
        except OSError:
            self.had["refused"] += 1
            await asyncio.sleep(0.1)
            return None

    async def _linked(self, name: str) -> Link | None:
        try:
            async with asyncio.timeout(PATIENCE_SECONDS):
                link = await Link.open(*self._target, self._source, self._identity)
        except (OSError, EOFError, TimeoutError):
            self.had["unfinished"] += 1
            return None
        self.had[name] += 1
        self.links.add(link)
        return link

    async def _held(self, link: Link) -> None:
        with contextlib.suppress(OSError, EOFError):
            await link.serve()
        self.links.discard(link)
        link.writer.transport.abort()

    async def _hushed(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.silent += 1
        with contextlib.suppress(OSError):
            while await reader.read(4096):
                pass
        self.silent -= 1
        writer.transport.abort()


async def main(kinds: str, host: str, port: str, source: str, seed: str, hello: str) -> None:
    flooder = Flooder(host, int(port), source, Identity.from_seed(bytes.fromhex(seed)))
    async with asyncio.TaskGroup() as group:
        for kind in kinds.split(","):
            if kind == "streams":
                group.create_task(flooder.keep_streams(bytes.fromhex(hello)))
                continue
            keep = {"links": flooder.keep_links, "silent": flooder.keep_silent}[kind]
            for _ in range(WORKERS):
                group.create_task(keep())
        while True:
            print(json.dumps(flooder.said()), flush=True)
            await asyncio.sleep(1.0)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
