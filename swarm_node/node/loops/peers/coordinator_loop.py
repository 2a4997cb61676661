"""The loop between a node and its coordinator, if it has one. No other loop waits for it.

It sends the node's presence and receives those of others. It passes revocation lists on in both
directions. It reports the content of `swarm-node status`. It follows the coordinator's signed
batches.

A coordinator that is down costs a line in the log. One that lies can show peers that do not exist,
or halve the share of peers (`conduct.LEAST_HINT`).
"""

from __future__ import annotations

import asyncio
import random
import re
from collections.abc import Callable, Mapping
from typing import Any, Final

import msgpack
import structlog
from msgspec.structs import replace

from swarm_node.errors import CoordinatorError, Rejected
from swarm_node.node.loops.node_parts import Tally
from swarm_node.node.loops.peers.coordinator_client import CoordinatorClient
from swarm_node.node.metrics.snapshot import CoordinatorRow, PeerRow, Snapshot
from swarm_node.p2p.coordinator import coordinator_api as api
from swarm_node.p2p.coordinator.coordination import (
    MAX_REASONS,
    MAX_REPORTED_FAMILIES,
    MAX_REPORTED_PEERS,
    PeerCounts,
    Report,
    SignedBatch,
    follow,
    open_batch,
)
from swarm_node.p2p.exchange.discovery import FEW, Discovery
from swarm_node.p2p.membership.credentials import Credentials
from swarm_node.p2p.membership.local_node import LocalNode
from swarm_node.p2p.membership.members import Keeper
from swarm_node.p2p.peers.standing import LEAST_HINT
from swarm_node.p2p.wire.envelope import Kind, seal
from swarm_node.p2p.wire.identity import public_key_of
from swarm_node.p2p.wire.wire import pack
from swarm_node.version import __version__

#: Seconds between two rounds, give or take a fifth: at first, and at most. The pause grows slowly
#: while few peers are known or the coordinator is unreachable. A coordinator that comes back has
#: the whole picture within a minute.
_FIRST_SECONDS, _LONGEST_SECONDS = 2.0, 50.0
#: The coordinator asks for the first report itself. The pauses to the next ones double, so that its
#: dashboard shows a new node's progress soon, within its limit of one report in 30 s.
_SECOND_REPORT_SECONDS, REPORT_SECONDS = 40.0, 300.0
#: The most requests for batches in a round; a node that was off for long needs several.
_MOST_PAGES = 8
#: The file of the newest batch in a home.
FILE: Final = "coordinator"
_ALARM = "coordinator"
_log = structlog.get_logger(__name__)


class CoordinatorLoop:
    """The loop with the coordinator; see the module. `tally` gets alarms and the row of the
    coordinator."""

    def __init__(
        self,
        local: LocalNode,
        url: str,
        *,
        credentials: Credentials,
        discovery: Discovery,
        keeper: Keeper,
        rng: random.Random,
        tally: Tally,
    ) -> None:
        """
        Raises:
            ConfigError: `url` cannot be used.
        """
        self._url = url
        self._identity = local.identity
        self._swarm_id = local.swarm_id
        self._client = CoordinatorClient(
            url, (local.identity, local.swarm_id, lambda: credentials.chain), local.clock.wall
        )
        self._credentials = credentials
        self._discovery = discovery
        self._directory = local.directory
        self._keeper = keeper
        self._clock = local.clock
        self._rng = rng
        self._alarms = tally.alarms
        self._tally = tally
        tally.coordinator = self._row = CoordinatorRow(url)
        self._pause = _FIRST_SECONDS / 2
        self._list = 0  # the number of the coordinator's revocation list
        self._report_pause = _SECOND_REPORT_SECONDS
        self._report_at = local.clock.now() + self._report_pause
        self._last_batch = self._load()

    async def step(self, snapshot: Callable[[], Snapshot]) -> None:
        """Pause, then ask the coordinator once. Reports are made of `snapshot`. The caller repeats
        it. A coordinator that is down is no fault of this node: its row says so, its hints end, and
        the pauses stay those of the rounds."""
        await asyncio.sleep(self._pause * self._rng.uniform(0.8, 1.2))
        try:
            await self._round(snapshot)
        except CoordinatorError as error:
            if self._row.answers is not False:
                _log.warning("the coordinator is unreachable", error=str(error))
                self._take_hints({})
            self._note(answers=False, fault=str(error))
        else:
            if self._row.answers is False:
                _log.info("the coordinator answers again", url=self._url)
            self._note(answers=True, fault="")
        has_few_peers = self._directory.fewer(FEW, self._clock.now())
        self._pause = next_pause(self._pause, hurried=has_few_peers or not self._row.answers)

    async def _round(self, snapshot: Callable[[], Snapshot]) -> None:
        if not self._directory.heartbeat:
            return
        wants_report = await self._introduce()
        if wants_report or self._clock.now() >= self._report_at:
            report = report_of(snapshot(), int(self._clock.wall() * 1000))
            envelope = seal(self._identity, self._swarm_id, Kind.REPORT, pack(report))
            await self._client.report(api.Reported(envelope))
            self._note(reported=self._clock.wall())
            pause = _SECOND_REPORT_SECONDS if wants_report else self._report_pause
            self._report_pause = min(REPORT_SECONDS, 2 * pause)
            self._report_at = self._clock.now() + pause * self._rng.uniform(0.9, 1.1)
            await self._follow()
            self._take_hints(hints_of(await self._client.reputation()))

    def _take_hints(self, hints: Mapping[str, float]) -> None:
        self._directory.apply_hints(hints)
        self._note(lowered=len(hints))

    def _note(self, **changes: Any) -> None:
        self._tally.coordinator = self._row = replace(self._row, **changes)

    async def _introduce(self) -> bool:
        """Send the newest presence and receive those of others. Returns True if the coordinator
        asks for a report."""
        lists = self._credentials.lists
        answer = await self._client.introduce(
            api.Introduction(
                self._directory.heartbeat,
                lists.number,
                lists.raw if lists.number > self._list else b"",
            )
        )
        self._discovery.add_presences(answer.peer_records)
        self._note(introduced=self._row.introduced + len(answer.peer_records))
        if answer.revocation_list:
            lists.offer(answer.revocation_list)  # a bad one changes nothing
        self._list = answer.revoked
        return answer.report

    async def _follow(self) -> None:
        """Compare the coordinator's batches with the stored one, and store the newest."""
        for _ in range(_MOST_PAGES):
            last_number = self._last_batch.body.number if self._last_batch else 0
            results = [
                open_batch(raw, self._swarm_id)
                for raw in (await self._client.batches(last_number)).batches
            ]
            batches = [batch for batch in results if isinstance(batch, SignedBatch)]
            if len(batches) < len(results):
                raise CoordinatorError(f"{self._url} sent a batch that nobody signed")
            previous_batch = self._last_batch
            self._last_batch, fault = follow(previous_batch, batches)
            if fault:
                text = f"the coordinator {self._url} contradicts itself: {fault}; ask its operator"
                if self._alarms.get(_ALARM) != text:
                    _log.warning("the coordinator contradicts itself", fault=fault, url=self._url)
                self._alarms[_ALARM] = text
            if self._last_batch is not None and self._last_batch is not previous_batch:
                self._keeper.save(FILE, msgpack.packb([self._url, self._last_batch.raw]))
            if len(batches) < api.MAX_BATCHES or fault:
                return

    def _load(self) -> SignedBatch | None:
        """Load the stored batch, None unless this coordinator sent it."""
        raw = self._keeper.load(FILE)
        try:
            url, envelope = msgpack.unpackb(raw or b"")
            batch = open_batch(envelope, self._swarm_id) if url == self._url else None
        except (ValueError, TypeError):
            if raw is not None:
                _log.warning("a file of this data directory is damaged", file=FILE)
            return None
        return None if isinstance(batch, Rejected) else batch


def next_pause(pause: float, *, hurried: bool) -> float:
    """Compute the seconds until the next round. They grow while `hurried`: few peers are known, or
    the coordinator is unreachable. Pure."""
    if not hurried:
        return _LONGEST_SECONDS
    return min(_LONGEST_SECONDS, max(_FIRST_SECONDS, pause * 1.5))


def report_of(snapshot: Snapshot, issued_ms: int) -> Report:
    """Make the report on a node of its snapshot. Pure."""
    groups = snapshot.groups
    point = snapshot.evals[-1] if snapshot.evals else None
    rewards = point.families if point else {}
    active_rows = [row for row in snapshot.peers if row.accepted or row.rejected_by_reason]
    return Report(
        v=1,
        issued_ms=issued_ms,
        agent=f"swarm-node {__version__}"[:24],
        model=_label(snapshot.model.rstrip("/").rpartition("/")[2]),
        reach=snapshot.reach.kind if snapshot.reach else "unknown",
        version=snapshot.version,
        steps=snapshot.steps,
        sampled=groups.sampled,
        sent=groups.sent,
        accepted=groups.accepted,
        trained_local=groups.trained_local,
        trained_external=groups.trained_external,
        eval_reward=tuple(
            (_label(family), min(1.0, max(0.0, reward)))
            for family, reward in list(rewards.items())[:MAX_REPORTED_FAMILIES]
        ),
        peers=tuple(map(_finding, active_rows[:MAX_REPORTED_PEERS])),
    )


def hints_of(reputation: api.Reputation) -> dict[str, float]:
    """Compute the weights of peers from a reputation. If an issuer has less than half of the median
    share, its members' weights fall in proportion. A peer without a rating loses nothing. Pure."""
    threshold = reputation.median / 2
    return {
        row.peer_id: LEAST_HINT + (1 - LEAST_HINT) * row.issuer_share / threshold
        for row in reputation.rows
        if row.issuer_share < threshold
    }


def _finding(row: PeerRow) -> PeerCounts:
    rejections = sorted(row.rejected_by_reason.items(), key=lambda item: -item[1])[:MAX_REASONS]
    return PeerCounts(
        public_key_of(row.peer_id),
        row.accepted,
        tuple((_label(reason), count) for reason, count in rejections),
    )


def _label(text: str) -> str:
    """Replace the characters of `text` that a label may not have."""
    return re.sub(r"[^A-Za-z0-9 _.:+@=,-]", "_", text)[:64] or "unknown"
