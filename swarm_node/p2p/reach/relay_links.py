"""Relays of a node that peers cannot dial: its links to them, and its search for more."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Final

from swarm_node.errors import RefusedError, TransportError
from swarm_node.p2p.addresses import circuit
from swarm_node.p2p.limits.admission import Severed
from swarm_node.p2p.membership.local_node import LocalNode
from swarm_node.p2p.peers.liveness import RELAY, Retry
from swarm_node.p2p.wire.protocols import KEEP
from swarm_node.p2p.wire.reasons import UNKNOWN_MEMBER
from swarm_node.p2p.wire.transport import Transport
from swarm_node.recent import Recent

#: Relays that a node keeps links to.
KEPT: Final = 2
#: Seconds between two checks of the relays, and limits for a relay's answer and for dialling one.
KEEP_SECONDS: Final = 2.0
DIAL_SECONDS: Final = 3.0
_ANSWER_SECONDS = 2.0
#: Candidates that are tried at once to replace a lost relay.
_TRIED_AT_ONCE = 4
_REMEMBERED = 512
#: Longest address that still fits into a heartbeat as a circuit.
_MAX_RELAY_CHARS = 148


@dataclass(slots=True)
class _Kept:
    """A relay that this node keeps a link to: its address, and its failures to answer in a row."""

    address: str
    misses: int = 0


class Relays:
    """Keeps links over `inner`. `dialable` returns whether peers can dial this node, None while
    that is unknown."""

    def __init__(
        self,
        local: LocalNode,
        inner: Transport,
        *,
        is_dialable: Callable[[], bool | None],
        severed_peers: Severed,
        rng: random.Random,
    ) -> None:
        #: Greets a connected peer. It is set once the node can greet: a relay serves members only.
        self.introduce: Callable[[str], Awaitable[bool]] | None = None
        self._inner = inner
        self._is_dialable = is_dialable
        self._members = local.members
        self._directory = local.directory
        self._severed_peers = severed_peers
        self._clock = local.clock
        self._rng = rng
        self._kept_relays: dict[str, _Kept] = {}
        self._introducing: set[str] = set()
        self._retries: Recent[str, Retry] = Recent(_REMEMBERED)

    def relay_addresses(self) -> dict[str, str]:
        """The address of each relay through which peers reach this node, by its id."""
        return {relay: entry.address for relay, entry in self._kept_relays.items()}

    async def round_trips(self) -> dict[str, float | None]:
        """Measure the round trip to each relay in seconds, by its id, None for one that does not
        answer."""
        start, seconds = self._clock.now(), dict[str, float | None]()

        async def measure(relay: str) -> None:
            answers = await self._answers(relay)
            seconds[relay] = self._clock.now() - start if answers else None

        await asyncio.gather(*map(measure, self._kept_relays))
        return seconds

    async def ask(self, relay: str, protocol: str, payload: bytes, max_reply: int) -> bytes:
        """Send a request to a relay itself, after a greeting if it does not know this node."""
        try:
            return await self._inner.request(relay, protocol, payload, max_reply=max_reply)
        except RefusedError as error:
            if error.code != UNKNOWN_MEMBER.code or not await self._greet(relay):
                raise
        return await self._inner.request(relay, protocol, payload, max_reply=max_reply)

    async def connect(self, relay: str, address: str, patience: float) -> bool:
        """Connect to a relay. Return True if it is connected and a known member. All its addresses
        are dialled, because the peer that named it may use another version of IP than this node."""
        if not await self._inner.is_connected(relay):
            relay_addresses = circuit.reachable_first(self._members.relays().get(relay, ()))
            candidates = list(dict.fromkeys([address, *relay_addresses]))
            if not (address and await self._inner.dial(candidates, min(patience, DIAL_SECONDS))):
                return False
        return self._members.is_member(relay) or await self._greet(relay)

    async def _greet(self, relay: str) -> bool:
        """Greet a relay. Return True if it accepted the greeting."""
        if self.introduce is None or relay in self._introducing:
            return False
        self._introducing.add(relay)
        try:
            return await self.introduce(relay)
        finally:
            self._introducing.discard(relay)

    async def keep(self) -> None:
        """Check the kept relays, and replace those that do not answer."""
        is_dialable = self._is_dialable()
        if is_dialable is None or (is_dialable and not self._six_alone()):
            self._kept_relays.clear()
            return
        relays = list(self._kept_relays)
        for relay, answers in zip(
            relays, await in_parallel(map(self._answers, relays)), strict=True
        ):
            kept_relay = self._kept_relays[relay]
            kept_relay.misses = 0 if answers else kept_relay.misses + 1
            is_gone = not answers and not await self._inner.is_connected(relay)
            if is_gone or kept_relay.misses > 1 or relay in self._severed_peers:
                del self._kept_relays[relay]
                self._record_failure(relay)
        if len(self._kept_relays) >= KEPT:
            return
        candidates = self._candidates() or self._candidates(is_alone=True)
        candidates = candidates[:_TRIED_AT_ONCE]
        results = await in_parallel(self._take(relay, address) for relay, address in candidates)
        new_relays = [
            candidate
            for candidate, is_accepted in zip(candidates, results, strict=True)
            if is_accepted
        ]
        while new_relays and len(self._kept_relays) < KEPT:
            relay, address = min(new_relays, key=self._alike)
            self._kept_relays[relay] = _Kept(address)
            new_relays.remove((relay, address))

    def _six_alone(self) -> bool:
        """Check that this node can be dialled over IPv6 only, so that IPv4 peers cannot dial it."""
        public = [text for text in self._inner.addresses() if not circuit.is_private(text)]
        return {text.startswith("/ip6/") for text in public} == {True}

    def _alike(self, candidate: tuple[str, str]) -> int:
        """Count the properties that a relay shares with kept ones: issuer and host."""
        relay, address = candidate
        issuers = {self._members.issuer(kept_relay) for kept_relay in self._kept_relays}
        hosts = {circuit.host_of(entry.address) for entry in self._kept_relays.values()}
        return (self._members.issuer(relay) in issuers) + (circuit.host_of(address) in hosts)

    def _candidates(self, *, is_alone: bool = False) -> list[tuple[str, str]]:
        """Members that claim to relay and may be tried now, each with an address. If the node is
        `is_alone`, those that failed come sooner. The first of each issuer come first, then the
        second ones. Within an issuer those that answer this node come first, otherwise the order is
        random."""
        now, nth, candidates = self._clock.now(), Counter[str](), []
        relays = sorted(self._members.relays().items())
        self._rng.shuffle(relays)
        for relay, addresses in sorted(relays, key=lambda item: not self._answering(item[0], now)):
            relay_addresses = [
                text
                for text in circuit.reachable_first(addresses)
                if len(text) <= _MAX_RELAY_CHARS and text.endswith(f"/p2p/{relay}")
            ]
            if not relay_addresses or relay in self._kept_relays or relay in self._severed_peers:
                continue
            retry = self._retries.get(relay)
            if retry is not None and not retry.due(now, is_alone=is_alone):
                continue
            issuer = self._members.issuer(relay)
            candidates.append((nth[issuer], relay, relay_addresses[0]))
            nth[issuer] += 1
        return [(relay, address) for _, relay, address in sorted(candidates, key=lambda c: c[0])]

    def _answering(self, relay: str, now: float) -> bool:
        """Check that a relay is a peer that answered last time."""
        peer = self._directory.get(relay)
        return peer is not None and peer.retry_at <= now

    async def _take(self, relay: str, address: str) -> bool:
        """Try a candidate. Return True if it relays for this node."""
        is_accepted = await self.connect(relay, address, DIAL_SECONDS) and await self._answers(
            relay
        )
        if not is_accepted:
            self._record_failure(relay)
        return is_accepted

    def _record_failure(self, relay: str) -> None:
        """Record that a relay does not relay for this node now."""
        self._retries[relay] = retry = self._retries.get(relay) or Retry(RELAY)
        retry.record_failure(self._clock.now())

    async def _answers(self, relay: str) -> bool:
        try:
            async with asyncio.timeout(_ANSWER_SECONDS):
                await self.ask(relay, KEEP, b"", 0)
        except (TransportError, TimeoutError):
            return False
        return True


async def in_parallel(calls: Iterable[Awaitable[bool]]) -> list[bool]:
    """Await the calls in parallel. Return their results in order."""
    return list(await asyncio.gather(*calls))
