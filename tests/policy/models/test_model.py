"""Finding models, and naming a policy by digests."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from builders import edit_json
from safetensors import safe_open

from swarm_node.errors import ModelError
from swarm_node.policy.memory.footprint import TrainingMethod, adapter_count, footprint
from swarm_node.policy.memory.free import available_memory, needed_memory
from swarm_node.policy.models.config import ModelConfig
from swarm_node.policy.models.model import policy_digests, resolve
from swarm_node.policy.models.text.codec import Codec

TINY = resolve("tiny")


def test_resolve_finds_the_shipped_model_and_local_directories(copy: Path) -> None:
    assert (TINY / "model.safetensors").is_file()
    assert resolve(str(copy)) == copy
    with pytest.raises(ModelError, match=r"mean qwen2\.5-0\.5b,"):
        resolve("./Qwen/Qwen2.5-0.5B")


def test_the_architecture_is_shown_to_whoever_may_refuse_it(copy: Path) -> None:
    seen: list[ModelConfig] = []
    resolve(str(copy), seen.append)
    resolve("tiny", seen.append)
    with safe_open(TINY / "model.safetensors", "numpy") as file:
        stored = sum(file.get_tensor(name).size for name in file.keys())  # noqa: SIM118 - no mapping
    assert [config.weight_count for config in seen] == [stored, stored]


def test_one_base_of_adapters_needs_half_the_memory_of_two() -> None:
    large = ModelConfig(1 << 20, 1 << 13, 1 << 14, 1000, 64, 8)
    # Of a rank that matters little, without gradients and moments of the rest.
    bases = 2 * large.weight_count * 4  # the trainer's and the sampler's
    assert needed_memory(large, lora_rank=1) == pytest.approx(bases, rel=0.01)
    assert needed_memory(large, lora_rank=1, one_base=True) == pytest.approx(bases / 2, rel=0.01)
    # Training goes on while a copy of the adapters and their two moments is written.
    parts = footprint(large, TrainingMethod(8), device="cpu", rows=1, max_new_tokens=1)
    assert needed_memory(large, lora_rank=8) == (
        parts.resident - parts.reserve + 12 * adapter_count(large, 8)
    )


def test_free_memory_is_that_of_the_machine_or_what_its_control_group_leaves(
    tmp_path: Path,
) -> None:
    assert 0 < available_memory() < 1 << 50
    (tmp_path / "memory.max").write_text("1000000\n")
    (tmp_path / "memory.current").write_text("900000\n")
    (tmp_path / "memory.stat").write_text("anon 7\ninactive_file 50000\n")
    assert available_memory(tmp_path) == 150_000
    (tmp_path / "memory.max").write_text("max\n")
    assert available_memory(tmp_path) > 1_000_000


def test_digests_name_the_function_not_the_files(copy: Path) -> None:
    model, tokenizer = policy_digests(TINY)
    assert len(model) == len(tokenizer) == 32
    edit_json(copy / "config.json", dtype="bfloat16", transformers_version="9")
    edit_json(copy / "tokenizer.json", padding=None, truncation={"max_length": 9})
    (copy / "README.md").write_text("anything")
    assert policy_digests(copy) == (model, tokenizer)


def test_digests_change_with_weights_architecture_vocabulary_and_template(copy: Path) -> None:
    model, tokenizer = policy_digests(TINY)

    edit_json(copy / "config.json", rms_norm_eps=1e-5)
    other_model, other_tokenizer = policy_digests(copy)
    assert (other_model != model, other_tokenizer == tokenizer) == (True, True)
    shutil.copy(TINY / "config.json", copy)

    weights = bytearray((copy / "model.safetensors").read_bytes())
    weights[-1] ^= 1
    (copy / "model.safetensors").write_bytes(weights)
    assert policy_digests(copy)[0] != model
    shutil.copy(TINY / "model.safetensors", copy)

    (copy / "chat_template.jinja").write_text("{{ messages }}")
    assert policy_digests(copy)[1] != tokenizer
    (copy / "chat_template.jinja").unlink()

    edit_json(copy / "tokenizer.json", normalizer={"type": "NFC"})
    other_model, other_tokenizer = policy_digests(copy)
    assert (other_model == model, other_tokenizer != tokenizer) == (True, True)


def test_the_shipped_directory_loads_with_the_auto_classes() -> None:
    codec = Codec.from_directory(TINY)
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(TINY, local_files_only=True)
    model = AutoModelForCausalLM.from_pretrained(TINY, local_files_only=True)
    assert len(tokenizer) == model.config.vocab_size == codec.vocab_size
    text = "Simplify the fraction 4/6 to its lowest terms.\n  7 é 9"
    assert tuple(tokenizer.encode(text)) == codec.encode_answer(text)
    assert {tokenizer.eos_token_id} == codec.eos_ids
