"""The API as a table, and the OpenAPI 3.1 document that is made of it. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta, Struct

from swarm_node.p2p.coordinator import coordinator_api as api
from swarm_node.p2p.wire.wire import Counter
from swarm_node.page.entrance import Key, Pass
from swarm_node.page.event_log import EventReport
from swarm_node.version import __version__

Who = Literal["anybody", "member", "admin"]
PLAIN: Final = "text/plain"


class NoQuery(api.Wire, frozen=True):
    """No parameters."""


class SinceNumber(api.Wire, frozen=True):
    since: Counter = 0


class MembersPage(api.Wire, frozen=True):
    after: Annotated[str, Meta(pattern=r"^[1-9A-HJ-NP-Za-km-z]{0,64}$")] = ""
    limit: api.Limit = 100


class HistoryPage(api.Wire, frozen=True):
    since: api.Seconds = 0.0
    after: Counter = 0
    limit: api.Limit = 100


class PeerPath(api.Wire, frozen=True):
    peer_id: api.PeerId


class CodePath(api.Wire, frozen=True):
    code: Counter


class ExchangedGroups(Struct, frozen=True):
    """Groups between members by the newest reports. A row has four numbers: the place in `peers` of
    the member that got groups, the place of their author, the number of groups that were of use,
    and the number that were refused for a fault of the author."""

    peers: list[api.PeerId]
    groups: list[tuple[int, int, int, int]]


@dataclass(frozen=True, slots=True)
class Route:
    """One operation. `answer` None is plain text; `path` may hold the field of `inside` in braces.
    Without a `body` type, a request has no body."""

    operation: str
    method: str
    path: str
    who: Who
    summary: str
    answer: type[Struct] | None
    body: type[Struct] | None = None
    query: type[Struct] = NoQuery
    inside: type[Struct] = NoQuery


PUBLIC: Final = (
    Route("health", "GET", "/v1/health", "anybody", "Whether it runs.", api.Health),
    Route("redeem", "POST", "/v1/redemptions", "anybody", "Get a ticket for a code.",
          api.Redeemed, api.Redemption),
    Route("introduce", "POST", "/v1/introductions", "member",
          "Leave a presence, get those of others.", api.Introduced, api.Introduction),
    Route("report", "POST", "/v1/reports", "member", "Leave a signed report.",
          api.ReportReceipt, api.Reported),
    Route("report_of", "GET", "/v1/reports/{peer_id}", "member",
          "The newest report of a member.", api.ReportView, inside=PeerPath),
    Route("members", "GET", "/v1/members", "member", "Members and their newest reports.",
          api.MemberRows, query=MembersPage),
    Route("reputation", "GET", "/v1/reputation", "member", "Whom reports trust.", api.Reputation),
    Route("history", "GET", "/v1/history", "member", "Reports of the past, in figures.",
          api.History, query=HistoryPage),
    Route("batches", "GET", "/v1/batches", "member", "Signed heads, from a number on.",
          api.Batches, query=SinceNumber),
)  # fmt: skip

ADMIN: Final = (
    Route("key", "POST", "/v1/key", "admin", "Make a key with which the page gets in.", Key),
    Route("enter", "POST", "/v1/enter", "anybody", "Exchange a key for a pass, good for GET.",
          Pass, Key),
    Route("picture", "GET", "/v1/picture", "admin",
          "What the page shows; the members with the last page of history.",
          api.Picture, query=HistoryPage),
    Route("exchange", "GET", "/v1/exchange", "admin",
          "Groups that members got from each other, by their reports.", ExchangedGroups),
    Route("log", "GET", "/v1/log", "admin", "Events of members, the newest first.", EventReport),
    Route("metrics", "GET", "/metrics", "admin", "Counters for Prometheus.", None),
    Route("codes", "GET", "/v1/codes", "admin", "List redemption codes.", api.Codes),
    Route("make_code", "POST", "/v1/codes", "admin", "Make a redemption code.",
          api.MadeCode, api.NewCode),
    Route("withdraw", "DELETE", "/v1/codes/{code}", "admin", "Withdraw a code.",
          api.Codes, inside=CodePath),
    Route("trusted", "GET", "/v1/trusted", "admin", "Whom the reputation begins with.",
          api.Trusted),
    Route("trust", "PUT", "/v1/trusted", "admin", "Replace whom the reputation begins with.",
          api.Trusted, api.Trusted),
    Route("forget", "DELETE", "/v1/reports/{peer_id}", "admin", "Delete what a member reported.",
          api.Forgotten, inside=PeerPath),
)  # fmt: skip

_PROBLEMS: Final = {
    "400": "The request is malformed.",
    "401": "The signature, the token or the time of the request is not right.",
    "403": "Who asks is no member.",
    "404": "There is no such thing.",
    "405": "Another method is needed.",
    "408": "The request came too slowly.",
    "409": "What is here is as new, or no ticket is left.",
    "410": "The code cannot be used any more.",
    "413": "The request is too long.",
    "422": "What the request holds was refused.",
    "429": "Too many requests.",
    "500": "The coordinator failed.",
    "503": "The coordinator cannot do this.",
}


def openapi(routes: Sequence[Route], title: str) -> dict[str, Any]:
    """The document of these routes."""
    kinds: set[type[Struct]] = {api.Problem}
    for route in routes:
        kinds |= {kind for kind in (route.answer, route.body, route.query, route.inside) if kind}
    reference = "#/components/schemas/{name}"
    _, schemas = msgspec.json.schema_components(
        sorted(kinds, key=lambda kind: kind.__name__), ref_template=reference
    )
    paths: dict[str, dict[str, Any]] = {}
    for route in routes:
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route, schemas)
    described = {route.query.__name__ for route in routes}
    described |= {route.inside.__name__ for route in routes}
    return {
        "openapi": "3.1.0",
        "info": {"title": title, "version": __version__},
        "paths": paths,
        "components": {
            "schemas": {k: v for k, v in schemas.items() if k not in described},
            "securitySchemes": {
                "member": {
                    "type": "apiKey",
                    "in": "header",
                    "name": "Authorization",
                    "description": "Swarm and a signed call, see docs/protocol.md, 8.1",
                },
                "admin": {"type": "http", "scheme": "bearer"},
            },
        },
    }


def _operation(route: Route, schemas: dict[str, Any]) -> dict[str, Any]:
    described: dict[str, Any] = {
        "operationId": route.operation,
        "summary": route.summary,
        "security": [] if route.who == "anybody" else [{route.who: []}],
        "parameters": [
            *_parameters(schemas[route.inside.__name__], "path"),
            *_parameters(schemas[route.query.__name__], "query"),
        ],
        "responses": {
            "200": {"description": "Done.", "content": _content(route.answer)},
            **{
                status: {
                    "description": text,
                    "content": {"application/problem+json": {"schema": _reference(api.Problem)}},
                }
                for status, text in _PROBLEMS.items()
            },
        },
    }
    if route.body is not None:
        described["requestBody"] = {"required": True, "content": _content(route.body)}
    return described


def _parameters(schema: dict[str, Any], where: str) -> list[dict[str, Any]]:
    return [
        {"name": name, "in": where, "required": where == "path", "schema": described}
        for name, described in schema.get("properties", {}).items()
    ]


def _content(kind: type[Struct] | None) -> dict[str, Any]:
    if kind is None:
        return {PLAIN: {"schema": {"type": "string"}}}
    return {"application/json": {"schema": _reference(kind)}}


def _reference(kind: type[Struct]) -> dict[str, str]:
    return {"$ref": f"#/components/schemas/{kind.__name__}"}


def aiohttp_path(path: str) -> str:
    """`path` with a bound on what it holds, in aiohttp's notation."""
    return re.sub(r"{(\w+)}", r"{\1:[^/]{1,64}}", path)
