"""The parent's end: start a child, ask it, end it with everything it started."""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext, suppress
from typing import Any, TypeVar

import msgspec

from swarm_node.errors import ChildError
from swarm_node.process.frames import (
    HEAD,
    MAX_BODY_BYTES,
    Cut,
    Drop,
    Failed,
    make_frame,
    read_head,
    take_frame,
)
from swarm_node.process.leader import child_command, kill_group

#: A child that dies closes its pipe a moment before or after its exit code is known.
_LAST_SECONDS = 1.0
_BROKE = "it broke the protocol"
_CUT, _DROP = msgspec.msgpack.encode(Cut()), msgspec.msgpack.encode(Drop())
_Reply = TypeVar("_Reply", bound=msgspec.Struct)


class ReportedError(ChildError):
    """The child answered that the request raised an exception, of the type `kind` with the message
    `reason`. It lives on."""

    def __init__(self, name: str, failure: Failed) -> None:
        super().__init__(f"{name}: {failure.kind}: {failure.reason}")
        self.kind, self.reason = failure.kind, failure.reason


class Child:
    """A child process, and the group of processes that it leads. It is never restarted from here:
    only the caller knows which state the new process must be given."""

    def __init__(
        self,
        name: str,
        module: str,
        replies: Any,
        *,
        concurrent: bool = False,
        launch: Callable[[], Sequence[str]] | None = None,
        env: Mapping[str, str] | None = None,
        inherit: Callable[[str], bool] = lambda variable: True,
    ) -> None:
        """`replies` is the union of the types that the module replies with. A child that serves
        requests in order gets one at a time, a `concurrent` one all at once.

        `launch` returns, at each start, the interpreter's arguments in place of `-m module`: those
        of a launcher that passes standard input and output on to the module. The child gets `env`,
        and those of this process's environment variables that `inherit` accepts."""
        self.name = name
        self._launch = launch or (lambda: ("-m", module))
        self._decoder = msgspec.msgpack.Decoder(replies | Failed)
        self._turn = None if concurrent else asyncio.Lock()
        self._env = dict(env or {})
        self._inherit = inherit
        self._wire: _Wire | None = None
        self._numbers = itertools.count(1)

    @property
    def alive(self) -> bool:
        return self._wire is not None and self._wire.open

    @property
    def pid(self) -> int | None:
        """The child's process id, which is its group's too; None when it is not running."""
        return self._wire.pid if self._wire is not None and self._wire.open else None

    async def start(
        self,
        *arguments: str,
        env: Mapping[str, str] | None = None,
        descriptors: Sequence[int] = (),
    ) -> None:
        """Start the process with these arguments and additional variables. It gets the open file
        `descriptors` under the same numbers. A running process is killed first."""
        await self.stop(grace=0.0)
        base_env = {name: text for name, text in os.environ.items() if self._inherit(name)}
        _, self._wire = await asyncio.get_running_loop().subprocess_exec(
            lambda: _Wire(self.name),
            *child_command(*self._launch(), *arguments),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=None,
            env={**base_env, **self._env, **(env or {})},
            pass_fds=descriptors,
            start_new_session=True,  # a Ctrl-C in the terminal is for the node, which stops us
        )

    async def call(
        self,
        request: msgspec.Struct,
        reply_type: type[_Reply],
        *,
        patience: float | None,
        stop_event: asyncio.Event | None = None,
    ) -> _Reply:
        """Send one request and wait for its reply, which must be of the type `reply_type`. Once
        `stop_event` is set, a concurrent child is told to answer with what it has. A `patience` of
        None never ends.

        When the call is cancelled, a concurrent child is told to drop the request. A child that
        serves in order is killed: it would go on with work that nobody waits for.

        Raises:
            ReportedError: it answered with an error, and lives on.
            ChildError: it is dead; or it was killed because it was silent for `patience` seconds or
                broke the protocol.
        """
        async with self._turn or nullcontext():
            wire = self._wire
            if wire is None or not wire.open:
                raise ChildError(f"the {self.name} process is not running")
            body = await self._exchange(wire, msgspec.msgpack.encode(request), patience, stop_event)
            try:
                reply = self._decoder.decode(body)
                if not isinstance(reply, reply_type | Failed):
                    raise ValueError(f"not a reply to {type(request).__name__}")
            except ValueError as error:
                await wire.kill()
                raise ChildError(f"the {self.name} process died ({_BROKE}: {error})") from error
        if isinstance(reply, Failed):
            raise ReportedError(self.name, reply)
        return reply

    async def stop(self, grace: float = 3.0) -> None:
        """Close its input and wait up to `grace` seconds. Then kill what is left of its group."""
        wire, self._wire = self._wire, None
        if wire is not None:
            await wire.finish(grace)

    async def _exchange(
        self, wire: _Wire, body: bytes, patience: float | None, stop_event: asyncio.Event | None
    ) -> bytes:
        number = next(self._numbers)
        answer = wire.ask(number, body)
        try:
            async with asyncio.timeout(patience):
                if stop_event is not None and await _cut_first(answer, stop_event):
                    wire.send(number, _CUT)
                return await answer
        except TimeoutError:
            await wire.kill()
            message = f"the {self.name} process did not answer in {patience or 0.0:g} s"
            raise ChildError(message) from None
        except asyncio.CancelledError:
            if self._turn is not None:
                await wire.kill()
            raise
        finally:
            if wire.forget(number):
                wire.send(number, _DROP)


async def _cut_first(answer: asyncio.Future[bytes], stop_event: asyncio.Event) -> bool:
    """Wait for `answer` or for `stop_event`. Return True if `stop_event` came first."""
    async with asyncio.TaskGroup() as group:
        waiting = group.create_task(stop_event.wait())
        answer.add_done_callback(lambda _: waiting.cancel())
    return not answer.done()


class _Wire(asyncio.SubprocessProtocol):
    """One life of a child: its pipes, and the calls that wait for a reply."""

    def __init__(self, name: str) -> None:
        self.name = name
        #: True while it takes requests.
        self.open = True
        self.pid = 0
        self._transport: asyncio.SubprocessTransport | None = None
        self._waiting: dict[int, asyncio.Future[bytes]] = {}
        self._buffer = bytearray()
        self._exited = asyncio.Event()
        self._endings = 0

    def ask(self, number: int, body: bytes) -> asyncio.Future[bytes]:
        """Send a request; the body of its reply will be the result."""
        self.send(number, body)
        answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._waiting[number] = answer
        return answer

    def forget(self, number: int) -> bool:
        """Stop waiting for a reply. True if the child may still be at work on it."""
        return self._waiting.pop(number, None) is not None and self.open

    def send(self, number: int, body: bytes) -> None:
        """
        Raises:
            ChildError: the body is too large.
        """
        try:
            frame = make_frame(number, body)
        except ValueError as error:
            raise ChildError(f"the {self.name} process cannot be asked: {error}") from error
        self._input.write(frame)

    async def finish(self, grace: float) -> None:
        self._input.close()
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(grace):
                    await self._exited.wait()
        finally:
            await self.kill()

    async def kill(self) -> None:
        """End the process and its descendants, whatever state they are in."""
        self._kill_group()
        await self._exited.wait()
        assert self._transport is not None
        self._transport.close()

    # What asyncio calls:

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.SubprocessTransport)
        self._transport, self.pid = transport, transport.get_pid()

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        self._buffer += data
        try:
            while (frame := take_frame(self._buffer)) is not None:
                number, body = frame
                answer = self._waiting.pop(number, None)
                if answer is not None and not answer.done():
                    answer.set_result(body)
        except ValueError:
            self._fail(_BROKE)

    def pipe_connection_lost(self, fd: int, exc: Exception | None) -> None:
        if fd == 1:
            self._end_begins()

    def process_exited(self) -> None:
        self.open = False
        self._kill_group()  # its helpers must not live on with the memory of the GPU
        self._exited.set()
        self._end_begins()

    def _end_begins(self) -> None:
        """Note one of two ends: the last reply, or the exit. The other may come after it, so calls
        fail after the second end, or after _LAST_SECONDS."""
        self._endings += 1
        if self._endings == 2:
            self._fail()
        else:
            asyncio.get_running_loop().call_later(_LAST_SECONDS, self._fail)

    def _fail(self, reason: str = "") -> None:
        """Fail every call that still waits: nothing more can come."""
        self.open = False
        self._kill_group()
        assert self._transport is not None
        code = self._transport.get_returncode()
        reason = reason or (_BROKE if code is None else ended_by(code))
        error = ChildError(f"the {self.name} process died ({reason})")
        for answer in self._waiting.values():
            if not answer.done():
                answer.set_exception(error)
        self._waiting.clear()

    def _kill_group(self) -> None:
        if not self._exited.is_set():  # afterwards the number may be another group's
            # macOS gives the second for a group in which all have ended.
            with suppress(ProcessLookupError, PermissionError):
                kill_group(self.pid)

    @property
    def _input(self) -> asyncio.WriteTransport:
        assert self._transport is not None
        pipe = self._transport.get_pipe_transport(0)
        assert isinstance(pipe, asyncio.WriteTransport)
        return pipe


async def exchange(
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    number: int,
    body: bytes,
    max_bytes: int = MAX_BODY_BYTES,
) -> bytes:
    """Send one frame and read its reply, whose body may have `max_bytes`.

    Raises:
        asyncio.IncompleteReadError, ConnectionError: the other end is gone.
        ValueError: the body is too large, or what came is; or that has another number.
    """
    writer.write(make_frame(number, body))
    await writer.drain()
    length, reply_number = read_head(await reader.readexactly(HEAD.size), max_bytes)
    if reply_number != number:
        raise ValueError("the reply has another number than the request")
    return await reader.readexactly(length)


def ended_by(code: int) -> str:
    """Describe the end of a process from its `returncode`."""
    if code >= 0:
        return f"exit code {code}"
    try:
        return f"signal {signal.Signals(-code).name}"
    except ValueError:  # a realtime signal has a number only
        return f"signal {-code}"
