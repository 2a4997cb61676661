"""What losses take and return, and what several of them compute.

Notation: μ is the policy that sampled a token, π the one being trained, A the advantage,
ρ = π/μ = exp(log π − log μ).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, fields, replace

import torch
from torch import Tensor

#: Log-ratios are held within ± this many nats in statistics, so that no claim makes them overflow.
_STATISTIC_NATS = 20.0


@dataclass(frozen=True, slots=True)
class ClipBounds:
    """A ratio is clipped to [1 − low, 1 + high] and truncated at `cap` whatever the sign of A."""

    low: float
    high: float
    cap: float

    @property
    def log_cap(self) -> float:
        """The cap as a bound of log-ratios."""
        return math.log(self.cap)


@dataclass(frozen=True, slots=True)
class BatchSize:
    """What losses are divided by, so that micro-batches add up to the batch: its completion
    `tokens`, its `rows`, both before anything is masked, and the longest answer that is sampled,
    in tokens, which is a setting and no property of the batch."""

    tokens: int
    rows: int
    longest: int


@dataclass(frozen=True, slots=True)
class Tokens:
    """N completion tokens of one micro-batch, row after row, without padding.

    `logp` f32[N] are log π with gradient. `behaviour` f32[N] are log μ; where `measured` bool[N] is
    false nobody's log μ is used and the value is ignored. `advantage` f32[N]. `row` i64[N] numbers
    the rows from 0. `behind` i64[N]: by how many of our policy versions μ is older than π, −1 where
    that is not known. `reference` f32[N]: log-probs under the base model, and `drift` f32[N]: the
    mean over the rows of a token's group of Σ(log π − log π_ref) over the row; zeros for the losses
    that take no reference.
    """

    logp: Tensor
    behaviour: Tensor
    measured: Tensor
    advantage: Tensor
    row: Tensor
    behind: Tensor
    reference: Tensor
    drift: Tensor

    def select(self, keep: Tensor) -> Tokens:
        """Only the tokens where `keep` bool[N] is true; rows keep their numbers."""
        return Tokens(*(getattr(self, field.name)[keep] for field in fields(self)))

    def unmeasured(self, where: Tensor) -> Tokens:
        """The same, with log μ disregarded where `where` bool[N] is true."""
        return replace(self, measured=self.measured & ~where)


@dataclass(frozen=True, slots=True)
class LossSums:
    """Sums over the tokens whose log μ was measured; sums, so that micro-batches add up.

    `clipped`: tokens whose gradient the clip, the mask or the cap removed or truncated. `ratio`: ρ.
    `kl`: the estimator k3 = ρ − 1 − log ρ of KL(μ‖π) (Schulman 2020, "Approximating KL
    divergence"). `absolute`: |log π − log μ|. All of truncated ratios.
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


#: The scalar loss of one micro-batch and the sums for the statistics.
LossFn = Callable[[Tokens, ClipBounds, BatchSize], tuple[Tensor, LossSums]]


def log_ratio(tokens: Tokens, bounds: ClipBounds) -> Tensor:
    """log ρ f[N] with gradient, at most log `bounds.cap`, beyond which it has no gradient.

    Truncated whatever the sign of A (dual clip, Ye et al., arXiv 1912.09729): with A < 0 a clip
    alone leaves ρ unbounded, and whoever states a tiny μ would scale the gradient at will. Where μ
    was not measured ρ is 1. Before exp, not after: an overflow would turn the gradient into NaN.
    """
    old = torch.where(tokens.measured, tokens.behaviour, tokens.logp.detach())
    return (tokens.logp - old).clamp(max=bounds.log_cap)


def statistics(tokens: Tokens, bounds: ClipBounds, delta: Tensor, clipped: Tensor) -> LossSums:
    """Sums for log-ratios `delta` f[N] and the tokens `clipped` bool[N] by the loss."""
    measured = tokens.measured
    delta = delta.detach()[measured].clamp(-_STATISTIC_NATS, bounds.log_cap)
    ratio = delta.exp()
    return LossSums(
        measured=float(measured.sum()),
        clipped=float((clipped & measured).sum()),
        ratio=float(ratio.sum()),
        kl=float((ratio - 1.0 - delta).sum()),
        absolute=float(delta.abs().sum()),
    )


def row_sums(values: Tensor, row: Tensor) -> Tensor:
    """f64[R]: the sum of `values` f[N] over each row; rows without a token have 0."""
    rows = int(row.max()) + 1 if len(row) else 0
    # In double precision no sum of float32 values overflows, whatever somebody states.
    return torch.zeros(rows, dtype=torch.float64).index_add(0, row, values.double())


def row_means(values: Tensor, row: Tensor) -> Tensor:
    """f64[R]: the mean of `values` f[N] over each row; rows without a token have 0."""
    return row_sums(values, row) / row_sums(torch.ones_like(values), row).clamp(min=1.0)
