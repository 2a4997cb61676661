"""Log-probs of tokens under the output head, without all logits at once."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint as recompute_in_backward


def head_logprobs(
    weight: Tensor, hidden: Tensor, wanted: Tensor, temperature: float, piece: int
) -> Tensor:
    """log π f32[N] of the ids `wanted` i64[N] for hidden states [N, hidden] under the head `weight`
    [V, hidden]. Logits of at most `piece` tokens are held at once.

    Under a head that is trained, N above `piece` makes them twice: again for the backward pass.
    Under a frozen one (LoRA) they are made once.
    """
    if not weight.requires_grad:
        found: Tensor = _FrozenHead.apply(hidden, wanted, weight, temperature, piece)  # type: ignore[no-untyped-call]
        return found

    def logprobs(hidden: Tensor, wanted: Tensor) -> Tensor:
        logits = F.linear(hidden, weight).float() / temperature
        return -F.cross_entropy(logits, wanted, reduction="none")

    if len(wanted) <= piece:
        return logprobs(hidden, wanted)
    return torch.cat(
        [
            recompute_in_backward(logprobs, *pair, use_reentrant=False, preserve_rng_state=False)
            for pair in zip(torch.split(hidden, piece), torch.split(wanted, piece), strict=True)
        ]
    )


class _FrozenHead(torch.autograd.Function):
    """The gradient of a log-prob for its hidden state, (W[wanted] − Σ π W) / temperature, is known
    as soon as its logits are. So it is made with them, and the logits are not needed again."""

    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, wanted: Tensor, weight: Tensor, temperature: float, piece: int
    ) -> Tensor:
        found = hidden.new_empty(len(wanted), dtype=torch.float32)
        slope = torch.empty_like(hidden) if ctx.needs_input_grad[0] else None
        for start in range(0, len(wanted), piece):
            part = slice(start, start + piece)
            ids = wanted[part, None]
            logits = F.linear(hidden[part], weight).float()
            if temperature != 1.0:  # a pass over all logits
                logits = logits / temperature
            total = logits.logsumexp(-1, keepdim=True)
            found[part] = (logits.gather(1, ids) - total)[:, 0]
            if slope is not None:
                less = logits.sub_(total).exp_()
                less.scatter_add_(1, ids, less.new_full(ids.shape, -1.0))
                slope[part] = (less.to(weight.dtype) @ weight).div_(-temperature)
        ctx.save_for_backward(slope)
        return found

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (slope,) = ctx.saved_tensors
        return gradients[0][:, None].to(slope.dtype) * slope, None, None, None, None
