"""The Transport protocol: what the swarm needs from a network stack.

A transport authenticates the other end, whose peer id is its Ed25519 key. It carries framed
requests and replies. It publishes one small heartbeat per peer, which every peer can find. It knows
nothing of rollouts, membership or training. Its contract:
tests/integration/test_transport_conformance.py.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from swarm_node.errors import Rejected

#: (remote peer id, request payload) -> reply payload. A `TransportError` is sent to the caller as
#: an error. Any other exception is a bug: it is logged and answered with an error.
Handler = Callable[[str, bytes], Awaitable[bytes]]

MAX_REQUEST_BYTES: Final = 64 * 1024
MAX_REPLY_BYTES: Final = 8 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Onward:
    """A request that another peer answers, in at most `max_reply` bytes. `on_sent` is called with
    the size of each piece of the reply that is passed on. `on_ended` is called when no more
    follow."""

    peer: str
    protocol: str
    payload: bytes
    max_reply: int
    on_sent: Callable[[int], None]
    on_ended: Callable[[], None]


#: (remote peer id, request payload) -> the request to pass on. Errors are as those of a `Handler`.
Route = Callable[[str, bytes], Awaitable[Onward]]


class TableGate(Protocol):
    """Prices and penalties of traffic besides served requests: calls of the table of heartbeats,
    and links and streams over the limits."""

    def asks(self, caller: str) -> bool:
        """Charge a call to its caller. Return False if its budgets do not allow it."""
        ...

    def charge_reply(self, caller: str, size: int) -> None:
        """Charge an answer of `size` bytes."""
        ...

    def count_refusal(self, caller: str) -> None:
        """Count a call that was refused. A caller that goes on is cut off."""
        ...

    def broke(self, caller: str, rejection: Rejected) -> None:
        """Count a call that no honest program sends. Its caller is cut off."""
        ...

    def over(self, reason: str, count: int) -> None:
        """Count what was over a limit of connections, links or streams."""
        ...


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
        """Answer `protocol` by asking another peer, and copy its reply as it arrives. The buffer
        for the reply is bounded. A reply that stalls is abandoned. Call before `start`."""
        ...

    def screen(
        self,
        proves_membership: Callable[[bytes, str], bool],
        is_member: Callable[[str], bool],
        issuer: Callable[[str], str],
        gate: TableGate | None = None,
    ) -> None:
        """Set the filter for heartbeats that this node stores for others. `proves_membership` must
        hold for the presence and its peer id, at any time, and the peer must be a member now.
        `issuer` names the issuer that admitted a member. Members of one issuer never keep those of
        another waiting. `gate` prices calls of the table of heartbeats, if the stack has one. Call
        before `start`."""
        ...

    def use_secret(self, secret: bytes) -> None:
        """Use this secret of the swarm (32 bytes) from now on. Peers that still use the previous
        one are answered for a while."""
        ...

    async def dial(
        self, addresses: Sequence[str], patience: float = 4.0, *, is_punch: bool = False
    ) -> int:
        """Connect to all addresses in parallel, within `patience` seconds each. Return how many
        answered. Malformed and silent addresses count as not answering. With `is_punch` the other
        ends hold a SYN for this dial (reach/punch.py), so nothing else is sent there first."""
        ...

    async def heal(self, addresses: Sequence[str]) -> str:
        """Try once to repair the connection: restart a dead daemon, ping known peers if the routing
        table is empty, dial `addresses` if no peer answers. Return what was done, "ok" for
        nothing."""
        ...

    async def request(
        self,
        peer: str,
        protocol: str,
        payload: bytes,
        *,
        max_reply: int = MAX_REPLY_BYTES,
    ) -> bytes:
        """Send one framed request and return the complete, checked reply. Callers set the deadline
        with `asyncio.timeout`. Cancelling the call releases the stream.

        Raises:
            TransportError: unreachable, refused, oversize or damaged.
            NotServedError: the peer answers, and does not serve `protocol`.
        """
        ...

    async def publish_heartbeat(self, heartbeat: bytes, ttl: float) -> None:
        """Publish `heartbeat` (a presence of at most MAX_PRESENCE_BYTES) for `ttl` seconds. It
        replaces the previous one. Best effort: a node without peers succeeds."""
        ...

    @property
    def has_table(self) -> bool:
        """True if the stack has a table of heartbeats. Without one `publish_heartbeat` reaches at
        most the node's own networks, and the node learns of others only from peers."""
        ...

    async def heartbeats(self) -> dict[str, bytes]:
        """peer id -> newest heartbeat of peers that can be found, without this node's own. In a
        large swarm it is a random sample, so the cost does not depend on the swarm's size. The
        bytes are as that peer published them. The caller verifies them."""
        ...

    async def is_connected(self, peer: str) -> bool:
        """Check that a link to `peer` is open, so that a request needs no dialling."""
        ...

    async def observed_address(self, peer: str) -> str | None:
        """Return the address from which `peer` is connected to this node now, None without a link.
        It is a multiaddr of an IP address and a TCP port without peer id."""
        ...

    def links(self) -> Mapping[str, str]:
        """Return the peers that were connected when this node last looked, seconds ago, each with
        the address that `observed_address` returns."""
        ...

    def connects_to(self, address: str) -> bool:
        """Check that this node connects to an address that a peer named: it is well formed, and in
        a range that this node uses."""
        ...

    def sever(self, peer: str, seconds: float) -> None:
        """Refuse the requests of `peer` for `seconds`, and cut its link when it sends one. No link
        is needed. A later call replaces an earlier one."""
        ...
