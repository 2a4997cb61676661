"""A supervised child process that answers framed MessagePack requests over its pipes.

The trainer and the environments live in such children: a CUDA error, an out-of-memory kill or a
scorer that never returns costs a restart of the child, never the node. Frames are a 4-byte
big-endian length and a MessagePack map; the child's own prints go to stderr, so that no library can
damage the stream. Calls are answered one at a time, in order.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import signal
import struct
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, BinaryIO

import msgpack

from swarm_node.errors import ChildError, SwarmNodeError

MAX_FRAME_BYTES = 1 << 30
LENGTH = struct.Struct(">I")
_PR_SET_PDEATHSIG = 1


class Child:
    """The parent's end: start, call, stop. Restarting is the caller's decision, because only the
    caller knows what state the new child must be given."""

    def __init__(
        self,
        name: str,
        module: str,
        *,
        env: Mapping[str, str] | None = None,
        launch: Callable[[], Sequence[str]] | None = None,
        inherit: Callable[[str], bool] = lambda variable: True,
    ) -> None:
        """`launch` gives, at each start, what the interpreter runs instead of `module` by itself: a
        launcher of it that passes on standard input and output. Of this process's environment
        variables the child gets those that `inherit` takes, besides `env`."""
        self.name = name
        self._launch = launch or (lambda: ("-m", module))
        self._env = dict(env or {})
        self._inherit = inherit
        self._process: asyncio.subprocess.Process | None = None
        self._lock = asyncio.Lock()

    @property
    def pid(self) -> int | None:
        return self._process.pid if self.alive and self._process else None

    @property
    def alive(self) -> bool:
        return self._process is not None and self._process.returncode is None

    async def start(self, *arguments: str, descriptors: Sequence[int] = ()) -> None:
        """Start the process with these arguments and, under the same numbers, file descriptors; a
        living one is stopped first."""
        await self.stop(grace=0.0)
        variables = {name: text for name, text in os.environ.items() if self._inherit(name)}
        self._process = await asyncio.create_subprocess_exec(
            sys.executable,
            *self._launch(),
            *arguments,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            env={**variables, **self._env},
            pass_fds=descriptors,
            start_new_session=True,  # a Ctrl-C in the terminal is for the node, which stops us
        )

    async def call(self, request: Mapping[str, Any], *, patience: float) -> dict[str, Any]:
        """Send one request, return its reply.

        A child that does not answer within `patience` seconds is killed: its state is unknown.

        Raises:
            ChildError: dead, killed for its silence, or it answered with an error (then it lives).
        """
        async with self._lock:
            process = self._process
            if process is None or process.returncode is not None:
                raise ChildError(f"the {self.name} process is not running")
            assert process.stdin is not None
            assert process.stdout is not None
            answered = False
            try:
                async with asyncio.timeout(patience):
                    body = msgpack.packb(request)
                    reply = unframe(await exchange(process.stdout, process.stdin, body))
                answered = True
            except TimeoutError:
                raise ChildError(
                    f"the {self.name} process did not answer in {patience:g} s"
                ) from None
            except (asyncio.IncompleteReadError, ConnectionError, ValueError) as error:
                how = await _died_of(process)
                raise ChildError(f"the {self.name} process died ({how})") from error
            finally:
                if not answered:  # also when cancelled: half a reply may be in the pipe
                    await self._kill(process)
        if "error" in reply:
            raise ChildError(f"{self.name}: {reply['error']}")
        return reply

    async def stop(self, grace: float = 3.0) -> None:
        """Close its input, wait up to `grace` seconds, then kill it."""
        process, self._process = self._process, None
        if process is None:
            return
        assert process.stdin is not None
        process.stdin.close()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(grace):
                await process.wait()
        await self._kill(process)

    @staticmethod
    async def _kill(process: asyncio.subprocess.Process) -> None:
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()


async def exchange(
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    body: bytes,
    most: int = MAX_FRAME_BYTES,
) -> bytes:
    """Send one frame with this body; the body of the reply, of `most` bytes.

    Raises:
        asyncio.IncompleteReadError, ConnectionError: the other end is gone.
        ValueError: the body is too large, or what came is.
    """
    writer.write(_framed(body))
    await writer.drain()
    (length,) = LENGTH.unpack(await reader.readexactly(LENGTH.size))
    if length > most:
        raise ValueError(f"a frame of {length} bytes is over the limit of {most}")
    return await reader.readexactly(length)


def serve(handle: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    """The child's end: answer requests until the parent closes the pipe or dies.

    An error of ours (`SwarmNodeError`, `ValueError`) is reported and the child lives on; anything
    else is a bug and ends the process with a traceback on stderr.
    """

    def answer(body: bytes) -> bytes:
        try:
            reply = handle(unframe(body))
        except (SwarmNodeError, ValueError) as error:
            reply = {"error": f"{type(error).__name__}: {error}"}
        packed: bytes = msgpack.packb(reply)
        return packed

    serve_frames(answer)


def serve_frames(
    answer: Callable[[bytes], bytes], ready: Callable[[], None] = lambda: None
) -> None:
    """Answer the body of each frame by that of another, until the parent closes the pipe or dies.
    `ready` is called once, with the pipes in place and before the first request is read."""
    die_with_parent()
    requests = os.fdopen(os.dup(0), "rb")
    replies = os.fdopen(os.dup(1), "wb")
    with open(os.devnull, "rb") as nothing:
        os.dup2(nothing.fileno(), 0)  # a library that reads its input must not take a request
    os.dup2(2, 1)
    ready()
    while True:
        body = _read_frame_sync(requests)
        if body is None:
            return
        replies.write(_framed(answer(body)))
        replies.flush()


def die_with_parent() -> None:
    """Let the system kill this process when the one that started it is gone; ignore Ctrl-C."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def frame(message: Mapping[str, Any]) -> bytes:
    """The bytes of one message on a pipe.

    Raises:
        ValueError: over MAX_FRAME_BYTES.
    """
    return _framed(msgpack.packb(message))


def _framed(body: bytes) -> bytes:
    if len(body) > MAX_FRAME_BYTES:
        raise ValueError(f"a frame of {len(body)} bytes is over the limit of {MAX_FRAME_BYTES}")
    return LENGTH.pack(len(body)) + body


def unframe(body: bytes) -> dict[str, Any]:
    """The message of a frame's body.

    Raises:
        ValueError: not MessagePack, or not a map.
    """
    message = msgpack.unpackb(body)  # bounded by the length of the frame
    if not isinstance(message, dict):
        raise ValueError("a frame must hold a map")
    return message


def _read_frame_sync(stream: BinaryIO) -> bytes | None:
    head = stream.read(LENGTH.size)
    if len(head) < LENGTH.size:
        return None
    (length,) = LENGTH.unpack(head)
    body = stream.read(length)
    return body if len(body) == length else None


async def _died_of(process: asyncio.subprocess.Process) -> str:
    try:
        async with asyncio.timeout(1.0):  # the pipe closes a moment before the exit is known
            code = await process.wait()
    except TimeoutError:
        return "it broke the protocol"
    return ended_by(code)


def ended_by(code: int) -> str:
    """How a process ended, from its `returncode`."""
    if code >= 0:
        return f"exit code {code}"
    try:
        return f"signal {signal.Signals(-code).name}"
    except ValueError:  # a realtime signal has a number only
        return f"signal {-code}"
