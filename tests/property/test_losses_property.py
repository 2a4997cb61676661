"""Whatever a peer states about its log-probs, one token's pull on the policy stays bounded."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from swarm_node.policy.losses import ClipBounds, Tokens, dapo

BOUNDS = ClipBounds(low=0.2, high=0.28, cap=5.0)
ANY_FLOAT = st.floats(width=32, allow_nan=False, allow_infinity=False)
TOKEN = st.tuples(st.floats(-80, 0, width=32), ANY_FLOAT, st.booleans(), st.floats(-9, 9, width=32))


@settings(max_examples=200, deadline=None)
@given(drawn=st.lists(TOKEN, min_size=1, max_size=8), others=st.integers(0, 1000))
def test_every_gradient_is_finite_and_bounded(
    drawn: list[tuple[float, float, bool, float]], others: int
) -> None:
    logp, behaviour, measured, advantage = zip(*drawn, strict=True)
    tokens = Tokens(
        logp=torch.tensor(logp, requires_grad=True),
        behaviour=torch.tensor(behaviour),
        measured=torch.tensor(measured),
        advantage=torch.tensor(advantage),
    )
    total = len(drawn) + others
    loss, _ = dapo(tokens, BOUNDS, total)
    (gradient,) = torch.autograd.grad(loss, tokens.logp)
    assert bool(torch.isfinite(loss))
    bound = tokens.advantage.abs() * BOUNDS.cap / total
    assert bool((gradient.abs() <= bound * (1 + 1e-5)).all())
    # The step is never against the advantage: a lie can stop it, not turn it round.
    assert bool((gradient * tokens.advantage <= 0).all())
