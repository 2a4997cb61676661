"""What several unit tests need."""

from __future__ import annotations

import json
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def random_qwen2(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with a random Qwen2 of two layers, 64 tokens and 48 positions; do not write."""
    import torch
    from safetensors.torch import save_file

    from swarm_node.policy.model_files import Qwen2Config
    from swarm_node.policy.qwen2 import Qwen2

    config = Qwen2Config(
        vocab_size=64,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=48,
        tie_word_embeddings=True,
    )
    path = tmp_path_factory.mktemp("random-qwen2")
    (path / "config.json").write_text(json.dumps(config.to_hf()))
    (path / "tokenizer.json").write_text("{}")
    model = Qwen2(config, generator=torch.Generator().manual_seed(5))
    save_file(model.hf_state(), path / "model.safetensors")
    return path
