"""Five loops that keep a node among peers. One announces it, one repairs the network, one tries
peers that were named to it or stopped answering, one keeps relays, and one looks for direct links.
No other loop waits for such a peer. Each method without an underscore is one step of a loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress

import structlog

from swarm_node.clock import Clock
from swarm_node.p2p.addresses import circuit
from swarm_node.p2p.exchange.discovery import FEW, Discovery
from swarm_node.p2p.peers.peers import Directory
from swarm_node.p2p.reach.relay_links import KEEP_SECONDS
from swarm_node.p2p.reach.transport import ReachingTransport
from swarm_node.storage import Storage

#: Seconds between two repairs. A node that moved is back within fifteen seconds: this, two pings, a
#: dial and a greeting.
_HEAL_SECONDS = 3.0
_POLLS_PER_HEARTBEAT = 10
_KNOWN_PEERS = 32
#: Seconds between two peers that are tried: after an answer, and after none.
_NEXT_SECONDS = (0.1, 1.0)
_log = structlog.get_logger(__name__)


class Connectivity:
    """The five loops and their parts. `version` is that of this node's policy, `poll_seconds` the
    time between two rounds of lists."""

    def __init__(
        self,
        discovery: Discovery,
        *,
        reaching: ReachingTransport,
        storage: Storage,
        directory: Directory,
        clock: Clock,
        bootstrap: Sequence[str],
        poll_seconds: float,
        version: Callable[[], int],
    ) -> None:
        self._discovery = discovery
        self._transport = reaching
        self._storage = storage
        self._directory = directory
        self._clock = clock
        self._bootstrap = bootstrap
        self._heartbeat = _POLLS_PER_HEARTBEAT * poll_seconds
        self._version = version
        self._address_event = asyncio.Event()
        self._addresses: Sequence[str] = bootstrap
        self._is_open = False
        self._pause = 1.0
        self._last_addresses: Sequence[str] | None = None

    async def meet(self) -> None:
        """Announce this node at every heartbeat, often at first and when its addresses change."""
        if not self._is_open:
            await self._discovery.open(self._bootstrap)
            self._addresses = await self._known_addresses()
            self._is_open = True
        if self._directory.fewer(1, self._clock.now()):
            self._discovery.name(self._bootstrap)
        await self._discovery.send_heartbeat(self._version(), self._heartbeat)
        self._addresses = await self._known_addresses()  # a beat stores which peers answer
        with suppress(TimeoutError):
            async with asyncio.timeout(self._pause):
                await self._address_event.wait()
                self._pause = 1.0
        self._address_event.clear()
        self._pause = min(self._heartbeat, self._pause * 1.5)

    async def repair(self) -> None:
        """Repair the network. After a repair, have the peers that it can bring back retried at
        once."""
        if self._last_addresses is None:
            self._last_addresses = self._transport.addresses()
        outcome = await self._transport.heal(self._addresses)
        if outcome not in ("ok", "alone"):
            _log.info("network repaired", outcome=outcome)
            self._directory.hurry(self._clock.now())
        if self._last_addresses != (addresses := self._transport.addresses()):
            self._last_addresses = addresses
            self._address_event.set()
        await asyncio.sleep(_HEAL_SECONDS)

    async def _known_addresses(self) -> list[str]:
        """Return the addresses to dial when this node is alone."""
        known_peers = await self._storage.run(self._storage.known_peers, _KNOWN_PEERS)
        return [
            *self._bootstrap,
            *(
                a
                for peer in known_peers
                for a in circuit.complete_circuits(peer.addresses, peer.peer_id)
            ),
        ]

    async def relay(self) -> None:
        """Keep relays while peers cannot dial this node."""
        await self._transport.keep()
        await asyncio.sleep(KEEP_SECONDS)

    async def link(self) -> None:
        """Look for direct links to relayed peers."""
        await self._transport.upgrade()
        await asyncio.sleep(KEEP_SECONDS)

    async def try_peers(self) -> None:
        """Try one peer after the other, or a few at once while hardly any peer answers."""
        answer_pause, silence_pause = _NEXT_SECONDS
        now = self._clock.now()
        is_alone, has_few_peers = (self._directory.fewer(count, now) for count in (1, FEW))
        results = await asyncio.gather(
            *(self._discovery.try_peer() for _ in range(FEW if has_few_peers else 1))
        )
        if is_alone and any(results):
            self._directory.hurry(self._clock.now())
        await asyncio.sleep(answer_pause if any(results) else silence_pause)
