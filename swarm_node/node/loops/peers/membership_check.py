"""Checks whether this node's swarm refuses it for certain, so that it would train alone for ever.

A refusal is a peer's word, and any member may lie. So it ends a node only with proof of another:

| cause | the node ends if a peer says so, and |
| --- | --- |
| `revoked` | a list that the owner or a delegate signed names this node |
| `expired` | its certificate has ended by this node's own clock |
| `used_up` | claims known here, each with a chain, displace it; or a newcomer's inviter says it |

A newcomer is a node that no peer has ever admitted. It is told by the peers that its ticket names,
and has nothing else to go by. A node that was a member once is ended by no peer's word.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from swarm_node.errors import MembershipError, Rejected
from swarm_node.p2p.membership.local_node import LocalNode
from swarm_node.p2p.membership.members import Member
from swarm_node.p2p.peers.causes import CAUSES, Cause, advice, text_here
from swarm_node.storage import Storage

_LOOK_SECONDS = 2.0
#: Seconds for which a newcomer's inviters must refuse it, so that another peer of its ticket can
#: admit it meanwhile.
HOLD_SECONDS = 10.0
_ENDING = ("revoked", "expired", "used_up")


class MembershipCheck:
    """Calls `leave` once the swarm refuses this node for certain; then `refusal` has the error.
    `inviters` are the addresses of the peers that its ticket names."""

    def __init__(
        self,
        local: LocalNode,
        storage: Storage,
        inviters: Sequence[str],
        leave: Callable[[], None],
    ) -> None:
        self._local = local
        self._storage = storage
        self._inviters = {address.rpartition("/p2p/")[2] for address in inviters}
        self._leave = leave
        self._refused_since: float | None = None
        self.refusal: MembershipError | None = None

    async def step(self, me: Callable[[], Member | Rejected]) -> None:
        """Look once. `me` returns this node's own membership, or the reason why it has none."""
        if self.refusal is None and (cause := await self._certain(me())) is not None:
            self.refusal = MembershipError(_describe_cause(cause))
            self._leave()
        await asyncio.sleep(_LOOK_SECONDS)

    async def _certain(self, me: Member | Rejected) -> Cause | None:
        """Return a refusal that is certain, None without one."""
        local, now = self._local, self._local.clock.now()
        causes = {c.code: c for c in local.directory.failures.causes(now) if c.code in _ENDING}
        if isinstance(me, Rejected) and me.reason in causes:
            return causes[me.reason]
        if not await self._invited_in_vain():
            self._refused_since = None
            return None
        self._refused_since = now if self._refused_since is None else self._refused_since
        return causes.get("used_up") if now - self._refused_since >= HOLD_SECONDS else None

    async def _invited_in_vain(self) -> bool:
        """Check that an inviter of a newcomer says that its ticket is used up."""
        causes = self._local.directory.failures.causes(self._local.clock.now())
        if not any(c.code == "used_up" and c.peer in self._inviters for c in causes):
            return False
        return not await self._storage.run(self._storage.known_peers, 1)


def _describe_cause(cause: Cause) -> str:
    assert CAUSES[cause.code].subject == "membership", "no other cause ends a node"
    return (
        f"{text_here(cause)}\n→ {advice(cause)}\n→ to train on without peers: "
        "swarm-node join --alone"
    )
