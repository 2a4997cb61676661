"""HTTP for the coordinator: access, limits of rate and time, and error documents.

The cheapest checks come first: a connection, the address, the size and the time of the body, the
signature, the member, the schema.
"""

from __future__ import annotations

import asyncio
import base64
import inspect
import time
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Final

import msgspec
import structlog
from aiohttp import web

from coordinator.routes import NoQuery, Route, aiohttp_path
from swarm_node.clock import Clock
from swarm_node.errors import Rejected, SwarmNodeError
from swarm_node.p2p.coordinator import coordinator_api as api
from swarm_node.p2p.coordinator.coordination import MAX_SHOWN_BYTES, MAX_TARGET_CHARS
from swarm_node.p2p.limits.gates import PeerGates, TokenBucket
from swarm_node.p2p.membership.members import Member
from swarm_node.p2p.wire.wire import printable
from swarm_node.page.entrance import bearer, is_one_of
from swarm_node.page.listening import site_of

#: Seconds for a request's body, and for its answer.
BODY_SECONDS: Final = 10.0
ANSWER_SECONDS: Final = 30.0
#: Rates per second and bursts of requests: of all, of an address (perhaps a whole site), of an
#: issuer's members, and of a member, which makes about one in 15 seconds.
_ALL, _ADDRESS, _ISSUER, _MEMBER = (400.0, 800.0), (20.0, 200.0), (100.0, 400.0), (1.0, 20.0)
#: Bytes of an answer to a member that count as one more request of it and of its issuer.
_PRICED_BYTES: Final = 128 * 1024
_BASE64_CHARS = 4 * ((MAX_SHOWN_BYTES + 2) // 3)
_HEADERS: Final = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "Server": "swarm-coordinator",
    "X-Content-Type-Options": "nosniff",
}
#: The status of a refusal, by its reason; 422 for all others.
_STATUS: Final = {
    **dict.fromkeys(("schema", "size", "query"), 400),
    **dict.fromkeys(("unknown_code", "unknown_member", "not_found"), 404),
    **dict.fromkeys(("duplicate", "no_tickets"), 409),
    **dict.fromkeys(("withdrawn", "expired", "used_up"), 410),
    "storage": 503,
    "token": 401,
    "slow": 408,
    "too_large": 413,
    "rate": 429,
}
#: Reasons of a wrong signature. All other reasons mean that the caller is no member.
_UNSIGNED: Final = frozenset(
    (
        *("authorization", "author", "call", "duplicate", "encoding", "key", "kind", "outdated"),
        *("schema", "signature", "size"),
    )
)
_TOO_MANY: Final = Rejected("rate", "too many requests; slow down")
_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class CheckedRequest:
    """A request that passed all checks. `caller` is None where no member is needed."""

    caller: Member | None
    body: Any
    query: Any
    path_params: Any

    @property
    def member(self) -> Member:
        assert self.caller is not None, "routes for members have one"
        return self.caller


#: Answers a request, at once or later.
Operation = Callable[[CheckedRequest], Any]
#: (packed `Shown`, method, target, body) -> the member that signed it.
Authenticate = Callable[[bytes, str, str, bytes], Awaitable[Member | Rejected]]


class Api:
    """An aiohttp application of some routes. `operations` are by the names of the table."""

    def __init__(
        self,
        routes: Sequence[Route],
        operations: Mapping[str, Operation],
        *,
        clock: Clock,
        authenticate: Authenticate | None = None,
        token: str = "",
        metrics_token: str = "",
        admits: Callable[[str], bool] = lambda secret: False,
        behind_proxy: bool = False,
    ) -> None:
        """Routes for members need `authenticate`, those for admins a `token`; a `metrics_token`
        opens the route of the metrics. Members that `admits` accepts may read what admins read.
        `behind_proxy`: the caller's address is the last one of X-Forwarded-For."""
        self._operations = operations
        self._clock = clock
        self._authenticate = authenticate
        self._token = token
        self._metrics_token = metrics_token
        self._admits = admits
        self._behind_proxy = behind_proxy
        self._total_bucket = TokenBucket(*_ALL)
        self._addresses = PeerGates(*_ADDRESS, capacity=4096)
        self._issuers = PeerGates(*_ISSUER)
        self._members = PeerGates(*_MEMBER, capacity=4096)
        #: Requests by (operation, status), seconds by operation, and refusals by reason.
        self.request_counts: Counter[tuple[str, int]] = Counter()
        self.seconds: defaultdict[str, float] = defaultdict(float)
        self.refusals: Counter[str] = Counter()
        self.app = web.Application(middlewares=[self._answer], client_max_size=api.MAX_BODY_BYTES)
        for route in routes:
            self.app.router.add_route(route.method, aiohttp_path(route.path), self._handler(route))

    def _handler(self, route: Route) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
        async def handle(request: web.Request) -> web.StreamResponse:
            start = time.perf_counter()
            try:
                answer = await self._serve(route, request)
            except SwarmNodeError as error:
                _log.error("a request failed", operation=route.operation, error=str(error))
                answer = Rejected("storage", "the coordinator cannot store this now")
            response = make_response(answer, refused_call=route.access == "member")
            rejection = answer.rejection if isinstance(answer, CallerRefused) else answer
            if isinstance(rejection, Rejected):
                self.refusals[rejection.reason] += 1
            self.request_counts[route.operation, response.status] += 1
            self.seconds[route.operation] += time.perf_counter() - start
            return response

        return handle

    async def _serve(self, route: Route, request: web.Request) -> Any:
        if not self._takes(request):
            return _TOO_MANY
        body = await _read(request)
        if isinstance(body, Rejected):
            return body
        caller = await self._caller(route, request, body)
        if isinstance(caller, Rejected):
            return CallerRefused(caller)
        if caller is not None and not self._takes_caller(caller):
            return _TOO_MANY
        checked_request = _decode_request(route, request, body, caller)
        if isinstance(checked_request, Rejected):
            return checked_request
        answer = self._operations[route.operation](checked_request)
        answer = await answer if inspect.isawaitable(answer) else answer
        if caller is None or isinstance(answer, Rejected):
            return answer
        payload = msgspec.json.encode(answer)
        self._charge(caller, len(payload) // _PRICED_BYTES)
        return payload

    def _takes(self, request: web.Request) -> bool:
        """Check that this address is within its rate, and count the request."""
        now = self._clock.now()
        return self._addresses.take(self._address(request), now) and self._total_bucket.take(now)

    def _takes_caller(self, caller: Member) -> bool:
        """Check that this member and its issuer are within their rates, and count the request."""
        now = self._clock.now()
        return self._members.take(caller.peer_id, now) and self._issuers.take(
            caller.admitted_by.hex(), now
        )

    def _charge(self, caller: Member, requests: int) -> None:
        """Count an answer as further `requests`: a page of members has megabytes."""
        now = self._clock.now()
        self._members.charge(caller.peer_id, now, requests)
        self._issuers.charge(caller.admitted_by.hex(), now, requests)

    async def _caller(
        self, route: Route, request: web.Request, body: bytes
    ) -> Member | Rejected | None:
        if route.access == "anybody":
            return None
        header = request.headers.get("Authorization", "")
        if route.access == "admin":
            tokens = [self._token, *([self._metrics_token] if route.answer is None else [])]
            token, looks = bearer(header), request.method == "GET"
            if is_one_of(token, filter(None, tokens)) or (looks and self._admits(token)):
                return None
            return Rejected("token", "missing or wrong token")
        assert self._authenticate is not None, "an application with members authenticates them"
        if not header.startswith(api.SCHEME) or len(header) > _BASE64_CHARS + len(api.SCHEME):
            return Rejected("authorization", "sign the request: docs/protocol-discovery.md, 8.1")
        try:
            packed_call = base64.b64decode(header.removeprefix(api.SCHEME), validate=True)
        except ValueError:  # not base64, or not even ASCII
            return Rejected("authorization", "the header Authorization is not base64")
        if len(request.raw_path) > MAX_TARGET_CHARS:
            return Rejected("call", "a longer target than a call names")
        return await self._authenticate(packed_call, request.method, request.raw_path, body)

    def _address(self, request: web.Request) -> str:
        """The caller's address as a key of the limits: an IPv4 address, or the /64 of an IPv6
        one."""
        text = request.remote or ""
        if self._behind_proxy:
            # The proxy appends the last entry. The caller can forge all before it.
            entries = request.headers.getall("X-Forwarded-For", [text])
            text = entries[-1].rpartition(",")[2].strip()
        return site_of(text)

    @web.middleware
    async def _answer(
        self, request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        """Make a problem of what goes wrong, and send the answer within its time."""
        try:
            response = await handler(request)
        except web.HTTPException as error:
            response = problem(error.status, "http", error.reason)
            if "Allow" in error.headers:
                response.headers["Allow"] = error.headers["Allow"]
        except asyncio.CancelledError:
            raise
        except Exception:  # noqa: BLE001 - a bug of one request must not end the others
            _log.exception("a request failed", path=printable(request.path))
            response = problem(500, "internal", "this is a bug: see the coordinator's log")
        for name, value in _HEADERS.items():
            response.headers.setdefault(name, value)
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                await response.prepare(request)
                await response.write_eof()
        except TimeoutError:
            if request.transport is not None:
                request.transport.abort()
        except ConnectionError:
            pass  # who asked is gone
        return response


@dataclass(frozen=True, slots=True)
class CallerRefused:
    """Reason why the caller is refused."""

    rejection: Rejected


def make_response(answer: Any, *, refused_call: bool) -> web.StreamResponse:
    """The response of an operation: a struct, its JSON, a text, or a refusal."""
    if isinstance(answer, CallerRefused):
        rejection = answer.rejection
        unsigned = rejection.reason in _UNSIGNED or rejection.reason == "token"
        status = 401 if unsigned or not refused_call else 403
        response = problem(status, rejection.reason, rejection.detail)
        if status == 401:
            response.headers["WWW-Authenticate"] = "Swarm" if refused_call else "Bearer"
        return response
    if isinstance(answer, Rejected):
        return problem(_STATUS.get(answer.reason, 422), answer.reason, answer.detail)
    if isinstance(answer, str):
        return web.Response(text=answer, content_type="text/plain")
    body = answer if isinstance(answer, bytes) else msgspec.json.encode(answer)
    return web.Response(body=body, content_type="application/json")


def problem(status: int, reason: str, detail: str) -> web.Response:
    """A problem document (RFC 9457)."""
    title = HTTPStatus(status).phrase
    body = msgspec.json.encode(api.Problem("about:blank", title, status, detail, reason))
    response = web.Response(status=status, body=body, content_type="application/problem+json")
    if status == 429:
        response.headers["Retry-After"] = "30"
    return response


async def _read(request: web.Request) -> bytes | Rejected:
    try:
        async with asyncio.timeout(BODY_SECONDS):
            return await request.read()
    except web.HTTPRequestEntityTooLarge:
        return Rejected("too_large", f"a body has at most {api.MAX_BODY_BYTES} bytes")
    except TimeoutError:
        return Rejected("slow", f"a body arrives within {BODY_SECONDS:.0f} s")
    except web.RequestPayloadError as error:
        return Rejected("schema", printable(str(error)))


def _decode_request(
    route: Route, request: web.Request, body: bytes, caller: Member | None
) -> CheckedRequest | Rejected:
    query = request.query
    if len(query) != len(set(query)):
        return Rejected("query", "a parameter was given twice")
    try:
        return CheckedRequest(
            caller,
            None if route.body is None else msgspec.json.decode(body, type=route.body),
            msgspec.convert(dict(query), route.query, strict=False),
            NoQuery()
            if route.path_params is NoQuery
            else msgspec.convert(dict(request.match_info), route.path_params, strict=False),
        )
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        return Rejected("schema", printable(str(error)))
