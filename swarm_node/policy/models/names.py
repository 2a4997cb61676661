"""transformers' names of a model's weights, and the part of the fused weights that each names."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from swarm_node.policy.models.config import ModelConfig

#: transformers' names of whole parameters; a layer's parameters have its prefix.
_HF_NAMES = {
    "embedding": "model.embed_tokens.weight",
    "norm": "model.norm.weight",
    "head": "lm_head.weight",
    "query_norm": "self_attn.q_norm.weight",
    "key_norm": "self_attn.k_norm.weight",
    "out": "self_attn.o_proj.weight",
    "down": "mlp.down_proj.weight",
    "input_norm": "input_layernorm.weight",
    "post_norm": "post_attention_layernorm.weight",
}


def hf_parts(config: ModelConfig, name: str, parameter: Tensor) -> Iterator[tuple[str, Tensor]]:
    """The parts of the `parameter` called `name` here, under transformers' names; no copies."""
    path, _, leaf = name.rpartition(".")
    prefix = f"model.{path}." if path else ""
    if leaf in ("qkv", "qkv_bias"):
        kind = "weight" if leaf == "qkv" else "bias"
        sizes = [config.query_size, config.key_value_size, config.key_value_size]
        for letter, part in zip("qkv", torch.split(parameter, sizes), strict=True):
            yield f"{prefix}self_attn.{letter}_proj.{kind}", part
    elif leaf == "gate_up":
        for projection, part in zip(("gate", "up"), parameter.chunk(2), strict=True):
            yield f"{prefix}mlp.{projection}_proj.weight", part
    else:
        yield prefix + _HF_NAMES[leaf], parameter
