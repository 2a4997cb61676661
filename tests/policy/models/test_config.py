"""What a model's config.json says is checked before it is believed."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from swarm_node.errors import ModelError
from swarm_node.policy.models.config import ModelConfig
from swarm_node.policy.models.model import TINY, resolve


@pytest.mark.parametrize(
    "wrong",
    [
        {"head_dim": {}},
        {"head_dim": "16"},
        {"head_dim": [0] * 1000, "num_attention_heads": 1 << 40},
        {"head_dim": 1 << 4000},
        {"hidden_size": "x" * 1_000_000},
        {"model_type": "x" * 1_000_000},
        {"rope_scaling": {"type": "x" * 1_000_000}},
        {"rms_norm_eps": float("nan")},
    ],
    ids=lambda wrong: "-".join(wrong),
)
def test_values_of_any_kind_and_size_are_refused_in_a_line(
    tmp_path: Path, wrong: dict[str, Any]
) -> None:
    known = json.loads((resolve(TINY) / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**known, **wrong}))
    with pytest.raises(ModelError, match=r"config\.json") as caught:
        ModelConfig.from_directory(tmp_path)
    assert len(str(caught.value)) < 400


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"vocab_size": 10**30}, "vocab_size is 1000.* at most 1,099"),
        ({"rms_norm_eps": 1e30}, r"rms_norm_eps is 1e\+30"),
        ({"num_attention_heads": 7, "num_key_value_heads": 7}, "7 attention heads do not divide"),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, wrong: dict[str, Any], said: str) -> None:
    known = json.loads((resolve(TINY) / "config.json").read_text())
    known.pop("head_dim", None)
    (tmp_path / "config.json").write_text(json.dumps({**known, **wrong}))
    with pytest.raises(ModelError, match=said):
        ModelConfig.from_directory(tmp_path)


def test_a_pipe_in_a_models_directory_is_refused(tmp_path: Path) -> None:
    """Opening one waits for a writer, for ever."""
    os.mkfifo(tmp_path / "config.json")
    with pytest.raises(ModelError, match="no file"):
        ModelConfig.from_directory(tmp_path)
