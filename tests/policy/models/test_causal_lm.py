"""The decoder computes what transformers' classes of its families compute, cached or not."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from swarm_node.errors import ModelError
from swarm_node.policy.models.decoder.cache import KeyValueMemory
from swarm_node.policy.models.decoder.causal_lm import CausalLM, ModelConfig
from swarm_node.policy.models.decoder.rope import RopeScaling
from swarm_node.policy.models.families import FAMILIES

TOLERANCE = 1e-5
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 5e5,
    "factor": 32.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}


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


def tiny_config(**changes: Any) -> ModelConfig:
    values: dict[str, Any] = {
        "vocab_size": 20,
        "hidden_size": 16,
        "intermediate_size": 24,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "tie_word_embeddings": True,
    }
    return ModelConfig(**{**values, **changes})


def token_ids(rows: int, length: int, vocab_size: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, vocab_size, (rows, length), generator=generator)


def write_config(path: Path, **changes: Any) -> Path:
    (path / "config.json").write_text(json.dumps({**tiny_config().to_hf(), **changes}))
    return path


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


@pytest.mark.parametrize("model_type", FAMILIES)
def test_sharded_weights_load(tmp_path: Path, model_type: str) -> None:
    theirs = reference(2, model_type)
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


def test_right_padding_needs_no_mask() -> None:
    model = CausalLM(tiny_config(), generator=torch.Generator().manual_seed(0))
    ids = token_ids(1, 6, 20)
    padded = torch.cat([ids, torch.zeros(1, 5, dtype=torch.long)], 1)
    with torch.no_grad():
        torch.testing.assert_close(model(padded)[:, :6], model(ids), atol=TOLERANCE, rtol=0)


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
    model = CausalLM(tiny_config(**changes), generator=torch.Generator().manual_seed(0))
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
    model = CausalLM(tiny_config(), generator=torch.Generator().manual_seed(0))
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
    model = CausalLM(tiny_config(), generator=torch.Generator().manual_seed(0))
    for table in model.rotary(length, model.embedding):
        assert length <= len(table) < 2 * max(length, 64)


def test_training_works_after_inference_mode() -> None:
    model = CausalLM(tiny_config(), generator=torch.Generator().manual_seed(0))
    ids = token_ids(1, 4, 20)
    with torch.inference_mode():
        model(ids)
    torch.autograd.backward(model(ids).square().sum())
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in model.parameters())


@pytest.mark.parametrize("tied", [True, False])
def test_hf_state_round_trip(tied: bool) -> None:
    config = tiny_config(tie_word_embeddings=tied)
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


@pytest.mark.parametrize("model_type", FAMILIES)
def test_hf_state_loads_into_transformers(model_type: str) -> None:
    theirs = reference(4, model_type, tie_word_embeddings=False, head_dim=8)
    ours = CausalLM(
        ModelConfig(50, 32, 48, 2, 4, 2, max_position_embeddings=128, model_type=model_type),
        generator=torch.Generator().manual_seed(5),
    )
    theirs.load_state_dict(ours.hf_state(), strict=True)
    ids = token_ids(2, 5, 50)
    with torch.no_grad():
        torch.testing.assert_close(ours(ids), theirs(ids).logits, atol=TOLERANCE, rtol=0)


def test_load_hf_state_is_strict_and_changes_nothing_on_failure() -> None:
    model = CausalLM(tiny_config(), generator=torch.Generator().manual_seed(0))
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
        CausalLM(tiny_config(), generator=torch.Generator().manual_seed(seed)) for seed in (0, 0, 1)
    )
    assert torch.equal(first.embedding, second.embedding)
    assert not torch.equal(first.embedding, third.embedding)


def test_config_round_trip(tmp_path: Path) -> None:
    scaled = RopeScaling("llama3", 8.0, 1.0, 4.0, 8192.0)
    for changes in (
        {},
        {"model_type": "qwen3", "head_dim": 6},
        {"model_type": "mistral", "head_dim": 6},
        {"model_type": "llama", "head_dim": 6, "rope_scaling": scaled},
        {"model_type": "llama", "rope_scaling": RopeScaling("linear", 2.0)},
    ):
        config = tiny_config(rope_theta=1e6, rms_norm_eps=1e-5, **changes)
        (tmp_path / "config.json").write_text(json.dumps(config.to_hf()))
        assert ModelConfig.from_directory(tmp_path) == config


def test_config_of_older_transformers(tmp_path: Path) -> None:
    raw = tiny_config().to_hf()
    del raw["rope_parameters"]
    raw |= {"rope_theta": 5e5, "rope_scaling": None, "sliding_window": 64}
    (tmp_path / "config.json").write_text(json.dumps(raw))
    assert ModelConfig.from_directory(tmp_path).rope_theta == 5e5
    old = {name: value for name, value in LLAMA3.items() if name != "rope_theta"}
    raw |= {"model_type": "llama", "attention_bias": False, "rope_scaling": old}
    (tmp_path / "config.json").write_text(json.dumps(raw))
    scaling = ModelConfig.from_directory(tmp_path).rope_scaling
    assert scaling == RopeScaling("llama3", 32.0, 1.0, 4.0, 32.0)


def test_a_field_that_is_left_out_has_the_value_of_the_familys_class(tmp_path: Path) -> None:
    import transformers

    needed = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers")
    for model_type in FAMILIES:
        raw = {name: tiny_config().to_hf()[name] for name in needed}
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


def test_a_digest_tells_families_and_scalings_apart() -> None:
    scaled = RopeScaling("linear", 2.0)
    described = [
        json.dumps(tiny_config(**changes).digested_fields())
        for changes in (
            *({"model_type": model_type} for model_type in FAMILIES),
            {"model_type": "llama", "rope_scaling": scaled},
            {"model_type": "llama", "rope_scaling": replace(scaled, factor=3.0)},
        )
    ]
    assert len({*described}) == len(described)


@pytest.mark.parametrize("kind", [torch.int8, torch.float8_e4m3fn, torch.bool, torch.complex64])
def test_numbers_that_are_no_weights_are_refused(kind: torch.dtype) -> None:
    model = CausalLM(tiny_config(), generator=torch.Generator().manual_seed(0))
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
    ],
    ids=str,
)
def test_config_that_cannot_be_run_exactly_is_refused(
    tmp_path: Path, changes: dict[str, Any]
) -> None:
    with pytest.raises(ModelError):
        ModelConfig.from_directory(write_config(tmp_path, **changes))


def test_a_mistral_without_the_field_has_the_window_of_its_class(tmp_path: Path) -> None:
    config = write_config(tmp_path, model_type="mistral") / "config.json"
    raw = json.loads(config.read_text())
    raw.pop("sliding_window", None)
    config.write_text(json.dumps(raw))
    assert not ModelConfig.from_directory(tmp_path).native
    config.write_text(json.dumps({**raw, "sliding_window": None}))
    assert ModelConfig.from_directory(tmp_path).native


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

    write_config(tmp_path)
    raw = json.loads((tmp_path / "config.json").read_text())
    for name in ("rope_parameters", "rope_scaling", "rope_theta"):
        raw.pop(name, None)
    (tmp_path / "config.json").write_text(json.dumps({**raw, **tables}))
    wanted = AutoConfig.from_pretrained(tmp_path).rope_parameters
    assert ModelConfig.from_directory(tmp_path).rope_theta == wanted["rope_theta"] == 99.0


def test_two_tables_of_positions_that_differ_are_refused(tmp_path: Path) -> None:
    write_config(tmp_path)
    raw = json.loads((tmp_path / "config.json").read_text())
    linear = {"rope_type": "linear", "factor": 2.0, "rope_theta": 99.0}
    tables = {"rope_parameters": linear, "rope_scaling": {"rope_type": "default"}}
    (tmp_path / "config.json").write_text(json.dumps({**raw, **tables}))
    with pytest.raises(ModelError, match="differ"):
        ModelConfig.from_directory(tmp_path)


def test_an_index_cannot_name_files_elsewhere(tmp_path: Path) -> None:
    write_config(tmp_path)
    index = {"weight_map": {"model.norm.weight": "../secret.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(ModelError, match="outside"):
        CausalLM.from_directory(tmp_path)
    index = {"weight_map": {"model.norm.weight": "pytorch_model.bin"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(ModelError, match=r"pytorch_model\.bin: only safetensors"):
        CausalLM.from_directory(tmp_path)
    os.mkfifo(tmp_path / "pipe.safetensors")
    index = {"weight_map": {"model.norm.weight": "pipe.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(ModelError, match="no file"):
        CausalLM.from_directory(tmp_path)
