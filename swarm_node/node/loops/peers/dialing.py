"""Pings peers, tries the addresses of settings and ticket from which nobody answers, and notes the
causes."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Sequence
from contextlib import suppress

import msgspec
import psutil

from swarm_node.errors import SwarmNodeError, TransportError
from swarm_node.node.loops.peers.rows import absent, membership_end
from swarm_node.node.metrics.snapshot import SEEN_SECONDS, PingReport, TriedRow
from swarm_node.p2p.addresses import circuit
from swarm_node.p2p.exchange.exchange import Exchange
from swarm_node.p2p.exchange.requests import MAX_SMALL_REPLY, Asker
from swarm_node.p2p.membership.local_node import LocalNode
from swarm_node.p2p.peers.causes import Cause
from swarm_node.p2p.peers.liveness import DIAL_CHECK
from swarm_node.p2p.peers.peers import Peer
from swarm_node.p2p.reach.connect_attempts import DialAttempt, attempt_all
from swarm_node.p2p.reach.probe import Knock
from swarm_node.p2p.reach.transport import ReachingTransport
from swarm_node.p2p.wire import wire
from swarm_node.p2p.wire.identity import short_id
from swarm_node.p2p.wire.protocols import PEERS

#: Addresses that are tried at once. A ticket has eight.
_MOST = 8
#: Tries that find a node which does not greet, before that is a cause: it may be busy, or starting.
_PATIENT_TRIES = 3
#: Deadline for the answer of a peer that `doctor --network` asks.
PEER_SECONDS = 5.0


async def ping(
    peer_id: str, seconds: float, local: LocalNode, exchange: Exchange, reaching: ReachingTransport
) -> PingReport:
    """Ask a peer something small now, however it is reached, and return how long that took. A peer
    that does not work with this node now is greeted first, which may take ten seconds. The request
    has `seconds`.

    Raises:
        SwarmNodeError: this node never heard of it.
    """
    clock, directory, asker = local.clock, local.directory, exchange.asker
    name = local.members.name(peer_id)
    if finding := membership_end(local.members, peer_id):
        return PingReport(peer_id, name, None, reason=finding)
    peer = directory.get(peer_id) or await exchange.discovery.reach(peer_id)
    reply = None
    if peer is not None and (peer.is_greeted or await asker.greet(peer)):
        request, started_at = wire.pack(wire.PeersRequest(limit=1)), clock.now()
        reply = await asker.ask(peer, PEERS, request, max_reply=MAX_SMALL_REPLY, seconds=seconds)
    name = local.members.name(peer_id)  # a greeting may have told it
    if reply is None:
        addresses = exchange.discovery.addresses(peer_id)
        if addresses is None:
            raise SwarmNodeError(f"this node knows no peer {peer_id}: see `swarm-node peers`")
        causes = directory.failures.causes(clock.now())
        has_answered = directory.get(peer_id) is not None
        reason = absent(peer_id, addresses, reaching, causes, 1, has_answered=has_answered)
        return PingReport(peer_id, name, None, reason=reason)
    round_trip, relay_id, address = (
        clock.now() - started_at,
        reaching.usage.relay_ids.get(peer_id, ""),
        "",
    )
    with suppress(TransportError):  # the link may have gone since
        address = await reaching.observed_address(peer_id) or ""
    relay = local.members.name(relay_id) or short_id(relay_id) if relay_id else ""
    return PingReport(peer_id, name, round_trip, address, relay_id, relay)


async def try_everything(
    local: LocalNode, asker: Asker, dials: DialCheck | None, coordinator: str
) -> list[TriedRow]:
    """Try the addresses of settings and ticket, the known peers and the coordinator, if the URL of
    one is given."""
    rows = await try_peers(local, asker, [] if dials is None else await dials.try_all())
    if coordinator:
        from swarm_node.node.loops.peers.coordinator_client import try_coordinator

        rows.append(await try_coordinator(coordinator))
    return rows


async def try_peers(
    local: LocalNode, asker: Asker, attempts: Sequence[DialAttempt] = ()
) -> list[TriedRow]:
    """Ask some peers something small now, however they are reached: those at the addresses of
    `attempts` that are open, and those heard last. An open address proves a key only; the node
    there may refuse this one."""
    clock, directory = local.clock, local.directory
    now = clock.now()
    known_peers = sorted(
        directory.live(now, math.inf), key=lambda peer: peer.last_seen, reverse=True
    )
    targets = {peer.peer_id: peer for peer in known_peers[:_MOST]}
    for attempt in attempts:
        if attempt.outcome == "open" and attempt.peer_id not in targets:
            target = directory.get(attempt.peer_id) or Peer(
                attempt.peer_id, now, (attempt.address,)
            )
            targets[attempt.peer_id] = target
    rows = await asyncio.gather(*(_ask(peer, local, asker) for peer in targets.values()))
    by_peer = dict(zip(targets, rows, strict=True))
    addresses = [_at_address(attempt, by_peer.get(attempt.peer_id)) for attempt in attempts]
    return [*addresses, *rows[: len(known_peers[:_MOST])]]


async def _ask(peer: Peer, local: LocalNode, asker: Asker) -> TriedRow:
    clock, started_at = local.clock, local.clock.now()
    request = wire.pack(wire.PeersRequest(limit=1))
    reply = await asker.ask(peer, PEERS, request, max_reply=MAX_SMALL_REPLY, seconds=PEER_SECONDS)
    now, cause = clock.now(), None
    name = local.members.name(peer.peer_id) or short_id(peer.peer_id)
    if reply is None:
        causes = local.directory.failures.causes(now)
        peer_causes = (
            c for c in causes if c.peer == peer.peer_id and c.seconds_since <= now - started_at
        )
        fallback = Cause("no_answer", peer.peer_id, name, seconds=now - started_at)
        cause = next(peer_causes, fallback)
    return TriedRow("peer", name, now - started_at, cause)


def _at_address(attempt: DialAttempt, peer: TriedRow | None) -> TriedRow:
    """Return the row of an address. Nobody is reached there if its node does not answer."""
    cause = attempt.cause()
    if cause is None and peer is not None and peer.cause is not None:
        cause = msgspec.structs.replace(peer.cause, where=attempt.where)
        if cause.code == "no_answer":
            cause = msgspec.structs.replace(cause, code="no_greeting")
    return TriedRow("address", attempt.where, attempt.seconds, cause)


def link_up() -> bool:
    """Check that a network interface of this machine is up, besides loopback."""
    stats = psutil.net_if_stats()
    loopback = {
        name
        for name, addresses in psutil.net_if_addrs().items()
        if any(item.address in ("127.0.0.1", "::1") for item in addresses)
    }
    return any(interface.isup for name, interface in stats.items() if name not in loopback)


class DialCheck:
    """The loop that tries `addresses` while the peers there do not answer. Peers named by others
    are not tried: a third party's host gets one connection only."""

    def __init__(
        self,
        local: LocalNode,
        addresses: Sequence[str],
        knock: Knock,
        *,
        link_up: Callable[[], bool] = link_up,
    ) -> None:
        self._addresses = circuit.dialable_addresses(addresses)
        self._knock = knock
        self._directory = local.directory
        self._members = local.members
        self._clock = local.clock
        self._link_up = link_up
        self._open: dict[str, int] = {}
        self._rounds = 0
        local.directory.failures.configured_count = len(self._addresses)

    async def step(self) -> None:
        """Check once, and wait for the next time. The caller repeats it."""
        self._rounds = self._rounds + 1 if await self.check() else 0
        await asyncio.sleep(DIAL_CHECK.after(self._rounds))

    async def check(self) -> list[DialAttempt]:
        """Try the addresses from which nobody answers now, and return what came of it."""
        return await self._try([text for text in self._addresses if not self._answers(text)])

    async def try_all(self) -> list[DialAttempt]:
        """Try all addresses now."""
        return await self._try(self._addresses)

    async def _try(self, addresses: Sequence[str]) -> list[DialAttempt]:
        self._directory.failures.link_down = not self._link_up()
        attempts = await attempt_all(addresses, self._knock, _MOST)
        for attempt in attempts:
            self._note(attempt)
        return attempts

    def _answers(self, address: str) -> bool:
        peer = self._directory.get(address.rpartition("/p2p/")[2])
        is_recent = peer is not None and self._clock.now() - peer.last_seen <= SEEN_SECONDS
        return is_recent and peer is not None and peer.is_greeted

    def _note(self, attempt: DialAttempt) -> None:
        failures, now = self._directory.failures, self._clock.now()
        name = self._members.name(attempt.peer_id)
        cause = attempt.cause(name)
        if cause is not None:
            self._open.pop(attempt.address, None)
            return failures.record_failure(cause, now)
        self._open[attempt.address] = self._open.get(attempt.address, 0) + 1
        failures.forget_address_failures(attempt.peer_id, attempt.where)
        is_refused = any(entry.peer == attempt.peer_id for entry in failures.causes(now))
        if is_refused or self._answers(attempt.address):
            return
        if self._open[attempt.address] > _PATIENT_TRIES:
            failures.record_failure(Cause("no_greeting", attempt.peer_id, name, attempt.where), now)
