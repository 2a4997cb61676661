"""What a model's config.json says is checked before it is believed."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from policy.models.configs import LLAMA3, small_config, write_config

from swarm_node.errors import ModelError
from swarm_node.policy.models.config import ModelConfig
from swarm_node.policy.models.decoder.rope import RopeScaling
from swarm_node.policy.models.families import FAMILIES


@pytest.mark.parametrize(
    "wrong",
    [
        {"model_type": "gpt_nonexistent"},
        {"model_type": None},
        {"rope_scaling": {"type": ["linear"]}},
        *(
            {"rope_parameters": {**LLAMA3, name: value}}
            for name in ("factor", "low_freq_factor", "high_freq_factor")
            for value in (0, -1.0, None, "8", True, float("inf"), float("nan"))
        ),
        {"rope_parameters": {**LLAMA3, "low_freq_factor": 4.0}},
        {"rope_scaling": {"type": "proportional", "factor": 4.0}},
        {"rope_parameters": {"rope_type": "linear", "factor": 0, "rope_theta": 1e4}},
        {"rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.5}},
        {"rope_parameters": {"full_attention": {"rope_theta": 1e4}}},
        {"rope_parameters": 3},
        {"head_dim": 64},
        {"model_type": "qwen3", "head_dim": 7},
        {"model_type": "qwen3", "head_dim": "8"},
        {"model_type": ["qwen2"]},
        {"quantization_config": {"bits": 4}},
        {"hidden_size": "16"},
        {"hidden_size": 16.0},
        {"num_hidden_layers": 0},
        {"num_key_value_heads": 3},
        {"vocab_size": None},
        {"tie_word_embeddings": 1},
        {"hidden_size": 18, "head_dim": None},
        {"head_dim": -2},
        {"head_dim": {}},
        {"head_dim": [0] * 1000, "num_attention_heads": 1 << 40},
        {"head_dim": 1 << 4000},
        {"hidden_size": -1},
        {"hidden_size": "x" * 1_000_000},
        {"intermediate_size": 1.5},
        {"vocab_size": 1 << 41},
        {"num_key_value_heads": None, "num_attention_heads": "8"},
        {"model_type": "x" * 1_000_000},
        {"rope_scaling": {"type": "x" * 1_000_000}},
        {"rms_norm_eps": float("nan")},
    ],
    ids=lambda wrong: str(wrong)[:60],
)
def test_a_config_that_cannot_be_run_exactly_is_refused_in_a_line(
    tmp_path: Path, wrong: dict[str, Any]
) -> None:
    with pytest.raises(ModelError, match=r"config\.json") as caught:
        ModelConfig.from_directory(write_config(tmp_path, **wrong))
    assert len(str(caught.value)) < 400


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"vocab_size": 10**30}, "vocab_size is 1000.* at most 1,099"),
        ({"rms_norm_eps": 1e30}, r"rms_norm_eps is 1e\+30"),
        ({"num_attention_heads": 7, "num_key_value_heads": 7}, "7 attention heads do not divide"),
        (
            {
                "rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 99.0},
                "rope_scaling": {"rope_type": "default"},
            },
            "differ",
        ),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, wrong: dict[str, Any], said: str) -> None:
    with pytest.raises(ModelError, match=said):
        ModelConfig.from_directory(write_config(tmp_path, ["head_dim"], **wrong))


def test_a_pipe_in_a_models_directory_is_refused(tmp_path: Path) -> None:
    """Opening one waits for a writer, for ever."""
    os.mkfifo(tmp_path / "config.json")
    with pytest.raises(ModelError, match="no file"):
        ModelConfig.from_directory(tmp_path)


def test_config_round_trip(tmp_path: Path) -> None:
    scaled = RopeScaling("llama3", 8.0, 1.0, 4.0, 8192.0)
    for changes in (
        {},
        {"model_type": "qwen3", "head_dim": 6},
        {"model_type": "mistral", "head_dim": 6},
        {"model_type": "llama", "head_dim": 6, "rope_scaling": scaled},
        {"model_type": "llama", "rope_scaling": RopeScaling("linear", 2.0)},
    ):
        config = small_config(rope_theta=1e6, rms_norm_eps=1e-5, **changes)
        (tmp_path / "config.json").write_text(json.dumps(config.to_hf()))
        assert ModelConfig.from_directory(tmp_path) == config


def test_config_of_older_transformers(tmp_path: Path) -> None:
    older: dict[str, Any] = {"rope_theta": 5e5, "rope_scaling": None, "sliding_window": 64}
    write_config(tmp_path, ["rope_parameters"], **older)
    assert ModelConfig.from_directory(tmp_path).rope_theta == 5e5
    scaled = {name: value for name, value in LLAMA3.items() if name != "rope_theta"}
    older |= {"model_type": "llama", "attention_bias": False, "rope_scaling": scaled}
    write_config(tmp_path, ["rope_parameters"], **older)
    scaling = ModelConfig.from_directory(tmp_path).rope_scaling
    assert scaling == RopeScaling("llama3", 32.0, 1.0, 4.0, 32.0)


def test_a_field_that_is_left_out_has_the_value_of_the_familys_class(tmp_path: Path) -> None:
    import transformers

    needed = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers")
    for model_type in FAMILIES:
        raw = {name: small_config().to_hf()[name] for name in needed}
        raw |= {"model_type": model_type, "num_attention_heads": 8, "sliding_window": None}
        (tmp_path / "config.json").write_text(json.dumps(raw))
        ours = ModelConfig.from_directory(tmp_path)
        theirs = getattr(transformers, f"{model_type.capitalize()}Config").from_pretrained(tmp_path)
        assert ours.rope_theta == theirs.rope_parameters["rope_theta"]
        for name in ("max_position_embeddings", "rms_norm_eps", "tie_word_embeddings"):
            assert getattr(ours, name) == getattr(theirs, name), (model_type, name)
        if not model_type.startswith("qwen"):  # 32 key heads: more than this shape has heads
            assert ours.num_key_value_heads == theirs.num_key_value_heads
        assert ours.head_dim == (getattr(theirs, "head_dim", None) or 2)


def test_a_mistral_without_the_field_has_the_window_of_its_class(tmp_path: Path) -> None:
    write_config(tmp_path, ["sliding_window"], model_type="mistral")
    assert not ModelConfig.from_directory(tmp_path).native
    write_config(tmp_path, model_type="mistral", sliding_window=None)
    assert ModelConfig.from_directory(tmp_path).native


@pytest.mark.parametrize(
    "tables",
    [
        {"rope_scaling": {"type": "linear", "factor": 4.0, "rope_theta": 99.0}},
        {"rope_scaling": {"rope_type": "default", "rope_theta": 99.0}, "rope_theta": 500.0},
        {"rope_parameters": {"rope_type": "default", "rope_theta": 99.0}, "rope_theta": 500.0},
    ],
)
def test_the_base_of_rotary_angles_is_that_of_transformers(
    tmp_path: Path, tables: dict[str, Any]
) -> None:
    from transformers import AutoConfig

    own = {"rope_parameters", "rope_scaling", "rope_theta"}
    write_config(tmp_path, own - tables.keys(), **tables)
    wanted = AutoConfig.from_pretrained(tmp_path).rope_parameters
    assert ModelConfig.from_directory(tmp_path).rope_theta == wanted["rope_theta"] == 99.0
