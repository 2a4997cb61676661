"""The values that belong to one node and that most parts of its network need."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from swarm_node.clock import Clock
from swarm_node.p2p.membership.members import Keeper, Members, nobody, nothing
from swarm_node.p2p.membership.membership import SwarmInfo
from swarm_node.p2p.peers.peers import Directory
from swarm_node.p2p.wire.identity import Identity


@dataclass(frozen=True, slots=True)
class LocalNode:
    """This node among its peers: its key, its swarm, the members and the peers that it knows, its
    clock, and its counts of peers' faults by reason. Built once per node. A part that needs fewer
    than three of these takes them one by one."""

    identity: Identity
    swarm: SwarmInfo
    members: Members
    directory: Directory
    clock: Clock
    rejected: Counter[str] = field(default_factory=Counter)

    @classmethod
    def of(
        cls,
        identity: Identity,
        swarm: SwarmInfo,
        clock: Clock,
        keeper: Keeper | None = None,
        blocks: Callable[[], frozenset[str]] = nobody,
        names: Callable[[], Mapping[str, str]] = nothing,
    ) -> LocalNode:
        """Build the values of a node that knows no peer yet. `keeper`, `blocks` and `names` are
        those of `Members`."""
        members = Members(swarm, clock.wall, keeper, blocks, names)
        return cls(identity, swarm, members, Directory(identity.peer_id), clock)

    @property
    def peer_id(self) -> str:
        return self.identity.peer_id

    @property
    def swarm_id(self) -> bytes:
        return self.swarm.swarm_id
