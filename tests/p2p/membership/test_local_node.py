"""The values of one node that its network shares."""

from __future__ import annotations

import pytest

from swarm_node.clock import Clock
from swarm_node.p2p.membership.local_node import LocalNode
from swarm_node.p2p.membership.members import Member
from swarm_node.simulation.seeded import EPOCH, Seeded


def test_a_node_begins_with_its_own_names_and_knows_nobody() -> None:
    first, second = Seeded(0).memberships(2)
    clock = Clock(now=lambda: 5.0, wall=lambda: EPOCH + 5.0)
    blocked = frozenset[str]()
    local = LocalNode.of(first.identity, first.swarm, clock, blocks=lambda: blocked)
    assert local.peer_id == first.identity.peer_id
    with pytest.raises(ValueError, match="own peer"):
        local.directory.meet(local.peer_id, 0.0)
    assert local.swarm_id == first.swarm.swarm_id
    assert local.directory.live(5.0, float("inf")) == []
    assert not local.rejected
    # Members are judged by its clock, its swarm and its blocks.
    other = second.identity.peer_id
    assert isinstance(local.members.admit(second.chain, other), Member)
    blocked = frozenset({other})
    assert not local.members.is_member(other)
