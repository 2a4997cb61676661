"""The Transport protocol: all that the swarm needs from a network stack.

A transport authenticates the other end (its peer id is its Ed25519 key), carries framed requests
and replies, and keeps one small heartbeat per peer where everybody can find it. It knows nothing of
rollouts, membership or training. tests/integration/test_transport_conformance.py is its contract.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

#: (remote peer id, request payload) -> reply payload. Raising `TransportError` sends the caller an
#: error; any other exception is a bug, logged and answered with an error.
Handler = Callable[[str, bytes], Awaitable[bytes]]

MAX_HEARTBEAT_BYTES = 512
MAX_REQUEST_BYTES = 64 * 1024
MAX_REPLY_BYTES = 8 * 1024 * 1024


class Transport(Protocol):
    """One node's end of the network. All methods are for use on the loop that started it."""

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
        """Leave, within a bounded time. May be called twice, and after a failed start."""
        ...

    def addresses(self) -> list[str]:
        """Addresses others can dial, each ending in this node's peer id."""
        ...

    def serve(self, protocol: str, handler: Handler) -> None:
        """Answer `protocol` (such as "/swarm-node/list/1"); call before `start`."""
        ...

    async def dial(self, addresses: Sequence[str], patience: float = 4.0) -> int:
        """Connect to all in parallel, `patience` seconds each at most; returns how many answered.
        Malformed and silent addresses count as not answering."""
        ...

    async def heal(self, addresses: Sequence[str]) -> str:
        """One round of repair: restart a dead daemon, re-ping an empty routing table, dial
        `addresses` again when alone. Returns what was done, "ok" when nothing was needed."""
        ...

    async def request(
        self,
        peer: str,
        protocol: str,
        payload: bytes,
        *,
        max_reply: int = MAX_REPLY_BYTES,
    ) -> bytes:
        """Send one framed request and return the reply, whole and checked. Callers set the
        deadline with `asyncio.timeout`; being cancelled releases the stream.

        Raises:
            TransportError: unreachable, refused, oversize or damaged.
        """
        ...

    async def publish_heartbeat(self, heartbeat: bytes, ttl: float) -> None:
        """Make `heartbeat` (at most MAX_HEARTBEAT_BYTES) findable for `ttl` seconds. Replaces the
        previous one. Best effort: a lonely node succeeds."""
        ...

    async def heartbeats(self) -> dict[str, bytes]:
        """peer id -> newest heartbeat bytes of everybody findable, without this node's own.
        Bytes are as stored by that peer; the caller verifies them."""
        ...
