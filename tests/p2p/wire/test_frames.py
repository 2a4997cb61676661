"""The wire of one request, over a real socket pair. The published vectors have what is refused."""

from __future__ import annotations

import asyncio
import hashlib
import socket
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from swarm_node.errors import TransportError
from swarm_node.p2p.wire import frames
from swarm_node.p2p.wire.frames import Reply
from swarm_node.p2p.wire.transport import MAX_REPLY_BYTES

Stream = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@asynccontextmanager
async def pair() -> AsyncIterator[tuple[Stream, Stream]]:
    """The two ends of a connected socket pair."""
    left, right = socket.socketpair()
    one = await asyncio.open_connection(sock=left)
    other = await asyncio.open_connection(sock=right)
    try:
        async with asyncio.timeout(60):
            yield one, other
    finally:
        for _, writer in (one, other):
            writer.transport.abort()
        await asyncio.sleep(0)


async def serve_once(stream: Stream, reply: Reply) -> bytes:
    reader, writer = stream
    payload = await frames.read_request(reader)
    await frames.send_reply(reader, writer, reply)
    return payload


async def ask(stream: Stream, payload: bytes, limit: int = MAX_REPLY_BYTES) -> bytes:
    reader, writer = stream
    await frames.send_request(writer, payload)
    return await frames.read_reply(reader, writer, limit)


@pytest.mark.parametrize("size", [0, 1, 10_000, frames.CHUNK_BYTES, 3_000_001])
async def test_request_and_reply_arrive_whole(size: int) -> None:
    async with pair() as (client, server):
        request, reply = bytes(range(200)), b"r" * size
        served, got = await asyncio.gather(serve_once(server, Reply(reply)), ask(client, request))
        assert served == request
        assert got == reply


async def test_refusal_carries_its_reason_without_control_characters() -> None:
    async with pair() as (client, server):
        refusal = Reply.refusal("not a member\x1b[2J\nforged log line")
        with pytest.raises(TransportError, match=r"^not a member\?\[2J\?forged log line$"):
            await asyncio.gather(serve_once(server, refusal), ask(client, b""))


def test_long_reason_is_cut_at_a_character() -> None:
    reply = Reply.refusal("ü" * 1000)
    assert reply.payload.decode() == "ü" * (frames.MAX_REASON_BYTES // 2)
    assert Reply.refusal("x" + "ü" * 1000).payload.decode()[0] == "x"


async def test_writer_waits_for_the_ack() -> None:
    async with pair() as (client, server), asyncio.TaskGroup() as group:
        sending = group.create_task(frames.send_reply(*server, Reply(b"payload")))
        await client[0].readexactly(1 + 8 + 7 + 32)
        await asyncio.sleep(0.01)
        assert not sending.done()
        client[1].write(b"\x06")


async def test_writer_stops_waiting_when_the_reader_hangs_up() -> None:
    async with pair() as (client, server):
        client[1].write_eof()
        await frames.send_reply(*server, Reply(b"payload"))


@settings(max_examples=60, deadline=None)
@given(payload=st.binary(max_size=40), kept=st.floats(min_value=0, max_value=0.999))
def test_every_truncated_reply_is_an_error(payload: bytes, kept: float) -> None:
    digest = hashlib.sha256(payload).digest()
    whole = struct.pack(">BQ", 0, len(payload)) + payload + digest

    async def talk() -> None:
        async with pair() as (client, server):
            server[1].write(whole[: int(len(whole) * kept)])
            server[1].write_eof()
            with pytest.raises(TransportError, match="ended before"):
                await frames.read_reply(*client)

    asyncio.run(talk())
