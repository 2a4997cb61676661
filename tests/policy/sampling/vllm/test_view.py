"""The engine's view of a model computes the same function."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from builders import edit_json, write_model
from safetensors.torch import save_file

from swarm_node.policy.models.config import ModelConfig, read_json
from swarm_node.policy.models.decoder.causal_lm import CausalLM
from swarm_node.policy.models.model import resolve
from swarm_node.policy.sampling.vllm.view import (
    HeadPadding,
    engine_config,
    pad_adapter,
    read_padded,
    write_view,
)

IDS = torch.tensor([[5, 1, 9, 33, 2, 60, 7, 7, 12, 40]])


@pytest.mark.parametrize("padded", [8, 16, 32])
def test_padded_heads_give_the_same_logits(random_qwen2: Path, padded: int) -> None:
    from transformers import LlamaConfig, LlamaForCausalLM  # here, because it takes two seconds

    ours = CausalLM.from_directory(random_qwen2)
    with torch.no_grad():
        for parameter in ours.parameters():  # biases too, larger than at the start
            parameter.add_(torch.randn_like(parameter) * 0.2)
    save_file(ours.hf_state(), random_qwen2.parent / "changed.safetensors")
    padding = HeadPadding(ours.config.head_dim, padded)
    config = engine_config(ours.config, HeadPadding(ours.config.head_dim, 2 * padded))
    # transformers' Llama knows biases on all four projections or none.
    fields = {k: v for k, v in config.items() if k not in ("architectures", "qkv_bias")}
    theirs = LlamaForCausalLM(
        LlamaConfig(**{**fields, "head_dim": padded, "attention_bias": True})
    ).eval()
    state = dict(read_padded(random_qwen2.parent / "changed.safetensors", padding, "cpu"))
    for layer in range(ours.config.num_hidden_layers):
        state[f"model.layers.{layer}.self_attn.o_proj.bias"] = torch.zeros(ours.config.hidden_size)
    missing, unexpected = theirs.load_state_dict(state, strict=False)
    assert (missing, unexpected) == (["lm_head.weight"], [])
    with torch.no_grad():
        torch.testing.assert_close(theirs(IDS).logits, ours(IDS), atol=1e-5, rtol=1e-5)


def test_a_model_whose_heads_fit_is_shown_as_it_is(tmp_path: Path) -> None:
    config = ModelConfig.from_directory(resolve("tiny"))
    write_view(config, HeadPadding(16, 16), tmp_path)
    assert ModelConfig.from_directory(tmp_path) == config
    write_view(config, HeadPadding(16, 32), tmp_path)
    assert read_json(tmp_path / "config.json")["head_dim"] == 32
    tensor = torch.randn(64, 64)
    assert HeadPadding(16, 16).pad("model.layers.0.self_attn.q_proj.weight", tensor) is tensor


def test_an_engine_gets_the_config_of_another_architecture_as_it_is(
    make_model: Callable[..., Path], tmp_path: Path
) -> None:
    path = make_model(tmp_path / "model", "phi3", pad_token_id=0, bos_token_id=1)
    config = ModelConfig.from_directory(path)
    write_view(config, HeadPadding(8, 8), tmp_path)
    written, own = (read_json(place / "config.json") for place in (tmp_path, path))
    assert written == {name: own[name] for name in written}
    assert "auto_map" not in written
    assert ModelConfig.from_directory(tmp_path) == config


STRAY = {
    "sliding_window": 4,
    "layer_types": ["sliding_attention"] * 2,
    "attn_implementation": "someone/kernel",
    "auto_map": {"AutoModelForCausalLM": "code.Model"},
}


@pytest.mark.parametrize("model_type", ["granite", "phi3"])
def test_an_engine_computes_no_window_that_transformers_does_not(
    make_model: Callable[..., Path], tmp_path: Path, model_type: str
) -> None:
    path = make_model(tmp_path / "model", model_type, pad_token_id=0, bos_token_id=1)
    edit_json(path / "config.json", **STRAY)
    write_view(ModelConfig.from_directory(path), HeadPadding(8, 8), tmp_path)
    written = read_json(tmp_path / "config.json")
    # Phi3 has a window, and no kinds of layers; transformers' Granite has neither.
    assert {*STRAY} & written.keys() == ({"sliding_window"} if model_type == "phi3" else set())


def test_an_engine_that_reads_weights_gets_them_beside_the_config_that_was_checked(
    tmp_path: Path,
) -> None:
    path = tmp_path / "model"
    path.mkdir()
    edit_json(write_model(path) / "config.json", **{**STRAY, "layer_types": None})
    config = ModelConfig.from_directory(path)
    for _ in range(2):  # an engine starts again in the same directory
        write_view(config, HeadPadding(8, 8), tmp_path, path)
    assert not {*STRAY} & read_json(tmp_path / "config.json").keys()
    assert ModelConfig.from_directory(tmp_path) == config
    ours, theirs = (CausalLM.from_directory(place) for place in (path, tmp_path))
    with torch.no_grad():
        assert torch.equal(ours(IDS), theirs(IDS))


def test_an_adapter_is_padded_like_the_matrices_it_changes(tmp_path: Path) -> None:
    """(pad B)(A) = pad(BA) for q, k, v and (B)(pad A) = pad(BA) for o."""
    source = tmp_path / "adapter"
    source.mkdir()
    (source / "adapter_config.json").write_text("{}")
    stem = "base_model.model.model.layers.0.self_attn"
    given = {}
    for name in ("q_proj", "k_proj", "v_proj", "o_proj"):
        given[f"{stem}.{name}.lora_A.weight"] = torch.randn(4, 64)
        given[f"{stem}.{name}.lora_B.weight"] = torch.randn(64, 4)
    save_file(given, source / "adapter_model.safetensors")
    padding = HeadPadding(16, 32)
    assert pad_adapter(source, HeadPadding(16, 16), tmp_path / "none") == source
    target = pad_adapter(source, padding, tmp_path / "padded")
    done = dict(read_padded(target / "adapter_model.safetensors", HeadPadding(1, 1), "cpu"))
    for name in ("q_proj", "k_proj", "v_proj", "o_proj"):
        before = given[f"{stem}.{name}.lora_B.weight"] @ given[f"{stem}.{name}.lora_A.weight"]
        after = done[f"{stem}.{name}.lora_B.weight"] @ done[f"{stem}.{name}.lora_A.weight"]
        wanted = padding.pad(f"model.layers.0.self_attn.{name}.weight", before)
        torch.testing.assert_close(after, wanted)
    assert (target / "adapter_config.json").read_text() == "{}"
