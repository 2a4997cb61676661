"""Interrupted completions and the order of starting: pure."""

from __future__ import annotations

import math

import numpy as np
import pytest

from swarm_node.node.dispatch import LengthRanker, provision, still_fresh
from swarm_node.policy.sampling.rows import Row, extended, finished
from swarm_node.policy.weights.canary import LENGTH, Canary, canary_ids
from swarm_node.rollout import Finish, VersionSpan


def tokens(*ids: int) -> np.ndarray:
    return np.asarray(ids, np.uint32)


def logprobs(*values: float) -> np.ndarray:
    return np.asarray(values, np.float32)


def test_a_row_keeps_its_tokens_log_probs_and_versions_over_interruptions() -> None:
    row = extended(Row.empty(), tokens(5, 6), logprobs(-1, -2), [(3, 0, 2)], "abort")
    assert row.finish is None
    row = extended(row, tokens(7), logprobs(-3), [(3, 0, 1)], "abort")
    assert row.spans == (VersionSpan(3, 0, 3),)
    row = extended(row, tokens(8, 2), logprobs(-4, -5), [(4, 0, 1), (5, 1, 2)], "stop")
    assert row.spans == (VersionSpan(3, 0, 3), VersionSpan(4, 3, 4), VersionSpan(5, 4, 5))
    done = finished(row, lambda ids: " ".join(map(str, ids)))
    assert (done.text, done.finish) == ("5 6 7 8", Finish.STOP)
    assert done.logprobs.tolist() == [-1, -2, -3, -4, -5]


def test_an_interruption_before_the_first_token_changes_nothing() -> None:
    row = extended(Row.empty(), tokens(), logprobs(), [(1, 0, 0)], "abort")
    assert (row.spans, row.finish, row.token_ids.size) == ((), None, 0)
    with pytest.raises(ValueError, match="not ended"):
        finished(row, str)


@pytest.mark.parametrize(
    ("ids", "values", "spans"),
    [
        (tokens(1, 2), logprobs(-1), [(0, 0, 2)]),
        (tokens(1, 2), logprobs(-1, -1), [(0, 0, 1)]),
        (tokens(1, 2), logprobs(-1, -1), [(0, 1, 2)]),
        (tokens(1, 2), logprobs(-1, -1), []),
    ],
)
def test_an_answer_that_does_not_add_up_is_refused(ids, values, spans) -> None:
    with pytest.raises(ValueError, match="must"):
        extended(Row.empty(), ids, values, spans, "stop")


def test_the_longest_families_go_first_and_unknown_ones_before_them() -> None:
    ranker = LengthRanker()
    for _ in range(20):
        ranker.observe("short", 8)
        ranker.observe("long", 500)
    assert ranker.order(["short", "long", "new", "short", "long"]) == [2, 1, 4, 0, 3]
    for _ in range(30):
        ranker.observe("long", 2)
    assert ranker.order(["long", "short"]) == [1, 0]
    assert ranker.expected("short") == pytest.approx(8)


@pytest.mark.parametrize(
    ("target", "over", "waiting", "new"),
    [(8, 1.0, 0, 8), (8, 1.5, 0, 12), (8, 1.5, 4, 8), (8, 1.0, 20, 0), (3, 1.25, 0, 4)],
)
def test_so_many_groups_are_started(target: int, over: float, waiting: int, new: int) -> None:
    assert provision(target, over, waiting) == new


def test_a_row_that_is_too_old_starts_anew() -> None:
    old = extended(Row.empty(), tokens(1), logprobs(-1), [(2, 0, 1)], "abort")
    young = extended(Row.empty(), tokens(1), logprobs(-1), [(6, 0, 1)], "abort")
    kept = still_fresh([old, young, Row.empty()], version=10, max_lag=4)
    assert [row.token_ids.size for row in kept] == [0, 1, 0]


def test_a_canary_knows_its_own_and_notices_others() -> None:
    ids = canary_ids(276, 1024)
    assert len(ids) == LENGTH
    assert len(canary_ids(64, 5)) == 5
    assert all(0 <= token < 276 for token in ids)
    assert ids == canary_ids(276, 4096)
    canary = Canary(ids, tuple(-1.0 * n for n in range(LENGTH - 1)))
    assert canary.difference(canary.logprobs) == 0
    assert canary.difference([value + 0.5 for value in canary.logprobs]) == pytest.approx(0.5)
    assert canary.difference(canary.logprobs[1:]) == math.inf
    assert canary.difference([math.nan] * (LENGTH - 1)) == math.inf
    with pytest.raises(ValueError, match="finite"):
        Canary((1, 2), (math.nan,))
