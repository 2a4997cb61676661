"""`/swarm-node/probe/1`: a node asks members whether they can open a connection to it.

The member dials only the IP address at which it sees the caller, which the caller's link proves. So
it is no amplifier. It dials ports that the caller announces or was seen at, and few of them,
because neighbours of the caller may share the address.

Some routers let in any host to which this node has sent, and the member is such a host. So a member
that could connect asks further members to try, with `/swarm-node/probe-for/1`. They dial only if
they have no link to the node, only public addresses, and as rarely as addresses from heartbeats.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import random
from collections.abc import Awaitable, Callable, Iterable
from typing import Annotated, Final

import structlog
from msgspec import Meta

from swarm_node.errors import Rejected
from swarm_node.p2p.addresses.addresses import is_here, is_peer_id, parse_address, split_endpoint
from swarm_node.p2p.addresses.internet import site
from swarm_node.p2p.exchange.requests import Asker
from swarm_node.p2p.limits.budgets import FAVOURS, Budget
from swarm_node.p2p.limits.gates import PeerGates
from swarm_node.p2p.membership.local_node import LocalNode
from swarm_node.p2p.peers.liveness import PROBE_ROUND
from swarm_node.p2p.peers.peers import Peer
from swarm_node.p2p.reach.reachability import Outcome, Probed, Reach, is_public
from swarm_node.p2p.wire import wire
from swarm_node.p2p.wire.protocols import PROBE, PROBE_FOR
from swarm_node.p2p.wire.transport import Transport

MAX_PORTS: Final = 4
_MAX_BODY = 512
#: Rates and bursts of a member's dials: probes per caller, and ports per host.
_PER_CALLER = (1 / 60, 4.0)
_PER_HOST = (1 / 15, 40.0)
#: Rate and burst of dials to one host that another member named, as in dialing.py.
_PER_STRANGE_HOST = (3 / 60, 3.0)
#: Further members that are asked at once, and their deadlines. With KNOCK_SECONDS these are less
#: than the time that the caller waits.
_STRANGERS, _STRANGERS_SECONDS, _ASK_SECONDS = 3, 6.0, 15.0
#: Members asked in a round, members drawn to choose them from, and members checked between rounds
#: in search of one on the Internet.
_ASKED, _DRAWN, _LOOKED_AT = 3, 32, 4
#: Age at which findings are forgotten, when nobody could be asked since.
_FORGET_SECONDS = 3 * PROBE_ROUND.ceiling
#: Seconds between two checks whether a round is due, and before the first round.
_TICK, _FIRST_TICK = 5.0, 1.0
_log = structlog.get_logger(__name__)

#: (IP address, port, peer id) -> outcome of a new connection to it.
Knock = Callable[[str, int, str], Awaitable[Outcome]]
Port = Annotated[int, Meta(ge=1, le=65_535)]


class ProbeRequest(wire.Body, frozen=True):
    """Ports at which the caller expects to be reached."""

    ports: Annotated[tuple[Port, ...], Meta(max_length=MAX_PORTS)]


class PortOutcome(wire.Body, frozen=True):
    """Outcome of a connection to `port`."""

    port: Port
    outcome: Outcome


class ProbeReply(wire.Body, frozen=True):
    """The member's findings. `seen` is the address at which it sees the caller, "" without a direct
    link. `outcomes` are those of its connections, `stranger` is the outcome for a member without a
    link. `wall_ms` is the member's clock."""

    seen: Annotated[str, Meta(max_length=wire.MAX_ADDRESS_CHARS)]
    outcomes: Annotated[tuple[PortOutcome, ...], Meta(max_length=MAX_PORTS + 1)]
    stranger: Outcome
    wall_ms: wire.Milliseconds


class ProbeForRequest(wire.Body, frozen=True):
    """A request to connect to the node `peer_id` at this address."""

    peer_id: Annotated[str, Meta(max_length=64)]
    address: wire.Address


class ProbeForReply(wire.Body, frozen=True):
    """The outcome: "open", "untried", or "timeout" for all else. The member does not reveal what
    answers at a port."""

    outcome: Outcome


class ProbeServer:
    """The member's end. Probes of the caller and probes of a third node that the caller names have
    separate budgets."""

    def __init__(
        self,
        local: LocalNode,
        asker: Asker,
        *,
        transport: Transport,
        knock: Knock,
        rng: random.Random,
    ) -> None:
        self._asker = asker
        self._transport = transport
        self._directory = local.directory
        self._members = local.members
        self._knock = knock
        self._clock = local.clock
        self._rng = rng
        self._callers = PeerGates(*_PER_CALLER)
        self._hosts = PeerGates(*_PER_HOST)
        self._strange_hosts = PeerGates(*_PER_STRANGE_HOST)
        self._probes, self._favours = Budget(*FAVOURS), Budget(*FAVOURS)

    async def answer(self, caller: str, payload: bytes) -> bytes | Rejected:
        """Dial the member `caller`, and return the outcome."""
        request = wire.unpack(ProbeRequest, payload, max_bytes=_MAX_BODY)
        if isinstance(request, Rejected):
            return request
        caller_address = await self._transport.observed_address(caller) or ""
        place = _place(caller_address)
        outcomes: dict[int, Outcome] = {}
        stranger_outcome: Outcome = "untried"
        if place is not None:
            ip, port = place
            peer = self._directory.get(caller)
            known_ports = {port, *ports_of(peer.addresses if peer else ())}
            asked_ports = dict.fromkeys((*request.ports, port))
            outcomes = dict.fromkeys(asked_ports, "untried")
            dialed_ports = [number for number in asked_ports if number in known_ports]
            if self._allows(caller, ip, len(dialed_ports)):
                ends = (self._knock(ip, number, caller) for number in dialed_ports)
                outcomes |= zip(dialed_ports, await asyncio.gather(*ends), strict=True)
            open_ports = [number for number in dialed_ports if outcomes[number] == "open"]
            if open_ports and is_public(ip):
                stranger_outcome = await self._ask_strangers(caller, ip, open_ports[0])
        pairs = tuple(PortOutcome(*pair) for pair in outcomes.items())
        return wire.pack(
            ProbeReply(caller_address, pairs, stranger_outcome, int(self._clock.wall() * 1000))
        )

    async def answer_for(self, caller: str, payload: bytes) -> bytes | Rejected:
        """Dial the node that the member `caller` names, if this node has no link to it."""
        request = wire.unpack(ProbeForRequest, payload, max_bytes=_MAX_BODY)
        if isinstance(request, Rejected):
            return request
        outcome: Outcome = "untried"
        place, peer_id = _place(request.address), request.peer_id
        is_stranger = place is not None and await self._strange(caller, peer_id, place[0])
        if place is not None and is_stranger:
            is_open = await self._knock(*place, peer_id) == "open"
            outcome = "open" if is_open else "timeout"
        return wire.pack(ProbeForReply(outcome))

    async def _strange(self, caller: str, peer_id: str, ip: str) -> bool:
        """Check that this node may act as a stranger to `peer_id` now: no link to it, `ip` public,
        and budgets left."""
        now = self._clock.now()
        return (
            is_public(ip)
            and self._speaks(ip)
            and is_peer_id(peer_id)
            and peer_id != self._transport.peer_id
            and await self._transport.observed_address(peer_id) is None
            and self._strange_hosts.take(site(ip), now)
            and self._favours.take(self._members.issuer(caller), caller, now)
        )

    def _speaks(self, ip: str) -> bool:
        """Check that this node has an address of the same version of IP. A node without own
        addresses may have both."""
        ip_versions = {
            ":" in host for host in hosts_of(self._transport.addresses()) if not _loopback(host)
        }
        return not ip_versions or (":" in ip) in ip_versions

    async def _ask_strangers(self, caller: str, ip: str, port: int) -> Outcome:
        """Ask some further members on the Internet without a link to `caller` to connect. One
        success is enough, because a failure may be the member's own fault. Members behind the
        caller's router are not asked, because they connect by another path."""
        peers = self._directory.draw(self._rng, _DRAWN, self._clock.now(), excluded_ids=(caller,))
        peer_places = [
            (peer, _place(await self._transport.observed_address(peer.peer_id) or ""))
            for peer in peers
        ]
        internet_peers = [
            peer for peer, at in peer_places if at and is_public(at[0]) and site(at[0]) != site(ip)
        ]
        strangers = internet_peers[:_STRANGERS]
        address = f"/ip{6 if ':' in ip else 4}/{ip}/tcp/{port}"
        request = wire.pack(ProbeForRequest(caller, address))
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_STRANGERS_SECONDS):
                outcomes = await asyncio.gather(
                    *(self._ask_for(stranger, request) for stranger in strangers)
                )
                return (
                    "open"
                    if "open" in outcomes
                    else "timeout"
                    if "timeout" in outcomes
                    else "untried"
                )
        return "untried"

    async def _ask_for(self, peer: Peer, request: bytes) -> Outcome:
        raw = await self._asker.ask(peer, PROBE_FOR, request, max_reply=_MAX_BODY)
        if raw is None:
            return "untried"
        reply = wire.unpack(ProbeForReply, raw, max_bytes=_MAX_BODY)
        if isinstance(reply, Rejected):
            self._asker.reject(reply, peer.peer_id)
            return "untried"
        return reply.outcome

    def _allows(self, caller: str, ip: str, ports: int) -> bool:
        """Charge dials of `ports` ports of `ip`, if the budgets allow them. A node with a
        non-loopback address never dials its own machine, where other programs trust loopback."""
        now, addresses = self._clock.now(), self._transport.addresses()
        if _loopback(ip) and not all(_loopback(host) for host in hosts_of(addresses)):
            return False
        return (
            self._callers.take(caller, now)
            and self._hosts.take(site(ip), now, ports)
            and self._probes.take(self._members.issuer(caller), caller, now)
        )


class Prober:
    """The asking end. It stores the findings of members in `reach`."""

    def __init__(
        self,
        local: LocalNode,
        asker: Asker,
        reach: Reach,
        *,
        transport: Transport,
        rng: random.Random,
    ) -> None:
        self._asker = asker
        self._reach = reach
        self._transport = transport
        self._directory = local.directory
        self._members = local.members
        self._clock = local.clock
        self._rng = rng
        self._addresses: list[str] = []
        self._last_round_at = self._next_round_at = self._answered_at = -math.inf
        self._uncertain_rounds = 0

    async def step(self) -> None:
        """Ask at the start, after a change, and from time to time. The caller repeats it."""
        now = self._clock.now()
        if now > self._answered_at + _FORGET_SECONDS:
            self._reach.probes = ()
        if now >= self._last_round_at + PROBE_ROUND.first and await self._due():
            await self._round()
        await asyncio.sleep(_TICK if self._reach.probes else _FIRST_TICK)

    async def refresh(self) -> None:
        """Ask now, unless a round has just ended."""
        if self._clock.now() >= self._last_round_at + PROBE_ROUND.first:
            await self._round()

    async def _due(self) -> bool:
        """Check that a round is due: by time, because the own addresses changed, because the links
        of the asked members are gone, or because a member on the Internet is now connected."""
        probes = self._reach.probes
        if (
            not probes
            or self._clock.now() >= self._next_round_at
            or self._addresses != self._own_addresses()
        ):
            return True
        if not [probe for probe in probes if await self._transport.observed_address(probe.peer_id)]:
            return True
        if any(probe.abroad for probe in probes):
            return False
        links = await self._links(_LOOKED_AT)
        return any(
            is_public(links[peer_id]) for peer_id in links.keys() - {p.peer_id for p in probes}
        )

    async def _links(self, count: int) -> dict[str, str]:
        """IP addresses of the connected ones among `count` random peers, by peer id."""
        links = {}
        for peer in self._directory.draw(self._rng, count, self._clock.now()):
            place = _place(await self._transport.observed_address(peer.peer_id) or "")
            if place is not None:
                links[peer.peer_id] = place[0]
        return links

    async def _round(self) -> None:
        links, reach = await self._links(_DRAWN), self._reach
        peers = [self._directory.get(peer_id) for peer_id in self._chosen(links)]
        reach.asked_count = len(peers)
        if not peers:
            return
        self._last_round_at = self._clock.now()
        reach.ports = tuple(ports_of(self._own_addresses()))
        replies = await asyncio.gather(
            *(self._ask(peer, links[peer.peer_id]) for peer in peers if peer is not None)
        )
        probes = tuple(probe for probe in replies if probe is not None)
        votes = [probe.is_open for probe in probes if probe.is_open is not None]
        if votes:
            self._answered_at = self._clock.now()
            old_verdict, reach.probes = reach.verdict(), probes
            now = reach.verdict()
            if (old_verdict.kind, old_verdict.nat) != (now.kind, now.nat):
                _log.info("reach", verdict=now.text, remedy=now.remedy, nat=now.nat)
        certain = len(votes) > 1 and reach.dialable() is not None and 2 * sum(votes) != len(votes)
        pause = PROBE_ROUND.ceiling if certain else PROBE_ROUND.after(self._uncertain_rounds)
        self._next_round_at = self._clock.now() + pause
        self._uncertain_rounds = 0 if certain else self._uncertain_rounds + 1
        self._addresses = self._own_addresses()  # with what was found

    def _chosen(self, links: dict[str, str]) -> list[str]:
        """Choose the members to ask: those on the Internet if there are any. One of each issuer is
        left if there are several issuers, because members of one issuer may share a network. Then
        one of each site is left if there are several sites."""
        order = [peer_id for peer_id, ip in links.items() if is_public(ip)] or list(links)
        self._rng.shuffle(order)
        for place in (self._members.issuer, lambda peer_id: site(links[peer_id])):
            firsts = list({place(peer_id): peer_id for peer_id in reversed(order)}.values())
            order = firsts if len(firsts) > 1 else order
        return order[:_ASKED]

    async def _ask(self, peer: Peer, at: str) -> Probed | None:
        request = ProbeRequest(self._reach.ports[:MAX_PORTS])
        raw = await self._asker.ask(
            peer, PROBE, wire.pack(request), max_reply=_MAX_BODY, seconds=_ASK_SECONDS
        )
        if raw is None:
            return None
        reply = wire.unpack(ProbeReply, raw, max_bytes=_MAX_BODY)
        if isinstance(reply, Rejected):
            self._asker.reject(reply, peer.peer_id)
            return None
        place = _place(reply.seen)
        # Over a link that punch.py passed on, a member sees the caller at its own machine.
        if place is None or (_loopback(place[0]) and not _loopback(at)):
            return None
        ports = {*request.ports, place[1]}
        return Probed(
            peer.peer_id,
            self._members.name(peer.peer_id) or peer.peer_id[-8:],
            at,
            *place,
            here=is_here(place[0]),
            outcomes={
                result.port: result.outcome for result in reply.outcomes if result.port in ports
            },
            stranger=reply.stranger,
            ahead=reply.wall_ms / 1000 - self._clock.wall(),
        )

    def _own_addresses(self) -> list[str]:
        """This node's own dialable addresses."""
        return [text for text in self._transport.addresses() if parse_address(text)]


def ports_of(addresses: Iterable[str]) -> list[int]:
    """Ports of dialable addresses, in order."""
    return list(dict.fromkeys(place[1] for place in _places(addresses)))


def hosts_of(addresses: Iterable[str]) -> list[str]:
    """IP addresses of dialable addresses."""
    return [host for host, _ in _places(addresses)]


def _places(addresses: Iterable[str]) -> list[tuple[str, int]]:
    targets = (parse_address(text) for text in addresses)
    endpoints = (split_endpoint(target.multiaddr) for target in targets if target is not None)
    return [(host, port) for _, host, port in filter(None, endpoints)]


def _place(text: str) -> tuple[str, int] | None:
    """IP address and port of a multiaddr that has both."""
    kind, host, port = split_endpoint(text) or ("", "", 0)
    return (host, port) if kind in ("ip4", "ip6") and port else None


def _loopback(host: str) -> bool:
    return host.startswith("127.") or host == "::1"
