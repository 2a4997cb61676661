"""Server-sent events: a node's news for a page while it is open."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

import msgspec
from aiohttp import web

#: A page shows what is at most this old.
PERIOD: Final = 2.0
MOST_STREAMS: Final = 16


class Events:
    """Sends what `tell` returns to every open page, as JSON. `tell` takes the position of the page,
    None at first, and returns the next position as its second value."""

    def __init__(self, tell: Callable[[float | None], tuple[object, float]]) -> None:
        self._tell = tell
        self._open: set[asyncio.Event] = set()

    async def serve(self, request: web.Request) -> web.StreamResponse:
        """Send events until the page is closed or the server ends.

        Raises:
            HTTPTooManyRequests: too many pages are open.
        """
        if len(self._open) >= MOST_STREAMS:
            raise web.HTTPTooManyRequests(text="too many pages are open: close one")
        stop = asyncio.Event()
        self._open.add(stop)
        try:
            return await self._send(request, stop)
        finally:
            self._open.discard(stop)

    def end(self) -> None:
        """End all streams: a server waits for its requests when it closes."""
        for stop in self._open:
            stop.set()

    async def _send(self, request: web.Request, stop: asyncio.Event) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Cache-Control": "no-store"})
        response.content_type = "text/event-stream"
        await response.prepare(request)
        position: float | None = None
        while not stop.is_set():
            news, position = self._tell(position)
            try:
                await response.write(b"data: " + msgspec.json.encode(news) + b"\n\n")
            except ConnectionError:
                break  # the page was closed
            try:
                async with asyncio.timeout(PERIOD):
                    await stop.wait()
            except TimeoutError:
                continue
        return response
