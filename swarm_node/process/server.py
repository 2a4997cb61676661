"""The child's end: read requests, answer them, until the parent closes the pipe.

The parent's pipes leave standard input and output as soon as a server starts. What libraries print
then goes to stderr, and cannot damage the stream.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import msgspec

from swarm_node.errors import SwarmNodeError
from swarm_node.process.frames import HEAD, Cut, Drop, Failed, make_frame, read_head

_Request = TypeVar("_Request")


def answering(
    handle: Callable[[_Request], msgspec.Struct], requests: Any
) -> Callable[[bytes], bytes]:
    """A function from a request's body to its reply's body. `requests` is the union of the
    requests' types.

    An error of ours (`SwarmNodeError`, `ValueError`) becomes the reply `Failed`. Any other error is
    a bug, and ends the process with a traceback on stderr.
    """
    decoder = msgspec.msgpack.Decoder(requests)

    def answer(body: bytes) -> bytes:
        reply: msgspec.Struct
        try:
            reply = handle(decoder.decode(body))
        except (SwarmNodeError, ValueError) as error:
            reply = _failure(error)
        return msgspec.msgpack.encode(reply)

    return answer


def serve(handle: Callable[[_Request], msgspec.Struct], requests: Any) -> None:
    """Answer requests one at a time, in order; see `answering`."""
    serve_frames(answering(handle, requests))


def serve_frames(
    answer: Callable[[bytes], bytes], on_ready: Callable[[], None] = lambda: None
) -> None:
    """Answer the body of each frame by the body of another. `on_ready` is called once, when the
    pipes are in place and before the first request is read."""
    descriptors = _take_pipes()
    requests, replies = os.fdopen(descriptors[0], "rb"), os.fdopen(descriptors[1], "wb")
    on_ready()
    while True:
        head = requests.read(HEAD.size)
        if len(head) < HEAD.size:
            return
        length, number = read_head(head)
        body = requests.read(length)
        if len(body) < length:
            return
        replies.write(make_frame(number, answer(body)))
        replies.flush()


async def serve_concurrently(
    handle: Callable[[_Request, asyncio.Event], Awaitable[msgspec.Struct]], requests: Any
) -> None:
    """Answer each request when it is done. `handle` is given the request and an event: when that is
    set, it should answer with what it has. It is cancelled when nobody waits for its answer.

    Errors are treated as by `answering`.
    """
    await _Concurrent(handle, requests).serve(*_take_pipes())


class _Concurrent:
    """Serves requests at once, each in a task of one group."""

    def __init__(
        self,
        handle: Callable[[_Request, asyncio.Event], Awaitable[msgspec.Struct]],
        requests: Any,
    ) -> None:
        self._handle = handle
        self._decoder = msgspec.msgpack.Decoder(requests | Cut | Drop)
        self._tasks = asyncio.TaskGroup()
        self._running_tasks: dict[int, tuple[asyncio.Task[None], asyncio.Event]] = {}

    async def serve(self, requests: int, replies: int) -> None:
        reader = asyncio.StreamReader()
        await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(requests, "rb")
        )
        async with self._tasks:
            while True:
                try:
                    length, number = read_head(await reader.readexactly(HEAD.size))
                    body = await reader.readexactly(length)
                except asyncio.IncompleteReadError:
                    break
                self._take(number, body, replies)
            for task, _ in self._running_tasks.values():
                task.cancel()

    def _take(self, number: int, body: bytes, replies: int) -> None:
        try:
            request = self._decoder.decode(body)
        except ValueError as error:
            _write(replies, number, _failure(error))
            return
        task, stop_event = self._running_tasks.get(number, (None, None))
        match request:
            case Cut():
                if stop_event is not None:
                    stop_event.set()
            case Drop():
                if task is not None:
                    task.cancel()
            case _:
                stop_event = asyncio.Event()
                task = self._tasks.create_task(self._answer(number, request, stop_event, replies))
                self._running_tasks[number] = task, stop_event
                task.add_done_callback(lambda _: self._running_tasks.pop(number, None))

    async def _answer(
        self, number: int, request: Any, stop_event: asyncio.Event, replies: int
    ) -> None:
        reply: msgspec.Struct
        try:
            reply = await self._handle(request, stop_event)
        except (SwarmNodeError, ValueError) as error:
            reply = _failure(error)
        _write(replies, number, reply)


def _take_pipes() -> tuple[int, int]:
    """Descriptors of the requests and of the replies, taken from standard input and output."""
    requests, replies = os.dup(0), os.dup(1)
    with open(os.devnull, "rb") as null_file:
        os.dup2(null_file.fileno(), 0)  # a library that reads its input must not take a request
    os.dup2(2, 1)
    return requests, replies


def _write(replies: int, number: int, reply: msgspec.Struct) -> None:
    """Write one frame. It blocks, which keeps frames whole; the parent reads at once."""
    view = memoryview(make_frame(number, msgspec.msgpack.encode(reply)))
    while view:
        view = view[os.write(replies, view) :]


def _failure(error: Exception) -> Failed:
    return Failed(type(error).__name__, str(error))
