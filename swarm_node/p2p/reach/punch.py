"""`/swarm-node/punch/1`: two nodes connect although both routers let in only answers.

Each end sends a SYN from its listening port to the public address of the other. Each router takes
the other's SYN for an answer: TCP's simultaneous open (RFC 9293, 3.5). The asker's network daemon
dials as usual. The target holds its own SYN until the other meets it, and passes the connection on
to its daemon on this machine. A plain listener would not work: its answer has another sequence
number than the SYN that its router let out.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Final

import structlog
from msgspec import Meta

from swarm_node.clock import Clock
from swarm_node.errors import Rejected, reason_of
from swarm_node.p2p.addresses.addresses import split_endpoint
from swarm_node.p2p.addresses.internet import site
from swarm_node.p2p.limits.budgets import FAVOURS, Budget
from swarm_node.p2p.limits.gates import PeerGates
from swarm_node.p2p.reach.reachability import Nat, Reach, is_public
from swarm_node.p2p.wire import wire

#: Seconds for which a SYN is held, and for which the asker dials. A lost SYN is repeated after 1
#: and 3 s.
HOLD_SECONDS: Final = 8.0
_DIAL_SECONDS = 6.0
MAX_BODY: Final = 256
_CHUNK = 256 * 1024
#: Pause after the first reset. Each pause is twice the last, so one request causes six SYNs.
_REFUSED_PAUSE = 0.25
#: Limits of SYNs that wait to be sent, and of SYNs and connections under way.
_HELD, _SPLICED = 8, 64
#: Rates and bursts per asker and per target host.
_PER_ASKER = (1 / 60, 2.0)
_PER_HOST = (3 / 60, 3.0)
#: Kinds of NAT behind which a node holds a SYN. They let the other's SYN in once one was sent out,
#: and silently drop one that arrives early. A router that refuses early SYNs would end the other's
#: dial, so a node behind such a router can only dial.
_HOLDS: frozenset[Nat] = frozenset({"restricted", "address"})
_DIALS: frozenset[Nat] = _HOLDS | {"reject"}
_log = structlog.get_logger(__name__)

_HOST = r"(ip4/[0-9.]{7,15}|ip6/[0-9a-f:.]{2,45})"
Endpoint = Annotated[str, Meta(pattern=rf"\A/{_HOST}/tcp/[0-9]{{1,5}}\Z")]


class Punch(wire.Body, frozen=True):
    """Request and reply carry the address at which members see the sender. An empty reply means
    that the target does not help."""

    address: Endpoint


@dataclass(frozen=True, slots=True)
class Place:
    """This node's position: the kind of NAT, the public address at which members see it, and the
    port on which it listens."""

    nat: Nat
    ip: str
    port: int
    listens: int

    def __str__(self) -> str:
        return f"/ip{6 if ':' in self.ip else 4}/{self.ip}/tcp/{self.port}"


@dataclass(frozen=True, slots=True)
class _Hold:
    listens: int
    ip: str
    port: int
    issuer: str


class Puncher:
    """Both ends. `place` returns this node's position, None while it is unknown. `ask` sends a
    request to a peer, through a relay if necessary. `dial` dials addresses. `issuer` names the
    issuer that admitted a peer."""

    def __init__(
        self,
        own_id: str,
        place: Callable[[], Place | None],
        *,
        ask: Callable[[str, bytes], Awaitable[bytes | None]],
        dial: Callable[[Sequence[str], float], Awaitable[int]],
        issuer: Callable[[str], str],
        clock: Clock,
    ) -> None:
        self._own_id = own_id
        self._place = place
        self._ask = ask
        self._dial = dial
        self._issuer = issuer
        self._clock = clock
        self._askers = PeerGates(*_PER_ASKER)
        self._hosts = PeerGates(*_PER_HOST, capacity=4096)
        self._budget = Budget(*FAVOURS)
        self._requests: asyncio.Queue[_Hold] = asyncio.Queue(_HELD)
        self._free = _SPLICED
        self._issuer_counts: Counter[str] = Counter()  # by issuer

    async def punch(self, peer: str) -> bool | None:
        """Try to open a direct link to `peer`, which a relay reaches. Return True if it stands.
        Return None while this node's position is unknown or the peer does not help: its position
        may be unknown too. If both ends could ask, only the one with the lower peer id does,
        because two SYNs from each end would interfere."""
        local_place = self._place()
        if local_place is None or local_place.nat == "unknown":
            return None
        if local_place.nat not in _DIALS or (local_place.nat in _HOLDS and self._own_id > peer):
            return False
        raw = await self._ask(peer, wire.pack(Punch(str(local_place))))
        if not raw:
            return None
        peer_place = _open(raw)
        if isinstance(peer_place, Rejected):
            return False
        return await self._dial([f"{peer_place.address}/p2p/{peer}"], _DIAL_SECONDS) > 0

    async def answer(self, caller: str, payload: bytes) -> bytes | Rejected:
        """Ask for a SYN to be held until this member's SYN meets it, and reply with this node's
        position. The reply is empty if this node cannot do that now."""
        peer_place, local_place, now = _open(payload), self._place(), self._clock.now()
        if isinstance(peer_place, Rejected):
            return peer_place
        issuer = self._issuer(caller)
        if local_place is None or local_place.nat not in _HOLDS or self._requests.full():
            return b""
        if self._issuer_counts[issuer] >= self._free:  # an issuer holds at most as many as are free
            return b""
        _, ip, port = split_endpoint(peer_place.address) or ("", "", 0)
        if (":" in ip) != (":" in local_place.ip):
            return b""
        if not (
            self._askers.take(caller, now)
            and self._hosts.take(site(ip), now)
            and self._budget.take(issuer, caller, now)
        ):
            return b""
        self._requests.put_nowait(_Hold(local_place.listens, ip, port, issuer))
        return wire.pack(Punch(str(local_place)))

    async def run(self, repeat: Callable[[Callable[[], Awaitable[None]]], Awaitable[None]]) -> None:
        """Hold the SYNs that were asked for, and pass connections on. `repeat` takes one step after
        the other."""
        await asyncio.gather(*(repeat(self._serve) for _ in range(_SPLICED)))

    async def _serve(self) -> None:
        request = await self._requests.get()
        self._free -= 1
        self._issuer_counts[request.issuer] += 1
        try:
            sock = await hold(request.listens, request.ip, request.port)
            if sock is not None:
                await splice(sock, request.listens)
        finally:
            self._free += 1
            self._issuer_counts[request.issuer] -= 1
            self._issuer_counts += Counter()  # forgets who has none left


def place_of(reach: Reach) -> Place | None:
    """Derive a node's position from its reachability. A node behind a firewall counts as behind a
    router, if it dials from the port on which it listens."""
    address = reach.observed_endpoint()
    if address is None or not reach.ports:
        return None
    nat = reach.nat()
    if nat == "none" and reach.dialable() is False and address[1] in reach.ports:
        is_rejecting = any("refused" in probe.outcomes.values() for probe in reach.probes)
        nat = "reject" if is_rejecting else "restricted"
    return Place(nat, *address, reach.ports[0])


async def hold(
    listens: int, ip: str, port: int, seconds: float = HOLD_SECONDS
) -> socket.socket | None:
    """Send a SYN from the port on which this machine listens until the other end's SYN meets it.
    Return None if none does in time, or if the port cannot be shared. A router that refuses
    unsolicited SYNs resets this one until the other end has sent its own, so it is sent again."""
    pause = _REFUSED_PAUSE
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            while True:
                try:
                    return await _open_punch_socket(listens, ip, port)
                except ConnectionRefusedError:
                    await asyncio.sleep(pause)
                    pause *= 2.0
                except OSError as error:
                    _log.debug("a SYN cannot be sent", ip=ip, port=port, error=reason_of(error))
                    return None
    return None


async def _open_punch_socket(listens: int, ip: str, port: int) -> socket.socket:
    six = ":" in ip
    sock = socket.socket(socket.AF_INET6 if six else socket.AF_INET, socket.SOCK_STREAM)
    try:
        sock.setblocking(False)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        if six:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        sock.bind(("::" if six else "0.0.0.0", listens))  # noqa: S104 - it listens nowhere
        await asyncio.get_running_loop().sock_connect(sock, (ip, port))
    except BaseException:
        sock.close()
        raise
    return sock


async def splice(sock: socket.socket, port: int) -> None:
    """Pass a connection on to the daemon that listens on `port` of this machine, until it ends."""
    streams: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []
    try:
        with contextlib.suppress(OSError):
            loopback = "::1" if sock.family == socket.AF_INET6 else "127.0.0.1"
            streams.append(await asyncio.open_connection(sock=sock))
            streams.append(await asyncio.open_connection(loopback, port))
            (reader, writer), (own_reader, own_writer) = streams
            await asyncio.gather(_pump(reader, own_writer), _pump(own_reader, writer))
    finally:
        if not streams:
            sock.close()
        for _, writer in streams:
            writer.close()


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Copy until either end closes. Bytes on their way still arrive."""
    with contextlib.suppress(OSError):
        while data := await reader.read(_CHUNK):
            writer.write(data)
            await writer.drain()
    writer.close()


def _open(data: bytes) -> Punch | Rejected:
    """Open the address that another node states: a port of a public host."""
    body = wire.unpack(Punch, data, max_bytes=MAX_BODY)
    if isinstance(body, Rejected):
        return body
    endpoint = split_endpoint(body.address)
    if endpoint is None or endpoint[2] == 0 or not is_public(endpoint[1]):
        return Rejected("route", "no public address")
    return body
