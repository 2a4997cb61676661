"""A relay's end: the requests that it forwards for others, and their limits.

It forwards sealed requests of members to members that are connected to it, and dials nobody.
Forwarded bytes have budgets per asker: several times this node's own demand. Requests to one target
have limits too. Circuits are limited, so that a stalled one blocks no others.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from math import ceil
from typing import Final

from swarm_node.errors import Rejected, TransportError
from swarm_node.p2p.limits.budgets import AT_ONCE, Budget, Traffic, Wants
from swarm_node.p2p.limits.gates import PeerGates
from swarm_node.p2p.membership.local_node import LocalNode
from swarm_node.p2p.reach.relayed import PASSED, PASSED_AT_ONCE, REPLY_ROOM, Asked, open_request
from swarm_node.p2p.wire.protocols import RELAYED
from swarm_node.p2p.wire.reasons import (
    BAD_REQUEST,
    BUSY,
    CUT_OFF,
    NO_RELAY,
    NOT_CONNECTED,
    RATE,
    UNKNOWN_MEMBER,
)
from swarm_node.p2p.wire.transport import Onward
from swarm_node.p2p.wire.wire import MAX_SEALED_BYTES
from swarm_node.recent import Recent

#: Concurrent circuits: in all, of one asker, to one target, and between two.
CIRCUITS: Final = 64
PER_ASKER, PER_TARGET, PER_PAIR = 8, 16, 4
#: Seconds for which a request waits for a circuit.
WAIT_SECONDS: Final = 10.0
#: Capacity of a relay, as a multiple of its own demand of its peers.
_SHARE = 4.0
#: Targets whose budgets are remembered.
_TARGETS = 512
#: Rate per second and burst of `keep` requests.
_KEEPS = (2.0, 16.0)


@dataclass
class Carried:
    """Figures of a relay: requests and bytes in both directions that it forwarded, and refusals by
    reason."""

    requests: int = 0
    bytes: int = 0
    refusals: Counter[str] = field(default_factory=Counter)


class Circuits:
    """The circuits under way. The members of an issuer hold at most as many as are free, so those
    of others always find some."""

    def __init__(self, issuer: Callable[[str], str]) -> None:
        self._issuer = issuer
        self._total = 0
        self._circuit_counts: Counter[tuple[str, ...]] = Counter()
        self._free_event = asyncio.Event()

    async def enter(self, asker: str, target: str) -> Callable[[], None]:
        """Wait for a circuit and take it. Return the function that releases it.

        Raises:
            TransportError: there is none within WAIT_SECONDS.
        """
        try:
            async with asyncio.timeout(WAIT_SECONDS):
                while not self._fits(asker, target):
                    await self._free_event.wait()
        except TimeoutError:
            raise BUSY.error() from None
        keys = (
            *(("issuer", self._issuer(asker)), ("asker", asker)),
            *(("target", target), ("pair", asker, target)),
        )
        self._total += 1
        self._circuit_counts.update(keys)

        def leave() -> None:
            self._total -= 1
            for key in keys:
                self._circuit_counts[key] -= 1
                if not self._circuit_counts[key]:
                    del self._circuit_counts[key]
            self._free_event.set()
            self._free_event = asyncio.Event()

        return leave

    def __len__(self) -> int:
        return self._total

    def _fits(self, asker: str, target: str) -> bool:
        counts, issuer = self._circuit_counts, self._issuer(asker)
        return (
            counts["issuer", issuer] < CIRCUITS - self._total
            and counts["asker", asker] < PER_ASKER
            and counts["target", target] < PER_TARGET
            and counts["pair", asker, target] < PER_PAIR
        )


@dataclass
class _Charge:
    """The charge for one circuit to its asker. The maximum size is charged in advance, so
    concurrent large replies cannot exceed the budget. The unused part is refunded."""

    totals: Carried
    traffic: Traffic
    asker: str
    now: Callable[[], float]
    reserved_bytes: int = 0
    reserved_at: float = 0.0

    def reserves(self, size: int) -> bool:
        """Charge `size` bytes to the asker, if its budget allows it."""
        self.reserved_bytes, self.reserved_at = size, self.now()
        return self.traffic.reserves(self.asker, self.reserved_at, size)

    def record_forwarded(self, size: int) -> None:
        """Count forwarded bytes."""
        self.reserved_bytes -= size
        self.totals.bytes += size

    def settle(self) -> None:
        """Refund the unused part."""
        self.traffic.unsent(self.asker, self.now(), self.reserved_bytes, self.reserved_at)


def _wants(wants: Wants) -> Wants:
    """Compute the demand that sets a relay's budgets. One asker may take two of the largest groups
    at once."""
    min_bytes = ceil(2 * (MAX_SEALED_BYTES + 2 * REPLY_ROOM) / AT_ONCE / wants.groups / _SHARE)
    return replace(wants, groups=_SHARE * wants.groups, size=max(wants.size, min_bytes))


class Relaying:
    """Forwards for others while `serves()` is true. `connected` checks that a peer has a link to
    this node. `refuse` counts requests that no honest program sends."""

    def __init__(
        self,
        local: LocalNode,
        *,
        is_relay: Callable[[], bool],
        is_connected: Callable[[str], Awaitable[bool]],
        refuse: Callable[[str, Rejected], None],
        wants: Wants,
    ) -> None:
        self.totals = Carried()
        self._own_id = local.peer_id
        self._swarm_id = local.swarm_id
        self._is_relay = is_relay
        self._is_connected = is_connected
        self._refuse = refuse
        self._members = local.members
        self._directory = local.directory
        self._clock = local.clock
        self._circuits = Circuits(local.members.issuer)
        self._keepers = PeerGates(*_KEEPS)
        self._askers = Traffic(_wants(wants), local.members.issuer)
        self._targets: Recent[str, Budget] = Recent(_TARGETS)

    async def keep(self, caller: str, payload: bytes) -> bytes:
        """Tell a connected member whether this node forwards requests to it."""
        self._admit(caller)
        if not self._keepers.take(caller, self._clock.now()):
            self._refuse_flood(caller)
        return b""

    async def route(self, caller: str, payload: bytes) -> Onward:
        """Choose the target of a sealed request. The received bytes are passed on unchanged."""
        self._admit(caller)
        if not self._askers.asks(caller, self._clock.now(), guest=False):
            self._refuse_flood(caller)
        request = open_request(payload, self._swarm_id)
        if isinstance(request, Asked) and request.asker != caller:
            request = Rejected("author", "a request that another peer sealed")
        if isinstance(request, Asked) and request.target == self._own_id:
            request = Rejected("route", "a relay is no target of its own")
        if isinstance(request, Rejected):
            self._refuse(caller, request)
            raise self._refusal(request.reason, BAD_REQUEST.error(request.reason))
        target = request.target
        if not await self._is_connected(target):
            raise self._refusal("not_connected", NOT_CONNECTED.error())
        leave = await self._circuits.enter(caller, target)
        if not (self._members.is_member(caller) and self._members.is_member(target)):
            leave()  # one end is not or no longer a member
            raise self._refusal("not_connected", NOT_CONNECTED.error())
        max_reply = request.body.most + REPLY_ROOM
        charge = _Charge(self.totals, self._askers, caller, self._clock.now)
        if not (self._bears(caller, target) and charge.reserves(len(payload) + max_reply)):
            leave()
            raise self._refusal("rate", RATE.error())
        self.totals.requests += 1
        charge.record_forwarded(len(payload))

        def on_end() -> None:
            leave()
            charge.settle()

        return Onward(target, RELAYED, payload, max_reply, charge.record_forwarded, on_end)

    def _bears(self, asker: str, target: str) -> bool:
        """Charge one more request to a target's budget, in which each asker has a limited share."""
        budget = self._targets.get(target) or Budget(PASSED / 4, PASSED_AT_ONCE / PASSED)
        self._targets[target] = budget
        return budget.take(self._members.issuer(asker), asker, self._clock.now())

    def _admit(self, caller: str) -> None:
        if not self._members.is_member(caller):
            self._count(caller)
            raise UNKNOWN_MEMBER.error()
        if not self._is_relay():
            raise NO_RELAY.error()
        if self._directory.cut(caller, self._clock.now()):
            raise CUT_OFF.error()

    def _refuse_flood(self, caller: str) -> None:
        self._count(caller)
        raise self._refusal("rate", RATE.error())

    def _count(self, caller: str) -> None:
        """Count a refusal against the caller."""
        if self._askers.floods(caller, self._clock.now()):
            self._refuse(caller, Rejected("flood", "it goes on after many refusals"))

    def _refusal(self, reason: str, error: TransportError) -> TransportError:
        self.totals.refusals[reason] += 1
        return error
