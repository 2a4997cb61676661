"""Checks the network for `swarm-node doctor --network`. Pure, but for `try_addresses` and
`try_stored`.

For a running node it checks the findings of members. Before a start it checks the replies of the
nodes that the ticket names and that this one knew.
"""

from __future__ import annotations

import asyncio
import statistics
from collections.abc import Iterator, Sequence

from swarm_node.node.metrics.snapshot import NetworkReport, TriedRow
from swarm_node.node.preflight.doctor import Finding, Level
from swarm_node.p2p.addresses import circuit
from swarm_node.p2p.membership.membership import CLOCK_SKEW_SECONDS
from swarm_node.p2p.peers.causes import Cause, advice, text_here
from swarm_node.p2p.reach.address_check import knock
from swarm_node.p2p.reach.connect_attempts import DialAttempt, attempt_all
from swarm_node.p2p.reach.reachability import NATS, Reachability, join_items, place
from swarm_node.p2p.wire.identity import short_id
from swarm_node.storage import KnownPeer

#: Part of the clock error that peers tolerate from which the owner is warned.
_CLOCK_WARNING = 0.1
_MOST_TRIED, _MOST_ADDRESSES = 8, 2
#: The level of each finding of `status`.
_LEVELS: dict[str, Level] = {"bad": "error", "warning": "warning", "good": "ok"}


def check_network(report: NetworkReport) -> Iterator[Finding]:
    """Check the network of a running node. The verdict of `status` comes first."""
    for finding in report.findings:
        yield Finding(finding.kind, _LEVELS[finding.level], finding.text, finding.remedy)
    yield from _check_causes(report)
    yield from _check_tries(report.tried)
    if report.tried and all(row.cause or row.kind == "coordinator" for row in report.tried):
        return  # what members found before says nothing about now
    reach = report.reach
    reach_finding = check_reach(reach)
    relays = [row for row in report.tried if row.kind == "relay"]
    if reach.kind == "relayed" and all(row.cause for row in relays):
        reach_finding = reach_finding._replace(level="warning")
    yield reach_finding
    yield Finding("nat", "ok", NATS[reach.nat])
    sightings = [f"at {place(p.seen_ip, p.seen_port)} by {p.name}" for p in reach.probes]
    yield Finding("observed", "ok", join_items(sightings) if sightings else "by no member yet")
    yield Finding("advertised", "ok", f"{' '.join(report.addresses) or 'no address'}")
    if not relays:  # else the tries tell of each
        yield _relay(reach)
    yield _clocks(reach)
    yield _table(report)


def check_reach(reach: Reachability) -> Finding:
    """Check members' access to a running node."""
    level: Level = "warning" if reach.kind == "unreachable" else "ok"
    return Finding("reach", level, reach.text, reach.remedy)


def check_addresses(
    attempts: Sequence[DialAttempt], other_rows: Sequence[TriedRow] = ()
) -> Iterator[Finding]:
    """Check the nodes that ticket and settings name, and the further tries `other_rows`."""
    yield Finding("reach", "ok", "known while the node runs: start it, and ask again")
    rows = [
        TriedRow("address", attempt.where, attempt.seconds, attempt.cause()) for attempt in attempts
    ]
    yield from _check_tries([*rows, *other_rows])


async def try_addresses(addresses: Sequence[str]) -> list[DialAttempt]:
    """Try a connection to each of these addresses, at most eight of them."""
    return await attempt_all(circuit.dialable_addresses(addresses), knock, _MOST_TRIED)


async def try_stored(peers: Sequence[KnownPeer]) -> list[TriedRow]:
    """Try a connection to each of these peers, at most eight, each at its first two addresses. A
    peer without an address of its own is left out: it is behind a relay."""

    async def one(peer: KnownPeer, addresses: Sequence[str]) -> TriedRow:
        attempts = await attempt_all(addresses, knock, _MOST_ADDRESSES)
        best_attempt = min(attempts, key=lambda attempt: attempt.outcome != "open")
        return TriedRow("peer", short_id(peer.peer_id), best_attempt.seconds, best_attempt.cause())

    candidates = [(peer, _own_addresses(peer)) for peer in peers]
    targets = [(peer, addresses) for peer, addresses in candidates if addresses][:_MOST_TRIED]
    return list(await asyncio.gather(*(one(peer, addresses) for peer, addresses in targets)))


def _own_addresses(peer: KnownPeer) -> list[str]:
    """The addresses of a peer without those of relays, each with the peer's id."""
    direct = circuit.reachable_first(peer.addresses)
    return [text if "/p2p/" in text else f"{text}/p2p/{peer.peer_id}" for text in direct]


def _check_causes(report: NetworkReport) -> Iterator[Finding]:
    """Tell the causes that neither the verdict nor a try tells."""
    try_causes = [row.cause for row in report.tried if row.cause]
    told_keys = {
        (cause.code, cause.peer, location) for cause in try_causes for location in (cause.where, "")
    }
    for cause in report.causes:
        text = text_here(cause)
        verdict = any(text in finding.text for finding in report.findings)
        if not verdict and (cause.code, cause.peer, cause.where) not in told_keys:
            yield Finding(cause.code, "warning", text, advice(cause))


def _check_tries(rows: Sequence[TriedRow]) -> Iterator[Finding]:
    """Check what was tried just now. It is an error if nobody answered."""
    answered_rows = [row for row in rows if row.cause is None and row.kind != "coordinator"]
    for row in rows:
        if row.cause is None:
            yield Finding(row.kind, "ok", f"{row.name} answers in {row.seconds * 1e3:.0f} ms")
            continue
        text, remedy = f"{text_here(row.cause)}, after {row.seconds:.1f} s", advice(row.cause)
        if (
            any(row.kind == "relay" for row in answered_rows)
            if row.kind == "relay"
            else answered_rows
        ):
            remedy += "; another one answers, which is enough"
        yield Finding(row.kind, "warning", text, remedy)
    if not rows:
        remedy = "start with a ticket, or invite another machine: `swarm-node invite`"
        yield Finding("peers", "warning", "nobody to try: no address and no known peer", remedy)
    elif all(row.kind == "coordinator" and row.cause is None for row in rows):
        yield Finding("peers", "ok", "no peer to try yet: the coordinator introduces some")
    elif not answered_rows:
        remedy = "look at each line above; check this machine's own network first"
        yield Finding("peers", "error", "nobody is reached", remedy)


def _relay(reach: Reachability) -> Finding:
    if reach.kind == "unreachable":
        remedy = "a member that can be reached relays for others: let one join (docs/networking.md)"
        return Finding("relay", "warning", "none holds a link for this node", remedy)
    return Finding("relay", "ok", "none" + ", and none is needed" * (reach.kind == "direct"))


def _clocks(reach: Reachability) -> Finding:
    if not reach.probes:
        return Finding("clocks", "ok", "no member to compare with")
    offset = statistics.median(probe.ahead for probe in reach.probes)
    cause = Cause("clock", name=_few(reach), seconds=-offset)
    if abs(offset) < _CLOCK_WARNING * CLOCK_SKEW_SECONDS:
        return Finding("clocks", "ok", text_here(cause))
    level: Level = "error" if abs(offset) >= CLOCK_SKEW_SECONDS else "warning"
    return Finding("clocks", level, text_here(cause), advice(cause))


def _few(reach: Reachability) -> str:
    return join_items(dict.fromkeys(probe.name for probe in reach.probes))


def _table(report: NetworkReport) -> Finding:
    text = f"{report.heartbeats} heartbeats in {report.seconds:.1f} s"
    if report.heartbeats is None:
        text = "none: this stack asks peers instead"
    text += f"; answering: {report.peers}"
    if report.fault:
        return Finding("dht", "warning", report.fault, "see the node's log if it goes on")
    if not report.peers and not report.heartbeats and report.tried:
        remedy = "check the addresses of ticket and settings: `swarm-node config`"
        if report.causes:
            remedy = advice(report.causes[0])
        return Finding("dht", "warning", f"nobody found: {text}", remedy)
    return Finding("dht", "ok", text)
