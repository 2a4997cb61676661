"""Small GGUF files of random models, written by the package gguf, and the package's real one."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from platformdirs import user_cache_path

#: SmolLM2-135M-Instruct in four bits, where `make setup-real` puts it.
REAL = user_cache_path("swarm-node") / "real" / "SmolLM2-135M-Instruct.Q4_1.gguf"
LAYERS, HIDDEN, HEADS, GROUPS, HEAD, INNER = 2, 64, 4, 2, 16, 96
_TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def tokens() -> list[str]:
    """Three marks, all bytes, and a merged one: 260."""
    from tokenizers.pre_tokenizers import ByteLevel

    marks = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    return [*marks, *sorted(ByteLevel.alphabet()), "Ġt"]


def tensors(family: str, seed: int = 3) -> dict[str, np.ndarray[Any, Any]]:
    """Weights of a random model of a `family`, under the names that llama.cpp gives them."""
    rng = np.random.default_rng(seed)

    def drawn(*shape: int) -> np.ndarray[Any, Any]:
        return rng.normal(0, 0.1, shape).astype(np.float32)

    found = {"token_embd.weight": drawn(len(tokens()), HIDDEN), "output_norm.weight": drawn(HIDDEN)}
    for layer in range(LAYERS):
        parts = {
            "attn_norm.weight": drawn(HIDDEN),
            "attn_q.weight": drawn(HEADS * HEAD, HIDDEN),
            "attn_k.weight": drawn(GROUPS * HEAD, HIDDEN),
            "attn_v.weight": drawn(GROUPS * HEAD, HIDDEN),
            "attn_output.weight": drawn(HIDDEN, HEADS * HEAD),
            "ffn_norm.weight": drawn(HIDDEN),
            "ffn_gate.weight": drawn(INNER, HIDDEN),
            "ffn_up.weight": drawn(INNER, HIDDEN),
            "ffn_down.weight": drawn(HIDDEN, INNER),
        }
        if family == "qwen2":
            parts |= {f"attn_{x}.bias": drawn(len(parts[f"attn_{x}.weight"])) for x in "qkv"}
        if family == "qwen3":
            parts |= {f"attn_{x}_norm.weight": drawn(HEAD) for x in "qk"}
        found |= {f"blk.{layer}.{name}": value for name, value in parts.items()}
    return found


def write_gguf(
    path: Path,
    family: str = "qwen2",
    encoding: str = "Q8_0",
    stored: Mapping[str, np.ndarray[Any, Any]] | None = None,
    **changes: Any,
) -> Path:
    """`path`, to which a random model was written: matrices in an `encoding`, the rest in float32.
    `changes` are keys of the metadata with `__` for a dot; None leaves one out."""
    import gguf

    writer = gguf.GGUFWriter(path, family)
    keys: dict[str, Any] = {
        f"{family}.block_count": LAYERS,
        f"{family}.context_length": 64,
        f"{family}.embedding_length": HIDDEN,
        f"{family}.feed_forward_length": INNER,
        f"{family}.attention.head_count": HEADS,
        f"{family}.attention.head_count_kv": GROUPS,
        f"{family}.attention.key_length": HEAD,
        f"{family}.attention.value_length": HEAD,
        f"{family}.attention.layer_norm_rms_epsilon": 1e-5,
        f"{family}.rope.freq_base": 10000.0,
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": tokens(),
        "tokenizer.ggml.token_type": [3, 3, 3] + [1] * (len(tokens()) - 3),
        "tokenizer.ggml.merges": ["Ġ t"],
        "tokenizer.ggml.bos_token_id": 0,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.chat_template": _TEMPLATE,
        **{key.replace("__", "."): value for key, value in changes.items()},
    }
    for key, value in keys.items():
        _add(writer, key, value)
    kind = gguf.GGMLQuantizationType[encoding]
    for name, value in (tensors(family) if stored is None else stored).items():
        if value.ndim == 1 or encoding == "F32":
            writer.add_tensor(name, value)
        else:
            writer.add_tensor(name, gguf.quants.quantize(value, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _add(writer: Any, key: str, value: Any) -> None:
    if value is None:
        return
    if isinstance(value, bool):
        writer.add_bool(key, value)
    elif isinstance(value, int):
        writer.add_uint32(key, value)
    elif isinstance(value, float):
        writer.add_float32(key, value)
    elif isinstance(value, str):
        writer.add_string(key, value)
    else:
        writer.add_array(key, value)


def transformers_model(path: Path, **options: Any) -> Any:
    """The model of a directory, or of the file `gguf_file` there, as transformers computes it."""
    import torch
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32, **options).eval()
