"""Tries an address now: a new TCP connection and the proof of the key that the address names.

It depends on no transport: p2pd avoids an address after a failure, and names no cause for it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

import msgspec

from swarm_node.p2p.addresses.addresses import parse_address, resolve, split_endpoint
from swarm_node.p2p.peers.causes import OF_OUTCOME, Cause
from swarm_node.p2p.reach.probe import Knock
from swarm_node.p2p.reach.reachability import Outcome, place


class DialAttempt(msgspec.Struct, frozen=True):
    """The `outcome` of one try of an address, and the `seconds` that it took."""

    address: str
    outcome: Outcome
    seconds: float = 0.0

    @property
    def where(self) -> str:
        """The host and port of the address, or its whole text if it has none."""
        endpoint = split_endpoint(self.address.rpartition("/p2p/")[0] or self.address)
        return place(*endpoint[1:]) if endpoint else self.address

    @property
    def peer_id(self) -> str:
        """The peer id that the address names, "" for none."""
        address = parse_address(self.address)
        return "" if address is None else address.peer_id

    def cause(self, name: str = "") -> Cause | None:
        """Return the cause of its failure, None if the node answered. `name` is the node's."""
        if self.outcome == "open":
            return None
        location = self.where if self.peer_id else self.address
        code = OF_OUTCOME[self.outcome]
        return Cause(code, self.peer_id, name, location, seconds=self.seconds)


async def attempt(address: str, knock: Knock) -> DialAttempt:
    """Try an address. One that cannot be dialled is "untried"."""
    target, start = parse_address(address), time.monotonic()
    outcome: Outcome = "untried"
    for candidate in [] if target is None else await resolve(target):
        _, host, port = split_endpoint(candidate.multiaddr) or ("", "", 0)
        outcome = await knock(host, port, candidate.peer_id)
        if outcome == "open":
            break
    return DialAttempt(address, outcome, time.monotonic() - start)


async def attempt_all(addresses: Sequence[str], knock: Knock, limit: int) -> list[DialAttempt]:
    """Try the first `limit` different addresses at once."""
    targets = list(dict.fromkeys(addresses))[:limit]
    return list(await asyncio.gather(*(attempt(address, knock) for address in targets)))
