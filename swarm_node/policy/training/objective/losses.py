"""Policy-gradient losses over flat token vectors. Pure functions of tensors, to be minimised.

Notation: μ is the policy that sampled a token, π the one that is trained, A the advantage, and
ρ = π/μ = exp(log π − log μ), truncated at the cap. sg stops the gradient. N is the number of tokens
in the batch. Each batch is trained on in a single step, so π is also the policy at the start of the
update. A ratio between the two, which some papers clip, is 1 by value.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from types import MappingProxyType

import torch
from torch import Tensor

from swarm_node.policy.choices import LossName

#: Clip of decoupled PPO, both ways (arXiv 2505.24298).
DECOUPLED_CLIP = 0.2
#: Truncation of TIS.
TIS_CAP = 2.0
#: Ratios that IcePop keeps (arXiv 2510.18855).
ICEPOP_LOW, ICEPOP_HIGH = 0.5, 5.0
#: Upper clip of CISPO's weight; there is no lower one.
CISPO_CAP = 5.0
#: Clip of GSPO's sequence ratio (arXiv 2507.18071, section 5.1).
GSPO_LOW, GSPO_HIGH = 3e-4, 4e-4
#: Largest move of a token's probability in DPPO, and the weight of its squared log-ratio.
DPPO_MOVE, DPPO_PULL = 0.2, 1e-3
#: Weight of the reference in TBA: the reward is R − β·log(π/π_ref).
TBA_BETA = 0.012
#: A peer's log-probs are implausible if their mean distance from ours over an answer's tokens is
#: more than this, in nats: the geometric mean of the ratio is outside [e^-2, e^2].
MAX_CLAIM_GAP = 2.0
#: Statistics clamp log-ratios to ± this many nats, so that no stated log-prob makes them overflow.
_STATISTIC_NATS = 20.0


@dataclass(frozen=True, slots=True)
class ClipBounds:
    """A loss clips a ratio to [1 − low, 1 + high], and truncates it at `cap` for any sign of A."""

    low: float
    high: float
    cap: float

    @property
    def log_cap(self) -> float:
        """The largest log-ratio: the logarithm of the cap."""
        return math.log(self.cap)


@dataclass(frozen=True, slots=True)
class BatchSize:
    """Normalisers of the losses, which make micro-batches add up to the batch. `tokens` are its
    completion tokens and `rows` its rows, both before masking. `max_new_tokens` is the sampler's
    limit of an answer in tokens; it is a setting, not a property of the batch."""

    tokens: int
    rows: int
    max_new_tokens: int


@dataclass(frozen=True, slots=True)
class Tokens:
    """N completion tokens of one micro-batch, row after row, without padding.

    `logp` f32[N] is log π, with gradient. `behaviour` f32[N] is log μ; losses ignore it where
    `is_measured` bool[N] is false. `advantage` is f32[N]. `row` i64[N] numbers the rows from 0.
    `staleness` i64[N] is the staleness of a token: by how many of our versions μ is older than π,
    −1 where that is unknown. `reference` f32[N] is the log-prob under the base model. `drift`
    f32[N] is the mean of Σ(log π − log π_ref) over the rows of the token's group. Both are zeros
    for losses without a reference."""

    logp: Tensor
    behaviour: Tensor
    is_measured: Tensor
    advantage: Tensor
    row: Tensor
    staleness: Tensor
    reference: Tensor
    drift: Tensor

    def select(self, mask: Tensor) -> Tokens:
        """The tokens where `mask` bool[N] is true; rows keep their numbers."""
        return Tokens(*(getattr(self, field.name)[mask] for field in fields(self)))

    def mask_behavior_logprobs(self, mask: Tensor) -> Tokens:
        """The same tokens, with log μ not measured where `mask` bool[N] is true."""
        return replace(self, is_measured=self.is_measured & ~mask)


@dataclass(frozen=True, slots=True)
class LossSums:
    """Sums over the tokens whose log μ was measured, so that micro-batches add up.

    `clipped_tokens` counts tokens whose gradient the clip, the mask or the cap removed or
    truncated. `ratio` sums ρ. `kl` sums k3 = ρ − 1 − log ρ, an estimator of KL(μ‖π) (Schulman 2020,
    "Approximating KL divergence"). `absolute` sums |log π − log μ|. Ratios are truncated."""

    measured_tokens: float = 0.0
    clipped_tokens: float = 0.0
    ratio: float = 0.0
    kl: float = 0.0
    absolute: float = 0.0

    def __add__(self, other: LossSums) -> LossSums:
        return LossSums(
            *(getattr(self, field.name) + getattr(other, field.name) for field in fields(self))
        )

    def mean(self, name: str, default: float) -> float:
        """The sum called `name` per measured token; `default` without measured tokens."""
        return (
            float(getattr(self, name)) / self.measured_tokens if self.measured_tokens else default
        )


#: The scalar loss of one micro-batch and the sums for the statistics.
LossFn = Callable[[Tokens, ClipBounds, BatchSize], tuple[Tensor, LossSums]]


def log_ratio(tokens: Tokens, bounds: ClipBounds) -> Tensor:
    """log ρ f[N] with gradient, truncated at log `bounds.cap`; truncated values have no gradient.

    The truncation applies for any sign of A (dual clip, Ye et al., arXiv 1912.09729). With A < 0 a
    clip alone leaves ρ unbounded, and a peer that states a tiny μ could scale the gradient at will.
    Where μ was not measured, ρ is 1. The truncation comes before exp, whose overflow would make the
    gradient NaN.
    """
    old = torch.where(tokens.is_measured, tokens.behaviour, tokens.logp.detach())
    return (tokens.logp - old).clamp(max=bounds.log_cap)


def statistics(tokens: Tokens, bounds: ClipBounds, delta: Tensor, clip_mask: Tensor) -> LossSums:
    """The sums for log-ratios `delta` f[N]; the loss clipped the tokens `clip_mask` bool[N]."""
    measured_mask = tokens.is_measured
    delta = delta.detach()[measured_mask].clamp(-_STATISTIC_NATS, bounds.log_cap)
    ratio = delta.exp()
    return LossSums(
        measured_tokens=float(measured_mask.sum()),
        clipped_tokens=float((clip_mask & measured_mask).sum()),
        ratio=float(ratio.sum()),
        kl=float((ratio - 1.0 - delta).sum()),
        absolute=float(delta.abs().sum()),
    )


def row_sums(values: Tensor, row: Tensor) -> Tensor:
    """f64[R]: the sum of `values` f[N] over each row; rows without a token have 0."""
    rows = int(row.max()) + 1 if len(row) else 0
    # In double precision no sum of float32 values overflows, whatever log-probs a peer states.
    return torch.zeros(rows, dtype=torch.float64).index_add(0, row, values.double())


def row_means(values: Tensor, row: Tensor) -> Tensor:
    """f64[R]: the mean of `values` f[N] over each row; rows without a token have 0."""
    return row_sums(values, row) / row_sums(torch.ones_like(values), row).clamp(min=1.0)


def check_claims(tokens: Tokens, claimed: Tensor) -> tuple[Tokens, int]:
    """Disregard peers' implausible log-probs; `claimed` bool[N] marks tokens whose log μ a peer
    states. Returns the tokens left and the number of implausible rows.

    If the stated log μ of a row is more than `MAX_CLAIM_GAP` from log π on average, it is false, or
    the row is so far off-policy that the ratio is useless. The row is then treated like one without
    log-probs. With a positive advantage it counts as if our policy had sampled it. Otherwise it is
    left out, because lowering the probability of an unlikely answer has no bound.
    """
    difference = tokens.logp.detach().double() - tokens.behaviour.double()
    checked_mask = tokens.is_measured & claimed
    gap = row_means(torch.where(checked_mask, difference, 0.0), tokens.row)
    outlier_mask = checked_mask & (gap.abs() > MAX_CLAIM_GAP)[tokens.row]
    rows = len(set(tokens.row[outlier_mask].tolist()))
    if not rows:
        return tokens, 0
    keep_mask = ~(outlier_mask & (tokens.advantage < 0))
    return tokens.mask_behavior_logprobs(outlier_mask).select(keep_mask), rows


def reinforce(tokens: Tokens, bounds: ClipBounds, size: BatchSize) -> tuple[Tensor, LossSums]:
    """Policy gradient (Williams 1992): Σ −A·log π / N. It treats every token as on-policy, however
    stale it is, and so shows what the off-policy corrections of the other losses are worth."""
    delta = log_ratio(tokens, bounds).detach()
    clip_mask = torch.zeros_like(tokens.is_measured)
    weight = torch.ones_like(delta)
    return _weighted_loss(tokens, weight, size), statistics(tokens, bounds, delta, clip_mask)


def dapo(tokens: Tokens, bounds: ClipBounds, size: BatchSize) -> tuple[Tensor, LossSums]:
    """The token-level loss of DAPO (Yu et al., arXiv 2503.14476, equation 8):

    Σ max(−A·ρ, −A·clip(ρ, 1 − low, 1 + high)) / N
    """
    return _clipped_loss(tokens, bounds, size.tokens)


def dr_grpo(tokens: Tokens, bounds: ClipBounds, size: BatchSize) -> tuple[Tensor, LossSums]:
    """Dr. GRPO (Liu et al., arXiv 2503.20783, section 3.2): the sum of `dapo`, divided by rows ×
    longest answer instead of N. It belongs with the advantage of the same name."""
    return _clipped_loss(tokens, bounds, size.rows * size.max_new_tokens)


def decoupled_loss(tokens: Tokens, bounds: ClipBounds, size: BatchSize) -> tuple[Tensor, LossSums]:
    """Decoupled PPO (AReaL, arXiv 2505.24298, equation 5) with A-3PO's proximal policy π_p (arXiv
    2512.06547), which needs no forward pass: log π_p = log μ + α·(sg(log π) − log μ) with
    α = (v_prox − v_behave) / (v_now − v_behave) and v_prox = v_now − 1. So α = (d − 1)/d where μ is
    d versions behind, and 0 where it is not behind. With w = π_p/μ and r = π/π_p:

        Σ sg(w)·max(−A·r, −A·clip(r, 0.8, 1.2)) / N

    Where d is unknown, as for peers' tokens, π_p is π. w·r = ρ is truncated at the cap.
    """
    delta = log_ratio(tokens, bounds)
    staleness = tokens.staleness.to(delta.dtype)
    alpha = torch.where(staleness >= 0, (staleness - 1).clamp(min=0) / staleness.clamp(min=1), 1.0)
    log_weight = alpha * delta.detach()
    ratio = (delta - log_weight).exp()
    clipped_ratio = ratio.clamp(1.0 - DECOUPLED_CLIP, 1.0 + DECOUPLED_CLIP)
    per_token = torch.maximum(-tokens.advantage * ratio, -tokens.advantage * clipped_ratio)
    clip_mask = torch.where(
        tokens.advantage > 0,
        ratio.detach() > 1.0 + DECOUPLED_CLIP,
        (ratio.detach() < 1.0 - DECOUPLED_CLIP) | _at_cap(delta, bounds),
    )
    loss = (log_weight.exp() * per_token).sum() / size.tokens
    return loss, statistics(tokens, bounds, delta, clip_mask)


def tis(tokens: Tokens, bounds: ClipBounds, size: BatchSize) -> tuple[Tensor, LossSums]:
    """Truncated importance sampling (Yao et al. 2025): Σ −sg(min(ρ, 2))·A·log π / N."""
    delta = log_ratio(tokens, bounds).detach()
    weight = delta.exp().clamp(max=TIS_CAP)
    return _weighted_loss(tokens, weight, size), statistics(
        tokens, bounds, delta, delta.exp() > TIS_CAP
    )


def icepop(tokens: Tokens, bounds: ClipBounds, size: BatchSize) -> tuple[Tensor, LossSums]:
    """IcePop (arXiv 2510.18855, equation 3): Σ −sg(ρ·1[0.5 ≤ ρ ≤ 5])·A·log π / N. Ratios that the
    cap truncates count as outside."""
    delta = log_ratio(tokens, bounds).detach()
    ratio = delta.exp()
    outside = (ratio < ICEPOP_LOW) | (ratio > ICEPOP_HIGH) | _at_cap(delta, bounds)
    loss = _weighted_loss(tokens, torch.where(outside, 0.0, ratio), size)
    return loss, statistics(tokens, bounds, delta, outside)


def cispo(tokens: Tokens, bounds: ClipBounds, size: BatchSize) -> tuple[Tensor, LossSums]:
    """CISPO (MiniMax-M1, arXiv 2506.13585, equation 4): Σ −sg(clip(ρ, 0, 5))·A·log π / N. It clips
    the weight, not the update, so every token keeps a gradient."""
    delta = log_ratio(tokens, bounds).detach()
    weight = delta.exp().clamp(max=CISPO_CAP)
    return _weighted_loss(tokens, weight, size), statistics(
        tokens, bounds, delta, (weight >= CISPO_CAP) | _at_cap(delta, bounds)
    )


def gspo(tokens: Tokens, bounds: ClipBounds, size: BatchSize) -> tuple[Tensor, LossSums]:
    """GSPO (Zheng et al., arXiv 2507.18071, equations 5 and 7). Each row has one ratio,
    s = exp(mean log ρ): a geometric mean, which does not grow with the length of the answer.

        Σ_rows max(−A·s, −A·clip(s, 1 − 3e-4, 1 + 4e-4)) / rows
    """
    delta = log_ratio(tokens, bounds)
    ratio = row_means(delta, tokens.row).exp()
    advantage = row_means(tokens.advantage, tokens.row)
    clipped_ratio = ratio.clamp(1.0 - GSPO_LOW, 1.0 + GSPO_HIGH)
    per_row = torch.maximum(-advantage * ratio, -advantage * clipped_ratio)
    clip_mask = torch.where(
        advantage > 0, ratio.detach() > 1.0 + GSPO_HIGH, ratio.detach() < 1.0 - GSPO_LOW
    )
    loss = (per_row.sum() / size.rows).to(tokens.logp.dtype)
    return loss, statistics(tokens, bounds, delta, clip_mask[tokens.row] | _at_cap(delta, bounds))


def dppo(tokens: Tokens, bounds: ClipBounds, size: BatchSize) -> tuple[Tensor, LossSums]:
    """DPPO with the binary total variation (Qi et al., arXiv 2602.04879) and the squared log-ratio
    that prime-rl adds:

        [Σ −keep·A·ρ + 1e-3·Σ(log ρ)²] / N

    The first sum drops a token if A > 0 and π − μ > 0.2, or A ≤ 0 and μ − π > 0.2. The second
    truncates log ρ at ± log cap, so that no stated log-prob scales the gradient at will.
    """
    delta = log_ratio(tokens, bounds)
    now = tokens.logp.detach()
    # A peer may state a positive number as a log-prob.
    sampling_prob = torch.where(tokens.is_measured, tokens.behaviour.clamp(max=0.0), now).exp()
    prob_change = now.exp() - sampling_prob
    drop_mask = torch.where(tokens.advantage > 0, prob_change > DPPO_MOVE, -prob_change > DPPO_MOVE)
    gain = torch.where(drop_mask, 0.0, tokens.advantage) * delta.exp()
    pull = DPPO_PULL * delta.clamp(min=-bounds.log_cap).square()
    return (pull - gain).sum() / size.tokens, statistics(
        tokens, bounds, delta, drop_mask | _at_cap(delta, bounds)
    )


def tba(tokens: Tokens, bounds: ClipBounds, size: BatchSize) -> tuple[Tensor, LossSums]:
    """Trajectory balance with the group's estimate of log Z (TBA, arXiv 2503.18929, equation 4):

        mean (log Z + log π − log π_ref − R/β)², log Z = sg mean_group(log π_ref − log π + R/β)

    over rows. With D = Σ(log π − log π_ref) over a row's tokens and A = R − mean R, the bracket is
    D − mean D − A/β. The implementation multiplies by β/2 and divides by N, so that a token's
    gradient is −(A − β(D − mean D))/N, in the units of the other losses. The loss needs no log μ,
    so no stated log-prob enters. mean D is `Tokens.drift`, over the rows that are trained on. A is
    R − mean R with the advantage "dr_grpo", as published; with others the reward is rescaled.
    """
    distance = row_sums(tokens.logp - tokens.reference, tokens.row)
    advantage = row_means(tokens.advantage, tokens.row)
    residual = distance - row_means(tokens.drift, tokens.row) - advantage / TBA_BETA
    loss = (0.5 * TBA_BETA * residual.square().sum() / size.tokens).to(tokens.logp.dtype)
    clip_mask = torch.zeros_like(tokens.is_measured)
    return loss, statistics(tokens, bounds, log_ratio(tokens, bounds), clip_mask)


def _clipped_loss(tokens: Tokens, bounds: ClipBounds, denominator: int) -> tuple[Tensor, LossSums]:
    delta = log_ratio(tokens, bounds)
    ratio = delta.exp()
    clipped_ratio = ratio.clamp(1.0 - bounds.low, 1.0 + bounds.high)
    per_token = torch.maximum(-tokens.advantage * ratio, -tokens.advantage * clipped_ratio)
    clip_mask = torch.where(
        tokens.advantage > 0,
        ratio.detach() > 1.0 + bounds.high,
        (ratio.detach() < 1.0 - bounds.low) | _at_cap(delta, bounds),
    )
    return per_token.sum() / denominator, statistics(tokens, bounds, delta, clip_mask)


def _weighted_loss(tokens: Tokens, weight: Tensor, size: BatchSize) -> Tensor:
    """The policy gradient with a constant weight for each token."""
    return -(weight * tokens.advantage * tokens.logp).sum() / size.tokens


def _at_cap(delta: Tensor, bounds: ClipBounds) -> Tensor:
    return delta.detach() >= bounds.log_cap


#: Every loss by the name the settings use.
LOSSES: Mapping[LossName, LossFn] = MappingProxyType(
    {
        "reinforce": reinforce,
        "dapo": dapo,
        "dr_grpo": dr_grpo,
        "decoupled": decoupled_loss,
        "tis": tis,
        "icepop": icepop,
        "cispo": cispo,
        "gspo": gspo,
        "dppo": dppo,
        "tba": tba,
    }
)
#: Losses that read `Tokens.reference` and `Tokens.drift`.
NEEDS_REFERENCE = frozenset({"tba"})
