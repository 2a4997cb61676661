"""Which rows reach the loss, and whose log-probs are believed. Pure functions of tensors."""

from __future__ import annotations

import torch
from torch import Tensor

from swarm_node.policy.training.loss_types import Tokens, row_means

#: A peer's log-probs are implausible where, on average over an answer's tokens, they are further
#: than this from our own, in nats: the geometric mean of the ratio is outside [e^-2, e^2].
MAX_CLAIM_GAP = 2.0


def check_claims(tokens: Tokens, claimed: Tensor) -> tuple[Tokens, int]:
    """Disregard implausible log-probs of peers; `claimed` bool[N] says which tokens have such.

    A row whose stated log μ is more than `MAX_CLAIM_GAP` from log π on average is either a lie or
    so far off-policy that a ratio says nothing. Like a row without log-probs it is then taken as if
    our policy had written it, if it was good, and else left out: pushing down what our policy would
    not say anyway has no bound. Returns what is left and the number of such rows.
    """
    difference = tokens.logp.detach().double() - tokens.behaviour.double()
    checked = tokens.measured & claimed
    gap = row_means(torch.where(checked, difference, 0.0), tokens.row)
    implausible = checked & (gap.abs() > MAX_CLAIM_GAP)[tokens.row]
    rows = len(set(tokens.row[implausible].tolist()))
    if not rows:
        return tokens, 0
    keep = ~(implausible & (tokens.advantage < 0))
    return tokens.unmeasured(implausible).select(keep), rows


def off_policy_mask(tokens: Tokens, delta: float) -> tuple[Tokens, int]:
    """Off-policy sequence masking (DeepSeek-V3.2, arXiv 2512.02556, section 3.1): a row stays iff
    A ≥ 0 or mean_t(log μ − log π) ≤ `delta`, in nats per token. Where μ was not measured the mean
    is 0. Returns what is left and the number of masked rows."""
    difference = torch.where(
        tokens.measured, tokens.behaviour.double() - tokens.logp.detach().double(), 0.0
    )
    far = (row_means(difference, tokens.row) > delta)[tokens.row]
    masked = far & (tokens.advantage < 0)
    return tokens.select(~masked), len(set(tokens.row[masked].tolist()))
