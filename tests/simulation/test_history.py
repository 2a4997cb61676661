"""The record of a simulated node: what counts as informative."""

from __future__ import annotations

import pytest
from builders import verified
from swarm_keys import Swarm

from swarm_node.p2p.wire.envelope import Kind, content_id, seal
from swarm_node.p2p.wire.groups import pack_group
from swarm_node.policy.experience.replay import Drawn
from swarm_node.rollout import Provenance
from swarm_node.simulation.history import RoundHistory
from swarm_node.storage import StoredGroup


def stored(rewards: tuple[float, ...]) -> StoredGroup:
    body = pack_group(verified(rewards=rewards).group, epoch=1, seq=1, created_ms=0)
    swarm = Swarm()
    blob = seal(swarm.member(1).identity, swarm.info.swarm_id, Kind.ROLLOUT, body)
    return StoredGroup(content_id(blob), "me", 1, 1, Provenance.LOCAL, blob, "q", rewards, 0)


@pytest.mark.parametrize(
    ("rewards", "mixed"),
    [((0.0, 0.0), 0), ((1.0, 1.0), 0), ((0.5, 0.5), 0), ((0.0, 1.0), 1), ((0.5, 0.25), 1)],
)
def test_a_group_is_informative_if_its_rewards_differ(
    rewards: tuple[float, ...], mixed: int
) -> None:
    history, group = RoundHistory(), stored(rewards)
    history.publish([group])
    drawn = verified(group.id, rewards=rewards)
    history.draw(Drawn(groups=(drawn,), own_count=1, external_count=0))
    history.end_round(1)
    assert (history.sampled, history.mixed, history.mixed_drawn) == ([1], [mixed], [mixed])
    assert history.local_rewards == history.batch == [sum(rewards) / 2]
