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
    weight: Tensor, hidden_states: Tensor, target: Tensor, temperature: float, piece: int
) -> tuple[Tensor, Tensor | None]:
    """log π f32[N] of the ids `target` i64[N] for hidden states [N, hidden] under the head `weight`
    [V, hidden]; and the entropy of π in nats f32[N], without gradient; None if `hidden_states` has
    no gradient. Logits of at most `piece` tokens are held at once.

    Under a head that is trained, N above `piece` makes them twice: again for the backward pass.
    Under a frozen one (LoRA) they are made once.
    """
    device = hidden_states.device.type
    if torch.is_autocast_enabled(device):  # inside the function it would cast for each piece
        kind = torch.get_autocast_dtype(device)
        weight, hidden_states = weight.to(kind), hidden_states.to(kind)
    scores: tuple[Tensor, Tensor | None] = _Head.apply(
        hidden_states, target, weight, temperature, piece
    )  # type: ignore[no-untyped-call]
    return scores


def logit_logprobs(
    logits: Callable[[Tensor], Tensor],
    hidden_states: Tensor,
    target: Tensor,
    temperature: float,
    piece: int,
) -> tuple[Tensor, Tensor | None]:
    """`head_logprobs` for any function from hidden states to `logits` [N, V]. They are made twice
    where there is a gradient, and held in a few copies, hence in smaller pieces."""

    def logprobs_and_entropy(states: Tensor, ids: Tensor) -> tuple[Tensor, Tensor]:
        logps = (logits(states).float() / temperature).log_softmax(-1)
        detached_logps = logps.detach()
        return logps.gather(1, ids[:, None])[:, 0], -(detached_logps.exp() * detached_logps).sum(-1)

    parts = list(_parts(target, max(1, piece // _COPIES)))
    if not (torch.is_grad_enabled() and hidden_states.requires_grad):
        return torch.cat(
            [logprobs_and_entropy(hidden_states[part], target[part])[0] for part in parts]
        ), None
    scores = [
        recompute_in_backward(
            logprobs_and_entropy,
            hidden_states[part],
            target[part],
            use_reentrant=False,
            preserve_rng_state=False,
        )
        for part in parts
    ]
    return torch.cat([logp for logp, _ in scores]), torch.cat([entropy for _, entropy in scores])


class _Head(torch.autograd.Function):
    """The gradient of a log-prob for its hidden state h is (W[wanted] − Σ π W) / temperature. It is
    known as soon as the logits are, so it is made with them. Logits are linear in h, so h times
    this gradient is the wanted logit less the mean of all: the log-prob plus the entropy."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden_states: Tensor,
        target: Tensor,
        weight: Tensor,
        temperature: float,
        piece: int,
    ) -> tuple[Tensor, Tensor | None]:
        logps = hidden_states.new_empty(len(target), dtype=torch.float32)
        if not ctx.needs_input_grad[0]:
            for part in _parts(target, piece):
                logps[part] = _chunk_logprobs(
                    hidden_states[part], target[part], weight, temperature
                )[0]
            return logps, None
        slope, entropy = torch.empty_like(hidden_states), torch.empty_like(logps)
        for part in _parts(target, piece):
            logps[part], residuals, total = _chunk_logprobs(
                hidden_states[part], target[part], weight, temperature
            )
            residuals = residuals.to(weight.dtype)
            slope[part] = (residuals @ weight).div_(-temperature * total)
            # Not `vecdot`, which autocast takes down to half precision.
            entropy[part] = (slope[part].float() * hidden_states[part].float()).sum(-1) - logps[
                part
            ]
        ctx.temperature, ctx.piece = temperature, piece
        extra_tensors = [hidden_states, target, weight] if ctx.needs_input_grad[2] else []
        if extra_tensors and len(target) <= piece:  # a single piece is kept for the backward pass
            extra_tensors += [residuals, total]
        ctx.save_for_backward(slope, *extra_tensors)
        ctx.mark_non_differentiable(entropy)
        return logps, entropy

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        slope, *extra_tensors = ctx.saved_tensors
        grad_output = gradients[0][:, None]
        to_hidden = grad_output.to(slope.dtype) * slope
        if not extra_tensors:
            return to_hidden, None, None, None, None
        hidden_states, target, weight, *saved_piece = extra_tensors
        to_weight = torch.zeros_like(weight)
        for part in _parts(target, ctx.piece):
            residuals, total = (
                saved_piece
                or _chunk_logprobs(hidden_states[part], target[part], weight, ctx.temperature)[1:]
            )
            scaled_states = hidden_states[part] * (grad_output[part] / (-ctx.temperature * total))
            to_weight.addmm_(residuals.to(weight.dtype).T, scaled_states.to(weight.dtype))
        return to_hidden, None, to_weight, None, None


def _parts(target: Tensor, piece: int) -> Iterator[slice]:
    return (slice(start, start + piece) for start in range(0, len(target), piece))


def _chunk_logprobs(
    hidden_states: Tensor, target: Tensor, weight: Tensor, temperature: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Returns log π f32[n] of `target`; s·(π − 1 at the wanted id) f32[n, V]; and s f32[n, 1],
    which scales π. All logits are in one place, because a copy is large."""
    logits, ids = F.linear(hidden_states, weight).float(), target[:, None]
    if temperature != 1.0:  # a pass over all logits
        logits.div_(temperature)
    logits.sub_(logits.amax(-1, keepdim=True))
    target_logits = logits.gather(1, ids)
    residuals = logits.exp_()
    total = residuals.sum(-1, keepdim=True)
    residuals.scatter_add_(1, ids, -total)
    logp = (target_logits - total.log())[:, 0]
    if weight.dtype is torch.float16:
        residuals.mul_(_IN_FLOAT16 / total)
        total = torch.full_like(total, _IN_FLOAT16)
    return logp, residuals, total
