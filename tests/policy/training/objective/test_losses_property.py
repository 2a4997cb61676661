"""Whatever a peer states about its log-probs, one token's pull on the policy stays bounded."""

from __future__ import annotations

import math

import torch
from builders import examples
from hypothesis import given
from hypothesis import strategies as st

from swarm_node.policy.choices import LossName
from swarm_node.policy.training.objective.losses import (
    DPPO_PULL,
    LOSSES,
    BatchSize,
    ClipBounds,
    Tokens,
    check_claims,
)

BOUNDS = ClipBounds(low=0.2, high=0.28, cap=5.0)
ANY_FLOAT = st.floats(width=32, allow_nan=False, allow_infinity=False)
LOGP = st.floats(-80, 0, width=32)
TOKEN = st.tuples(LOGP, ANY_FLOAT, st.integers(-1, 64))
ROW = st.tuples(st.lists(TOKEN, min_size=1, max_size=5), st.booleans(), st.floats(-9, 9, width=32))
ROWS = st.lists(ROW, min_size=1, max_size=5)
Rows = list[tuple[list[tuple[float, float, int]], bool, float]]


def tokens_of(rows: Rows) -> Tokens:
    flat = [
        (*token, measured, advantage, index)
        for index, (tokens, measured, advantage) in enumerate(rows)
        for token in tokens
    ]
    logp, behaviour, behind, measured, advantage, row = zip(*flat, strict=True)
    return Tokens(
        logp=torch.tensor(logp, requires_grad=True),
        behaviour=torch.tensor(behaviour),
        is_measured=torch.tensor(measured),
        advantage=torch.tensor(advantage),
        row=torch.tensor(row),
        staleness=torch.tensor(behind),
        reference=torch.tensor(logp) - 0.5,
        drift=torch.zeros(len(flat)),
    )


@examples(120)
@given(rows=ROWS, others=st.integers(0, 1000))
def test_every_gradient_is_finite_and_bounded(rows: Rows, others: int) -> None:
    for name in LOSSES:
        if name != "tba":
            assert_bounded(name, rows, others)


def assert_bounded(name: LossName, rows: Rows, others: int) -> None:
    tokens = tokens_of(rows)
    size = BatchSize(len(tokens.row) + others, len(rows) + others, max_new_tokens=24)
    over = {"dr_grpo": size.rows * size.max_new_tokens, "gspo": size.rows}.get(name, size.tokens)
    # The only force besides the advantage: DPPO's pull towards the sampler.
    pull = 2 * DPPO_PULL * math.log(BOUNDS.cap) / over if name == "dppo" else 0.0
    loss, sums = LOSSES[name](tokens, BOUNDS, size)
    (gradient,) = torch.autograd.grad(loss, tokens.logp)
    assert bool(torch.isfinite(loss)), name
    assert all(
        math.isfinite(value) for value in (sums.clipped_tokens, sums.ratio, sums.kl, sums.absolute)
    )
    bound = tokens.advantage.abs() * BOUNDS.cap / over + pull
    assert bool((gradient.abs() <= bound * (1 + 1e-5)).all()), name
    # The step is never against the advantage: a lie can stop it, not turn it round.
    if name != "dppo":
        assert bool((gradient * tokens.advantage <= 0).all()), name


@examples(120)
@given(rows=ROWS, claim=ANY_FLOAT)
def test_no_claim_enters_trajectory_balance(rows: Rows, claim: float) -> None:
    gradients = []
    for lied in (False, True):
        tokens = tokens_of(rows)
        if lied:
            tokens.behaviour.fill_(claim)
            tokens.is_measured.logical_not_()
        loss, _ = LOSSES["tba"](tokens, BOUNDS, BatchSize(40, 5, 24))
        gradients.append(torch.autograd.grad(loss, tokens.logp)[0])
        assert bool(torch.isfinite(gradients[-1]).all())
    assert torch.equal(*gradients)


@examples(120)
@given(rows=ROWS)
def test_the_check_of_claims_only_takes_away_what_is_bad(rows: Rows) -> None:
    tokens = tokens_of(rows)
    kept, implausible = check_claims(tokens, torch.ones_like(tokens.is_measured))
    good = [index for index, (_, _, advantage) in enumerate(rows) if advantage >= 0]
    assert set(good) <= set(kept.row.tolist())
    assert implausible >= len(rows) - len(set(kept.row.tolist()))
    # Log-probs are withdrawn, never made up.
    assert int(kept.is_measured.sum()) <= int(tokens.is_measured.sum())
