"""The common part of the transports over libp2p streams. Each adds the daemon that carries them.

A dead or stuck peer, or a dead daemon, delays the node by seconds and never ends it: start waits
for no peer, dials run in parallel, repair is repeated, and stop has a time limit.
"""

from __future__ import annotations

import asyncio
import random
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

import structlog

from swarm_node.clock import SYSTEM_CLOCK, Clock
from swarm_node.errors import OversizeError, SlowStartError, TransportError
from swarm_node.p2p.addresses.addresses import (
    Address,
    accepts,
    is_peer_id,
    parse_address,
    pin_ports,
    require_endpoints,
    resolve,
)
from swarm_node.p2p.limits.admission import Admission, BusyError
from swarm_node.p2p.transports.dialing import Dialing
from swarm_node.p2p.transports.forwarding import Stream, forward, run_route
from swarm_node.p2p.transports.timeouts import Patience
from swarm_node.p2p.wire.frames import (
    Reply,
    answer,
    check_size,
    read_reply,
    read_request,
    send_reply,
    send_request,
)
from swarm_node.p2p.wire.identity import Identity
from swarm_node.p2p.wire.protocols import RELAY, RELAYED
from swarm_node.p2p.wire.transport import (
    MAX_REPLY_BYTES,
    MAX_REQUEST_BYTES,
    Handler,
    Route,
    TableGate,
)
from swarm_node.recent import Recent

#: (protocol, remote peer id, reader, writer). It owns the stream and must close it.
StreamServer = Callable[[str, str, asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]

#: Streams that may wait until this process accepts them from its daemon. With a full queue the
#: daemon resets others' streams too.
MAX_WAITING = 2048
#: Limit from the acceptance of a stream to the ack of its reply, in seconds.
STREAM_SECONDS = 60.0
REFUSAL_SECONDS = 5.0
OPEN_SECONDS = 10.0
#: Limit for opening a stream to a connected peer.
ONWARD_SECONDS = 5.0
#: Starts that a node makes before it gives up its own start.
_STARTS = 3
#: Addresses that one dial() tries. If there are more, `rng` chooses among them.
MAX_DIALS = 32
PROBE_SECONDS = 3.0
_REMEMBERED = 4096
#: Seconds for a daemon to end.
STOP_SECONDS = 3.0

log = structlog.get_logger(__name__)

_LOOPBACK = ("/ip4/127.", "/ip6/::1/")


class Daemon(Protocol):
    """The process that carries the streams."""

    @property
    def pid(self) -> int | None: ...

    @property
    def dead(self) -> bool:
        """True after the process has exited."""
        ...

    @property
    def addresses(self) -> Sequence[str]:
        """The addresses that it listens on, each ending in the node's peer id."""
        ...

    async def connect(self, address: Address, patience: float) -> bool:
        """Connect. Return True if the peer answers at this address within `patience` seconds."""
        ...

    async def open_stream(
        self, peer_id: str, protocol: str, patience: float
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Open a stream to a peer's `protocol`; the caller closes the writer.

        Raises:
            TransportError: unreachable, or no answer in `patience` s. NotServedError: see there.
        """
        ...

    async def connections(self, patience: float) -> dict[str, list[str]] | None:
        """The connected peers, each with the other end's TCP multiaddrs. None if the process died,
        or does not answer in `patience` seconds in which this node's timers fire in time."""
        ...

    async def disconnect(self, peer_id: str) -> None:
        """Close all connections to a peer. It may open new ones."""
        ...

    async def stop(self, grace: float) -> None:
        """End the process, kill it after `grace` seconds, and remove its files."""
        ...


@dataclass(slots=True)
class _Stream:
    """A stream that a peer opened. `read` is true once its request has arrived."""

    protocol: str
    peer: str
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    read: bool = False


Node = TypeVar("Node", bound=Daemon)


class StreamTransport(ABC, Generic[Node]):
    """A transport whose requests travel over a daemon's streams.

    `listen` and `announce` are multiaddrs such as /ip4/0.0.0.0/tcp/0. `configured` are the
    addresses in settings and ticket. `found` returns addresses (without peer id) at which members
    reach this node although it does not listen there. At most `max_concurrent_per_peer` requests of
    one peer run at once.
    """

    def __init__(
        self,
        identity: Identity,
        *,
        listen: Sequence[str],
        rng: random.Random,
        announce: Sequence[str] = (),
        bootstrap: Sequence[str] = (),
        seen_addresses: Callable[[], Sequence[str]] = tuple,
        max_concurrent_per_peer: int = 8,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        require_endpoints((*listen, *announce))
        self._identity = identity
        self._listen = tuple(listen)
        self._announce = tuple(announce)
        self._rng = rng
        self._clock = clock
        self._handlers: dict[str, Handler] = {}
        self._routes: dict[str, Route] = {}
        self._proves_membership: Callable[[bytes, str], bool] = lambda presence, peer: True
        self._is_member: Callable[[str], bool] = lambda peer: True
        self._gate: TableGate | None = None
        self._admission = Admission(max_concurrent_per_peer, clock.now)
        self._streams: dict[asyncio.Task[Any], asyncio.Timeout] = {}
        self._disconnecting: set[str] = set()
        #: When this node last opened a stream to a peer.
        self._request_times: Recent[str, float] = Recent(_REMEMBERED)
        self._node: Node | None = None
        self._is_started = False
        #: The peers that were connected at the last look, each with the other end's addresses.
        self._peer_links: Mapping[str, Sequence[str]] = {}
        self._changing = asyncio.Lock()
        self._dialing = Dialing(bootstrap)
        self._seen_addresses = seen_addresses
        self._patience = Patience()
        #: The addresses of the last daemon that ran. A start that fails does not forget its ports.
        self._last_addresses: Sequence[str] = ()

    @abstractmethod
    async def _start_node(self, listen: Sequence[str], patience: float) -> Node:
        """Start a daemon that listens on these multiaddrs and calls `_serve_stream`.

        Raises:
            SlowStartError: it did not start in `patience` seconds.
            TransportError: it cannot be run or cannot listen.
        """

    async def _mend(self, links: Mapping[str, Sequence[str]], addresses: Sequence[str]) -> str:
        """Repair a running daemon that is connected to the peers `links`, each with the other
        end's address per link. See `heal`."""
        if links:
            return "ok"
        return "healed" if await self.dial(addresses) else "alone"

    @property
    def peer_id(self) -> str:
        return self._identity.peer_id

    @property
    def daemon_pid(self) -> int | None:
        """Process id of the running daemon."""
        return None if self._node is None or self._node.dead else self._node.pid

    async def start(self) -> None:
        async with self._changing:
            if self._is_started:
                raise RuntimeError("start() was called twice")
            for left in reversed(range(_STARTS)):
                try:
                    self._node = await self._begin(self._listen)
                except SlowStartError as error:
                    if not left:
                        raise
                    log.warning("restarting the network daemon with more time", reason=str(error))
                else:
                    break
            self._is_started = True

    async def stop(self) -> None:
        async with self._changing:
            self._is_started = False
            await self._stop_node()

    def addresses(self) -> list[str]:
        if self._node is None:
            return []
        # Peers learn only the first few addresses, and loopback ones are useless to other machines.
        node_addresses = sorted(self._node.addresses, key=lambda text: text.startswith(_LOOPBACK))
        return list(
            dict.fromkeys(
                [f"{address}/p2p/{self.peer_id}" for address in self._seen_addresses()]
                + node_addresses
            )
        )

    def serve(self, protocol: str, handler: Handler) -> None:
        if self._is_started:
            raise RuntimeError("serve() comes before start()")
        self._handlers[protocol] = handler

    def forward(self, protocol: str, route: Route) -> None:
        if self._is_started:
            raise RuntimeError("forward() comes before start()")
        self._routes[protocol] = route

    def screen(
        self,
        proves_membership: Callable[[bytes, str], bool],
        is_member: Callable[[str], bool],
        issuer: Callable[[str], str],
        gate: TableGate | None = None,
    ) -> None:
        if self._is_started:
            raise RuntimeError("screen() comes before start()")
        self._proves_membership, self._is_member, self._gate = proves_membership, is_member, gate
        self._admission.issuer = issuer

    async def dial(
        self, addresses: Sequence[str], patience: float = 4.0, *, is_punch: bool = False
    ) -> int:
        node = self._running()
        targets = await self._choose_dial_targets(addresses)
        answers = await asyncio.gather(
            *(self._connect(node, target, patience, is_punch) for target in targets)
        )
        for target, is_alive in zip(targets, answers, strict=True):
            if is_alive:
                self._dialing.record_answer(target)
        return sum(answers)

    async def _choose_dial_targets(self, addresses: Sequence[str]) -> list[Address]:
        """Choose the addresses to dial now, in a stable order."""
        candidates = {text: parse_address(text) for text in sorted(addresses)}
        targets = {t: text for text, t in candidates.items() if t and t.peer_id != self.peer_id}
        if len(targets) > MAX_DIALS:
            targets = dict(self._rng.sample(list(targets.items()), MAX_DIALS))
        own_addresses, now = self.addresses(), self._clock.now()
        dial_targets = [
            target for target, text in targets.items() if self._dialing.is_configured(text)
        ]
        peer_targets = [target for target in targets if target not in dial_targets]
        for ip_targets in await asyncio.gather(*map(resolve, peer_targets)):
            dial_targets += [
                target for target in ip_targets if self._dialing.take(target, own_addresses, now)
            ]
        # Behind another router the same address is a peer's. Here it would reach this node
        # itself.
        own_endpoints = {text.rpartition("/p2p/")[0] for text in own_addresses}
        return [target for target in dial_targets if target.multiaddr not in own_endpoints]

    async def _connect(self, node: Node, target: Address, patience: float, is_punch: bool) -> bool:
        """Dial an address. An address at which a member answered before is first tried with a TCP
        connection, and p2pd dials it only if that is accepted. p2pd avoids an address after a
        failure, for up to five minutes after several. So it dials at once when a partition has
        healed. Other addresses get one connection only, because they may belong to a third
        party."""
        is_open = is_punch or not self._dialing.is_known(target) or await accepts(target, patience)
        return (is_open or await self.is_connected(target.peer_id)) and await node.connect(
            target, patience
        )

    async def heal(self, addresses: Sequence[str]) -> str:
        """See `Transport.heal`. Returns "ok", "restarted" (the daemon), "moved" (this node's
        addresses changed), "cut" (links were silent), "healed" (a peer answers again) or "alone".

        Raises:
            TransportError: not started, or the daemon cannot be restarted; call again later.
        """
        node, start = self._node, self._clock.now()
        connections = None if node is None else await node.connections(self._patience.silence)
        self._peer_links = connections or {}
        if connections is None:
            async with self._changing:
                if not self._is_started:
                    raise TransportError("the transport is not running", "start it first")
                if self._node is node:
                    await self._restart_node()
            await self.dial(addresses)
            return "restarted"
        now = self._clock.now()
        self._patience.record_answer(now, now - start)
        return await self._mend(connections, addresses)

    async def request(
        self, peer: str, protocol: str, payload: bytes, *, max_reply: int = MAX_REPLY_BYTES
    ) -> bytes:
        node = self._running()
        check_size("request", len(payload), MAX_REQUEST_BYTES)
        if not is_peer_id(peer) or peer == self.peer_id:
            raise TransportError(f"{peer[:64]!r} is not the id of another peer")
        self._request_times[peer] = self._clock.now()
        reader, writer = await node.open_stream(peer, protocol, OPEN_SECONDS)
        try:
            await send_request(writer, payload)
            reply = await read_reply(reader, writer, max_reply)
        except BaseException:
            writer.transport.abort()  # close() would wait for a peer that may not read
            raise
        writer.close()
        return reply

    async def is_connected(self, peer: str) -> bool:
        return peer in await self._look()

    async def observed_address(self, peer: str) -> str | None:
        return next(iter((await self._look()).get(peer, ())), None)

    async def _look(self) -> Mapping[str, Sequence[str]]:
        self._peer_links = await self._running().connections(PROBE_SECONDS) or {}
        return self._peer_links

    def links(self) -> Mapping[str, str]:
        return {peer: addresses[0] for peer, addresses in self._peer_links.items() if addresses}

    def connects_to(self, address: str) -> bool:
        target = parse_address(address)
        return target is not None and self._dialing.connects_to(target, self.addresses())

    def sever(self, peer: str, seconds: float) -> None:
        self._admission.severed_peers.sever(peer, seconds)

    def _running(self) -> Node:
        if not self._is_started:
            raise TransportError("the transport is not running", "start it first")
        if self._node is None or self._node.dead:
            raise TransportError("the network daemon died: the node starts it again")
        return self._node

    async def _restart_node(self) -> None:
        """Replace a dead or stuck daemon, on the same ports if they are free."""
        if self._node is not None:
            self._last_addresses = self._node.addresses
            if not self._node.dead:
                self._patience.record_false_alarm(self._clock.now())
        await self._stop_node(grace=0.0)
        log.warning(
            "the network daemon died or got stuck: starting a new one",
            seconds=self._patience.start,
            next_silence=self._patience.silence,
        )
        try:
            self._node = await self._begin(pin_ports(self._listen, self._last_addresses))
        except SlowStartError:
            raise  # other ports would make it no faster
        except TransportError:
            self._node = await self._begin(self._listen)

    async def _begin(self, listen: Sequence[str]) -> Node:
        """Start a daemon. A start that was too slow lengthens the patience with the next."""
        try:
            return await self._start_node(listen, self._patience.start)
        except SlowStartError:
            self._patience.record_failure(self._clock.now())
            raise

    async def _stop_node(self, grace: float = STOP_SECONDS) -> None:
        # Let streams end by their deadline: asyncio logs a cancelled connection as an error.
        for deadline in self._streams.values():
            if not deadline.expired():
                deadline.reschedule(0.0)
        await asyncio.gather(*self._streams, return_exceptions=True)
        node, self._node, self._peer_links = self._node, None, {}
        if node is not None:
            await node.stop(grace)

    async def _serve_stream(
        self, protocol: str, peer: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        entry = self._admission.enter(peer, not self._is_member(peer))
        if entry is None:
            writer.transport.abort()
            self._count_over_limit("streams", 1)
            if peer in self._admission.severed_peers:
                await self._disconnect(peer)
            return
        stream = _Stream(protocol, peer, reader, writer)
        task = asyncio.current_task()
        assert task is not None
        is_complete = False
        try:
            async with asyncio.timeout(STREAM_SECONDS) as self._streams[task]:
                await self._answer(stream)
            is_complete = True
        except (TransportError, TimeoutError) as error:
            log.debug("a stream ended early", peer=peer, protocol=protocol, error=str(error))
            # The end of a request for a third peer, once it has arrived, may be the other end's
            # fault.
            if not (stream.read and protocol in (RELAY, RELAYED)):
                self._admission.ended_early(peer, junk=isinstance(error, OversizeError))
        finally:
            self._admission.leave(entry)
            del self._streams[task]
            if is_complete:
                writer.close()
            else:
                writer.transport.abort()  # close() would wait for a peer that may not read

    async def _disconnect(self, peer: str) -> None:
        """Close the links of a peer, once for all of its streams that are refused meanwhile."""
        if peer in self._disconnecting or self._node is None:
            return
        self._disconnecting.add(peer)
        try:
            await self._node.disconnect(peer)
        finally:
            self._disconnecting.discard(peer)

    def _count_over_limit(self, reason: str, count: int) -> None:
        """Count connections, links or streams over a limit."""
        if self._gate is not None:
            self._gate.over(reason, count)

    async def _answer(self, stream: _Stream) -> None:
        reader, writer, protocol = stream.reader, stream.writer, stream.protocol
        try:
            async with self._admission.hold(stream.peer, protocol):
                payload = await read_request(reader)
                stream.read = True
                if protocol in self._routes:
                    await self._pass_on(stream, payload)
                else:
                    handler = self._handlers[protocol]
                    reply = await answer(handler, stream.peer, protocol, payload)
                    await send_reply(reader, writer, reply)
        except BusyError as refusal:
            async with asyncio.timeout(REFUSAL_SECONDS):
                await read_request(reader)  # an unread request would be read as the ack
                await send_reply(reader, writer, Reply.refusal(str(refusal)))

    async def _pass_on(self, stream: _Stream, payload: bytes) -> None:
        """Answer a request with another peer's reply."""
        route, sink = self._routes[stream.protocol], (stream.reader, stream.writer)
        onward = await run_route(route, stream.peer, stream.protocol, payload)
        if isinstance(onward, Reply):
            return await send_reply(*sink, onward)
        await forward(onward, self._open_onward, sink)

    async def _open_onward(self, peer: str, protocol: str) -> Stream:
        self._request_times[peer] = self._clock.now()
        return await self._running().open_stream(peer, protocol, ONWARD_SECONDS)
