"""A canary: the trainer's log-probs of fixed tokens, held against the engine's."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from swarm_node.policy.models.model import resolve
from swarm_node.policy.models.text.codec import Codec
from swarm_node.policy.weights.canary import (
    LENGTH,
    TEXT,
    Canary,
    canary_ids,
    difference,
    text_ids,
    verdict,
)


def test_a_canary_has_as_many_finite_log_probs_as_tokens_to_predict() -> None:
    assert Canary((1, 2, 3), (-1.0, -2.0))
    with pytest.raises(ValueError, match="each token"):
        Canary((1, 2, 3), (-1.0,))
    with pytest.raises(ValueError, match="finite"):
        Canary((1, 2), (math.nan,))


def test_its_tokens_are_ordinary_text_where_there_is_a_tokenizer() -> None:
    text = text_ids(resolve("tiny"))
    assert len(text) >= LENGTH
    assert canary_ids(276, 1024, text) == text[:LENGTH]
    assert canary_ids(276, 5, text) == text[:5]
    assert canary_ids(276, 1024, text[:LENGTH]) == text[:LENGTH]
    codec = Codec.from_directory(resolve("tiny"))
    assert TEXT.startswith(codec.decode(text[:LENGTH]))


def test_without_a_tokenizer_they_are_spread_over_the_vocabulary(tmp_path: Path) -> None:
    assert text_ids(tmp_path) == ()
    ids = canary_ids(276, 1024)
    assert len(set(ids)) > LENGTH // 2
    assert len(ids) == LENGTH
    assert len(canary_ids(64, 5)) == 5
    assert all(0 <= token < 276 for token in ids)
    # Text of another vocabulary, or too little of it.
    assert ids == canary_ids(276, 4096, [400] * LENGTH) == canary_ids(276, 4096, [1, 2])
    (tmp_path / "tokenizer.json").write_text("{}")
    assert text_ids(tmp_path) == ()


def test_a_difference_counts_less_where_log_probs_are_far_from_zero() -> None:
    near, far = [-1.0, -9.0], [-20.0, -40.0]
    assert difference(near, near) == 0
    assert difference(near, [-1.5, -9.5]) == pytest.approx(0.5)
    assert difference(far, [-21.0, -42.0]) == pytest.approx(0.5)
    for measured in ([-1.0], [], [-1.0, math.nan], [-1.0, -math.inf]):
        assert difference(near, measured) == math.inf
    assert difference([], []) == math.inf


def test_rounding_of_bfloat16_is_within_the_tolerance_at_every_confidence() -> None:
    """Mean |Δ| of bfloat16 to float32 by mean log-prob: a model of 0.5 billion weights whose last
    norm was scaled, on random tokens. The last is 0.17 by itself."""
    for logprob, delta in ((-12.0, 0.010), (-15.0, 0.040), (-23.0, 0.099), (-33.0, 0.173)):
        assert difference([logprob] * 31, [logprob - delta] * 31) < 0.06


def test_an_engine_is_given_up_after_two_wrong_measurements_in_a_row() -> None:
    assert verdict([0.09], 0.1) == "taken"
    assert verdict([0.11], 0.1) == "load again"
    assert verdict([math.inf], 0.1) == "load again"
    assert verdict([0.11, 0.09], 0.1) == "taken"
    assert verdict([0.11, 0.12], 0.1) == "restart"
