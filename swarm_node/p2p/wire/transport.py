"""The Transport protocol: what the swarm needs from a network stack.

A transport authenticates the other end (its peer id is its Ed25519 key), carries framed requests
and replies, and publishes one small heartbeat per peer that every peer can find. It knows nothing
of rollouts, membership or training. Its contract: tests/integration/test_transport_conformance.py.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

#: (remote peer id, request payload) -> reply payload. Raising `TransportError` sends the caller an
#: error; any other exception is a bug, logged and answered with an error.
Handler = Callable[[str, bytes], Awaitable[bytes]]

MAX_REQUEST_BYTES = 64 * 1024
MAX_REPLY_BYTES = 8 * 1024 * 1024
#: Requests for a third peer (reach/): from the asker to a relay, and from the relay to the target.
#: So one link carries the requests of many, and its peer is not to blame for all that they do.
RELAY: Final = "/swarm-node/relay/1"
RELAYED: Final = "/swarm-node/relayed/1"


@dataclass(frozen=True, slots=True)
class Onward:
    """A request that another peer answers, in at most `max_reply` bytes. `sent` is told of the
    bytes of the reply as they are passed on, and `ended` once that none follow."""

    peer: str
    protocol: str
    payload: bytes
    max_reply: int
    sent: Callable[[int], None]
    ended: Callable[[], None]


#: (remote peer id, request payload) -> who answers it. Errors are as those of a `Handler`.
Route = Callable[[str, bytes], Awaitable[Onward]]


class Transport(Protocol):
    """One node's end of the network. Call all methods on the event loop that started it."""

    @property
    def peer_id(self) -> str:
        """Base58 libp2p peer id of this node (identity.py)."""
        ...

    async def start(self) -> None:
        """Listen. Needs no peer and never waits for one.

        Raises:
            TransportError: the stack cannot run here; the message says what to do.
        """
        ...

    async def stop(self) -> None:
        """Leave within a bounded time. A second call, or one after a failed start, is allowed."""
        ...

    def addresses(self) -> list[str]:
        """Addresses others can dial, each ending in this node's peer id."""
        ...

    def serve(self, protocol: str, handler: Handler) -> None:
        """Answer `protocol` (such as "/swarm-node/list/1"); call before `start`."""
        ...

    def forward(self, protocol: str, route: Route) -> None:
        """Answer `protocol` by asking another peer, and copy its reply as it comes; what is held of
        it is bounded, and a reply that stalls is given up. Call before `start`."""
        ...

    def screen(
        self,
        vouches: Callable[[bytes, str], bool],
        is_member: Callable[[str], bool],
        issuer: Callable[[str], str],
    ) -> None:
        """Which heartbeats this node carries for others: those that `vouches` for their peer id,
        whatever the time, and of peers that are members now. `issuer` names who admitted a member:
        the members of one never keep those of others waiting. Call before `start`."""
        ...

    def use_secret(self, secret: bytes) -> None:
        """Use this secret of the swarm (32 bytes) from now on. Peers that still use the previous
        one are answered for a while."""
        ...

    async def dial(
        self, addresses: Sequence[str], patience: float = 4.0, *, held: bool = False
    ) -> int:
        """Connect to all in parallel, within `patience` seconds each; returns how many answered.
        Malformed and silent addresses count as not answering. `held` if the other ends hold a SYN
        for this dial (reach/punch.py): then nothing else is sent there first."""
        ...

    async def heal(self, addresses: Sequence[str]) -> str:
        """One attempt at repair: restart a dead daemon, ping known peers if the routing table is
        empty, dial `addresses` if no peer answers. Returns what was done, "ok" for nothing."""
        ...

    async def request(
        self,
        peer: str,
        protocol: str,
        payload: bytes,
        *,
        max_reply: int = MAX_REPLY_BYTES,
    ) -> bytes:
        """Send one framed request and return the whole, checked reply. Callers set the deadline
        with `asyncio.timeout`; cancelling the call releases the stream.

        Raises:
            TransportError: unreachable, refused, oversize or damaged.
        """
        ...

    async def publish_heartbeat(self, heartbeat: bytes, ttl: float) -> None:
        """Publish `heartbeat` (a presence of at most MAX_PRESENCE_BYTES) for `ttl` seconds, in
        place of the previous one. Best effort: a node without peers succeeds."""
        ...

    @property
    def has_table(self) -> bool:
        """Whether the stack has a table of heartbeats. Without one `publish_heartbeat` reaches the
        own networks at most, and peers are all that this node hears of others."""
        ...

    async def heartbeats(self) -> dict[str, bytes]:
        """peer id -> newest heartbeat of peers that can be found, without this node's own; of a
        large swarm a random sample, so that the cost does not depend on the swarm's size.
        The bytes are as that peer published them; the caller verifies them."""
        ...

    async def connected(self, peer: str) -> bool:
        """Whether a link to `peer` is open, so that a request needs no dialling."""
        ...

    async def seen(self, peer: str) -> str | None:
        """The address from which `peer` is connected to this node now, as a multiaddr of an IP
        address and a TCP port without peer id; None without a link."""
        ...

    def sever(self, peer: str, seconds: float) -> None:
        """Serve no request of `peer` for that long, and cut its link when it sends one. Needs no
        link; a later call replaces an earlier one."""
        ...
