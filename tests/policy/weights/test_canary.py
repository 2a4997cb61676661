"""A canary: the trainer's log-probs of fixed tokens, held against the engine's."""

from __future__ import annotations

import math

import pytest

from swarm_node.policy.weights.canary import LENGTH, Canary, canary_ids


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
