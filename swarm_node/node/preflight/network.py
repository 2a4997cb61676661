"""Judges the network for `swarm-node doctor --network`. Pure, but for `try_addresses` and
`try_stored`.

For a running node it judges the findings of members. Before a start it judges the replies of the
nodes that the ticket names and that this one knew.
"""

from __future__ import annotations

import asyncio
import statistics
from collections.abc import Iterator, Sequence

from swarm_node.node.figures.snapshot import NetworkReport, TriedRow
from swarm_node.node.preflight.doctor import Finding, Level
from swarm_node.p2p.addresses import circuit
from swarm_node.p2p.membership.membership import CLOCK_SKEW_SECONDS
from swarm_node.p2p.peers.causes import Cause, advice, told_here
from swarm_node.p2p.reach.attempts import DialAttempt, attempt_all
from swarm_node.p2p.reach.knock import knock
from swarm_node.p2p.reach.verdict import NATS, Verdict, listed, place
from swarm_node.p2p.wire.identity import short_id
from swarm_node.storage import KnownPeer

#: Part of the clock error that peers tolerate from which the owner is warned.
_CLOCK_WARNING = 0.1
_MOST_TRIED, _MOST_ADDRESSES = 8, 2
#: The level of each finding of `status`.
_LEVELS: dict[str, Level] = {"bad": "error", "warning": "warning", "good": "ok"}


def judge_network(report: NetworkReport) -> Iterator[Finding]:
    """Judge the network of a running node. The verdict of `status` comes first."""
    for said in report.findings:
        yield Finding(said.kind, _LEVELS[said.level], said.text, said.remedy)
    yield from _judge_causes(report)
    yield from _judge_tries(report.tried)
    if report.tried and all(row.cause or row.kind == "coordinator" for row in report.tried):
        return  # what members found before says nothing about now
    reach = report.reach
    found = judge_reach(reach)
    relays = [row for row in report.tried if row.kind == "relay"]
    if reach.kind == "relayed" and all(row.cause for row in relays):
        found = found._replace(level="warning")
    yield found
    yield Finding("nat", "ok", NATS[reach.nat])
    seen = [f"at {place(p.seen_ip, p.seen_port)} by {p.name}" for p in reach.probes]
    yield Finding("seen", "ok", listed(seen) if seen else "by no member yet")
    yield Finding("told", "ok", f"to others: {' '.join(report.addresses) or 'no address'}")
    if not relays:  # else the tries tell of each
        yield _relay(reach)
    yield _clocks(reach)
    yield _table(report)


def judge_reach(reach: Verdict) -> Finding:
    """Judge members' access to a running node."""
    level: Level = "warning" if reach.kind == "unreachable" else "ok"
    return Finding("reach", level, reach.text, reach.remedy)


def judge_addresses(
    tried: Sequence[DialAttempt], further: Sequence[TriedRow] = ()
) -> Iterator[Finding]:
    """Judge the nodes that ticket and settings name, and `further` tries."""
    yield Finding("reach", "ok", "known while the node runs: start it, and ask again")
    rows = [TriedRow("address", each.where, each.seconds, each.cause()) for each in tried]
    yield from _judge_tries([*rows, *further])


async def try_addresses(addresses: Sequence[str]) -> list[DialAttempt]:
    """Try a connection to each of these addresses, at most eight of them."""
    return await attempt_all(circuit.dialled(addresses), knock, _MOST_TRIED)


async def try_stored(peers: Sequence[KnownPeer]) -> list[TriedRow]:
    """Try a connection to each of these peers, at most eight, each at its first two addresses. A
    peer without an address of its own is left out: it is behind a relay."""

    async def one(peer: KnownPeer, addresses: Sequence[str]) -> TriedRow:
        attempts = await attempt_all(addresses, knock, _MOST_ADDRESSES)
        best = min(attempts, key=lambda each: each.outcome != "open")
        return TriedRow("peer", short_id(peer.peer_id), best.seconds, best.cause())

    found = [(peer, _own_addresses(peer)) for peer in peers]
    chosen = [(peer, own) for peer, own in found if own][:_MOST_TRIED]
    return list(await asyncio.gather(*(one(peer, own) for peer, own in chosen)))


def _own_addresses(peer: KnownPeer) -> list[str]:
    """The addresses of a peer without those of relays, each with the peer's id."""
    direct = circuit.reachable_first(peer.addresses)
    return [text if "/p2p/" in text else f"{text}/p2p/{peer.peer_id}" for text in direct]


def _judge_causes(report: NetworkReport) -> Iterator[Finding]:
    """Tell the causes that neither the verdict nor a try tells."""
    tried = [row.cause for row in report.tried if row.cause]
    told = {(cause.code, cause.peer, where) for cause in tried for where in (cause.where, "")}
    for cause in report.causes:
        text = told_here(cause)
        verdict = any(text in said.text for said in report.findings)
        if not verdict and (cause.code, cause.peer, cause.where) not in told:
            yield Finding(cause.code, "warning", text, advice(cause))


def _judge_tries(tried: Sequence[TriedRow]) -> Iterator[Finding]:
    """Judge what was tried just now. It is an error if nobody answered."""
    answered = [row for row in tried if row.cause is None and row.kind != "coordinator"]
    for row in tried:
        if row.cause is None:
            yield Finding(row.kind, "ok", f"{row.name} answers in {row.seconds * 1e3:.0f} ms")
            continue
        text, remedy = f"{told_here(row.cause)}, after {row.seconds:.1f} s", advice(row.cause)
        if any(row.kind == "relay" for row in answered) if row.kind == "relay" else answered:
            remedy += "; another one answers, which is enough"
        yield Finding(row.kind, "warning", text, remedy)
    if not tried:
        remedy = "start with a ticket, or invite another machine: `swarm-node invite`"
        yield Finding("reached", "warning", "nobody to try: no address and no known peer", remedy)
    elif all(row.kind == "coordinator" and row.cause is None for row in tried):
        yield Finding("reached", "ok", "no peer to try yet: the coordinator introduces some")
    elif not answered:
        remedy = "look at each line above; check this machine's own network first"
        yield Finding("reached", "error", "nobody is reached", remedy)


def _relay(reach: Verdict) -> Finding:
    if reach.kind == "unreachable":
        remedy = "a member that can be reached relays for others: let one join (docs/networking.md)"
        return Finding("relay", "warning", "none holds a link for this node", remedy)
    return Finding("relay", "ok", "none" + ", and none is needed" * (reach.kind == "direct"))


def _clocks(reach: Verdict) -> Finding:
    if not reach.probes:
        return Finding("clocks", "ok", "no member to compare with")
    ahead = statistics.median(probe.ahead for probe in reach.probes)
    cause = Cause("clock", name=_few(reach), seconds=-ahead)
    if abs(ahead) < _CLOCK_WARNING * CLOCK_SKEW_SECONDS:
        return Finding("clocks", "ok", told_here(cause))
    level: Level = "error" if abs(ahead) >= CLOCK_SKEW_SECONDS else "warning"
    return Finding("clocks", level, told_here(cause), advice(cause))


def _few(reach: Verdict) -> str:
    return listed(dict.fromkeys(probe.name for probe in reach.probes))


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
