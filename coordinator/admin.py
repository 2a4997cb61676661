"""Asks the admin API of the coordinator that runs in one directory."""

from __future__ import annotations

from pathlib import Path
from typing import TypeVar

import msgspec
from aiohttp import ClientError, ClientSession, ClientTimeout
from msgspec import Struct

from coordinator.server import ADDRESS_FILE, TOKEN_FILE, AdminAddress
from swarm_node.errors import NotRunningError, SwarmNodeError
from swarm_node.p2p.coordinator import coordinator_api as api
from swarm_node.p2p.wire.identity import read_private
from swarm_node.page.entrance import Key, decode_answer

_Kind = TypeVar("_Kind")
_SECONDS = 30.0


class AdminClient:
    """Every method raises:

    NotRunningError: no coordinator runs there.
    SwarmNodeError: it refuses; the message says why.
    """

    def __init__(self, data: Path) -> None:
        self._data = data

    async def page(self) -> str:
        """An address at which a browser sees the page; good for one minute and one use."""
        reply = await self._call("POST", "/v1/key", Key)
        return f"{self._place()}/#{reply.key}"

    async def codes(self) -> api.Codes:
        return await self._call("GET", "/v1/codes", api.Codes)

    async def make_code(self, request: api.NewCode) -> api.MadeCode:
        return await self._call("POST", "/v1/codes", api.MadeCode, request)

    async def withdraw(self, number: int) -> api.Codes:
        return await self._call("DELETE", f"/v1/codes/{number}", api.Codes)

    async def fetch_trusted_members(self) -> api.Trusted:
        return await self._call("GET", "/v1/trusted", api.Trusted)

    async def trust(self, request: api.Trusted) -> api.Trusted:
        return await self._call("PUT", "/v1/trusted", api.Trusted, request)

    async def forget(self, peer_id: str) -> api.Forgotten:
        return await self._call("DELETE", f"/v1/reports/{peer_id}", api.Forgotten)

    async def _call(
        self, method: str, path: str, kind: type[_Kind], body: Struct | None = None
    ) -> _Kind:
        url = self._place() + path
        token = read_private(self._data / TOKEN_FILE, "token").decode().strip()
        try:
            async with (
                ClientSession(timeout=ClientTimeout(total=_SECONDS)) as session,
                session.request(
                    method,
                    url,
                    headers={"Authorization": f"Bearer {token}"},
                    data=None if body is None else msgspec.json.encode(body),
                ) as response,
            ):
                raw = await response.content.read(api.MAX_ANSWER_BYTES)
                if response.status != 200:
                    raise SwarmNodeError(decode_answer(raw, api.Problem).detail)
                return decode_answer(raw, kind)
        except (ClientError, TimeoutError):
            raise NotRunningError(self._nobody()) from None

    def _place(self) -> str:
        """The beginning of its addresses."""
        try:
            place = decode_answer((self._data / ADDRESS_FILE).read_bytes(), AdminAddress)
        except OSError:
            raise NotRunningError(self._nobody()) from None
        # It listens on all addresses in a container, which forwards this machine's loopback to it.
        host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(place.host, place.host)  # noqa: S104
        host = f"[{host}]" if ":" in host else host
        return f"http://{host}:{place.port}"

    def _nobody(self) -> str:
        return f"no coordinator runs in {self._data}: start one, or choose --data"
