"""Client of a coordinator's HTTP API. Replies are not trusted here: callers verify them."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import ipaddress
import os
import socket
import time
from collections.abc import Callable
from typing import Any, Final, TypeVar

import msgspec
from aiohttp import (
    ClientConnectorDNSError,
    ClientError,
    ClientResponseError,
    ClientSession,
    ClientSSLError,
    ClientTimeout,
    DummyCookieJar,
    TCPConnector,
    ThreadedResolver,
)
from msgspec import Struct
from yarl import URL

from swarm_node.errors import ConfigError, CoordinatorError, TicketError, reason_of, words_of
from swarm_node.node.loops.peers.dialing import PEER_SECONDS
from swarm_node.node.metrics.snapshot import TriedRow
from swarm_node.p2p.addresses.addresses import coordinator_address
from swarm_node.p2p.addresses.internet import is_embedding, is_internet
from swarm_node.p2p.coordinator import coordinator_api as api
from swarm_node.p2p.coordinator.coordination import Call, show_call
from swarm_node.p2p.membership.membership import Chain
from swarm_node.p2p.membership.ticket import parse_ticket, with_addresses
from swarm_node.p2p.peers.causes import Cause
from swarm_node.p2p.wire.identity import Identity
from swarm_node.p2p.wire.wire import printable

#: Seconds for a whole request.
_SECONDS: Final = 15.0
_CHUNK = 64 * 1024
_Kind = TypeVar("_Kind")


class _OwnNetworks(ThreadedResolver):
    """Resolves no host of the Internet: requests without encryption stay on own networks."""

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> Any:
        hosts = await super().resolve(host, port, family)
        if any(not _is_own(item["host"]) for item in hosts):
            raise OSError("it is on the Internet: its URL must begin with https")
        return hosts


class CoordinatorClient:
    """Client of the API at one URL. `signer` seals requests, with its chain of that moment."""

    def __init__(
        self,
        url: str,
        signer: tuple[Identity, bytes, Callable[[], Chain]] | None,
        wall: Callable[[], float],
    ) -> None:
        """`signer` is (identity, swarm id, chain). Without it, only requests that anybody may make
        succeed.

        Raises:
            ConfigError: `url` cannot be used.
        """
        try:
            coordinator_address(url)
        except ValueError as error:
            raise ConfigError(f"network.coordinator {url}: {error}") from error
        self._base = url.rstrip("/")
        base_url = URL(self._base)
        self._is_plain_http = base_url.scheme == "http"
        if self._is_plain_http and not _may_be_own(base_url.host or ""):
            raise ConfigError(
                f"network.coordinator {url} is on the Internet",
                "use https, so that nobody reads it",
            )
        self._signer = signer
        self._wall = wall

    async def health(self) -> api.Health:
        return await self._call("GET", "/health", api.Health)

    async def introduce(self, request: api.Introduction) -> api.Introduced:
        return await self._call("POST", "/introductions", api.Introduced, request)

    async def report(self, request: api.Reported) -> api.ReportReceipt:
        return await self._call("POST", "/reports", api.ReportReceipt, request)

    async def batches(self, last_number: int) -> api.Batches:
        return await self._call("GET", f"/batches?since={last_number}", api.Batches)

    async def reputation(self) -> api.Reputation:
        return await self._call("GET", "/reputation", api.Reputation)

    async def redeem(self, request: api.Redemption) -> api.Redeemed:
        return await self._call("POST", "/redemptions", api.Redeemed, request)

    async def _call(
        self, method: str, path: str, kind: type[_Kind], body: Struct | None = None
    ) -> _Kind:
        """Send one request and return the decoded reply.

        Raises:
            CoordinatorError: it did not answer, or refused; the message says why.
        """
        payload = b"" if body is None else msgspec.json.encode(body)
        target = api.PREFIX + path
        headers = {"Accept-Encoding": "identity", "Content-Type": "application/json"}
        if self._signer is not None:
            headers["Authorization"] = self._authorization(method, target, payload)
        resolver = _OwnNetworks() if self._is_plain_http else ThreadedResolver()
        try:
            async with (
                ClientSession(
                    connector=TCPConnector(resolver=resolver),
                    timeout=ClientTimeout(total=_SECONDS),
                    cookie_jar=DummyCookieJar(),
                    auto_decompress=False,
                ) as session,
                session.request(
                    method,
                    URL(self._base + target, encoded=True),
                    data=payload,
                    headers=headers,
                    allow_redirects=False,
                ) as response,
            ):
                answer = bytearray()
                async for chunk in response.content.iter_chunked(_CHUNK):
                    answer += chunk
                    if len(answer) > api.MAX_ANSWER_BYTES:
                        raise CoordinatorError(f"{self._base} answers too much")
                return _decode_answer(self._base, response.status, bytes(answer), kind)
        except (ClientError, OSError, TimeoutError) as error:
            reason = printable(_why(error))
            raise CoordinatorError(f"{self._base} does not answer: {reason}") from error

    def _authorization(self, method: str, target: str, payload: bytes) -> str:
        assert self._signer is not None
        identity, swarm_id, chain = self._signer
        digest = hashlib.sha256(payload).digest()
        call = Call(1, method, target, int(self._wall() * 1000), os.urandom(16), digest)
        proof = show_call(identity, swarm_id, chain(), call)
        return api.SCHEME + base64.b64encode(proof).decode("ascii")


async def redeem(url: str, code: str, newcomer: Identity, wall: Callable[[], float]) -> str:
    """Redeem `code` for the text of a ticket for `newcomer`. The ticket names the coordinator and
    has no addresses of peers. Addresses of a ticket are dialled without a check, and the operator
    of a coordinator can name any.

    Raises:
        ConfigError: the URL cannot be used.
        CoordinatorError: it did not answer, or refused the code.
        TicketError: it answered with something else than a ticket.
    """
    client = CoordinatorClient(url, None, wall)
    try:
        request = api.redemption(code.strip(), newcomer)
    except msgspec.ValidationError:
        raise TicketError("this is no code: it has 20 letters and digits in four groups") from None
    answer = await client.redeem(request)
    ticket = parse_ticket(answer.ticket, wall())
    return with_addresses(ticket, ticket.info, [coordinator_address(url)])


def _why(error: Exception) -> str:
    """Return the reason why there is no answer, in words."""
    if isinstance(error, TimeoutError):
        return f"no reply in {_SECONDS:g} s"
    if isinstance(error, OSError):
        return reason_of(error)
    return words_of(error)


def _decode_answer(base: str, status: int, answer: bytes, kind: type[_Kind]) -> _Kind:
    try:
        if status == 200:
            return msgspec.json.decode(answer, type=kind)
        problem = msgspec.json.decode(answer, type=api.Problem)
    except (ValueError, RecursionError):
        raise CoordinatorError(
            f"{base} is no coordinator of this version, or something else answers there (HTTP "
            f"{status})",
            "check the URL",
        ) from None
    reason = printable(f"{problem.detail} ({problem.reason})")
    raise CoordinatorError(f"{base} refuses: {reason}")


def _is_own(ip: str) -> bool:
    """Check for an IP address of this machine or of a private network."""
    host = ipaddress.ip_address(ip.partition("%")[0])
    return not is_internet(host) and not is_embedding(host)


def _may_be_own(host: str) -> bool:
    """Check for a host on an own network. A name passes here: it is checked when it is resolved."""
    try:
        return _is_own(host)
    except ValueError:
        return True


async def try_coordinator(url: str) -> TriedRow:
    """Ask a coordinator now whether it runs.

    Raises:
        ConfigError: the URL cannot be used.
    """
    client, started_at, code, detail = (
        CoordinatorClient(url, None, time.time),
        time.monotonic(),
        "",
        "",
    )
    try:
        async with asyncio.timeout(PEER_SECONDS):
            await client.health()
    except TimeoutError:
        code = "no_answer"
    except CoordinatorError as error:
        code, detail = _of_coordinator(error.__cause__)
    seconds = time.monotonic() - started_at
    cause = Cause(code, where=url, detail=detail, seconds=seconds) if code else None
    return TriedRow("coordinator", url, seconds, cause)


def _of_coordinator(error: BaseException | None) -> tuple[str, str]:
    """Return code and detail of the cause for which a coordinator gave no answer. Without an error
    of the connection the answer was another one."""
    if isinstance(error, ClientConnectorDNSError):
        return "no_address", printable(reason_of(error))
    if isinstance(getattr(error, "os_error", None), ConnectionRefusedError):
        return "nobody_listens", ""
    if error is None or isinstance(error, (ClientSSLError, ClientResponseError)):
        return "no_coordinator", ""
    return "no_answer", ""
