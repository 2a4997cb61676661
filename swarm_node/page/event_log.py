"""The log of a swarm's events, for the pages of a node and of a coordinator. Pure.

It compares what is seen of a node with what was seen of it before. Peers decide how often something
happens to them, so events of one kind about one node are one row with a count. If there are too
many rows, the issuer with most loses its oldest one: keys of one ticket push nobody else out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final, Self

import msgspec

from swarm_node.p2p.wire.wire import printable
from swarm_node.recent import Recent

SCHEMA: Final = 1
MAX_ROWS: Final = 256
#: Nodes whose last sight is remembered.
_MAX_NODES: Final = 8192
_TEXT_CHARS: Final = 200


class EventRow(msgspec.Struct, frozen=True):
    """Events of one `kind` about one node: `count` of them from `since` to `at` (Unix seconds).
    `text` is about the newest. `level` is "good", "warning", "bad", or "" for neither."""

    at: float
    since: float
    count: int
    kind: str
    level: str
    peer_id: str
    name: str
    text: str


class EventReport(msgspec.Struct, frozen=True):
    """The reply to `GET /v1/log`: the newest events first."""

    schema: int
    rows: list[EventRow]

    @classmethod
    def empty(cls) -> Self:
        return cls(SCHEMA, [])


@dataclass(frozen=True, slots=True)
class Sight:
    """State of a node as it is seen at a moment. `issuer` admitted it. `is_present` is true if it
    was heard lately. `epoch` grows with every start of the node, 0 if it is not known. `rejections`
    counts its refused messages by reason."""

    name: str
    issuer: str
    standing: str
    is_present: bool
    epoch: int = 0
    addresses: tuple[str, ...] = ()
    rejections: Mapping[str, int] | None = None


class EventLog:
    """Events of the nodes that are seen."""

    def __init__(self) -> None:
        self._last: Recent[str, Sight] = Recent(_MAX_NODES)
        #: (peer id, kind) -> issuer and row, the newest at the end.
        self._rows: dict[tuple[str, str], tuple[str, EventRow]] = {}

    def see(self, peer_id: str, now: Sight, at: float) -> None:
        """Take in what is seen of a node at the Unix second `at`. A node that is absent when it is
        seen first was there before, and so joins later without an event."""
        last_sight = self._last.get(peer_id)
        self._last[peer_id] = now
        if last_sight is None:
            if now.is_present and now.standing == "member":
                self._add(peer_id, now, at, "joined", "good", "heard for the first time")
            return
        for kind, level, text in _changes(last_sight, now):
            self._add(peer_id, now, at, kind, level, text)

    def report(self) -> EventReport:
        """Return all rows."""
        return EventReport(SCHEMA, [row for _, row in reversed(self._rows.values())])

    def _add(self, peer_id: str, sight: Sight, at: float, kind: str, level: str, text: str) -> None:
        key = peer_id, kind
        _, last_row = self._rows.pop(key, ("", None))
        start_time, count = (last_row.since, last_row.count) if last_row else (at, 0)
        text = printable(text)[:_TEXT_CHARS]
        row = EventRow(at, start_time, count + 1, kind, level, peer_id, sight.name, text)
        self._rows[key] = sight.issuer, row
        if len(self._rows) > MAX_ROWS:
            ((top_issuer, _),) = Counter(issuer for issuer, _ in self._rows.values()).most_common(1)
            del self._rows[next(k for k, (issuer, _) in self._rows.items() if issuer == top_issuer)]


def _changes(last_sight: Sight, now: Sight) -> Iterator[tuple[str, str, str]]:
    """Yield kind, level and text of what changed between two sights of a node."""
    if now.standing != last_sight.standing:
        if now.standing == "member":
            yield "member again", "good", f"was {last_sight.standing}"
        else:
            yield now.standing, "bad", f"was {last_sight.standing}"
    if last_sight.epoch and now.epoch > last_sight.epoch:
        yield "restarted", "", "it runs anew"
    if now.is_present and not last_sight.is_present:
        yield "returned", "good", "heard again"
    elif last_sight.is_present and not now.is_present:
        yield "left", "warning", "not heard any more"
    if now.addresses and last_sight.addresses and set(now.addresses) != set(last_sight.addresses):
        yield "address changed", "", f"now at {', '.join(now.addresses)}"
    refusals, last_refusals = Counter(now.rejections or {}), Counter(last_sight.rejections or {})
    if (new_refusals := refusals - last_refusals).total():
        summary = ", ".join(f"{reason} {count}" for reason, count in new_refusals.most_common())
        yield "refused", "bad", f"{summary}; {refusals.total()} in all"
