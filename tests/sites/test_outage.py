"""A site that was away for minutes comes back, and does not pull what it missed."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from itertools import permutations
from pathlib import Path

import pytest
from sites.bed import Bed, Nat
from sites.scene import Scene, row, scene, until

from swarm_node.p2p.peers.peers import OFFERS_PER_PEER

pytestmark = [
    pytest.mark.sites,
    pytest.mark.nightly(reason="a network between sites, for minutes"),
    pytest.mark.slow(reason="three real nodes, one of which is away for four minutes"),
    pytest.mark.timeout(1800),
]
AWAY, THERE = "a1", ("pub1", "pub2")
PAIRS = [pair for pair in permutations((AWAY, *THERE), 2) if AWAY in pair]
_AWAY_SECONDS, _BACK_SECONDS = 240.0, 60.0
#: A policy that learns makes fewer and fewer groups that are worth trading.
_STEADY = ("--set", "training.learning_rate=1e-9")


def test_after_four_minutes_away_live_groups_reach_a_site_and_old_ones_are_left(
    tmp_path: Path,
) -> None:
    with (
        Bed({"a": Nat.RESTRICTED}, public=2, hosts=1) as bed,
        scene(bed, tmp_path, *_STEADY) as made,
    ):
        for host in (*THERE, AWAY):
            made.start(host)
        until(lambda: min(_received(made).values()) >= 20, 600, lambda: _received(made))
        usual = _minute(made)
        bed.cut("a")
        begun, announced = time.monotonic(), _announced(made)
        while time.monotonic() < begun + _AWAY_SECONDS:
            assert all(node.process.poll() is None for node in made.nodes.values())
            time.sleep(1.0)
        missed, before, trained = _announced(made) - announced, _received(made), _trained(made)
        bed.join("a")
        first = _minute(made)
        assert first.mixed < _BACK_SECONDS
        assert first.groups < missed / 2, "it pulls what it missed"
        assert first.bytes < 2 * usual.bytes
        # More than it could have been offered of what was made before.
        more = {pair: count + OFFERS_PER_PEER + 20 for pair, count in before.items()}
        until(
            lambda: all(count >= more[pair] for pair, count in _received(made).items()),
            300,
            lambda: (_received(made), more),
        )
        assert _trained(made) > trained


@dataclass
class Minute:
    """Groups and bytes that came to the site in a minute, and the seconds of it until there were
    new groups in both directions, of and for each of the others."""

    groups: int
    bytes: int
    mixed: float = math.inf


def _minute(made: Scene) -> Minute:
    begun, before, size = time.monotonic(), _received(made), made.bed.received(AWAY)
    mixed = math.inf
    while (passed := time.monotonic() - begun) < 60.0:
        now = _received(made)
        if all(now[pair] > before[pair] for pair in PAIRS):
            mixed = min(mixed, passed)
        time.sleep(0.2)
    groups = sum(now[pair] - before[pair] for pair in PAIRS if pair[0] == AWAY)
    return Minute(groups, made.bed.received(AWAY) - size, mixed)


def _received(made: Scene) -> dict[tuple[str, str], int]:
    """The groups that the one of each pair got of the other."""
    return {pair: row(made, *pair).get("accepted", 0) for pair in PAIRS}


def _announced(made: Scene) -> int:
    """What the others had to offer so far."""
    found = (made.nodes[host].wait(lambda status: True) for host in THERE)
    return sum(status["groups"]["announced"] for status in found)


def _trained(made: Scene) -> int:
    """On so many groups of others the one at the site trained."""
    status = made.nodes[AWAY].wait(lambda status: True)
    return int(status["groups"]["trained_external"])
