"""Where `swarm-node serve` listens for OpenAI's clients, and the key that lets them in."""

from __future__ import annotations

import ipaddress
import re
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec
from aiohttp import web
from aiohttp.typedefs import Middleware

from swarm_node.durable import open_regular, replace_private
from swarm_node.errors import ConfigError, HomeError, reason_of
from swarm_node.node.control.control import MAX_BODY
from swarm_node.node.control.openai_wire import error_of
from swarm_node.node.home.home import Home
from swarm_node.page.entrance import bearer, is_local, is_one_of
from swarm_node.page.listening import Listening

#: One for each that serves from a home, and not the node's own: a node that starts meanwhile writes
#: that.
_KEY_FILE: Final = "serve-{}.token"
_KEY: Final = re.compile(r"[!-~]{1,512}")
_MAX_KEY_FILE: Final = 4096
#: What listens on all addresses is reached at one.
_REACHED_AT: Final = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 - names, not a choice


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where clients are answered. A `port` of 0 is one that the machine chooses. Without an
    `api_key` a new one is drawn at each start."""

    host: str = "127.0.0.1"
    port: int = 0
    api_key: str | None = None

    def __post_init__(self) -> None:
        if self.api_key is not None and not _KEY.fullmatch(self.api_key):
            raise ConfigError(
                "an API key is 1 to 512 visible ASCII characters without blanks: `openssl rand "
                "-hex 32` makes one"
            )

    @property
    def is_loopback(self) -> bool:
        """Check that only this machine can connect."""
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return self.host == "localhost"

    def url(self, port: int) -> str:
        """The base URL for clients of this machine."""
        host = _REACHED_AT.get(self.host, self.host)
        return f"http://{f'[{host}]' if ':' in host else host}:{port}/v1"


def read_key(file: Path) -> str:
    """The API key in a file, without the white space around it.

    Raises:
        ConfigError: the file cannot be read.
    """
    try:
        with open_regular(file) as key_file:
            data = key_file.read(_MAX_KEY_FILE)
    except OSError as error:
        raise ConfigError(f"cannot read the API key in {file}: {reason_of(error)}") from error
    return data.decode("ascii", "replace").strip()


@asynccontextmanager
async def listening(
    at: Endpoint, routes: Iterable[web.RouteDef], home: Home
) -> AsyncIterator[tuple[str, Path]]:
    """Answer clients by `routes` inside this context. Gives the base URL and the file with the key.

    Raises:
        HomeError: the file cannot be written.
        MachineError: the address cannot be used.
    """
    key = at.api_key or secrets.token_urlsafe(32)
    app = web.Application(middlewares=[_guard(at, key)], client_max_size=MAX_BODY)
    app.add_routes(routes)
    server = Listening(app, at.host, at.port, ends_with_client=True)
    port = await server.start()
    file = home.path / _KEY_FILE.format(port)
    try:
        try:
            home.path.mkdir(parents=True, exist_ok=True, mode=0o700)
            replace_private(file, key.encode())
        except OSError as error:
            raise HomeError(f"cannot write {file}: {error.strerror}") from error
        try:
            yield at.url(port), file
        finally:
            _unlink(file, key)
    finally:
        await server.close()


def _unlink(file: Path, key: str) -> None:
    """Remove the file if it has this key: who serves at the same port of another address writes the
    same file."""
    with suppress(ConfigError):
        if read_key(file) == key:
            file.unlink(missing_ok=True)


def _guard(at: Endpoint, key: str) -> Middleware:
    @web.middleware
    async def guard(
        request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        # Elsewhere this machine has names that only its owner knows; there the key alone counts.
        matches_host = request.host.rpartition(":")[0].strip("[]") == at.host
        if at.is_loopback and not matches_host and not is_local(request.host):
            raise web.HTTPForbidden(text="wrong Host header")
        if not is_one_of(bearer(request.headers.get("Authorization", "")), [key]):
            body = error_of("missing or wrong API key", code="invalid_api_key")
            return web.Response(
                body=msgspec.json.encode(body), status=401, content_type="application/json"
            )
        return await handler(request)

    return guard
