"""The wire of one request, over a real socket pair."""

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
from swarm_node.p2p.wire.transport import MAX_REPLY_BYTES, MAX_REQUEST_BYTES

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


async def test_oversize_request_is_refused_before_it_is_sent() -> None:
    async with pair() as (client, server):
        with pytest.raises(TransportError, match="over the limit"):
            await frames.send_request(client[1], bytes(MAX_REQUEST_BYTES + 1))
        served, got = await asyncio.gather(serve_once(server, Reply(b"ok")), ask(client, b"next"))
        assert (served, got) == (b"next", b"ok")


@pytest.mark.parametrize("announced", [MAX_REQUEST_BYTES + 1, 1 << 63, (1 << 64) - 1])
async def test_announced_length_is_judged_before_anything_is_read(announced: int) -> None:
    async with pair() as (client, server):
        client[1].write(struct.pack(">Q", announced) + b"first bytes")
        with pytest.raises(TransportError, match="over the limit"):
            await frames.read_request(server[0])
        server[1].write(struct.pack(">BQ", 0, announced))
        with pytest.raises(TransportError, match="over the limit"):
            await frames.read_reply(client[0], client[1], MAX_REQUEST_BYTES)
        assert await server[0].read(11) == b"first bytes"


async def test_damaged_reply_is_not_delivered_nor_acknowledged() -> None:
    async with pair() as (client, server):
        server[1].write(struct.pack(">BQ", 0, 5) + b"hellO" + hashlib.sha256(b"hello").digest())
        with pytest.raises(TransportError, match="damaged"):
            await frames.read_reply(*client)
        client[1].close()
        assert await server[0].read() == b""


@pytest.mark.parametrize(
    ("status", "size", "why"),
    [(1, frames.MAX_REASON_BYTES + 1, "over the limit"), (2, 0, "does not speak")],
)
async def test_a_long_refusal_or_unknown_status_is_refused(
    status: int, size: int, why: str
) -> None:
    async with pair() as (client, server):
        server[1].write(struct.pack(">BQ", status, size))
        with pytest.raises(TransportError, match=why):
            await frames.read_reply(*client)


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
@given(data=st.binary(max_size=80))
def test_any_bytes_end_in_a_transport_error_or_a_payload(data: bytes) -> None:
    async def talk() -> None:
        async with pair() as (client, server):
            client[1].write(data)
            client[1].write_eof()
            try:
                payload = await frames.read_request(server[0])
            except TransportError:
                return
            assert struct.pack(">Q", len(payload)) + payload == data[: 8 + len(payload)]

    asyncio.run(talk())


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


async def test_handler_outcomes_become_replies() -> None:
    async def echo(peer: str, payload: bytes) -> bytes:
        return peer.encode() + payload

    async def refuse(peer: str, payload: bytes) -> bytes:
        raise TransportError("no such blob")

    async def broken(peer: str, payload: bytes) -> bytes:
        raise KeyError("secret detail")

    async def endless(peer: str, payload: bytes) -> bytes:
        return bytes(MAX_REPLY_BYTES + 1)

    assert await frames.answer(echo, "p", "/x/1", b"q") == Reply(b"pq")
    assert await frames.answer(refuse, "p", "/x/1", b"") == Reply(b"no such blob", is_refusal=True)
    assert await frames.answer(broken, "p", "/x/1", b"") == Reply(b"internal error", True)
    assert (await frames.answer(endless, "p", "/x/1", b"")).is_refusal
