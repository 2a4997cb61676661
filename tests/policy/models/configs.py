"""Configs of small models, and their files."""

from __future__ import annotations

import json
from collections.abc import Collection
from pathlib import Path
from typing import Any

from swarm_node.policy.models.config import ModelConfig

LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 5e5,
    "factor": 32.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}


def small_config(**changes: Any) -> ModelConfig:
    """A Qwen2 of 20 tokens, two layers and four heads of four, with these `changes`."""
    usual: dict[str, Any] = {"num_key_value_heads": 2, "tie_word_embeddings": True}
    return ModelConfig(20, 16, 24, 2, 4, **{**usual, **changes})


def write_config(path: Path, leave_out: Collection[str] = (), **changes: Any) -> Path:
    """`path`, whose config.json is that of `small_config` with other entries, and without some."""
    raw = {**small_config().to_hf(), **changes}
    kept = {name: value for name, value in raw.items() if name not in leave_out}
    (path / "config.json").write_text(json.dumps(kept))
    return path
