"""The decoder computes what transformers' classes of its families compute, cached or not."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from policy.models.configs import LLAMA3, small_config, write_config
from safetensors.torch import load_file, save_file

from swarm_node.errors import ModelError
from swarm_node.policy.models.decoder.cache import KeyValueMemory
from swarm_node.policy.models.decoder.causal_lm import CausalLM, ModelConfig
from swarm_node.policy.models.decoder.rope import RopeScaling
from swarm_node.policy.models.families import FAMILIES

TOLERANCE = 1e-5


def reference(seed: int, model_type: str = "qwen2", **changes: Any) -> Any:
    """A random model of transformers whose biases and norms are not trivial."""
    import transformers

    family = model_type.capitalize()
    if model_type == "mistral":
        changes = {"sliding_window": None, **changes}
    settings: dict[str, Any] = {
        "vocab_size": 50,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 128,
        "tie_word_embeddings": True,
    }
    config = getattr(transformers, f"{family}Config")(**{**settings, **changes})
    model = getattr(transformers, f"{family}ForCausalLM")(config).eval()
    generator = torch.Generator().manual_seed(seed)
    for parameter in model.parameters():
        mean = 0.5 if parameter.ndim == 1 else 0.0
        torch.nn.init.normal_(parameter, mean, 0.2, generator=generator)
    return model


def token_ids(rows: int, length: int, vocab_size: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, vocab_size, (rows, length), generator=generator)


VARIANTS = [
    {},
    {"tie_word_embeddings": False},
    {"num_key_value_heads": 4},
    {"num_key_value_heads": 1, "num_hidden_layers": 3},
    {"rope_parameters": {"rope_type": "default", "rope_theta": 777.0}},
    {"rms_norm_eps": 1e-2},
    {"model_type": "qwen3", "head_dim": 16},
    {"model_type": "qwen3", "head_dim": 8, "tie_word_embeddings": False},
    {"model_type": "qwen3", "head_dim": 24, "num_key_value_heads": 1, "rms_norm_eps": 1e-2},
    {"model_type": "llama"},
    {"model_type": "llama", "head_dim": 12, "tie_word_embeddings": False},
    {"model_type": "llama", "rope_parameters": LLAMA3},
    {"model_type": "llama", "rope_parameters": {**LLAMA3, "rope_theta": 100.0, "factor": 3.0}},
    {"model_type": "llama", "rope_parameters": {"rope_type": "linear", "factor": 4.0}},
    {"model_type": "mistral", "head_dim": 16},
]


@pytest.mark.parametrize("changes", VARIANTS, ids=lambda c: ",".join(c) or "base")
def test_logits_equal_transformers(tmp_path: Path, changes: dict[str, Any]) -> None:
    theirs = reference(1, **changes)
    theirs.save_pretrained(tmp_path)
    ours = CausalLM.from_directory(tmp_path)
    ids = token_ids(3, 100, 50)
    with torch.no_grad():
        expected = theirs(ids).logits
        torch.testing.assert_close(ours(ids), expected, atol=TOLERANCE, rtol=0)
        torch.testing.assert_close(ours.logits(ours.hidden(ids)), expected, atol=TOLERANCE, rtol=0)
        logprobs = ours(ids).log_softmax(-1), expected.log_softmax(-1)
        torch.testing.assert_close(*logprobs, atol=TOLERANCE, rtol=0)
    assert ours.config.weight_count == sum(p.numel() for p in theirs.parameters())


def test_sharded_weights_load(tmp_path: Path) -> None:
    theirs = reference(2)
    theirs.save_pretrained(tmp_path, max_shard_size="20KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 1
    ids = token_ids(2, 7, 50)
    with torch.no_grad():
        torch.testing.assert_close(
            CausalLM.from_directory(tmp_path)(ids), theirs(ids).logits, atol=TOLERANCE, rtol=0
        )


def test_weights_stored_in_bfloat16_are_widened(tmp_path: Path) -> None:
    from transformers import Qwen2ForCausalLM

    reference(6).to(torch.bfloat16).save_pretrained(tmp_path)
    theirs = Qwen2ForCausalLM.from_pretrained(tmp_path, dtype=torch.float32)
    ours = CausalLM.from_directory(tmp_path)
    assert {parameter.dtype for parameter in ours.parameters()} == {torch.float32}
    ids = token_ids(2, 7, 50)
    with torch.no_grad():
        torch.testing.assert_close(ours(ids), theirs(ids).logits, atol=TOLERANCE, rtol=0)


@pytest.mark.parametrize("model_type", FAMILIES)
def test_left_padding_equals_transformers_with_true_positions(
    tmp_path: Path, model_type: str
) -> None:
    theirs = reference(3, model_type)
    theirs.save_pretrained(tmp_path)
    ours = CausalLM.from_directory(tmp_path)
    ids = token_ids(3, 9, 50)
    mask = torch.arange(9) >= torch.tensor([[0], [3], [8]])
    positions = (mask.long().cumsum(1) - 1).clamp(min=0)
    with torch.no_grad():
        expected = theirs(ids, attention_mask=mask.long(), position_ids=positions).logits
        torch.testing.assert_close(
            ours(ids, mask.long() - 1)[mask], expected[mask], atol=TOLERANCE, rtol=0
        )


@pytest.mark.parametrize(
    "changes",
    [
        {"num_key_value_heads": 1},
        {"num_key_value_heads": 2},
        {"num_key_value_heads": 4},
        {"model_type": "qwen3", "head_dim": 10},
    ],
    ids=str,
)
def test_cached_decode_equals_full_forward(changes: dict[str, Any]) -> None:
    model = CausalLM(small_config(**changes), generator=torch.Generator().manual_seed(0))
    ids = token_ids(3, 10, 20)
    mask = torch.arange(10) >= torch.tensor([[0], [2], [5]])
    rows = torch.tensor([2, 0, 0, 1])
    with torch.inference_mode():
        full = model(ids, mask.long() - 1)[rows]
        memory = KeyValueMemory(model.config)
        memory.reserve(4, 4 * 10, model.embedding)
        cache = memory.view(4, 10)
        hidden = model.prefill(ids[:, :6], mask[:, :6], rows, cache)
        torch.testing.assert_close(model.logits(hidden), full[:, 5], atol=TOLERANCE, rtol=0)
        for slot in range(6, 10):
            if slot == 8:
                kept = torch.tensor([3, 0])
                cache.keep(kept)
                rows, full = rows[kept], full[kept]
            step = model.logits(model.step(ids[rows, slot], cache))
            cache.advance()
            torch.testing.assert_close(step, full[:, slot], atol=TOLERANCE, rtol=0)


def test_many_prompts_of_mixed_lengths_are_read_as_each_alone() -> None:
    model = CausalLM(small_config(), generator=torch.Generator().manual_seed(0))
    ids = token_ids(40, 90, 20)
    lengths = [90 - row % 7 * 14 for row in range(40)]
    mask = torch.arange(90) >= torch.tensor([[90 - each] for each in lengths])
    assert ids.numel() > 2048
    with torch.inference_mode():
        last, collected = model.read(ids, mask)
        for row, length in enumerate(lengths):
            alone, parts = model.read(ids[row : row + 1, -length:], mask[row : row + 1, -length:])
            torch.testing.assert_close(last[row], alone[0], atol=TOLERANCE, rtol=0)
            for wide, part in zip(collected, parts, strict=True):
                for whole, one in zip(wide, part, strict=True):
                    torch.testing.assert_close(whole[row, -length:], one[0], atol=TOLERANCE, rtol=0)


@pytest.mark.parametrize("length", [1, 64, 65, 1000, 1024])
def test_rotary_tables_are_long_enough_and_not_twice_as_long(length: int) -> None:
    model = CausalLM(small_config(), generator=torch.Generator().manual_seed(0))
    for table in model.rotary(length, model.embedding):
        assert length <= len(table) < 2 * max(length, 64)


def test_training_works_after_inference_mode() -> None:
    model = CausalLM(small_config(), generator=torch.Generator().manual_seed(0))
    ids = token_ids(1, 4, 20)
    with torch.inference_mode():
        model(ids)
    torch.autograd.backward(model(ids).square().sum())
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in model.parameters())


@pytest.mark.parametrize("tied", [True, False])
def test_hf_state_round_trip(tied: bool) -> None:
    config = small_config(tie_word_embeddings=tied)
    model = CausalLM(config, generator=torch.Generator().manual_seed(0))
    other = CausalLM(config, generator=torch.Generator().manual_seed(1))
    state = model.hf_state()
    assert ("lm_head.weight" in state) == (not tied)
    assert all(part.is_contiguous() for part in state.values())
    other.load_hf_state(state)
    ids = token_ids(2, 5, 20)
    with torch.no_grad():
        assert torch.equal(model(ids), other(ids))
    state["model.norm.weight"].zero_()
    assert model.norm.abs().sum() > 0, "the state must be a copy"


def test_load_hf_state_is_strict_and_changes_nothing_on_failure() -> None:
    model = CausalLM(small_config(), generator=torch.Generator().manual_seed(0))
    before = model.hf_state()
    state = {name: part + 1 for name, part in before.items()}
    missing = {name: part for name, part in state.items() if name != "model.norm.weight"}
    unexpected = {**state, "model.extra": torch.zeros(1)}
    misshapen = {**state, "model.norm.weight": torch.zeros(3)}
    for wrong in (missing, unexpected, misshapen):
        with pytest.raises(ModelError, match="not fit"):
            model.load_hf_state(wrong)
    assert all(torch.equal(part, before[name]) for name, part in model.hf_state().items())


def test_initial_weights_depend_on_the_generator_alone() -> None:
    first, second, third = (
        CausalLM(small_config(), generator=torch.Generator().manual_seed(seed))
        for seed in (0, 0, 1)
    )
    assert torch.equal(first.embedding, second.embedding)
    assert not torch.equal(first.embedding, third.embedding)


def test_a_digest_tells_families_and_scalings_apart() -> None:
    scaled = RopeScaling("linear", 2.0)
    described = [
        json.dumps(small_config(**changes).digested_fields())
        for changes in (
            *({"model_type": model_type} for model_type in FAMILIES),
            {"model_type": "llama", "rope_scaling": scaled},
            {"model_type": "llama", "rope_scaling": replace(scaled, factor=3.0)},
        )
    ]
    assert len({*described}) == len(described)


@pytest.mark.parametrize("kind", [torch.int8, torch.float8_e4m3fn, torch.bool, torch.complex64])
def test_numbers_that_are_no_weights_are_refused(kind: torch.dtype) -> None:
    model = CausalLM(small_config(), generator=torch.Generator().manual_seed(0))
    state = {name: part.to(kind) for name, part in model.hf_state().items()}
    with pytest.raises(ModelError, match="unquantised"):
        model.load_hf_state(state)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_a_weight_that_is_no_finite_number_is_refused_by_name(tmp_path: Path, value: float) -> None:
    reference(1, "llama").save_pretrained(tmp_path)
    state = load_file(tmp_path / "model.safetensors")
    state["model.norm.weight"][3] = value
    save_file(state, tmp_path / "model.safetensors")
    with pytest.raises(ModelError, match=r"model\.norm\.weight has values"):
        CausalLM.from_directory(tmp_path)


def test_rotary_angles_that_an_older_checkpoint_stores_are_not_weights(tmp_path: Path) -> None:
    theirs = reference(1, "llama")
    theirs.save_pretrained(tmp_path)
    state = load_file(tmp_path / "model.safetensors")
    for layer in range(2):
        state[f"model.layers.{layer}.self_attn.rotary_emb.inv_freq"] = torch.zeros(4)
    save_file(state, tmp_path / "model.safetensors")
    CausalLM.from_directory(tmp_path)


@pytest.mark.parametrize(
    "changes",
    [
        {"hidden_act": "gelu"},
        {"model_type": "llama", "attention_bias": True},
        {"model_type": "llama", "mlp_bias": True},
        {"model_type": "mistral", "sliding_window": 4096},
        {"use_sliding_window": True},
        {"layer_types": ["full_attention", "sliding_attention"]},
        {"model_type": "qwen3", "attention_bias": True},
    ],
    ids=str,
)
def test_a_variant_of_a_family_is_left_to_transformers(
    tmp_path: Path, changes: dict[str, Any]
) -> None:
    config = ModelConfig.from_directory(write_config(tmp_path, **changes))
    assert not config.native
    with pytest.raises(AssertionError):
        CausalLM(config)


def test_malformed_files_are_model_errors(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="cannot read"):
        ModelConfig.from_directory(tmp_path)
    for text in ("[]", "{", "[" * 100_000):
        (tmp_path / "config.json").write_text(text)
        with pytest.raises(ModelError):
            ModelConfig.from_directory(tmp_path)
    write_config(tmp_path)
    with pytest.raises(ModelError, match=r"no model\."):
        CausalLM.from_directory(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"\xff" * 64)
    with pytest.raises(ModelError, match="safetensors file"):
        CausalLM.from_directory(tmp_path)
    save_file({"model.norm.weight": torch.zeros(16)}, tmp_path / "model.safetensors")
    with pytest.raises(ModelError, match="not fit"):
        CausalLM.from_directory(tmp_path)


def test_an_index_cannot_name_files_elsewhere(tmp_path: Path) -> None:
    write_config(tmp_path)
    os.mkfifo(tmp_path / "pipe.safetensors")
    for name, said in (
        ("../secret.safetensors", "outside"),
        ("pytorch_model.bin", r"pytorch_model\.bin: only safetensors"),
        ("pipe.safetensors", "no file"),
    ):
        index = {"weight_map": {"model.norm.weight": name}}
        (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
        with pytest.raises(ModelError, match=said):
            CausalLM.from_directory(tmp_path)
