"""Early tries of peers that stopped answering."""

from __future__ import annotations

import random

from swarm_node.p2p.peers.revisits import PAUSE_SECONDS, Revisits


def _tries(revisits: Revisits, silent: dict[str, float], begun: int, ended: int) -> list[str]:
    found = [revisits.next(silent, float(now)) for now in range(begun, ended)]
    return [peer for peer in found if peer is not None]


def test_an_early_try_waits_for_an_eighth_of_the_outage_within_bounds() -> None:
    shortest, longest = PAUSE_SECONDS
    lost = {"a": 0.0}
    assert len(_tries(Revisits(random.Random(0)), lost, 1, 41)) == 40 / shortest
    day = 86_400
    tried = _tries(Revisits(random.Random(0)), lost, day, day + 3600)
    assert len(tried) == 3600 / longest
    assert not _tries(Revisits(random.Random(0)), {}, 0, 100)


def test_those_lost_last_are_tried_and_not_the_dead_of_yesterday() -> None:
    silent = {"dead": 0.0, "one": 86_390.0, "other": 86_400.0}
    tried = _tries(Revisits(random.Random(0)), silent, 86_430, 86_600)
    assert set(tried) == {"one", "other"}


def test_those_lost_with_one_that_came_back_are_tried_at_once() -> None:
    revisits = Revisits(random.Random(0))
    silent = {f"site {i}": 1000.0 + i for i in range(6)} | {"dead": 0.0}
    back = silent.pop("site 3")
    revisits.returned(silent, back, 1061.0)
    revisits.returned(silent, back, 1061.0)  # two of them came back
    del silent["site 0"]  # and one came back by itself
    at_once = [revisits.next(silent, 1061.0) for _ in range(len(silent) + 1)]
    assert sorted(map(str, at_once[:4])) == ["site 1", "site 2", "site 4", "site 5"]
    assert at_once[4] in silent, "the next early try was due as well"
    assert at_once[5] is None


def test_one_that_came_back_has_few_others_tried_at_once() -> None:
    revisits = Revisits(random.Random(0))
    silent = {f"peer {i}": 1000.0 for i in range(500)}
    revisits.returned(silent, 1000.0, 1060.0)
    at_once = [revisits.next(silent, 1060.0) for _ in range(100)]
    assert 0 < sum(peer is not None for peer in at_once) < 40
