from __future__ import annotations

import numpy as np
import pytest
import torch

from swarm_node.policy.training.loss_masks import MAX_CLAIM_GAP, check_claims, off_policy_mask
from swarm_node.policy.training.loss_types import Tokens


def rows_of(*rows: tuple[float, list[float]], measured: bool = True) -> Tokens:
    """Rows of (advantage, log π − log μ per token)."""
    gaps = np.concatenate([gap for _, gap in rows]).astype(np.float32)
    lengths = [len(gap) for _, gap in rows]
    n = len(gaps)
    return Tokens(
        logp=torch.full((n,), -1.0, requires_grad=True),
        behaviour=torch.from_numpy(-1.0 - gaps),
        measured=torch.full((n,), measured),
        advantage=torch.tensor(np.repeat([a for a, _ in rows], lengths), dtype=torch.float32),
        row=torch.tensor(np.repeat(range(len(rows)), lengths)),
        behind=torch.full((n,), -1),
        reference=torch.zeros(n),
        drift=torch.zeros(n),
    )


def everyone(tokens: Tokens) -> torch.Tensor:
    return torch.ones_like(tokens.measured)


def test_plausible_claims_pass_unchanged() -> None:
    tokens = rows_of((1.0, [3.0, -3.0]), (-1.0, [1.9, 2.0, 1.9]))
    checked, count = check_claims(tokens, everyone(tokens))
    assert checked is tokens
    assert count == 0


@pytest.mark.parametrize("gap", [MAX_CLAIM_GAP + 0.1, -MAX_CLAIM_GAP - 0.1, 1e38, -1e38])
def test_of_implausible_rows_the_good_lose_their_claim_and_the_bad_their_place(gap: float) -> None:
    tokens = rows_of((1.0, [gap] * 4), (-1.0, [gap] * 4), (-1.0, [0.1, 0.2]))
    checked, count = check_claims(tokens, everyone(tokens))
    assert count == 2
    assert checked.row.tolist() == [0, 0, 0, 0, 2, 2]
    assert checked.measured.tolist() == [False] * 4 + [True] * 2
    assert checked.logp.requires_grad


def test_one_odd_token_is_no_lie() -> None:
    tokens = rows_of((-1.0, [8.0, 0.0, 0.0, 0.0, 0.0]))
    assert check_claims(tokens, everyone(tokens))[1] == 0


def test_own_and_unmeasured_rows_are_not_doubted() -> None:
    tokens = rows_of((-1.0, [9.0] * 3), (-1.0, [9.0] * 3))
    checked, count = check_claims(tokens, tokens.row == 1)
    assert count == 1
    assert checked.row.tolist() == [0, 0, 0]
    unmeasured = rows_of((-1.0, [9.0] * 3), measured=False)
    assert check_claims(unmeasured, everyone(unmeasured))[1] == 0


def test_the_off_policy_mask_against_its_formula() -> None:
    rng = np.random.default_rng(2)
    rows = [
        (float(rng.normal()), rng.normal(0, 0.6, int(rng.integers(1, 7))).tolist())
        for _ in range(40)
    ]
    kept, count = off_policy_mask(rows_of(*rows), 0.1)
    expected = [
        n
        for n, (advantage, gaps) in enumerate(rows)
        if advantage >= 0 or -sum(gaps) / len(gaps) <= 0.1
    ]
    assert sorted(set(kept.row.tolist())) == expected
    assert count == 40 - len(expected) > 0


def test_the_off_policy_mask_keeps_what_was_not_measured() -> None:
    tokens = rows_of((-1.0, [-9.0] * 3), measured=False)
    kept, count = off_policy_mask(tokens, 0.1)
    assert (len(kept.row), count) == (3, 0)
