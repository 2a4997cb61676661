from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from swarm_node.policy.training.objective.losses import (
    MAX_CLAIM_GAP,
    BatchSize,
    ClipBounds,
    Tokens,
    check_claims,
    dapo,
)

BOUNDS = ClipBounds(low=0.2, high=0.28, cap=5.0)


def size_of(tokens: int) -> BatchSize:
    return BatchSize(tokens, rows=7, max_new_tokens=11)


def rows_of(*rows: tuple[float, list[float]], measured: bool = True) -> Tokens:
    """Rows of (advantage, log π − log μ per token)."""
    gaps = np.concatenate([gap for _, gap in rows]).astype(np.float32)
    lengths = [len(gap) for _, gap in rows]
    n = len(gaps)
    return Tokens(
        logp=torch.full((n,), -1.0, requires_grad=True),
        behaviour=torch.from_numpy(-1.0 - gaps),
        is_measured=torch.full((n,), measured),
        advantage=torch.tensor(np.repeat([a for a, _ in rows], lengths), dtype=torch.float32),
        row=torch.tensor(np.repeat(range(len(rows)), lengths)),
        staleness=torch.full((n,), -1),
        reference=torch.zeros(n),
        drift=torch.zeros(n),
    )


@pytest.mark.parametrize(
    ("ratio", "advantage", "moves"),
    [
        (1.27, 1.0, True),
        (1.29, 1.0, False),
        (0.1, 1.0, True),
        (0.81, -1.0, True),
        (0.79, -1.0, False),
        (4.9, -1.0, True),
        (5.1, -1.0, False),
    ],
)
def test_where_the_clip_and_the_cap_stop_the_gradient(
    ratio: float, advantage: float, moves: bool
) -> None:
    tokens = rows_of((advantage, [math.log(ratio)]))
    loss, sums = dapo(tokens, BOUNDS, size_of(1))
    (gradient,) = torch.autograd.grad(loss, tokens.logp)
    assert bool(gradient[0] != 0) is moves
    assert sums.clipped_tokens == (0.0 if moves else 1.0)


def test_statistics_against_hand_computed_values() -> None:
    deltas = np.array([0.0, 0.5, -0.5])
    tokens = rows_of((1.0, [*deltas, -8.0]))
    tokens.is_measured[-1] = False
    _, sums = dapo(tokens, BOUNDS, size_of(4))
    ratios = np.exp(deltas)
    assert sums.measured_tokens == 3
    assert sums.clipped_tokens == 1
    assert sums.mean("ratio", 1.0) == pytest.approx(ratios.mean())
    assert sums.mean("kl", 0.0) == pytest.approx((ratios - 1 - deltas).mean())
    assert sums.mean("absolute", 0.0) == pytest.approx(1 / 3)
    assert (sums + sums).measured_tokens == 6
    assert (sums + sums).mean("ratio", 1.0) == pytest.approx(ratios.mean())


def everyone(tokens: Tokens) -> torch.Tensor:
    return torch.ones_like(tokens.is_measured)


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
    assert checked.is_measured.tolist() == [False] * 4 + [True] * 2
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
