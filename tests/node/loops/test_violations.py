"""What outlives a restart of a peer's offences, and what the owner is told."""

from __future__ import annotations

import pytest
from light_nodes import shared_state

from swarm_node.clock import SYSTEM_CLOCK, Clock
from swarm_node.node.loops.node_parts import Shared
from swarm_node.node.loops.peers.violations import recall, suspended_rows, watch
from swarm_node.p2p.limits.budgets import Wants
from swarm_node.p2p.membership.local_node import LocalNode
from swarm_node.p2p.peers.liveness import OFFENCE
from swarm_node.p2p.peers.peers import Directory
from swarm_node.simulation.seeded import Seeded

OWN = "me"


@pytest.fixture
def shared() -> Shared:
    own = Seeded(0).memberships(1)[0]
    local = LocalNode.of(own.identity, own.swarm, SYSTEM_CLOCK)
    return shared_state(local, "one ticket for all".format, Wants(16.0, 4096, 1.0))


def _clock(now: float, wall: float) -> Clock:
    return Clock(now=lambda: now, wall=lambda: wall)


def test_who_was_cut_off_stays_so_after_a_restart_and_a_second_time_for_longer() -> None:
    before = Directory(OWN)
    before.meet("junk", 0.0)
    before.meet("honest", 0.0)
    assert before.record_rejection("junk", "hash", 1000.0) == OFFENCE.first
    rows = suspended_rows(before, _clock(now=1010.0, wall=5010.0))
    assert [row.peer_id for row in rows] == ["junk"]
    after = Directory(OWN)
    recall(after, rows, _clock(now=3.0, wall=5020.0))  # ten seconds later
    assert after.cut("junk", 3.0) == OFFENCE.first - 20.0
    assert after.meet("junk", 3.0).retry_at == 3.0 + OFFENCE.first - 20.0
    assert after.record_rejection("junk", "hash", 100.0) == 2 * OFFENCE.first


def test_a_clock_that_was_set_back_cuts_nobody_off_for_ever() -> None:
    before = Directory(OWN)
    before.meet("junk", 0.0)
    before.record_rejection("junk", "hash", 0.0)
    rows = suspended_rows(before, _clock(now=0.0, wall=2e9))
    after = Directory(OWN)
    recall(after, rows, _clock(now=0.0, wall=1e9))
    assert after.cut("junk", 0.0) == OFFENCE.ceiling


def test_a_dropped_peer_keeps_its_standing_when_the_directory_forgets_it() -> None:
    directory = Directory(OWN, limit=2)
    directory.meet("junk", 0.0)
    directory.record_rejection("junk", "hash", 0.0)
    for index in range(5):
        directory.meet(f"peer {index}", 1.0)
    assert directory.get("junk") is None
    assert directory.meet("junk", 2.0).retry_at == OFFENCE.first


def test_a_peer_that_costs_much_judging_raises_an_alarm_until_it_is_over(shared: Shared) -> None:
    shared.directory.meet("costly", 0.0)
    watch(shared, OWN, 0.0)
    assert shared.tally.alarms == {}
    shared.effort.charge("costly", 60.0, 0.0)
    watch(shared, OWN, 0.0)
    assert shared.tally.alarms["scoring"].startswith("costly ")
    watch(shared, OWN, 3600.0)
    assert shared.tally.alarms == {}


def test_an_author_of_most_of_what_is_trained_raises_an_alarm(shared: Shared) -> None:
    for name in ("a", "b", "loud"):
        shared.directory.meet(name, 0.0)
    shared.tally.trained_by.update({OWN: 500, "a": 40, "b": 40, "loud": 70})
    watch(shared, OWN, 0.0)
    assert shared.tally.alarms == {}, "less than half of the peers' groups"
    shared.tally.trained_by["loud"] += 50
    watch(shared, OWN, 0.0)
    assert shared.tally.alarms["author"].startswith("loud ")
    shared.tally.trained_by.pop("b")
    watch(shared, OWN, 0.0)
    assert shared.tally.alarms == {}, "of two authors, one always writes half"


def test_many_refusals_of_a_peer_raise_an_alarm_that_says_why(shared: Shared) -> None:
    peer = shared.directory.meet("useless", 0.0)
    for _ in range(9):
        shared.directory.record_rejection("useless", "too_long", 0.0)
    watch(shared, OWN, 0.0)
    assert shared.tally.alarms == {}
    for _ in range(3):
        shared.directory.record_rejection("useless", "too_long", 0.0)
    watch(shared, OWN, 0.0)
    assert "too_long" in shared.tally.alarms["refusals"]
    for _ in range(40):
        peer.standing.count_useful_group()
    watch(shared, OWN, 0.0)
    assert shared.tally.alarms == {}
    for _ in range(20):
        shared.directory.meet("elsewhere", 0.0)
        shared.directory.record_rejection("elsewhere", "environment", 0.0)
    watch(shared, OWN, 0.0)
    assert shared.tally.alarms == {}, "the verdict names both environments"
