"""A TCP proxy that does to connections what bad networks do. It needs no root.

`sites/bed.py` cuts links and forgets mappings; this is for what needs a middle man: latency, a slow
line, connections that die, and connections that are open and silent.
"""

from __future__ import annotations

import asyncio
import math
import random
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

_CHUNK = 65536
#: Chunks of one direction that are under way at once: 4 MiB.
_UNDER_WAY = 64


@dataclass
class Faults:
    """What a proxy does to the bytes through it. It may be changed at any time, by any thread.

    `latency`: seconds that a byte is under way, in each direction.
    `rate`: bytes a second of one connection in one direction.
    `drop`: share of new connections that are reset as soon as they are accepted.
    """

    latency: float = 0.0
    rate: float = math.inf
    drop: float = 0.0


class FaultProxy:
    """Forwards what connects to its listener to `target`, through sockets that `opener` makes.

    `opener` may be `lambda: bed.socket_in("pub2")`. `seed` decides which connections are dropped.
    """

    def __init__(
        self,
        target: tuple[str, int],
        faults: Faults | None = None,
        opener: Callable[[], socket.socket] = socket.socket,
        seed: int = 0,
    ) -> None:
        self.faults = faults or Faults()
        self._target = target
        self._opener = opener
        self._chance = random.Random(seed)
        self._live: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._held = False
        self._mended = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None

    async def serve(self, listener: socket.socket) -> asyncio.Server:
        """Begins to forward what connects to this bound socket. The caller closes the server."""
        self._loop = asyncio.get_running_loop()
        return await asyncio.start_server(self._begin, sock=listener, limit=_CHUNK)

    async def close(self) -> None:
        """Ends every connection."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def half_open(self) -> None:
        """From now on neither bytes nor ends of connections are forwarded, and nobody is told. New
        connections are accepted, and are as silent."""
        self._held = True

    def mend(self) -> None:
        """Forwards again, at first what was held back."""
        self._held = False
        self._soon(self._mended.set)

    def reset(self) -> None:
        """Resets both ends of every connection of now."""
        self._soon(self._reset)

    def _soon(self, what: Callable[[], None]) -> None:
        if self._loop is None:
            raise RuntimeError("the proxy does not serve yet")
        self._loop.call_soon_threadsafe(what)

    def _reset(self) -> None:
        for writer in self._live:
            _abort(writer)

    def _begin(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.get_running_loop().create_task(self._forward(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._chance.random() < self.faults.drop:
            _abort(writer)
            return
        ends = [writer]
        outward = self._opener()
        outward.setblocking(False)
        try:
            await asyncio.get_running_loop().sock_connect(outward, self._target)
            far_reader, far_writer = await asyncio.open_connection(sock=outward, limit=_CHUNK)
            ends.append(far_writer)
            self._live |= set(ends)
            async with asyncio.TaskGroup() as tasks:
                for source, sink in ((reader, far_writer), (far_reader, writer)):
                    queue: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(_UNDER_WAY)
                    tasks.create_task(self._take(source, queue))
                    tasks.create_task(self._give(queue, sink))
        except (OSError, ExceptionGroup):
            for end in ends:  # a reset of one end is one of the other
                _abort(end)
        finally:
            self._live -= set(ends)
            for end in ends:
                end.close()
            if len(ends) == 1:
                outward.close()

    async def _take(
        self, source: asyncio.StreamReader, queue: asyncio.Queue[tuple[float, bytes]]
    ) -> None:
        """Reads what comes, with the time at which it arrives; no bytes are the end."""
        clock = asyncio.get_running_loop().time
        data = b"-"
        while data:
            # No chunk takes a slow line for more than a twentieth of a second.
            data = await source.read(int(min(_CHUNK, max(1, self.faults.rate / 20))))
            await queue.put((clock() + self.faults.latency, data))

    async def _give(
        self, queue: asyncio.Queue[tuple[float, bytes]], sink: asyncio.StreamWriter
    ) -> None:
        """Writes what has arrived, no faster than the line."""
        clock = asyncio.get_running_loop().time
        free = clock()
        while True:
            due, data = await queue.get()
            free = max(free, clock()) + len(data) / self.faults.rate
            await asyncio.sleep(max(due, free) - clock())
            while self._held:
                self._mended.clear()
                await self._mended.wait()
            if not data:
                sink.write_eof()
                return
            sink.write(data)
            await sink.drain()


@contextmanager
def proxied(proxy: FaultProxy, listener: socket.socket) -> Iterator[FaultProxy]:
    """The proxy serves in a thread meanwhile: for tests that wait for other things."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        server = asyncio.run_coroutine_threadsafe(proxy.serve(listener), loop).result()
        try:
            yield proxy
        finally:
            loop.call_soon_threadsafe(server.close)
            asyncio.run_coroutine_threadsafe(proxy.close(), loop).result()
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


def _abort(writer: asyncio.StreamWriter) -> None:
    """Ends a connection with a reset."""
    connection = writer.get_extra_info("socket")
    if connection is not None and connection.fileno() != -1:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()
