"""Log-probs of tokens under the output head, and its entropy, without all logits at once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint as recompute_in_backward

#: What 1 becomes in float16, so that neither a rare token's share of 1e-7 vanishes nor a sum of
#: weights overflows.
_IN_FLOAT16 = 1024.0
#: Copies of logits in float32 that autograd holds at once.
_COPIES = 4


def head_logprobs(
    weight: Tensor, hidden: Tensor, wanted: Tensor, temperature: float, piece: int
) -> tuple[Tensor, Tensor | None]:
    """log π f32[N] of the ids `wanted` i64[N] for hidden states [N, hidden] under the head `weight`
    [V, hidden]; and the entropy of π in nats f32[N], without gradient; None if `hidden` has no
    gradient. Logits of at most `piece` tokens are held at once.

    Under a head that is trained, N above `piece` makes them twice: again for the backward pass.
    Under a frozen one (LoRA) they are made once.
    """
    device = hidden.device.type
    if torch.is_autocast_enabled(device):  # inside the function it would cast for each piece
        kind = torch.get_autocast_dtype(device)
        weight, hidden = weight.to(kind), hidden.to(kind)
    found: tuple[Tensor, Tensor | None] = _Head.apply(hidden, wanted, weight, temperature, piece)  # type: ignore[no-untyped-call]
    return found


def logit_logprobs(
    logits: Callable[[Tensor], Tensor],
    hidden: Tensor,
    wanted: Tensor,
    temperature: float,
    piece: int,
) -> tuple[Tensor, Tensor | None]:
    """`head_logprobs` for any function from hidden states to `logits` [N, V]. They are made twice
    where there is a gradient, and held in a few copies, hence in smaller pieces."""

    def scored(states: Tensor, ids: Tensor) -> tuple[Tensor, Tensor]:
        logps = (logits(states).float() / temperature).log_softmax(-1)
        kept = logps.detach()
        return logps.gather(1, ids[:, None])[:, 0], -(kept.exp() * kept).sum(-1)

    parts = list(_parts(wanted, max(1, piece // _COPIES)))
    if not (torch.is_grad_enabled() and hidden.requires_grad):
        return torch.cat([scored(hidden[part], wanted[part])[0] for part in parts]), None
    made = [
        recompute_in_backward(
            scored, hidden[part], wanted[part], use_reentrant=False, preserve_rng_state=False
        )
        for part in parts
    ]
    return torch.cat([logp for logp, _ in made]), torch.cat([entropy for _, entropy in made])


class _Head(torch.autograd.Function):
    """The gradient of a log-prob for its hidden state h is (W[wanted] − Σ π W) / temperature. It is
    known as soon as the logits are, so it is made with them. Logits are linear in h, so h times
    this gradient is the wanted logit less the mean of all: the log-prob plus the entropy."""

    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, wanted: Tensor, weight: Tensor, temperature: float, piece: int
    ) -> tuple[Tensor, Tensor | None]:
        found = hidden.new_empty(len(wanted), dtype=torch.float32)
        if not ctx.needs_input_grad[0]:
            for part in _parts(wanted, piece):
                found[part] = _scored(hidden[part], wanted[part], weight, temperature)[0]
            return found, None
        slope, entropy = torch.empty_like(hidden), torch.empty_like(found)
        for part in _parts(wanted, piece):
            found[part], less, total = _scored(hidden[part], wanted[part], weight, temperature)
            less = less.to(weight.dtype)
            slope[part] = (less @ weight).div_(-temperature * total)
            # Not `vecdot`, which autocast takes down to half precision.
            entropy[part] = (slope[part].float() * hidden[part].float()).sum(-1) - found[part]
        ctx.temperature, ctx.piece = temperature, piece
        again = [hidden, wanted, weight] if ctx.needs_input_grad[2] else []
        if again and len(wanted) <= piece:  # a single piece is kept for the backward pass
            again += [less, total]
        ctx.save_for_backward(slope, *again)
        ctx.mark_non_differentiable(entropy)
        return found, entropy

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        slope, *again = ctx.saved_tensors
        given = gradients[0][:, None]
        to_hidden = given.to(slope.dtype) * slope
        if not again:
            return to_hidden, None, None, None, None
        hidden, wanted, weight, *kept = again
        to_weight = torch.zeros_like(weight)
        for part in _parts(wanted, ctx.piece):
            less, total = kept or _scored(hidden[part], wanted[part], weight, ctx.temperature)[1:]
            scaled = hidden[part] * (given[part] / (-ctx.temperature * total))
            to_weight.addmm_(less.to(weight.dtype).T, scaled.to(weight.dtype))
        return to_hidden, None, to_weight, None, None


def _parts(wanted: Tensor, piece: int) -> Iterator[slice]:
    return (slice(start, start + piece) for start in range(0, len(wanted), piece))


def _scored(
    hidden: Tensor, wanted: Tensor, weight: Tensor, temperature: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Returns log π f32[n] of `wanted`; s·(π − 1 at the wanted id) f32[n, V]; and s f32[n, 1],
    which scales π. All logits are in one place, because a copy is large."""
    logits, ids = F.linear(hidden, weight).float(), wanted[:, None]
    if temperature != 1.0:  # a pass over all logits
        logits.div_(temperature)
    logits.sub_(logits.amax(-1, keepdim=True))
    chosen = logits.gather(1, ids)
    less = logits.exp_()
    total = less.sum(-1, keepdim=True)
    less.scatter_add_(1, ids, -total)
    logp = (chosen - total.log())[:, 0]
    if weight.dtype is torch.float16:
        less.mul_(_IN_FLOAT16 / total)
        total = torch.full_like(total, _IN_FLOAT16)
    return logp, less, total
