"""Answers a request with another peer's reply, which is copied as it arrives.

Memory for a reply is one chunk and the buffers of two streams, however slow its reader is. The copy
is not checked here: the reader at the end has the digest (frames.py).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from swarm_node.errors import TransportError
from swarm_node.p2p.wire.frames import (
    ACK,
    DIGEST_BYTES,
    HEAD,
    Reply,
    outcome,
    read_head,
    send_reply,
    send_request,
    stream_errors,
)
from swarm_node.p2p.wire.reasons import NO_ANSWER
from swarm_node.p2p.wire.transport import Onward, Route

#: Bytes that are copied at a time.
CHUNK_BYTES: Final = 64 * 1024
#: Limit for the other peer's answer, and for the transfer of each chunk.
ANSWER_SECONDS: Final = 15.0
STALL_SECONDS: Final = 10.0

Stream = tuple[asyncio.StreamReader, asyncio.StreamWriter]
#: (peer id, protocol) -> a stream to a connected peer. Raises `TransportError`.
OpenStream = Callable[[str, str], Awaitable[Stream]]


async def run_route(route: Route, peer: str, protocol: str, payload: bytes) -> Onward | Reply:
    """Run `route` for one request of `peer`. Return the request to pass on, or a refusal."""
    return await outcome(route(peer, payload), peer, protocol)


async def forward(onward: Onward, open_stream: OpenStream, sink: Stream) -> None:
    """Send the request of `onward`, and write its reply to `sink`. If there is no reply, write a
    refusal.

    Raises:
        TransportError: a stream broke or stalled in the middle of the reply.
    """
    try:
        refusal = await _forward(onward, open_stream, sink)
    finally:
        onward.on_ended()
    if refusal is not None:
        await send_reply(*sink, refusal)


async def _forward(onward: Onward, open_stream: OpenStream, sink: Stream) -> Reply | None:
    source, is_complete = None, False
    try:
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                source = await open_stream(onward.peer, onward.protocol)
                await send_request(source[1], onward.payload)
                head = await read_head(source[0], onward.max_reply)
        except TimeoutError:
            return Reply.refusal(NO_ANSWER.words())
        except TransportError as error:
            return Reply.refusal(str(error))
        await _copy(head, source, sink, onward.on_sent)
        is_complete = True
    finally:
        if source is not None and is_complete:
            source[1].close()
        elif source is not None:
            source[1].transport.abort()  # close() would wait for a peer that may not read
    return None


async def _copy(
    head: tuple[int, int], source: Stream, sink: Stream, on_sent: Callable[[int], None]
) -> None:
    """Copy the reply with this `head` (status and length), and pass its ack back."""
    with stream_errors():
        sink[1].write(HEAD.pack(*head))
        left = head[1] + DIGEST_BYTES
        while left:
            async with asyncio.timeout(STALL_SECONDS):
                chunk = await source[0].read(min(CHUNK_BYTES, left))
                if not chunk:
                    raise asyncio.IncompleteReadError(b"", left)
                sink[1].write(chunk)
                await sink[1].drain()
            left -= len(chunk)
            on_sent(len(chunk))
        async with asyncio.timeout(STALL_SECONDS):
            source[1].write(await sink[0].read(len(ACK)))
            await source[1].drain()
