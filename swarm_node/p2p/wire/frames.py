"""The framing of one request and its reply over any pair of asyncio streams.

    request   8-byte big-endian length, payload
    reply     1 status byte (0 done, 1 refused), 8-byte big-endian length, payload, sha256(payload)
    ack       1 byte from the reader of the reply, after it checked the reply

A refused reply carries a short UTF-8 text (reasons.py). A stream carries one request. The reader
checks a length against the caller's limit before it reads the payload. Memory grows with the bytes
that arrive, never with the stated length. The writer of a reply waits for the ack (or the end of
the stream) before it closes, because a transport may drop bytes written right before closing.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import struct
from collections.abc import Awaitable, Generator
from dataclasses import dataclass
from typing import TypeVar

import structlog

from swarm_node.errors import OversizeError, TransportError, reason_of
from swarm_node.p2p.wire.reasons import INTERNAL, read_refusal
from swarm_node.p2p.wire.transport import MAX_REPLY_BYTES, MAX_REQUEST_BYTES, Handler

CHUNK_BYTES = 256 * 1024
MAX_REASON_BYTES = 256
_LENGTH = struct.Struct(">Q")
HEAD = struct.Struct(">BQ")
DIGEST_BYTES = hashlib.sha256().digest_size
_DONE, _REFUSED = 0, 1
ACK = b"\x06"

T = TypeVar("T")

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Reply:
    """The outcome of a handler: its payload, or a refusal whose payload is the reason."""

    payload: bytes
    is_refusal: bool = False

    @classmethod
    def refusal(cls, reason: str) -> Reply:
        """A refusal; `reason` is cut to MAX_REASON_BYTES bytes of UTF-8."""
        prefix = reason.encode("utf-8", "replace")[:MAX_REASON_BYTES]
        return cls(prefix.decode("utf-8", "ignore").encode(), is_refusal=True)

    def unwrap(self, limit: int) -> bytes:
        """The payload, at most `limit` bytes.

        Raises:
            RefusedError: it is a refusal.
            TransportError: it is over `limit` bytes.
        """
        if self.is_refusal:
            raise read_refusal(self.payload)
        check_size("reply", len(self.payload), limit)
        return self.payload


def check_size(subject: str, size: int, limit: int) -> None:
    """
    Raises:
        OversizeError: `size` is over `limit` (both in bytes).
    """
    if size > limit:
        raise OversizeError(f"a {subject} of {size} bytes is over the limit of {limit}")


async def answer(handler: Handler, peer: str, protocol: str, payload: bytes) -> Reply:
    """Run `handler` for one request of `peer` and turn every outcome into a reply."""

    async def handle_request() -> Reply:
        reply = await handler(peer, payload)
        check_size("reply", len(reply), MAX_REPLY_BYTES)
        return Reply(reply)

    return await outcome(handle_request(), peer, protocol)


async def outcome(call: Awaitable[T], peer: str, protocol: str) -> T | Reply:
    """Await a handler's call for a request of `peer`. Return its result, or a refusal for any
    exception."""
    try:
        return await call
    except TransportError as error:
        return Reply.refusal(str(error))
    except Exception:  # a bug in one handler must not end the node
        log.exception("a request handler failed", protocol=protocol, peer=peer)
        return Reply.refusal(INTERNAL.words())


async def send_request(writer: asyncio.StreamWriter, payload: bytes) -> None:
    """Write one request.

    Raises:
        TransportError: over MAX_REQUEST_BYTES, or the stream broke.
    """
    check_size("request", len(payload), MAX_REQUEST_BYTES)
    with stream_errors():
        writer.write(_LENGTH.pack(len(payload)))
        await _write(writer, payload)


async def read_request(reader: asyncio.StreamReader, limit: int = MAX_REQUEST_BYTES) -> bytes:
    """Read one request of at most `limit` bytes.

    Raises:
        TransportError: over the limit, or the stream ended early or broke.
    """
    with stream_errors():
        (length,) = _LENGTH.unpack(await reader.readexactly(_LENGTH.size))
        check_size("request", length, limit)
        payload, _ = await _read(reader, length)
        return payload


async def send_reply(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, reply: Reply
) -> None:
    """Write one reply and wait until its reader has checked it or closed the stream.

    Raises:
        TransportError: the stream broke.
    """
    with stream_errors():
        writer.write(bytes([_REFUSED if reply.is_refusal else _DONE]))
        writer.write(_LENGTH.pack(len(reply.payload)))
        digest = await _write(writer, reply.payload)
        writer.write(digest)
        await writer.drain()
        await reader.read(len(ACK))


async def read_reply(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, limit: int = MAX_REPLY_BYTES
) -> bytes:
    """Read and acknowledge one reply of at most `limit` bytes.

    Raises:
        TransportError: refused by the peer, over the limit, damaged, or the stream ended early.
    """
    with stream_errors():
        status, length = await read_head(reader, limit)
        payload, digest = await _read(reader, length)
        if await reader.readexactly(DIGEST_BYTES) != digest:
            raise TransportError("a reply arrived damaged", "ask again or ask another peer")
        writer.write(ACK)
        await writer.drain()
    return Reply(payload, is_refusal=status == _REFUSED).unwrap(limit)


async def read_head(reader: asyncio.StreamReader, limit: int) -> tuple[int, int]:
    """Read the status and the length of a reply of at most `limit` bytes.

    Raises:
        TransportError: over the limit, or the stream ended early or broke.
    """
    with stream_errors():
        status, length = HEAD.unpack(await reader.readexactly(HEAD.size))
    if status not in (_DONE, _REFUSED):
        raise TransportError("the peer does not speak this version of the protocol")
    check_size("reply", length, limit if status == _DONE else MAX_REASON_BYTES)
    return status, length


async def _write(writer: asyncio.StreamWriter, payload: bytes) -> bytes:
    """Write in chunks, so that a slow reader holds one chunk of buffer; returns the sha256."""
    digest = hashlib.sha256()
    view = memoryview(payload)
    for start in range(0, len(view), CHUNK_BYTES):
        chunk = view[start : start + CHUNK_BYTES]
        digest.update(chunk)
        writer.write(chunk)
        await writer.drain()
    await writer.drain()
    return digest.digest()


async def _read(reader: asyncio.StreamReader, length: int) -> tuple[bytes, bytes]:
    """Read exactly `length` bytes; returns them and their sha256."""
    digest = hashlib.sha256()
    payload = bytearray()
    while len(payload) < length:
        chunk = await reader.read(min(CHUNK_BYTES, length - len(payload)))
        if not chunk:
            raise asyncio.IncompleteReadError(bytes(payload[:0]), length)
        digest.update(chunk)
        payload += chunk
    return bytes(payload), digest.digest()


@contextlib.contextmanager
def stream_errors() -> Generator[None]:
    """Turn the ends and errors of streams into TransportError."""
    try:
        yield
    except asyncio.IncompleteReadError as error:
        raise TransportError("the stream ended before the message did") from error
    except TimeoutError as error:
        raise TransportError("the stream stalled") from error
    except OSError as error:
        raise TransportError(f"the stream broke: {reason_of(error)}") from error
