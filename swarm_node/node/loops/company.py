"""Four loops that keep a node among peers. One announces it, one repairs the network, one tries
peers that it was told of or that stopped answering, and one keeps relays. No other loop waits for
such a peer."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress

import structlog

from swarm_node.clock import Clock
from swarm_node.errors import TransportError
from swarm_node.p2p.addresses import circuit
from swarm_node.p2p.exchange.meeting import FEW, Meeting
from swarm_node.p2p.peers.peers import Directory
from swarm_node.p2p.reach.keeping import KEEP_SECONDS
from swarm_node.p2p.reach.punch import Puncher
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


class Company:
    """The four loops and their parts. `version` is that of this node's policy, `poll_seconds` the
    time between two rounds of lists."""

    def __init__(
        self,
        meeting: Meeting,
        *,
        reaching: ReachingTransport,
        puncher: Puncher | None = None,
        storage: Storage,
        directory: Directory,
        clock: Clock,
        bootstrap: Sequence[str],
        poll_seconds: float,
        version: Callable[[], int],
    ) -> None:
        self._meeting = meeting
        self._transport = reaching
        self._puncher = puncher
        self._storage = storage
        self._directory = directory
        self._clock = clock
        self._bootstrap = bootstrap
        self._heartbeat = _POLLS_PER_HEARTBEAT * poll_seconds
        self._version = version
        self._moved = asyncio.Event()
        self._addresses: Sequence[str] = bootstrap

    async def meet(self) -> None:
        """Announce this node at every heartbeat, often at first and when its addresses change."""
        await self._meeting.open(self._bootstrap)
        self._addresses = await self._known()
        pause = 1.0
        while True:
            if self._directory.fewer(1, self._clock.now()):
                self._meeting.name(self._bootstrap)
            try:
                await self._meeting.beat(self._version(), self._heartbeat)
            except TransportError as error:
                _log.warning("no heartbeat went out", error=str(error))
            self._addresses = await self._known()  # a beat stores which peers answer
            with suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await self._moved.wait()
                    pause = 1.0
            self._moved.clear()
            pause = min(self._heartbeat, pause * 1.5)

    async def mend(self) -> None:
        """Repair the network. After a repair, have the peers that it can bring back retried at
        once."""
        told = self._transport.addresses()
        while True:
            try:
                done = await self._transport.heal(self._addresses)
            except TransportError as error:
                _log.warning("the network is not repaired", error=str(error))
                done = "alone"
            if done not in ("ok", "alone"):
                _log.info("network repaired", what=done)
                self._directory.hurry(self._clock.now())
            if told != (told := self._transport.addresses()):
                self._moved.set()
            await asyncio.sleep(_HEAL_SECONDS)

    async def _known(self) -> list[str]:
        """Return the addresses to dial when this node is alone."""
        known = await self._storage.run(self._storage.known_peers, _KNOWN_PEERS)
        return [
            *self._bootstrap,
            *(a for peer in known for a in circuit.completed(peer.addresses, peer.peer_id)),
        ]

    async def reach(self) -> None:
        """Keep relays while peers cannot dial this node, and look for direct links."""
        further = [] if self._puncher is None else [self._puncher.run()]
        steps = (self._transport.keep, self._transport.upgrade)
        await asyncio.gather(*map(_again, steps), *further)

    async def feel(self) -> None:
        """Try one peer after the other, or a few at once while hardly any answers."""
        answered, silent = _NEXT_SECONDS
        while True:
            now = self._clock.now()
            alone, few = (self._directory.fewer(count, now) for count in (1, FEW))
            found = await asyncio.gather(*(self._meeting.feel() for _ in range(FEW if few else 1)))
            if alone and any(found):
                self._directory.hurry(self._clock.now())
            await asyncio.sleep(answered if any(found) else silent)


async def _again(step: Callable[[], Awaitable[None]]) -> None:
    while True:
        with suppress(TransportError):  # the daemon died: `mend` restarts it
            await step()
        await asyncio.sleep(KEEP_SECONDS)
