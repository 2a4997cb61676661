"""Completions that are sampled in several parts."""

from __future__ import annotations

import numpy as np
import pytest

from swarm_node.policy.sampling.sampler import Row, extend_row, finish_row
from swarm_node.rollout import Finish, Ranking, VersionSpan


def tokens(*ids: int) -> np.ndarray:
    return np.asarray(ids, np.uint32)


def logprobs(*values: float) -> np.ndarray:
    return np.asarray(values, np.float32)


def test_a_row_keeps_its_tokens_log_probs_and_versions_over_interruptions() -> None:
    row = extend_row(Row.empty(), tokens(5, 6), logprobs(-1, -2), [(3, 0, 2)], "abort")
    assert row.finish is None
    row = extend_row(row, tokens(7), logprobs(-3), [(3, 0, 1)], "abort")
    assert row.spans == (VersionSpan(3, 0, 3),)
    row = extend_row(row, tokens(8, 2), logprobs(-4, -5), [(4, 0, 1), (5, 1, 2)], "stop")
    assert row.spans == (VersionSpan(3, 0, 3), VersionSpan(4, 3, 4), VersionSpan(5, 4, 5))
    done = finish_row(row, lambda ids: " ".join(map(str, ids)))
    assert (done.text, done.finish) == ("5 6 7 8", Finish.STOP)
    assert done.logprobs.tolist() == [-1, -2, -3, -4, -5]


def test_a_row_keeps_its_ranking_over_interruptions() -> None:
    parts = [
        Ranking(logprobs(-1), tokens(5, 8).reshape(1, 2), logprobs(-1, -2).reshape(1, 2)),
        Ranking(logprobs(-3), tokens(9, 7).reshape(1, 2), logprobs(-2, -3).reshape(1, 2)),
    ]
    none = Ranking(logprobs(), tokens().reshape(0, 0), logprobs().reshape(0, 0))
    row = extend_row(Row.empty(), tokens(), logprobs(), [], "abort", none)
    row = extend_row(row, tokens(5), logprobs(-1), [(3, 0, 1)], "abort", parts[0])
    row = extend_row(row, tokens(), logprobs(), [], "abort", none)
    done = finish_row(extend_row(row, tokens(7), logprobs(-3), [(3, 0, 1)], "stop", parts[1]), str)
    assert done.ranking.sampled_logprobs.tolist() == [-1, -3]
    assert done.ranking.ids.tolist() == [[5, 8], [9, 7]]
    assert done.ranking.logprobs.tolist() == [[-1, -2], [-2, -3]]


def test_an_interruption_before_the_first_token_changes_nothing() -> None:
    row = extend_row(Row.empty(), tokens(), logprobs(), [(1, 0, 0)], "abort")
    assert (row.spans, row.finish, row.token_ids.size) == ((), None, 0)
    with pytest.raises(ValueError, match="not ended"):
        finish_row(row, str)


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
        extend_row(Row.empty(), ids, values, spans, "stop")
