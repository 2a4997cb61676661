"""Listening for HTTP, with limits on connections and their time. One address gets a part of the
connections, so that neither another user of this machine nor a host elsewhere takes all files that
a process may open."""

from __future__ import annotations

import asyncio
import functools
import logging
from contextlib import suppress
from typing import Final

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from swarm_node.errors import MachineError
from swarm_node.p2p.addresses.internet import site

#: Connections at once: in all, and of one address.
MAX_CONNECTIONS: Final = 1024
MAX_OF_ADDRESS: Final = 64
#: For a request's head.
HEAD_SECONDS: Final = 15.0
#: Time for open answers when the server closes: a page may have stopped reading.
_LAST_SECONDS: Final = 2.0
#: The body of a request that was answered already is read for so long.
_LINGERING_SECONDS: Final = 2.0


#: aiohttp logs an exception for each request that is no HTTP. Anybody who can connect could fill
#: the log so.
_LOG: Final = logging.getLogger("swarm_node.http")
_LOG.addFilter(
    lambda record: not (record.exc_info and isinstance(record.exc_info[1], HttpProcessingError))
)


@functools.lru_cache(4 * MAX_CONNECTIONS)
def site_of(text: str) -> str:
    """See `internet.site`; "" if the text is no IP address. All of 127.0.0.0/8 is this machine, and
    each of its users can connect from any of these addresses."""
    try:
        site_key = site(text)
    except ValueError:
        return ""
    return "127.0.0.1" if site_key.startswith("127.") else site_key


class _Door(asyncio.Protocol):
    """Lets a connection in while there are not too many, in all and of its address."""

    def __init__(self, server: web.Server, of_address: int) -> None:
        self._server = server
        self._of_address = of_address

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        place = site_of((transport.get_extra_info("peername") or ("",))[0])
        open_now = self._server.connections
        site_count = sum(
            connection.peername is not None and site_of(connection.peername[0]) == place
            for connection in open_now
        )
        if len(open_now) >= MAX_CONNECTIONS or site_count >= self._of_address:
            transport.abort()
            return
        protocol = self._server()
        transport.set_protocol(protocol)
        protocol.connection_made(transport)


class Listening:
    """An application that listens. With `ends_with_client` a handler is cancelled when its client
    has hung up."""

    def __init__(
        self,
        app: web.Application,
        host: str,
        port: int,
        *,
        of_address: int = MAX_OF_ADDRESS,
        logger: logging.Logger = _LOG,
        ends_with_client: bool = False,
    ) -> None:
        self._runner = web.AppRunner(
            app,
            access_log=None,
            keepalive_timeout=HEAD_SECONDS,  # aiohttp counts it for the first request too
            lingering_time=_LINGERING_SECONDS,
            shutdown_timeout=_LAST_SECONDS,
            auto_decompress=False,
            handler_cancellation=ends_with_client,
            logger=logger,
        )
        self._place = host, port
        self._of_address = of_address
        self._listener: asyncio.Server | None = None

    async def start(self) -> int:
        """Listen. Returns the port.

        Raises:
            MachineError: the address cannot be used.
        """
        await self._runner.setup()
        server = self._runner.server
        assert server is not None
        host, port = self._place
        try:
            self._listener = await asyncio.get_running_loop().create_server(
                lambda: _Door(server, self._of_address), host, port
            )
        except OSError as error:
            await self._runner.cleanup()
            raise MachineError(
                f"cannot listen on {host}:{port} ({error.strerror}): choose another address"
            ) from error
        return int(self._listener.sockets[0].getsockname()[1])

    async def close(self) -> None:
        if self._listener is not None:
            self._listener.close()
        with suppress(TimeoutError):
            await self._runner.cleanup()
