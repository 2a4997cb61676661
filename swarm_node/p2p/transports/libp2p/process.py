"""The process of py-libp2p: links to peers on one side, sockets to the node on the other.

    python -m swarm_node.p2p.transports.libp2p.process

It ends when the node closes its standard input, or when the node dies.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import resource
from collections import Counter
from typing import Any

import msgspec
import trio
import trio.from_thread
from libp2p.stream_muxer.exceptions import MuxedStreamEOF

from swarm_node.errors import TransportError
from swarm_node.p2p.transports.libp2p.hardened import CHUNK_BYTES, PIECE_BYTES, send
from swarm_node.p2p.transports.libp2p.host import Host, give_up
from swarm_node.p2p.transports.libp2p.messages import (
    HOST,
    MAX_REQUEST_BYTES,
    NODE,
    Connect,
    Disconnect,
    Done,
    Incoming,
    Linked,
    Links,
    Message,
    Open,
    Request,
    Start,
    Started,
    StreamOpened,
)
from swarm_node.process.frames import HEAD, Failed, make_frame, read_head
from swarm_node.process.server import serve

#: Limit for a peer to end its half of a stream after the node has ended its own.
_LINGER_SECONDS = 5.0
_MOST_FILES = 8192
_log = logging.getLogger(__name__)


class Process:
    """Handles the node's requests and the streams that peers open."""

    def __init__(self, nursery: trio.Nursery) -> None:
        self._nursery = nursery
        self._requests = msgspec.msgpack.Decoder[Request](Request)
        self._host: Host | None = None
        self._node = ""

    async def start(self, request: Start) -> Started:
        """
        Raises:
            TransportError: it cannot listen.
        """
        self._node = os.path.join(request.sockets, NODE)
        self._host = Host(request.key, request.protocols, self._serve, self._nursery)
        endpoints = await self._host.listen(request.listen)
        listener = trio.socket.socket(trio.socket.AF_UNIX)
        await listener.bind(os.path.join(request.sockets, HOST))
        listener.listen(128)
        self._nursery.start_soon(
            trio.serve_listeners, self._converse, [trio.SocketListener(listener)]
        )
        return Started(endpoints)

    async def _converse(self, pipe: trio.SocketStream) -> None:
        """Answer one request of the node."""
        stream, rest = None, b""
        reply: Message | Failed
        try:
            request = self._requests.decode(await _read_frame(pipe))
            try:
                reply, stream, rest = await self._handle(request)
            except TransportError as error:
                reply = Failed(type(error).__name__, str(error))
            await pipe.send_all(make_frame(0, msgspec.msgpack.encode(reply)))
            if stream is not None:
                await _copy(stream, rest, pipe)
        except Exception as error:  # noqa: BLE001 - the node or the peer left: this request ends
            _log.debug("a request ended: %r", error)
        finally:
            if stream is not None:
                await give_up(stream)

    async def _handle(self, request: Request) -> tuple[Message, Any, bytes]:
        """Handle a request. Return the reply, the stream whose bytes follow, and the first of these
        bytes."""
        assert self._host is not None, "the socket of requests is made after the host"
        match request:
            case Connect(peer, address):
                await self._host.connect(peer, address)
            case Open(peer, protocol):
                return StreamOpened(), *await self._host.open(peer, protocol)
            case Links():
                refusals, self._host.refusals = self._host.refusals, Counter()
                return Linked(self._host.linked_peers(), dict(refusals)), None, b""
            case Disconnect(peer):
                await self._host.disconnect(peer)
        return Done(), None, b""

    async def _serve(self, peer: str, protocol: str, stream: Any, rest: bytes) -> None:
        """Connect a stream that a peer opened to the node."""
        async with await trio.open_unix_socket(self._node) as pipe:
            await pipe.send_all(make_frame(0, msgspec.msgpack.encode(Incoming(peer, protocol))))
            await _copy(stream, rest, pipe)


async def _copy(stream: Any, rest: bytes, pipe: trio.SocketStream) -> None:
    """Copy in both directions, `rest` to the node first, until both ends have ended or one breaks.
    The buffers of both ends bound the memory."""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_copy_in, stream, rest, pipe)
        while data := await pipe.receive_some(PIECE_BYTES):
            await send(stream, data)
        await stream.close()
        nursery.cancel_scope.deadline = trio.current_time() + _LINGER_SECONDS


async def _copy_in(stream: Any, rest: bytes, pipe: trio.SocketStream) -> None:
    await pipe.send_all(rest)
    with contextlib.suppress(MuxedStreamEOF):
        while True:
            await pipe.send_all(await stream.read(CHUNK_BYTES))
    await pipe.send_eof()


async def _read_frame(pipe: trio.SocketStream) -> bytes:
    length, _ = read_head(await _exactly(pipe, HEAD.size), MAX_REQUEST_BYTES)
    return await _exactly(pipe, length)


async def _exactly(pipe: trio.SocketStream, size: int) -> bytes:
    data = b""
    while len(data) < size:
        piece = await pipe.receive_some(size - len(data))
        if not piece:
            raise EOFError("the node left")
        data += piece
    return data


async def _main() -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    limit = _MOST_FILES if hard == resource.RLIM_INFINITY else min(hard, _MOST_FILES)
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
    async with trio.open_nursery() as nursery:
        process = Process(nursery)
        handle = functools.partial(trio.from_thread.run, process.start)
        await trio.to_thread.run_sync(serve, handle, Start, abandon_on_cancel=True)
        nursery.cancel_scope.cancel()


if __name__ == "__main__":
    trio.run(_main)
