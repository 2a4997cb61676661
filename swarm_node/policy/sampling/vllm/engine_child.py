"""A supervised child process that interleaves requests and answers each one when it is done.

`process.Child` answers one request at a time, in order, which suits a trainer. An inference engine
batches running requests, so its replies come in any order, and each frame carries the number of its
request. The child leads a process group, and the whole group is killed together, because engines
start helper processes.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
import sys
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import Any

from swarm_node.errors import ChildError, SwarmNodeError
from swarm_node.process import LENGTH, MAX_FRAME_BYTES, die_with_parent, frame, unframe

Reply = dict[str, Any]


class EngineChild:
    """The parent's end. Like `Child`, it never restarts by itself."""

    def __init__(self, name: str, module: str) -> None:
        self.name = name
        self._module = module
        self._wire: _Wire | None = None
        self._numbers = itertools.count(1)

    @property
    def pid(self) -> int | None:
        """The child's process id; None when it is not running."""
        return self._wire.pid if self._wire is not None and self._wire.open else None

    async def start(self, env: Mapping[str, str]) -> None:
        """Start the process with `env` over this one's; a living one is killed first."""
        await self.kill()
        _, wire = await asyncio.get_running_loop().subprocess_exec(
            lambda: _Wire(self.name),
            sys.executable,
            "-m",
            self._module,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=None,
            env={**os.environ, **env},
            start_new_session=True,
        )
        wire.open_pipes()
        self._wire = wire

    async def call(
        self, request: Mapping[str, Any], *, patience: float, cut: asyncio.Event | None = None
    ) -> Reply:
        """Send one request and wait for its reply. When it is cancelled, the child is told to drop
        it; when `cut` is set, to answer with what it has ("abort"). In both cases it lives on.

        Raises:
            ChildError: dead, killed because it was silent for `patience` seconds, or it answered
                with an error (then it lives).
        """
        wire = self._wire
        if wire is None or not wire.open:
            raise ChildError(f"the {self.name} process is not running")
        number = next(self._numbers)
        answer = wire.send(number, request)
        try:
            async with asyncio.timeout(patience):
                if cut is not None and await _cut_short(answer, cut):
                    wire.tell({"id": 0, "op": "abort", "target": number})
                reply = await answer
        except TimeoutError:
            await self.kill()
            raise ChildError(f"the {self.name} process did not answer in {patience:g} s") from None
        finally:
            wire.forget(number)
        if "error" in reply:
            raise ChildError(f"{self.name}: {reply['error']}")
        return reply

    async def kill(self) -> None:
        """End the process and all that it started, whatever state they are in."""
        wire, self._wire = self._wire, None
        if wire is not None:
            await wire.kill()


async def _cut_short(answer: asyncio.Future[Reply], cut: asyncio.Event) -> bool:
    """Wait for either; whether `cut` came first."""
    waiting = asyncio.ensure_future(cut.wait())
    either: set[asyncio.Future[Any]] = {answer, waiting}
    try:
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        return not answer.done()
    finally:
        waiting.cancel()


class _Wire(asyncio.SubprocessProtocol):
    """One life of the child: its pipes, and the calls that wait for a reply."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.open = True
        self.pid = 0
        self._transport: asyncio.SubprocessTransport | None = None
        self._stdin: asyncio.WriteTransport | None = None
        self._waiting: dict[int, asyncio.Future[Reply]] = {}
        self._buffer = bytearray()
        self._ended = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.SubprocessTransport)
        self._transport, self.pid = transport, transport.get_pid()

    def open_pipes(self) -> None:
        assert self._transport is not None
        stdin = self._transport.get_pipe_transport(0)
        assert isinstance(stdin, asyncio.WriteTransport)
        self._stdin = stdin

    def send(self, number: int, request: Mapping[str, Any]) -> asyncio.Future[Reply]:
        answer: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        self._waiting[number] = answer
        self.tell({"id": number, **request})
        return answer

    def forget(self, number: int) -> None:
        """Drop a call; the child is told when it is still at it."""
        if self._waiting.pop(number, None) is not None and self.open:
            self.tell({"id": number, "op": "drop"})

    def tell(self, message: Mapping[str, Any]) -> None:
        assert self._stdin is not None
        self._stdin.write(frame(message))

    async def kill(self) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        await self._ended
        if self._transport is not None:
            self._transport.close()

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        self._buffer += data
        while len(self._buffer) >= LENGTH.size:
            (length,) = LENGTH.unpack_from(self._buffer)
            if length > MAX_FRAME_BYTES:
                self._lost("it broke the protocol")
                return
            end = LENGTH.size + length
            if len(self._buffer) < end:
                return
            body = bytes(self._buffer[LENGTH.size : end])
            del self._buffer[:end]
            self._deliver(body)

    def _deliver(self, body: bytes) -> None:
        try:
            reply = unframe(body)
        except ValueError:
            self._lost("it broke the protocol")
            return
        answer = self._waiting.pop(reply.get("id", 0), None)
        if answer is not None and not answer.done():
            answer.set_result(reply)

    def process_exited(self) -> None:
        code = self._transport.get_returncode() if self._transport is not None else None
        how = "exit code unknown" if code is None else f"exit code {code}"
        if code is not None and code < 0:
            how = f"signal {signal.Signals(-code).name}"
        self._lost(how)
        # Its helpers must not live on with the memory of the engine.
        with suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        if not self._ended.done():
            self._ended.set_result(None)

    def _lost(self, how: str) -> None:
        self.open = False
        error = ChildError(f"the {self.name} process died ({how})")
        for answer in self._waiting.values():
            if not answer.done():
                answer.set_exception(error)
        self._waiting.clear()


class EngineServer:
    """The child's end: every request is a task of one group; "drop" cancels that of its number.

    An error of ours (`SwarmNodeError`, `ValueError`) is reported; anything else is a bug or a dead
    engine and ends the process with a traceback on stderr.
    """

    def __init__(self, handle: Callable[[Reply], Awaitable[Reply]]) -> None:
        self._handle = handle
        self._tasks = asyncio.TaskGroup()
        self._running: dict[int, asyncio.Task[None]] = {}

    async def serve(self, requests: int, replies: int) -> None:
        """Answer on file descriptors until the parent closes `requests`."""
        die_with_parent()
        loop = asyncio.get_running_loop()
        reader = asyncio.StreamReader()
        await loop.connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(requests, "rb")
        )
        async with self._tasks:
            while True:
                try:
                    (length,) = LENGTH.unpack(await reader.readexactly(LENGTH.size))
                    request = unframe(await reader.readexactly(length))
                except asyncio.IncompleteReadError:
                    break
                self._begin(request, replies)
            for task in self._running.values():
                task.cancel()

    def _begin(self, request: Reply, replies: int) -> None:
        number = request["id"]
        if request.get("op") == "drop":
            if number in self._running:
                self._running[number].cancel()
            return
        task = self._tasks.create_task(self._answer(number, request, replies))
        self._running[number] = task
        task.add_done_callback(lambda _: self._running.pop(number, None))

    async def _answer(self, number: int, request: Reply, replies: int) -> None:
        try:
            reply = await self._handle(request)
        except (SwarmNodeError, ValueError) as error:
            reply = {"error": f"{type(error).__name__}: {error}"}
        # A blocking write keeps frames whole; the parent reads at once.
        view = memoryview(frame({**reply, "id": number}))
        while view:
            view = view[os.write(replies, view) :]
