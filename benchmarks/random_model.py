"""Random weights of a model's shape, quickly: a model of 1.5 billion weights takes seconds."""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor

from swarm_node.policy.models.config import ModelConfig
from swarm_node.policy.models.decoder.causal_lm import CausalLM

#: Values that are drawn. A prime, so that the rows of a large matrix begin at different ones.
_DRAWN = 16_777_213
_STD = 0.02


def write_weights(target: Path, shape: ModelConfig, dtype: torch.dtype) -> None:
    """Write `target`, a safetensors file of random weights under transformers' names. Matrices have
    standard deviation 0.02 and are cut out of one draw; norms are 1, biases 0."""
    generator = torch.Generator().manual_seed(0)
    weight_pool = torch.empty(_DRAWN).normal_(std=_STD, generator=generator).to(dtype).repeat(2)

    def weight(name: str, size: torch.Size) -> Tensor:
        if len(size) == 1:
            value = 0.0 if name.endswith("bias") else 1.0
            return torch.full(size, value, dtype=dtype)
        begin, count = int(torch.randint(_DRAWN, (), generator=generator)), size.numel()
        if count > _DRAWN:
            repeats = -(-(begin + count) // len(weight_pool))
            return weight_pool.repeat(repeats)[begin : begin + count].view(size)
        return weight_pool[begin : begin + count].clone().view(size)

    views = CausalLM(shape, draw=False).hf_views()
    partial = target.with_suffix(".partial")
    save_file({name: weight(name, view.shape) for name, view in views}, partial, {"format": "pt"})
    partial.rename(target)
