"""Judges the network for `swarm-node doctor --network`. Pure, but for `try_addresses`.

For a running node it judges the findings of members. Before a start it judges the replies of the
nodes that the ticket names.
"""

from __future__ import annotations

import asyncio
import statistics
from collections.abc import Iterator, Mapping, Sequence

from swarm_node.node.figures.snapshot import NetworkReport
from swarm_node.node.preflight.doctor import Finding, Level
from swarm_node.p2p.addresses.addresses import parse_address, resolve, split_endpoint
from swarm_node.p2p.reach.knock import knock
from swarm_node.p2p.reach.verdict import NATS, Outcome, Verdict, listed, place

#: Seconds of clock error that warn the owner, and seconds from which peers refuse this node's
#: certificates and heartbeats.
_CLOCK_WARNING, _CLOCK_ERROR = 30.0, 300.0
_MOST_TRIED = 8
_UNREACHED: Mapping[Outcome, str] = {
    "refused": "refuses connections",
    "timeout": "does not answer",
    "silent": "accepts connections and says nothing",
    "other": "is not the node that the address names",
    "untried": "has no address",
}


def judge_network(report: NetworkReport) -> Iterator[Finding]:
    """Judge the network of a running node."""
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


def judge_addresses(tried: Mapping[str, Outcome]) -> Iterator[Finding]:
    """Judge the nodes that ticket and settings name, by address."""
    yield Finding("reach", "ok", "known while the node runs: start it, and ask again")
    for address, outcome in tried.items():
        shown = address.rpartition("/p2p/")[0] or address
        if outcome == "open":
            yield Finding("peer", "ok", f"{shown} answers")
            continue
        remedy = "it may be down, or this network lets no connection to that port out"
        if "open" in tried.values():
            remedy += "; another one answers, which is enough to join"
        yield Finding("peer", "warning", f"{shown} {_UNREACHED[outcome]}", remedy)


async def try_addresses(addresses: Sequence[str]) -> dict[str, Outcome]:
    """Try a connection to each of these addresses, at most eight of them, and return its
    outcome."""
    chosen = list(dict.fromkeys(addresses))[:_MOST_TRIED]
    ends = await asyncio.gather(*map(_try, chosen))
    return dict(zip(chosen, ends, strict=True))


async def _try(text: str) -> Outcome:
    parsed = parse_address(text)
    for found in [] if parsed is None else await resolve(parsed):
        _, host, port = split_endpoint(found.multiaddr) or ("", "", 0)
        return await knock(host, port, found.peer_id)
    return "untried"


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
