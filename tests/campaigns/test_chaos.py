"""A short slice of the campaign of random faults, and how its faults are drawn."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from campaigns.chaos import BACK, RandomFault, draw, kinds, swarm, why_not_here

#: Faults that once ended a node, and one that takes its network away.
SLICE = [
    RandomFault("disk", "home", "pub2", 4.0),
    RandomFault("descriptors", "node", "a1", 6.0),
    RandomFault("memory", "node", "pub1", 6.0),
    RandomFault("kill", "network", "pub1", 2.0),
]


def test_every_kind_of_fault_comes_before_one_comes_again() -> None:
    faults, every = draw(200, seed=1), kinds()
    assert draw(200, seed=1) == faults != draw(200, seed=2)
    turn = Counter((fault.kind, fault.part) for fault in faults[: len(every)])
    assert turn == Counter(every)
    assert {fault.host for fault in faults} == {"pub1", "pub2", "a1"}


@pytest.mark.nightly(reason="a campaign on three real nodes; test_swarm_processes.py kills one")
@pytest.mark.sites
@pytest.mark.slow(reason="starts three real nodes in namespaces, and hurts them")
@pytest.mark.timeout(1200)
def test_a_slice_of_the_campaign_ends_no_node_and_blames_nobody(tmp_path: Path) -> None:
    if why := why_not_here():
        pytest.skip(f"NOT RUN: {why}")
    with swarm(tmp_path) as whole:
        for fault in SLICE:
            row = whole.run(fault)
            assert not row.ended, row
            assert not row.blamed, row
            assert not row.cut, row
            assert not row.broken, row
            assert row.back < 3 * BACK, row  # on a machine with much other work
