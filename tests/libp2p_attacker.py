"""Attacks a libp2p host at every layer below the frames, and says in JSON how each one ended.

    python tests/libp2p_attacker.py HOST PORT PEER_ID PROTOCOL

A process of its own: py-libp2p and hivemind cannot share one. Every attack has a new connection.
"cut" means that the host closed it, "reset" that it closed the stream, "na" that it refused what
was asked for, "deaf" that nothing happened.
"""

from __future__ import annotations

import contextlib
import json
import os
import struct
import sys
from collections.abc import Awaitable, Callable

import trio
from libp2p.network.connection.raw_connection import RawConnection
from libp2p.peer.id import ID
from libp2p.protocol_muxer.multiselect_client import MultiselectClient
from libp2p.protocol_muxer.multiselect_communicator import MultiselectCommunicator
from libp2p.stream_muxer.yamux.yamux import YAMUX_HEADER_FORMAT

from swarm_node.p2p.transports.libp2p.hardened import Link, Socket, make_upgrader, upgrade
from swarm_node.p2p.transports.libp2p.messages import LinkKey
from swarm_node.p2p.wire.identity import Identity

SECONDS = 60.0
MULTISTREAM = b"\x13/multistream/1.0.0\n"
DATA, WINDOW, PING = 0, 1, 2
SYN, ACK, RESET = 1, 2, 8
HOST, PORT, PEER, PROTOCOL = sys.argv[1], int(sys.argv[2]), sys.argv[3], sys.argv[4]


def frame(kind: int, flags: int, stream: int, length: int, payload: bytes = b"") -> bytes:
    return struct.pack(YAMUX_HEADER_FORMAT, 0, kind, flags, stream, length) + payload


def delimited(text: str) -> bytes:
    return bytes([len(text) + 1]) + text.encode() + b"\n"


async def tcp() -> trio.SocketStream:
    return await trio.open_tcp_stream(HOST, PORT)


async def ends(stream: trio.SocketStream) -> str:
    """Read until the host ends the connection."""
    with contextlib.suppress(trio.BrokenResourceError):
        while await stream.receive_some(1 << 16):
            pass
    return "cut"


async def linked() -> Link:
    """A link under a new key, of which only the writing half is used from here."""
    return await upgrade(
        make_upgrader(LinkKey.of(Identity.generate())), await tcp(), ID.from_string(PEER), int
    )


async def cut_after(link: Link, *frames: bytes) -> str:
    """Send frames, as many times as they come, until the host ends the link."""
    with contextlib.suppress(Exception):  # py-libp2p has many for the end of a connection
        for data in frames:
            await link.secured_conn.write(data)
        while await link.secured_conn.read(1):
            pass
    return "cut"


async def insecure(protocol: str) -> str:
    """Ask for a link without Noise."""
    stream = await tcp()
    await stream.send_all(MULTISTREAM + delimited(protocol))
    said = b""
    while len(said) < len(MULTISTREAM) + 4:
        said += await stream.receive_some(256)
    return "na" if said == MULTISTREAM + b"\x03na\n" else repr(said)


async def said(*parts: bytes) -> str:
    stream = await tcp()
    with contextlib.suppress(trio.BrokenResourceError):
        for part in parts:
            await stream.send_all(part)
    return await ends(stream)


async def endless_line() -> str:
    """A negotiation of 2 ** 62 bytes, of which some come."""
    return await said(MULTISTREAM, b"\xff" * 8 + b"\x3f", *[bytes(1 << 16)] * 4)


async def forged_noise() -> str:
    noise = MULTISTREAM + delimited("/noise")
    return await said(noise, b"\x00\x20" + os.urandom(32), b"\xff\xff" + os.urandom(65535))


async def half_open() -> str:
    """Connections that say nothing: of one address, the 17th is closed at once, the others soon."""
    streams = [await tcp() for _ in range(100)]
    begun = trio.current_time()
    await ends(streams[-1])
    at_once = trio.current_time() - begun
    for stream in streams:
        await ends(stream)
    return "cut" if at_once < 0.5 * (trio.current_time() - begun) else "kept"


async def no_muxer() -> str:
    """Noise, then the muxer that is not offered, then a line of 300 MiB."""
    raw = RawConnection(Socket(await tcp()), True)
    upgrader = make_upgrader(LinkKey.of(Identity.generate()))
    secured = await upgrader.upgrade_security(raw, True, ID.from_string(PEER))
    await secured.write(MULTISTREAM + delimited("/mplex/6.7.0"))
    if await secured.read(len(MULTISTREAM) + 4) != MULTISTREAM + b"\x03na\n":
        return "not refused"
    with contextlib.suppress(Exception):
        await secured.write(b"\xff" * 8 + b"\x3f")
        for _ in range(300 * 16):
            await secured.write(bytes(1 << 16))
        while await secured.read(1):
            pass
    return "cut"


async def forged_frames() -> str:
    return await cut_after(await linked(), *[os.urandom(4096) for _ in range(256)])


async def oversize_frame() -> str:
    return await cut_after(await linked(), frame(WINDOW, SYN, 1, 0), frame(DATA, 0, 1, 1 << 31))


async def many_streams() -> str:
    frames = [frame(WINDOW, SYN, 2 * i + 1, 0) for i in range(3000)]
    return await cut_after(await linked(), *frames)


async def overfull_window() -> str:
    """300 MiB into a stream whose handler reads nothing: the window is 256 KiB."""
    link = await linked()
    request = delimited(PROTOCOL)
    opening = frame(DATA, SYN, 1, len(MULTISTREAM + request), MULTISTREAM + request)
    payload = struct.pack(">Q", 4) + b"wait"
    flood = frame(DATA, 0, 1, 1 << 16, bytes(1 << 16))
    return await cut_after(
        link, opening, frame(DATA, 0, 1, len(payload), payload), *[flood] * (300 * 16)
    )


async def endless_negotiation() -> str:
    """A stream that asks for one unknown protocol after the other. Its link lives on."""
    link = await linked()
    line = delimited("/swarm-node/no-such/1")
    asked = [frame(DATA, 0, 1, len(line), line) for _ in range(100)]
    await link.secured_conn.write(frame(DATA, SYN, 1, len(MULTISTREAM), MULTISTREAM))
    for data in asked:
        await link.secured_conn.write(data)
    heard = b""
    for waited in (frame(WINDOW, RESET, 1, 0), frame(PING, ACK, 0, 7)):
        while waited not in heard:
            heard += await link.secured_conn.read(1)
        await link.secured_conn.write(frame(PING, SYN, 0, 7))
    return "reset" if heard.count(b"\x03na\n") < len(asked) else "answered"


async def forged_frame_of_a_request() -> str:
    """A request of 2 ** 62 bytes, on a link that is honest below it."""
    link = await linked()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(link.start)
        await link.event_started.wait()
        stream = await link.open_stream()
        await MultiselectClient().select_one_of([PROTOCOL], MultiselectCommunicator(stream), 30)
        await stream.write(struct.pack(">Q", 1 << 62) + bytes(1000))
        with contextlib.suppress(Exception):
            while await stream.read(1000):
                pass
        nursery.cancel_scope.cancel()
    return "reset"


ATTACKS: dict[str, Callable[[], Awaitable[str]]] = {
    "plaintext": lambda: insecure("/plaintext/2.0.0"),
    "secio": lambda: insecure("/secio/1.0.0"),
    "tls": lambda: insecure("/tls/1.0.0"),
    "random bytes": lambda: said(os.urandom(1 << 16)),
    "endless line": endless_line,
    "forged noise": forged_noise,
    "half open": half_open,
    "no muxer": no_muxer,
    "forged frames": forged_frames,
    "oversize frame": oversize_frame,
    "many streams": many_streams,
    "overfull window": overfull_window,
    "endless negotiation": endless_negotiation,
    "forged request": forged_frame_of_a_request,
}


async def main() -> None:
    ended = {}
    for name, attack in ATTACKS.items():
        ended[name] = "deaf"
        try:
            with trio.move_on_after(SECONDS):
                ended[name] = await attack()
        except Exception as error:  # noqa: BLE001 - an end that nobody expected is told
            ended[name] = repr(error)
    print(json.dumps(ended))


if __name__ == "__main__":
    trio.run(main)
