"""Policy-gradient losses over flat token vectors. Pure functions of tensors.

Notation: μ is the policy that sampled a token, π the one being trained, A the advantage,
r = π/μ = exp(log π − log μ).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from types import MappingProxyType

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class ClipBounds:
    """The ratio is clipped to [1 − low, 1 + high] and truncated at `cap` whatever the sign of A."""

    low: float
    high: float
    cap: float


@dataclass(frozen=True, slots=True)
class Tokens:
    """N completion tokens of one micro-batch, without padding.

    `logp` f32[N] are log π with gradient. `behaviour` f32[N] are log μ; where `measured` bool[N] is
    false nobody's log μ is used and the value is ignored. `advantage` f32[N].
    """

    logp: Tensor
    behaviour: Tensor
    measured: Tensor
    advantage: Tensor


@dataclass(frozen=True, slots=True)
class LossSums:
    """Sums over the tokens whose log μ was measured; sums, so that micro-batches add up.

    `clipped`: tokens whose gradient the clip or the cap removed. `ratio`: r. `kl`: the estimator
    k3 = r − 1 − log r of KL(μ‖π) (Schulman 2020, "Approximating KL divergence").
    `absolute`: |log π − log μ|. All ratios are the truncated ones.
    """

    measured: float = 0.0
    clipped: float = 0.0
    ratio: float = 0.0
    kl: float = 0.0
    absolute: float = 0.0

    def __add__(self, other: LossSums) -> LossSums:
        return LossSums(
            *(getattr(self, field.name) + getattr(other, field.name) for field in fields(self))
        )

    def mean(self, name: str, default: float) -> float:
        """The mean of a sum per measured token; `default` when there is none."""
        return float(getattr(self, name)) / self.measured if self.measured else default


LossFn = Callable[[Tokens, ClipBounds, int], tuple[Tensor, LossSums]]


def dapo(tokens: Tokens, bounds: ClipBounds, total_tokens: int) -> tuple[Tensor, LossSums]:
    """The token-level loss of DAPO (Yu et al., arXiv 2503.14476, equation 8):

        Σ max(−A·r, −A·clip(r, 1 − low, 1 + high)) / total_tokens

    `total_tokens` counts the completion tokens of the whole batch, so that the losses of its
    micro-batches add up to the loss of the batch. r is truncated at `bounds.cap` (dual clip, Ye et
    al., arXiv 1912.09729): with A < 0 the clip alone leaves r unbounded, and whoever states a tiny
    μ would scale the gradient at will. Where μ was not measured r is 1.

    Returns the scalar loss and the sums for the statistics.
    """
    old = torch.where(tokens.measured, tokens.behaviour, tokens.logp.detach())
    # Truncating before exp, not after, also keeps an overflow from turning the gradient into NaN.
    delta = (tokens.logp - old).clamp(max=math.log(bounds.cap))
    ratio = delta.exp()
    clipped_ratio = ratio.clamp(1.0 - bounds.low, 1.0 + bounds.high)
    per_token = torch.maximum(-tokens.advantage * ratio, -tokens.advantage * clipped_ratio)
    return per_token.sum() / total_tokens, _sums(tokens, bounds, delta.detach(), ratio.detach())


def _sums(tokens: Tokens, bounds: ClipBounds, delta: Tensor, ratio: Tensor) -> LossSums:
    measured = tokens.measured
    positive = tokens.advantage > 0
    clipped = torch.where(
        positive,
        ratio > 1.0 + bounds.high,
        (ratio < 1.0 - bounds.low) | (delta >= math.log(bounds.cap)),
    )
    return LossSums(
        measured=float(measured.sum()),
        clipped=float((clipped & measured).sum()),
        ratio=float(ratio[measured].sum()),
        kl=float((ratio - 1.0 - delta)[measured].sum()),
        absolute=float(delta[measured].abs().sum()),
    )


#: Every loss by the name the settings use.
LOSSES: Mapping[str, LossFn] = MappingProxyType({"dapo": dapo})
