"""The shapes of the models with short names, for planning without a network.

They come from the `config.json` of each repository on the hub. The tables of the reports on
Qwen2.5, Qwen3 and SmolLM2 (arXiv 2412.15115, table 1; 2505.09388, table 1; 2502.02737) and Meta's
page on Llama 3.2 give the same layers and heads, or the same number of weights. Models whose name
ends in "-base" differ only in the number of positions, which is larger than a plan needs.
"""

from __future__ import annotations

from swarm_node.policy.models.config import ModelConfig
from swarm_node.policy.models.decoder.rope import RopeScaling
from swarm_node.policy.models.hub import ALIASES

_VOCABULARY = 151_936
_LLAMA3 = RopeScaling("llama3", 32.0, 1.0, 4.0, 8192.0)


def _qwen2(
    hidden_size: int, intermediate_size: int, layers: int, heads: int, kv_heads: int
) -> ModelConfig:
    return ModelConfig(
        _VOCABULARY,
        hidden_size,
        intermediate_size,
        layers,
        heads,
        kv_heads,
        1e6,
        tie_word_embeddings=True,
    )


def _qwen3(
    hidden_size: int, intermediate_size: int, layers: int, heads: int, is_tied: bool = True
) -> ModelConfig:
    return ModelConfig(
        *(_VOCABULARY, hidden_size, intermediate_size, layers, heads, 8, 1e6),
        max_position_embeddings=40_960,
        tie_word_embeddings=is_tied,
        model_type="qwen3",
        head_dim=128,
    )


def _smollm2(
    hidden_size: int, intermediate_size: int, layers: int, heads: int, kv_heads: int, theta: float
) -> ModelConfig:
    return ModelConfig(
        *(
            49_152,
            hidden_size,
            intermediate_size,
            layers,
            heads,
            kv_heads,
            theta,
            1e-5,
            8192,
            True,
            "llama",
        ),
    )


def _llama3(hidden_size: int, layers: int, heads: int) -> ModelConfig:
    return ModelConfig(
        *(128_256, hidden_size, 8192, layers, heads, 8, 5e5, 1e-5, 131_072, True, "llama"),
        rope_scaling=_LLAMA3,
    )


#: Each family has its smallest model first.
_SHAPES = {
    "smollm2-135m": _smollm2(576, 1536, 30, 9, 3, 1e5),
    "smollm2-360m": _smollm2(960, 2560, 32, 15, 5, 1e5),
    "smollm2-1.7b": _smollm2(2048, 8192, 24, 32, 32, 1.3e5),
    "llama3.2-1b": _llama3(2048, 16, 32),
    "llama3.2-3b": _llama3(3072, 28, 24),
    "qwen2.5-0.5b": _qwen2(896, 4864, 24, 14, 2),
    "qwen2.5-1.5b": _qwen2(1536, 8960, 28, 12, 2),
    "qwen2.5-3b": _qwen2(2048, 11_008, 36, 16, 2),
    "qwen2.5-7b": ModelConfig(152_064, 3584, 18_944, 28, 28, 4, 1e6),
    "qwen3-0.6b": _qwen3(1024, 3072, 28, 16),
    "qwen3-1.7b": _qwen3(2048, 6144, 28, 16),
    "qwen3-4b": _qwen3(2560, 9728, 36, 32),
    "qwen3-8b": _qwen3(4096, 12_288, 36, 32, is_tied=False),
}


def known_shape(name: str) -> ModelConfig | None:
    """The shape of the model that `name` means, a short name or its hub id; None for others."""
    for alias, repo in ALIASES.items():
        if name.lower() == alias or name.partition("@")[0] == repo:
            return _SHAPES[alias.removesuffix("-base")]
    return None


def smaller_models(model: ModelConfig) -> list[tuple[str, ModelConfig]]:
    """Known models of the same family with fewer weights than `model`, the largest first."""
    models = [
        (name, shape)
        for name, shape in _SHAPES.items()
        if shape.model_type == model.model_type and shape.weight_count < model.weight_count
    ]
    return sorted(models, key=lambda pair: -pair[1].weight_count)
