"""OpenAI's API of a running node at an address that stays, although the node's own changes.

A node listens on loopback, at a port and with a key that are new at each start. This passes the
requests of clients on, whichever node runs in the home then.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Final
from urllib.parse import quote

import msgspec
from aiohttp import ClientError, ClientResponse, ClientSession, ClientTimeout, TCPConnector, web
from yarl import URL

from swarm_node.config import default_home
from swarm_node.errors import HomeError, NotRunningError
from swarm_node.library.endpoint import Endpoint, listening
from swarm_node.node.control.control import ControlClient
from swarm_node.node.control.openai import CHAT, MODELS, TEXT, ServedAt
from swarm_node.node.control.openai_wire import error_of
from swarm_node.node.home.home import Home

_BODY_SECONDS: Final = 10.0
#: A reader that takes nothing for so long has left.
_WRITE_SECONDS: Final = 30.0
#: A node lets 64 connections in of this machine, and its page needs some.
_CONNECTIONS: Final = 48
_HEADERS: Final = ("Content-Type", "Cache-Control", "Retry-After")


async def serve_running(
    on_listening: Callable[[ServedAt], object], at: Endpoint, *, home: Path | None = None
) -> None:
    """Pass clients' requests on to the node that runs in `home`, until cancelled. While none runs,
    they get 503. `on_listening` is called once it listens.

    Raises:
        NotRunningError: no node runs there at the start.
        HomeError: the file with the key cannot be written.
        MachineError: the address cannot be used.
    """
    place = Home(home or default_home())
    client = ControlClient(place.control_file)
    model = (await client.fetch_openai_access()).model
    session = ClientSession(
        timeout=ClientTimeout(total=None, sock_connect=_BODY_SECONDS),
        connector=TCPConnector(limit=_CONNECTIONS),
    )
    async with session, listening(at, _Forward(client, session).routes(), place) as (url, key):
        on_listening(ServedAt(url, key, model))
        await asyncio.Event().wait()


class _Forward:
    def __init__(self, client: ControlClient, session: ClientSession) -> None:
        self._client = client
        self._session = session

    def routes(self) -> list[web.RouteDef]:
        return [
            web.get(MODELS, self._answer),
            web.get(MODELS + "/{id:.+}", self._answer),
            web.post(CHAT, self._answer),
            web.post(TEXT, self._answer),
        ]

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        try:
            async with asyncio.timeout(_BODY_SECONDS):
                body = await request.read()
        except web.HTTPRequestEntityTooLarge:
            return _error(413, f"the body is larger than {request.client_max_size} bytes")
        except TimeoutError:
            return _error(408, "a body arrives at once")
        model_id = request.match_info.get("id")
        path = request.path if model_id is None else f"{MODELS}/{quote(model_id, safe='')}"
        try:
            base, key = self._client.openai()
            async with self._session.request(
                request.method,
                URL(base + path, encoded=True),
                data=body,
                headers={"Authorization": f"Bearer {key}"},
                allow_redirects=False,
            ) as reply:
                if reply.status != 401:
                    return await _forward_reply(request, reply)
        except (NotRunningError, HomeError) as error:
            return _error(503, str(error))
        except ClientError:
            pass
        # A node that died leaves its address, which another program may have by now.
        return _error(503, "the node does not answer: it stopped, or starts again")


async def _forward_reply(request: web.Request, reply: ClientResponse) -> web.StreamResponse:
    headers = {name: reply.headers[name] for name in _HEADERS if name in reply.headers}
    response = web.StreamResponse(status=reply.status, headers=headers)
    try:
        async with asyncio.timeout(_WRITE_SECONDS):
            await response.prepare(request)
        async for chunk in reply.content.iter_any():
            async with asyncio.timeout(_WRITE_SECONDS):
                await response.write(chunk)
        await response.write_eof()
    except (ClientError, ConnectionError, TimeoutError):
        # The rest never comes, or nobody reads it. A reply that is cut short looks whole unless the
        # connection ends with it.
        if request.transport is not None:
            request.transport.abort()
    return response


def _error(status: int, text: str) -> web.Response:
    kind = "server_error" if status == 503 else "invalid_request_error"
    body = msgspec.json.encode(error_of(text, kind))
    response = web.Response(body=body, status=status, content_type="application/json")
    response.force_close()
    return response
