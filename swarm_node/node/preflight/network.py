"""Judges the network for `swarm-node doctor --network`. Pure, but for `try_addresses`.

For a running node it judges the findings of members. Before a start it judges the replies of the
nodes that the ticket names.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence

from swarm_node.node.figures.snapshot import NetworkReport, TriedRow
from swarm_node.node.preflight.doctor import Finding, Level
from swarm_node.p2p.addresses import circuit
from swarm_node.p2p.peers.causes import advice, told_here
from swarm_node.p2p.reach.attempts import DialAttempt, attempt_all
from swarm_node.p2p.reach.knock import knock
from swarm_node.p2p.reach.verdict import NATS, Verdict, listed, place

#: Seconds of clock error that warn the owner, and seconds from which peers refuse this node's
#: certificates and heartbeats.
_CLOCK_WARNING, _CLOCK_ERROR = 30.0, 300.0
_MOST_TRIED = 8


def judge_network(report: NetworkReport) -> Iterator[Finding]:
    """Judge the network of a running node."""
    yield from _judge_tries(report.tried)
    if report.tried and all(row.cause or row.kind == "coordinator" for row in report.tried):
        return  # what members found before says nothing about now
    reach = report.reach
    yield judge_reach(reach)
    yield Finding("nat", "ok", NATS[reach.nat])
    seen = [f"at {place(p.seen_ip, p.seen_port)} by {p.name}" for p in reach.probes]
    yield Finding("seen", "ok", listed(seen) if seen else "by no member yet")
    yield Finding("told", "ok", f"to others: {' '.join(report.addresses) or 'no address'}")
    yield _relay(reach)
    yield _clocks(reach)
    yield _table(report)


def judge_reach(reach: Verdict) -> Finding:
    """Judge members' access to a running node."""
    level: Level = "warning" if reach.kind == "unreachable" else "ok"
    return Finding("reach", level, reach.text, reach.remedy)


def judge_addresses(tried: Sequence[DialAttempt]) -> Iterator[Finding]:
    """Judge the nodes that ticket and settings name."""
    yield Finding("reach", "ok", "known while the node runs: start it, and ask again")
    yield from _judge_tries(
        [TriedRow("address", each.where, each.seconds, each.cause()) for each in tried]
    )


async def try_addresses(addresses: Sequence[str]) -> list[DialAttempt]:
    """Try a connection to each of these addresses, at most eight of them."""
    return await attempt_all(circuit.dialled(addresses), knock, _MOST_TRIED)


def _judge_tries(tried: Sequence[TriedRow]) -> Iterator[Finding]:
    """Judge what was tried just now. It is an error if nobody answered."""
    answered = [row for row in tried if row.cause is None and row.kind != "coordinator"]
    for row in tried:
        if row.cause is None:
            yield Finding(row.kind, "ok", f"{row.name} answers in {row.seconds * 1e3:.0f} ms")
            continue
        text, remedy = f"{told_here(row.cause)}, after {row.seconds:.1f} s", advice(row.cause)
        if answered:
            remedy += "; another one answers, which is enough"
        yield Finding(row.kind, "warning", text, remedy)
    if not any(row.kind != "coordinator" for row in tried):
        remedy = "start with a ticket, or invite another machine: `swarm-node invite`"
        yield Finding("reached", "warning", "nobody to try: no address and no known peer", remedy)
    elif not answered:
        remedy = "look at each line above; check this machine's own network first"
        yield Finding("reached", "error", "nobody is reached", remedy)


def _relay(reach: Verdict) -> Finding:
    if reach.relays:
        return Finding("relay", "ok", listed(reach.relays))
    if reach.kind == "unreachable":
        remedy = "a member that can be reached relays for others: let one join (docs/networking.md)"
        return Finding("relay", "warning", "none holds a link for this node", remedy)
    return Finding("relay", "ok", "none" + ", and none is needed" * (reach.kind == "direct"))


def _clocks(reach: Verdict) -> Finding:
    if not reach.probes:
        return Finding("clocks", "ok", "no member to compare with")
    ahead = statistics.median(probe.ahead for probe in reach.probes)
    text = f"{abs(ahead):.1f} s {'behind' if ahead > 0 else 'ahead of'} that of {_few(reach)}"
    if abs(ahead) < _CLOCK_WARNING:
        return Finding("clocks", "ok", text)
    level: Level = "error" if abs(ahead) >= _CLOCK_ERROR else "warning"
    return Finding("clocks", level, text, "set this clock: peers refuse what is 300 s off")


def _few(reach: Verdict) -> str:
    return listed(dict.fromkeys(probe.name for probe in reach.probes))


def _table(report: NetworkReport) -> Finding:
    text = f"{report.heartbeats} heartbeats in {report.seconds:.1f} s"
    if report.heartbeats is None:
        text = "none: this stack asks peers instead"
    text += f"; answering: {report.peers}"
    if report.fault:
        return Finding("dht", "warning", report.fault, "see the node's log if it goes on")
    if not report.peers and not report.heartbeats:
        remedy = "check the addresses of ticket and settings: `swarm-node config`"
        return Finding("dht", "warning", f"nobody found: {text}", remedy)
    return Finding("dht", "ok", text)
