"""A transport that uses relays where it cannot reach peers directly.

It wraps the network's transport. A request uses a link to its peer if there is one. Otherwise it
goes, sealed, to a relay that the peer names (relayed.py), and direct addresses are retried from
time to time. A node that cannot be dialled keeps links to two relays (relay_links.py), and lists
them in its addresses. A node that can be dialled relays for others (relaying.py)."""

from __future__ import annotations

import asyncio
import random
import secrets
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from swarm_node.durable import Journal
from swarm_node.errors import Rejected, TransportError
from swarm_node.p2p.addresses import circuit
from swarm_node.p2p.addresses.circuit import Circuit
from swarm_node.p2p.exchange.serving import refuse
from swarm_node.p2p.limits.admission import Severed
from swarm_node.p2p.limits.budgets import Wants
from swarm_node.p2p.membership.local_node import LocalNode
from swarm_node.p2p.peers.liveness import DIRECT, Retry
from swarm_node.p2p.reach.lan import Lan, own_networks
from swarm_node.p2p.reach.relay_links import DIAL_SECONDS, Relays, in_parallel
from swarm_node.p2p.reach.relayed import (
    NONCE_BYTES,
    REPLY_ROOM,
    Target,
    open_reply,
    request_to,
    seal_request,
)
from swarm_node.p2p.reach.relaying import Carried, Relaying
from swarm_node.p2p.reach.traffic import Usage
from swarm_node.p2p.wire.protocols import KEEP, RELAY, RELAYED
from swarm_node.p2p.wire.transport import (
    MAX_REPLY_BYTES,
    Handler,
    Route,
    TableGate,
    Transport,
)
from swarm_node.recent import Recent

#: Peers whose routes are remembered, and relays of one peer.
_WAYS, _RELAYS_OF_A_PEER = 512, 4
#: Relayed peers that are tried at once.
_UPGRADES = 8
#: Seconds for which a presence from the own network is valid.
_LAN_SECONDS = 180.0

Mode = Literal["auto", "off", "serve"]


@dataclass(slots=True)
class Way:
    """The route to a peer: its relays, each with its address ("" if only its link is known), in the
    order in which they are asked, and its direct addresses."""

    relays: dict[str, str] = field(default_factory=dict)
    direct: tuple[str, ...] = ()
    upgrade: Retry = field(default_factory=lambda: Retry(DIRECT))

    def learn(self, relay: str, address: str) -> None:
        """Add a relay. The one that failed longest ago makes room."""
        self.relays[relay] = address or self.relays.get(relay, "")
        if len(self.relays) > _RELAYS_OF_A_PEER:
            del self.relays[list(self.relays)[-2]]

    def demote_relay(self, relay: str) -> None:
        """Ask this relay last from now on."""
        self.relays[relay] = self.relays.pop(relay, "")


class ReachingTransport:
    """A Transport with relays. `dialable` returns whether peers can dial this node, None while that
    is unknown. `wants` is the demand behind the node's budgets. `rejected` holds its counts.
    `answered` outlasts the process, so that no relayed request is answered twice."""

    def __init__(
        self,
        local: LocalNode,
        inner: Transport,
        *,
        mode: Mode,
        is_dialable: Callable[[], bool | None],
        wants: Wants,
        rng: random.Random,
        lan: Lan | None = None,
        journal: Journal | None = None,
    ) -> None:
        self.usage = Usage()
        #: Opens a direct link to a relayed peer. It is set once the node can do so; see
        #: `Puncher.punch`.
        self.punch: Callable[[str], Awaitable[bool | None]] | None = None
        self._inner = inner
        self._lan = lan
        self._identity = local.identity
        self._swarm_id = local.swarm_id
        self.mode = mode
        self._is_dialable = is_dialable
        self._members = local.members
        self._directory = local.directory
        self._rejected = local.rejected
        self._clock = local.clock
        self._handlers: dict[str, Handler] = {}
        self._severed_peers = Severed(local.clock.now)
        self._ways: Recent[str, Way] = Recent(_WAYS)
        self.relays = Relays(
            local, inner, is_dialable=is_dialable, severed_peers=self._severed_peers, rng=rng
        )
        self._relaying = Relaying(
            local,
            is_relay=lambda: self.serves,
            is_connected=inner.is_connected,
            refuse=self._refuse,
            wants=wants,
        )
        inner.forward(RELAY, self._relaying.route)
        inner.serve(RELAYED, self._target(journal).answer)
        inner.serve(KEEP, self._relaying.keep)
        if lan is not None:
            lan.screen(self._read_presence_time)

    def _target(self, journal: Journal | None) -> Target:
        """Build the answering end for relayed requests."""
        return Target(
            self._identity,
            self._swarm_id,
            self._handlers,
            is_member=self._members.is_member,
            severed_peers=self._severed_peers,
            refuse=self._refuse,
            came_by=lambda asker, relay: self._way(asker).learn(relay, ""),
            clock=self._clock,
            journal=journal,
        )

    @property
    def peer_id(self) -> str:
        return self._inner.peer_id

    @property
    def serves(self) -> bool:
        """True while this node forwards requests of others."""
        return self.mode == "serve" or (self.mode == "auto" and self._is_dialable() is True)

    @property
    def forwarding_metrics(self) -> Carried:
        """Figures of this node's forwarding."""
        return self._relaying.totals

    async def start(self) -> None:
        await self._inner.start()

    async def stop(self) -> None:
        if self._lan is not None:
            self._lan.close()
        await self._inner.stop()

    def addresses(self) -> list[str]:
        """See `Transport.addresses`; circuits through the kept relays come last."""
        circuits = (
            str(Circuit(address, relay, self.peer_id))
            for relay, address in self.relays.relay_addresses().items()
        )
        return [*self._inner.addresses(), *circuits]

    def serve(self, protocol: str, handler: Handler) -> None:
        wrapped_handler = self.usage.counting(handler, self._members.is_member)
        self._handlers[protocol] = wrapped_handler
        self._inner.serve(protocol, wrapped_handler)

    def forward(self, protocol: str, route: Route) -> None:
        self._inner.forward(protocol, route)

    def screen(
        self,
        proves_membership: Callable[[bytes, str], bool],
        is_member: Callable[[str], bool],
        issuer: Callable[[str], str],
        gate: TableGate | None = None,
    ) -> None:
        self._inner.screen(proves_membership, is_member, issuer, gate)

    def use_secret(self, secret: bytes) -> None:
        self._inner.use_secret(secret)
        if self._lan is not None:
            self._lan.use(secret)

    async def publish_heartbeat(self, heartbeat: bytes, ttl: float) -> None:
        """See `Transport.publish_heartbeat`. The heartbeat is also announced on the own
        networks."""
        if self._lan is not None:
            await self._lan.announce(heartbeat, own_networks(self._inner.addresses()))
        await self._inner.publish_heartbeat(heartbeat, ttl)

    @property
    def has_table(self) -> bool:
        return self._inner.has_table

    async def heartbeats(self) -> dict[str, bytes]:
        """See `Transport.heartbeats`. Presences heard on the own networks are added to the
        table."""
        dht_records = await self._inner.heartbeats()
        lan_records = {} if self._lan is None else self._lan.heard_presences(_LAN_SECONDS)
        newer_peers = (
            p
            for p in lan_records
            if self._read_presence_time(lan_records[p], p)
            > self._read_presence_time(dht_records.get(p, b""), p)
        )
        return {**dht_records, **{peer: lan_records[peer] for peer in newer_peers}}

    async def heal(self, addresses: Sequence[str]) -> str:
        return await self._inner.heal(circuit.dialable_addresses(addresses))

    def sever(self, peer: str, seconds: float) -> None:
        self._severed_peers.sever(peer, seconds)
        self._inner.sever(peer, seconds)

    async def observed_address(self, peer: str) -> str | None:
        return await self._inner.observed_address(peer)

    def links(self) -> Mapping[str, str]:
        return self._inner.links()

    def connects_to(self, address: str) -> bool:
        """See `Transport.connects_to`; of a circuit, the address of its relay."""
        return any(map(self._inner.connects_to, circuit.dialable_addresses([address])))

    async def is_connected(self, peer: str) -> bool:
        """Check that a link to `peer`, or to one of its relays, is open."""
        if await self._inner.is_connected(peer):
            return True
        way = self._ways.get(peer)
        return way is not None and any(await in_parallel(map(self._inner.is_connected, way.relays)))

    async def dial(
        self, addresses: Sequence[str], patience: float = 4.0, *, is_punch: bool = False
    ) -> int:
        """See `Transport.dial`. A peer with circuits counts as reached once one of its relays is
        connected. Its direct addresses are then left to `keep`, because an unanswered dial takes
        long."""
        targets: dict[str, Way] = {}
        for text in addresses:
            result = circuit.parse(text)
            if result is not None and result.target not in ("", self.peer_id):
                way = targets.setdefault(result.target, self._way(result.target))
                if result.relay != self.peer_id:
                    way.learn(result.relay, result.address)
        direct = [text for text in addresses if circuit.parse(text) is None]
        for target, way in targets.items():
            own_addresses = tuple(text for text in direct if text.endswith("/" + target))
            if own_addresses != way.direct:
                way.direct = own_addresses
                way.upgrade.renew(self._clock.now())
        results = await in_parallel(self._approach(*item, patience) for item in targets.items())
        linked_ids = {target for target, result in zip(targets, results, strict=True) if result}
        left = [text for text in direct if text.rpartition("/")[2] not in linked_ids]
        return len(linked_ids) + (
            await self._inner.dial(left, patience, is_punch=is_punch) if left else 0
        )

    async def request(
        self, peer: str, protocol: str, payload: bytes, *, max_reply: int = MAX_REPLY_BYTES
    ) -> bytes:
        way = self._ways.get(peer)
        if way is None or not way.relays or await self._inner.is_connected(peer):
            self.usage.total_requests += 1
            start = self._clock.now()
            reply = await self._inner.request(peer, protocol, payload, max_reply=max_reply)
            sizes = len(payload), len(reply)
            self.usage.record_answer(peer, "", *sizes, start, self._clock.now())
            return reply
        return await self._through(peer, way, protocol, payload, max_reply)

    async def keep(self) -> None:
        """Maintain the relays of this node. The node calls it every KEEP_SECONDS."""
        await self.relays.keep()

    async def upgrade(self) -> None:
        """Try to reach some relayed peers directly, those tried longest ago first."""
        now = self._clock.now()
        due_peers = sorted(
            (way.upgrade.tried_at, peer)
            for peer, way in self._ways.items()
            if way.relays and way.upgrade.due(now) and self._directory.get(peer) is not None
        )
        await in_parallel(
            self._upgrade(peer, self._ways[peer]) for _, peer in due_peers[:_UPGRADES]
        )

    async def _through(
        self, peer: str, way: Way, protocol: str, payload: bytes, max_reply: int
    ) -> bytes:
        """Ask through one relay after the other. A relay that does not deliver is asked last from
        then on, also when the caller gives up on it."""
        error = _UndeliveredError(f"no relay of {peer} can be reached: ask again later")
        for relay, address in list(way.relays.items()):
            try:
                if await self.relays.connect(relay, address, DIAL_SECONDS):
                    return await self._ask(relay, peer, protocol, payload, max_reply)
            except _UndeliveredError as failure:
                error = failure
            except asyncio.CancelledError:
                way.demote_relay(relay)
                raise
            way.demote_relay(relay)
        raise error

    async def _ask(
        self, relay: str, peer: str, protocol: str, payload: bytes, max_reply: int
    ) -> bytes:
        """
        Raises:
            _UndeliveredError: the relay brought no reply of this peer.
            TransportError: the peer refused, or its reply is over the limit.
        """
        body = request_to(
            peer,
            protocol,
            payload,
            max_reply,
            nonce=secrets.token_bytes(NONCE_BYTES),
            wall=self._clock.wall(),
        )
        envelope = seal_request(self._identity, self._swarm_id, body)
        max_bytes = body.most + REPLY_ROOM
        self.usage.total_requests += 1
        start = self._clock.now()
        try:
            raw = await self.relays.ask(relay, RELAY, envelope, max_bytes)
        except TransportError as error:
            raise _UndeliveredError(f"a relay did not deliver: {error}") from error
        reply = open_reply(raw, self._swarm_id, peer, body)
        if isinstance(reply, Rejected):
            self._rejected[reply.reason] += 1
            raise _UndeliveredError(reply.detail)
        self.usage.relayed_requests += 1
        if self.usage.relay_ids.get(peer) == "":
            # It had a direct link, which can come back.
            self._way(peer).upgrade.renew(self._clock.now())
        sizes = len(payload), len(reply.payload)
        self.usage.record_answer(peer, relay, *sizes, start, self._clock.now())
        return reply.unwrap(max_reply)

    async def _approach(self, target: str, way: Way, patience: float) -> bool:
        """Dial `target` or its relays. Return True if one of them is connected."""
        if await self.is_connected(target):
            return True
        return any(
            await in_parallel(self.relays.connect(*item, patience) for item in way.relays.items())
        )

    async def _upgrade(self, peer: str, way: Way) -> bool:
        now = self._clock.now()
        way.upgrade.begin(now)
        if await self._inner.is_connected(peer):
            way.upgrade.rest(now)
            return True
        punched = await self.punch(peer) if self.punch is not None else False
        if punched is None:  # an end does not know its position yet
            way.upgrade.record_failure(now)
        else:
            way.upgrade.rest(now)
        return bool(punched or (way.direct and await self._inner.dial(way.direct, DIAL_SECONDS)))

    def _read_presence_time(self, presence: bytes, peer: str) -> int:
        """Return the time of issue (Unix ms) of a presence of `peer`, -1 if it is refused."""
        record = self._members.read_presence(presence, peer)
        return -1 if isinstance(record, Rejected) else record.head.issued_ms

    def _way(self, peer: str) -> Way:
        way = self._ways.get(peer) or Way()
        self._ways[peer] = way
        return way

    def _refuse(self, peer: str, rejection: Rejected) -> None:
        refuse(
            peer,
            rejection,
            self._clock.now(),
            transport=self,
            directory=self._directory,
            counts=self._rejected,
        )


class _UndeliveredError(TransportError):
    """A relay brought no reply of the peer that was asked."""
