"""A GGUF file's model as a `config.json`, and the names of its weights in transformers.

Only functions that are known are computed: a key or a tensor that is not expected is refused by
name, because it may change what the model computes.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

from swarm_node.durable import open_regular
from swarm_node.errors import ModelError, reason_of
from swarm_node.policy.models.bounds import MAX_LAYERS
from swarm_node.policy.models.decoder.rope import RopeScaling
from swarm_node.policy.models.families import FAMILIES
from swarm_node.policy.models.gguf.header import Header, StoredTensor

#: Families by `general.architecture`, which is also the model_type, and whether llama.cpp permutes
#: their queries and keys: it rotates neighbours and transformers halves. Mistral's files say
#: "llama".
ARCHITECTURES: Final = {"llama": True, "qwen2": False, "qwen3": False}
#: Keys of sizes below the architecture's name, and their names in config.json.
_SIZES: Final = {
    "block_count": "num_hidden_layers",
    "context_length": "max_position_embeddings",
    "embedding_length": "hidden_size",
    "feed_forward_length": "intermediate_size",
    "attention.head_count": "num_attention_heads",
}
#: What linear scaling divides angles by: llama.cpp reads the second, older key without the first.
_FACTORS: Final = ("rope.scaling.factor", "rope.scale_linear")
#: Keys that are read below, or that change nothing.
_READ: Final = frozenset(
    {
        *_SIZES,
        *("attention.head_count_kv", "attention.key_length", "attention.value_length"),
        *("attention.layer_norm_rms_epsilon", "rope.freq_base", "rope.dimension_count"),
        *("rope.scaling.type", "rope.scaling.finetuned", *_FACTORS),
        *("vocab_size", "tensor_data_layout"),
    }
)
#: Keys that must be zero where they are: experts, sliding windows.
_ZERO: Final = frozenset({"expert_count", "expert_used_count", "attention.sliding_window"})
#: Keys of end tokens, below tokenizer.ggml, and names of further ones.
_ENDS: Final = ("eos", "eot", "eom")
_END_OF_TEXT: Final = ("<|endoftext|>", "<|end_of_text|>")
_END_OF_TURN: Final = ("<|eot_id|>", "<|eom_id|>", "<|im_end|>")
#: The type of tokens that no text has.
CONTROL: Final = 3
_MOST: Final = 1 << 40
_SHOWN: Final = 80
#: The tensor by which llama.cpp scales the rotary frequencies of Llama 3.1 and 3.2: what each is
#: divided by. It does not hold the rule, so theirs is tried.
_FREQUENCIES: Final = "rope_freqs.weight"
_LLAMA3: Final = {
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}


class Weight(NamedTuple):
    """A weight: its name in transformers, where it is stored, and the heads by which its rows are
    permuted there, 0 if they are not."""

    name: str
    tensor: StoredTensor
    heads: int


def refuse(header: Header, flaw: str) -> ModelError:
    """Return the error for a file whose model is not computed here."""
    names = ", ".join(ARCHITECTURES)
    return ModelError(
        f"{header.path}: {flaw}; GGUF files of plain {names} models (Mistral's say llama) run here",
        "choose another file",
    )


def config_of(header: Header) -> dict[str, Any]:
    """The `config.json` of the model in a file.

    Raises:
        ModelError: another architecture, or a function that is not computed here.
    """
    family = header.metadata.get("general.architecture")
    if not isinstance(family, str) or family not in ARCHITECTURES:
        raise refuse(header, f"the architecture is {str(family)[:_SHOWN]!r}")
    keys = {
        key.removeprefix(f"{family}."): value
        for key, value in header.metadata.items()
        if key.startswith(f"{family}.")
    }
    unknown_keys = sorted(key for key in keys.keys() - _READ if key not in _ZERO or keys[key])
    if unknown_keys:
        raise refuse(header, f"unsupported {', '.join(unknown_keys)[:_SHOWN]}")
    config: dict[str, Any] = {name: _number(header, keys, key, int) for key, name in _SIZES.items()}
    if config["num_hidden_layers"] > MAX_LAYERS:
        raise refuse(header, f"{config['num_hidden_layers']} layers, at most {MAX_LAYERS} run here")
    heads = config["num_attention_heads"]
    config["num_key_value_heads"] = _number(header, keys, "attention.head_count_kv", int, heads)
    config["head_dim"] = size = _head_size(header, keys, config)
    epsilon = _number(header, keys, "attention.layer_norm_rms_epsilon", float)
    theta = _number(header, keys, "rope.freq_base", float, 10000.0)
    embedding = header.tensors.get("token_embd.weight")
    if embedding is None or len(embedding.shape) != 2:
        raise refuse(header, "it has no token_embd.weight, or none of two dimensions")
    traits = FAMILIES[family]
    if not traits.own_head_dim and config["head_dim"] * heads == config["hidden_size"]:
        del config["head_dim"]
    return {
        "architectures": [traits.architecture],
        "model_type": family,
        "hidden_act": "silu",
        "vocab_size": embedding.shape[0],
        **config,
        "rms_norm_eps": epsilon,
        "rope_theta": theta,
        "rope_parameters": {"rope_theta": theta, **_rope(header, keys, theta, size)},
        "tie_word_embeddings": "output.weight" not in header.tensors,
        **traits.writes,
        **_end_tokens(header),
        "dtype": _dtype(header),
    }


def _number(
    header: Header, keys: Mapping[str, Any], key: str, kind: type, otherwise: Any = None
) -> Any:
    value = keys.get(key, otherwise)
    has_type = isinstance(value, kind) and not isinstance(value, bool)
    if not has_type or not 0 < value <= _MOST:  # also nan
        raise refuse(header, f"{key} is {repr(value)[:_SHOWN]}")
    return value


def _head_size(header: Header, keys: Mapping[str, Any], config: Mapping[str, Any]) -> int:
    default_size = max(1, config["hidden_size"] // config["num_attention_heads"])
    size: int = _number(header, keys, "attention.key_length", int, default_size)
    for key in ("attention.value_length", "rope.dimension_count"):
        if _number(header, keys, key, int, size) != size:
            raise refuse(header, f"{key} is {keys[key]}, and a head has {size} values")
    return size


def _linear_factor(header: Header, keys: Mapping[str, Any]) -> float:
    """What all angles are divided by, in llama.cpp's reading: 0 is no factor, a factor without a
    type is linear, and of the type "none" it means nothing."""
    kind = keys.get("rope.scaling.type", "linear")
    if kind not in ("none", "linear"):
        raise refuse(header, f"rope.scaling.type is {str(kind)[:_SHOWN]!r}")
    key = next((key for key in _FACTORS if key in keys), None)
    if kind == "none" or key is None or keys[key] == 0:
        return 1.0
    factor: float = _number(header, keys, key, float)
    return factor


def _rope(header: Header, keys: Mapping[str, Any], theta: float, head_size: int) -> dict[str, Any]:
    """The rotary positions: unscaled, scaled linearly, or as those of Llama 3.1 and 3.2."""
    tensor, factor = header.tensors.get(_FREQUENCIES), _linear_factor(header, keys)
    if tensor is None and factor == 1:
        return {"rope_type": "default"}
    if tensor is None:
        return {"rope_type": "linear", "factor": factor}
    if factor != 1:
        raise refuse(header, f"{_FREQUENCIES} and a linear factor scale its positions twice")
    if tensor.shape != (head_size // 2,) or tensor.encoding.name != "F32":
        raise refuse(header, f"{_FREQUENCIES} has the shape {tensor.shape}")
    try:
        with open_regular(header.path) as file:
            file.seek(tensor.offset)
            divisors = struct.unpack(f"<{tensor.shape[0]}f", file.read(tensor.size))
    except (OSError, struct.error) as error:
        reason = reason_of(error) if isinstance(error, OSError) else "it is cut"
        raise ModelError(f"cannot read {header.path}: {reason}") from error
    factor = max(divisors)
    if theta < 1:  # its powers may exceed a float
        raise refuse(header, f"rope.freq_base is {theta}")
    angles = [theta ** (-place / len(divisors)) for place in range(len(divisors))]
    scaling = RopeScaling("llama3", factor, **_LLAMA3) if 1 <= factor < _MOST else None
    if scaling is None or not all(
        math.isclose(divisor, angle / scaling.scale(angle), rel_tol=1e-4)
        for divisor, angle in zip(divisors, angles, strict=True)
    ):
        raise refuse(header, f"{_FREQUENCIES} is not the scaling of Llama 3.1 or 3.2")
    return scaling.parameters()


def _end_tokens(header: Header) -> dict[str, Any]:
    entries: dict[str, Any] = {}
    tokens: dict[str, int] = {}
    for key in ("bos", "padding", *_ENDS):
        name = f"tokenizer.ggml.{key}_token_id"
        token = header.metadata.get(name)
        if token is None:
            continue
        if not isinstance(token, int) or isinstance(token, bool):
            raise refuse(header, f"{name} is {repr(token)[:_SHOWN]}")
        tokens[key] = token
    for key, name in (("bos", "bos_token_id"), ("padding", "pad_token_id")):
        if key in tokens:
            entries[name] = tokens[key]
    by_key = (tokens[key] for key in _ENDS if key in tokens)
    end_ids = list(dict.fromkeys((*by_key, *_ends_by_name(header))))
    if end_ids:
        entries["eos_token_id"] = end_ids[0] if len(end_ids) == 1 else end_ids
    return entries


def _ends_by_name(header: Header) -> Iterator[int]:
    """The control tokens whose names say that a text ends. generation_config.json has them all, a
    GGUF file has keys for a few, and llama.cpp too goes by their names."""
    texts = header.metadata.get("tokenizer.ggml.tokens")
    kinds = header.metadata.get("tokenizer.ggml.token_type")
    if isinstance(texts, list) and isinstance(kinds, list):
        for place, (text, kind) in enumerate(zip(texts, kinds, strict=False)):
            if kind == CONTROL and text in (*_END_OF_TEXT, *_END_OF_TURN):
                yield place


def _dtype(header: Header) -> str:
    """The type in which no weight loses anything: the file's own if it has one, else float32. A
    quantised weight such as d·q + m has more bits than float16 or bfloat16."""
    dtypes = {"F16": "float16", "BF16": "bfloat16"}
    kinds = set(header.encodings)
    return dtypes[kinds.pop()] if len(kinds) == 1 and kinds <= dtypes.keys() else "float32"


def weights_of(header: Header, config: Mapping[str, Any]) -> list[Weight]:
    """All weights of the model in a file, in transformers' order.

    Raises:
        ModelError: a tensor is missing, has another shape, or is not expected.
    """
    specs = dict(_expected_tensors(config))
    missing_names = [name for name in specs if name not in header.tensors]
    extra_names = sorted(header.tensors.keys() - specs.keys() - {_FREQUENCIES})
    if missing_names or extra_names:
        fault = (
            f"lacks the tensor {missing_names[0]}"
            if missing_names
            else f"has the tensor {extra_names[0]!r}"
        )
        raise refuse(header, f"it {fault[:_SHOWN]}, unlike a {config['model_type']} model")
    weights = []
    for name, (hf_name, shape, heads) in specs.items():
        tensor = header.tensors[name]
        if tensor.shape != shape:
            raise refuse(
                header, f"the tensor {name} has the shape {tensor.shape}, its metadata say {shape}"
            )
        weights.append(Weight(hf_name, tensor, heads))
    return weights


def _expected_tensors(
    config: Mapping[str, Any],
) -> Iterator[tuple[str, tuple[str, tuple[int, ...], int]]]:
    """Names in the file with names in transformers, shapes, and heads of permuted rows."""
    family, hidden_size = config["model_type"], config["hidden_size"]
    heads, groups = config["num_attention_heads"], config["num_key_value_heads"]
    head = config.get("head_dim", hidden_size // heads)
    inner, table = config["intermediate_size"], (config["vocab_size"], hidden_size)
    traits, permuted = FAMILIES[family], (heads, groups) if ARCHITECTURES[family] else (0, 0)
    yield "token_embd.weight", ("model.embed_tokens.weight", table, 0)
    for layer in range(config["num_hidden_layers"]):
        parts: dict[str, tuple[str, tuple[int, ...], int]] = {
            "attn_norm.weight": ("input_layernorm.weight", (hidden_size,), 0),
            "attn_q.weight": ("self_attn.q_proj.weight", (heads * head, hidden_size), permuted[0]),
            "attn_k.weight": ("self_attn.k_proj.weight", (groups * head, hidden_size), permuted[1]),
            "attn_v.weight": ("self_attn.v_proj.weight", (groups * head, hidden_size), 0),
            "attn_output.weight": ("self_attn.o_proj.weight", (hidden_size, heads * head), 0),
            "ffn_norm.weight": ("post_attention_layernorm.weight", (hidden_size,), 0),
            "ffn_gate.weight": ("mlp.gate_proj.weight", (inner, hidden_size), 0),
            "ffn_up.weight": ("mlp.up_proj.weight", (inner, hidden_size), 0),
            "ffn_down.weight": ("mlp.down_proj.weight", (hidden_size, inner), 0),
        }
        if traits.qkv_bias:
            for letter, rows in (("q", heads * head), ("k", groups * head), ("v", groups * head)):
                parts[f"attn_{letter}.bias"] = (f"self_attn.{letter}_proj.bias", (rows,), 0)
        if traits.head_norms:
            parts["attn_q_norm.weight"] = ("self_attn.q_norm.weight", (head,), 0)
            parts["attn_k_norm.weight"] = ("self_attn.k_norm.weight", (head,), 0)
        for name, (hf_name, shape, permuted_heads) in parts.items():
            yield f"blk.{layer}.{name}", (f"model.layers.{layer}.{hf_name}", shape, permuted_heads)
    yield "output_norm.weight", ("model.norm.weight", (hidden_size,), 0)
    if not config["tie_word_embeddings"]:
        yield "output.weight", ("lm_head.weight", table, 0)
