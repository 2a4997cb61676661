"""The API as a table; docs/coordinator-api.md describes it. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Annotated, Final, Literal

from msgspec import Meta, Struct

from swarm_node.p2p.coordinator import coordinator_api as api
from swarm_node.p2p.wire.wire import Counter
from swarm_node.page.entrance import Key, Pass
from swarm_node.page.event_log import EventReport

Who = Literal["anybody", "member", "admin"]


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
    """One operation. `answer` None is plain text; `path` may hold the field of `path_params` in
    braces. Without a `body` type, a request has no body."""

    operation: str
    method: str
    path: str
    access: Who
    answer: type[Struct] | None
    body: type[Struct] | None = None
    query: type[Struct] = NoQuery
    path_params: type[Struct] = NoQuery


PUBLIC: Final = (
    Route("health", "GET", "/v1/health", "anybody", api.Health),
    Route("redeem", "POST", "/v1/redemptions", "anybody", api.Redeemed, api.Redemption),
    Route("introduce", "POST", "/v1/introductions", "member", api.Introduced, api.Introduction),
    Route("report", "POST", "/v1/reports", "member", api.ReportReceipt, api.Reported),
    Route(
        "report_of", "GET", "/v1/reports/{peer_id}", "member", api.ReportView, path_params=PeerPath
    ),
    Route("members", "GET", "/v1/members", "member", api.MemberRows, query=MembersPage),
    Route("reputation", "GET", "/v1/reputation", "member", api.Reputation),
    Route("history", "GET", "/v1/history", "member", api.History, query=HistoryPage),
    Route("batches", "GET", "/v1/batches", "member", api.Batches, query=SinceNumber),
)

ADMIN: Final = (
    Route("key", "POST", "/v1/key", "admin", Key),
    Route("enter", "POST", "/v1/enter", "anybody", Pass, Key),
    Route("picture", "GET", "/v1/picture", "admin", api.Picture, query=HistoryPage),
    Route("exchange", "GET", "/v1/exchange", "admin", ExchangedGroups),
    Route("log", "GET", "/v1/log", "admin", EventReport),
    Route("metrics", "GET", "/metrics", "admin", None),
    Route("codes", "GET", "/v1/codes", "admin", api.Codes),
    Route("make_code", "POST", "/v1/codes", "admin", api.MadeCode, api.NewCode),
    Route("withdraw", "DELETE", "/v1/codes/{code}", "admin", api.Codes, path_params=CodePath),
    Route("trusted", "GET", "/v1/trusted", "admin", api.Trusted),
    Route("trust", "PUT", "/v1/trusted", "admin", api.Trusted, api.Trusted),
    Route(
        "forget", "DELETE", "/v1/reports/{peer_id}", "admin", api.Forgotten, path_params=PeerPath
    ),
)


def aiohttp_path(path: str) -> str:
    """`path` with a bound on what it holds, in aiohttp's notation."""
    return re.sub(r"{(\w+)}", r"{\1:[^/]{1,64}}", path)
