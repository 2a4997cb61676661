"""An in-memory network with loss, delay and partitions, for tests and simulation.

`MemoryTransport` keeps the whole Transport contract without a socket. It uses the running loop's
time (`loop.time` and `asyncio.sleep`), so a swarm on a virtual clock never waits. The same seed and
the same order of calls give the same run.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence

from swarm_node.errors import NotServedError, TransportError
from swarm_node.p2p.transports.forwarding import run_route
from swarm_node.p2p.wire.frames import Reply, answer, check_size
from swarm_node.p2p.wire.identity import Identity
from swarm_node.p2p.wire.transport import (
    MAX_REPLY_BYTES,
    MAX_REQUEST_BYTES,
    Handler,
    Route,
    TableGate,
)
from swarm_node.p2p.wire.wire import MAX_PRESENCE_BYTES

_ADDRESS = "/memory/p2p/"
MAX_FOUND = 128


class MemoryNetwork:
    """Connects the transports: the running ones, their links, and the messages that are lost.

    Each message (a request or a reply) is lost with probability `loss` and otherwise takes a
    uniform draw from `delay` seconds. If a message is lost, the caller gets an error after
    `patience` seconds. `bytes_sent` and `bytes_received` count payload bytes by peer id. A lost
    message counts as sent only. A heartbeat counts each time that it is published or read."""

    def __init__(
        self,
        rng: random.Random,
        *,
        delay: tuple[float, float] = (0.0, 0.0),
        loss: float = 0.0,
        patience: float = 5.0,
    ) -> None:
        if not 0.0 <= loss <= 1.0 or not 0.0 <= delay[0] <= delay[1]:
            raise ValueError("loss is a probability and delay a pair 0 <= low <= high of seconds")
        self.bytes_sent: Counter[str] = Counter()
        self.bytes_received: Counter[str] = Counter()
        self._rng = rng
        self._delay = delay
        self._loss = loss
        self._patience = patience
        self._transports: dict[str, MemoryTransport] = {}
        self._group: dict[str, int] = {}
        self._places: dict[str, tuple[str, ...]] = {}
        self._hidden_peers: frozenset[str] = frozenset()
        self._links: set[frozenset[str]] = set()
        self._heartbeats: dict[str, tuple[bytes, float]] = {}
        self._publishers: list[str] = []  # the peer ids with a heartbeat

    def partition(self, groups: Iterable[Iterable[str]]) -> None:
        """Cut every link between different groups of peer ids. All other peers form another group.
        Links that an earlier call cut are restored."""
        self._group = {peer: i for i, group in enumerate(groups) for peer in group}

    def hide(self, peers: Iterable[str]) -> None:
        """Put each of these peers behind a NAT. It reaches all others. Only peers that it reached
        can reach it, until either end stops."""
        self._hidden_peers = frozenset(peers)
        self._links.clear()

    def place(self, peer: str, *addresses: str) -> None:
        """Set the multiaddrs `addresses` at which others see `peer`. With several, each other peer
        sees one of them, as with a router that uses another port for each connection."""
        self._places[peer] = addresses

    def observed_address(self, peer: str, observer: str) -> str:
        """The multiaddr at which `observer` sees `peer`."""
        places = self._places.get(peer) or ("/ip4/127.0.0.1/tcp/1",)
        return places[self.peers().index(observer) % len(places)]

    def cut(self, peer: str) -> None:
        """Crash `peer`: it answers nobody from now on. Its heartbeat stays until its ttl."""
        self._transports.pop(peer, None)
        self._links = {link for link in self._links if peer not in link}

    def is_reachable(self, source: str, target: str) -> bool:
        """Check that no partition lies between two peer ids."""
        return self._group.get(source, -1) == self._group.get(target, -1)

    def reaches(self, source: str, target: str) -> bool:
        """Check that `target` runs and that `source` can reach it."""
        is_visible = target not in self._hidden_peers or frozenset((source, target)) in self._links
        return (
            source != target
            and target in self._transports
            and self.is_reachable(source, target)
            and is_visible
        )

    def link(self, source: str, target: str) -> None:
        """Record that `source` reached `target`."""
        if source in self._hidden_peers:
            self._links.add(frozenset((source, target)))

    def running(self, peer: str) -> MemoryTransport | None:
        return self._transports.get(peer)

    def peers(self) -> list[str]:
        """Peer ids of all running transports, in the order they started."""
        return list(self._transports)

    def attach(self, transport: MemoryTransport) -> None:
        """
        Raises:
            TransportError: another transport runs under this identity.
        """
        if self._transports.setdefault(transport.peer_id, transport) is not transport:
            raise TransportError("this identity already runs", "stop the other node first")

    def detach(self, transport: MemoryTransport) -> None:
        if self._transports.get(transport.peer_id) is transport:
            self.cut(transport.peer_id)

    def publish(self, peer: str, heartbeat: bytes, ttl: float) -> None:
        self.bytes_sent[peer] += len(heartbeat)
        if peer not in self._heartbeats:
            self._publishers.append(peer)
        self._heartbeats[peer] = (heartbeat, asyncio.get_running_loop().time() + ttl)

    def heartbeats(self, reader: str) -> dict[str, bytes]:
        """Unexpired heartbeats of the other peers on the reader's side of the partition. Above
        MAX_FOUND a random sample, as in the DHT."""
        now, records, order = asyncio.get_running_loop().time(), {}, self._publishers
        for index in range(len(order)):
            if len(order) > MAX_FOUND:  # shuffle no more of them than are looked at
                swap_index = self._rng.randrange(index, len(order))
                order[index], order[swap_index] = order[swap_index], order[index]
            heartbeat, expires = self._heartbeats[order[index]]
            if order[index] != reader and expires > now and self.is_reachable(reader, order[index]):
                records[order[index]] = heartbeat
            if len(records) == MAX_FOUND:
                break
        self.bytes_received[reader] += sum(map(len, records.values()))
        return records

    async def exchange(
        self, source: MemoryTransport, target: str, protocol: str, payload: bytes, max_reply: int
    ) -> bytes:
        """Carry one request and its reply; see `Transport.request`."""
        fates = [self._fate(), self._fate()]  # before any await, so the order of draws is fixed
        await self._carry(source.peer_id, target, payload, fates[0])
        receiver = self._reach(source, target)
        handler, route = receiver.handler(protocol), receiver.route(protocol)
        if receiver.is_severed(source.peer_id):
            raise TransportError("the peer cut the link", "ask again later")
        if route is not None:
            reply = await self._pass_on(receiver, route, source.peer_id, protocol, payload)
        elif handler is not None:
            reply = await answer(handler, source.peer_id, protocol, payload)
        else:
            raise NotServedError(f"the peer does not serve {protocol}")
        if (
            not reply.is_refusal
        ):  # the real transport, too, refuses at the length and reads no payload
            check_size("reply", len(reply.payload), max_reply)
        await self._carry(target, source.peer_id, reply.payload, fates[1])
        if self._reach(source, target) is not receiver:
            raise TransportError("the peer restarted before it answered", "ask again")
        return reply.unwrap(max_reply)

    async def _pass_on(
        self, relay: MemoryTransport, route: Route, caller: str, protocol: str, payload: bytes
    ) -> Reply:
        """Answer a request with another peer's reply."""
        onward = await run_route(route, caller, protocol, payload)
        if isinstance(onward, Reply):
            return onward
        try:
            reply = await self.exchange(
                relay, onward.peer, onward.protocol, onward.payload, onward.max_reply
            )
        except TransportError as error:
            return Reply.refusal(str(error))
        finally:
            onward.on_ended()
        onward.on_sent(len(reply))
        return Reply(reply)

    def _fate(self) -> float | None:
        """Seconds until a message arrives, None if it is lost."""
        if self._loss and self._rng.random() < self._loss:
            return None
        return self._rng.uniform(*self._delay) if self._delay[1] else 0.0

    async def _carry(self, source: str, target: str, payload: bytes, fate: float | None) -> None:
        self.bytes_sent[source] += len(payload)
        if fate is None:
            await asyncio.sleep(self._patience)
            raise TransportError("the peer did not answer in time", "try again later")
        if fate:
            await asyncio.sleep(fate)
        self.bytes_received[target] += len(payload)

    def _reach(self, source: MemoryTransport, target: str) -> MemoryTransport:
        if self._transports.get(source.peer_id) is not source:
            raise TransportError("the transport is not running", "start it first")
        receiver = self._transports.get(target)
        if receiver is None or not self.reaches(source.peer_id, target):
            raise TransportError(f"cannot reach the peer {target}")
        self.link(source.peer_id, target)
        return receiver


class MemoryTransport:
    """One node's end of a `MemoryNetwork`; keeps the Transport contract."""

    has_table = True

    def __init__(self, network: MemoryNetwork, identity: Identity) -> None:
        self._network = network
        self._peer_id = identity.peer_id
        self._handlers: dict[str, Handler] = {}
        self._routes: dict[str, Route] = {}
        self._proves_membership: Callable[[bytes, str], bool] = lambda presence, peer: True
        self._is_member: Callable[[str], bool] = lambda peer: True
        self._severed_until: dict[str, float] = {}

    @property
    def peer_id(self) -> str:
        return self._peer_id

    async def start(self) -> None:
        self._network.attach(self)

    async def stop(self) -> None:
        self._network.detach(self)

    def addresses(self) -> list[str]:
        return [_ADDRESS + self._peer_id]

    def serve(self, protocol: str, handler: Handler) -> None:
        if self._network.running(self._peer_id) is self:
            raise RuntimeError("serve() comes before start()")
        self._handlers[protocol] = handler

    def forward(self, protocol: str, route: Route) -> None:
        if self._network.running(self._peer_id) is self:
            raise RuntimeError("forward() comes before start()")
        self._routes[protocol] = route

    def screen(
        self,
        proves_membership: Callable[[bytes, str], bool],
        is_member: Callable[[str], bool],
        issuer: Callable[[str], str],
        gate: TableGate | None = None,
    ) -> None:
        self._proves_membership, self._is_member = proves_membership, is_member

    def use_secret(self, secret: bytes) -> None:
        """Do nothing. All nodes of this network run in one process."""

    def handler(self, protocol: str) -> Handler | None:
        return self._handlers.get(protocol)

    def route(self, protocol: str) -> Route | None:
        return self._routes.get(protocol)

    async def dial(
        self, addresses: Sequence[str], patience: float = 4.0, *, is_punch: bool = False
    ) -> int:
        self._require_running()
        peers = {a.removeprefix(_ADDRESS) for a in addresses if a.startswith(_ADDRESS)}
        live_peers = [peer for peer in peers if self._reaches(peer)]
        for peer in live_peers:
            self._network.link(self._peer_id, peer)
        return len(live_peers)

    async def heal(self, addresses: Sequence[str]) -> str:
        self._require_running()
        if any(self._reaches(peer) for peer in self._network.peers()):
            return "ok"
        return "healed" if await self.dial(addresses) else "alone"

    async def request(
        self, peer: str, protocol: str, payload: bytes, *, max_reply: int = MAX_REPLY_BYTES
    ) -> bytes:
        self._require_running()
        check_size("request", len(payload), MAX_REQUEST_BYTES)
        return await self._network.exchange(self, peer, protocol, payload, max_reply)

    async def publish_heartbeat(self, heartbeat: bytes, ttl: float) -> None:
        self._require_running()
        check_size("heartbeat", len(heartbeat), MAX_PRESENCE_BYTES)
        self._network.publish(self._peer_id, heartbeat, ttl)

    async def heartbeats(self) -> dict[str, bytes]:
        self._require_running()
        records = self._network.heartbeats(self._peer_id)
        return {
            peer: presence
            for peer, presence in records.items()
            if self._proves_membership(presence, peer) and self._is_member(peer)
        }

    async def is_connected(self, peer: str) -> bool:
        return self._reaches(peer)

    async def observed_address(self, peer: str) -> str | None:
        return self._network.observed_address(peer, self._peer_id) if self._reaches(peer) else None

    def links(self) -> Mapping[str, str]:
        peers = filter(self._reaches, self._network.peers())
        return {peer: self._network.observed_address(peer, self._peer_id) for peer in peers}

    def connects_to(self, address: str) -> bool:
        return address.startswith(_ADDRESS)

    def sever(self, peer: str, seconds: float) -> None:
        self._severed_until[peer] = asyncio.get_running_loop().time() + seconds

    def is_severed(self, peer: str) -> bool:
        """Check that the link of `peer` is cut now."""
        return self._severed_until.get(peer, 0.0) > asyncio.get_running_loop().time()

    def _reaches(self, peer: str) -> bool:
        return self._network.reaches(self._peer_id, peer)

    def _require_running(self) -> None:
        if self._network.running(self._peer_id) is not self:
            raise TransportError("the transport is not running", "start it first")
