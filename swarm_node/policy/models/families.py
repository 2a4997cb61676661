"""The families of models that the native decoder computes. The one table that knows them by name.

They differ from each other in biases, in norms of heads, and in what transformers' configuration
class takes where `config.json` is silent (transformers 5.19, `configuration_<family>.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

#: Values of the fields of `config.json` that every configuration class takes.
_COMMON: Mapping[str, Any] = {"rope_theta": 10000.0, "rms_norm_eps": 1e-6}


@dataclass(frozen=True, slots=True)
class Family:
    """What one `model_type` of transformers adds to the common decoder.

    `architecture` is the class of transformers that computes it. With `qkv_bias`, queries, keys and
    values have biases. With `head_norms`, each head's query and key are normalised. Without
    `own_head_dim`, heads share the hidden size evenly, whatever `config.json` says. `defaults` are
    the values of fields that `config.json` leaves out. `must_be` are fields that change the
    function, with the only value that is computed here; a field that is left out has it, unless
    `defaults` says otherwise. `writes` are fields of a `config.json` that is written for it."""

    architecture: str
    qkv_bias: bool = False
    head_norms: bool = False
    own_head_dim: bool = True
    defaults: Mapping[str, Any] = field(default_factory=dict)
    must_be: Mapping[str, Any] = field(default_factory=dict)
    writes: Mapping[str, Any] = field(default_factory=dict)

    def fill_defaults(self, raw: Mapping[str, Any]) -> dict[str, Any]:
        """`raw` with the values that transformers takes for what it leaves out."""
        entries = {name: value for name, value in raw.items() if value is not None}
        return {**_COMMON, **self.defaults, **entries}

    def unsupported_fields(self, raw: Mapping[str, Any]) -> list[str]:
        """The fields of `raw` that make another function of it, with their values."""
        entries = {name: raw.get(name, self.defaults.get(name)) for name in self.must_be}
        return [
            f"{name} {value!r}"
            for name, value in entries.items()
            if value is not None and value != self.must_be[name]
        ]


#: Keyed by `model_type`. Llama 2: arXiv 2307.09288; Llama 3: 2407.21783; Mistral 7B: 2310.06825,
#: whose first version attends to a window of positions; Qwen2: 2407.10671; Qwen3: 2505.09388, which
#: normalises heads. SmolLM2 and TinyLlama are of the family llama.
FAMILIES: Mapping[str, Family] = {
    "llama": Family(
        "LlamaForCausalLM",
        defaults={"max_position_embeddings": 2048},
        must_be={"attention_bias": False, "mlp_bias": False},
        writes={"attention_bias": False, "mlp_bias": False},
    ),
    "mistral": Family(
        "MistralForCausalLM",
        # A config.json with `null` has no window; one without the field has that of the class.
        defaults={
            "max_position_embeddings": 131_072,
            "num_key_value_heads": 8,
            "sliding_window": 4096,
        },
        must_be={"sliding_window": None},
        writes={"sliding_window": None},
    ),
    "qwen2": Family(
        "Qwen2ForCausalLM",
        qkv_bias=True,
        own_head_dim=False,
        defaults={"max_position_embeddings": 32_768},
        must_be={"use_sliding_window": False},
        writes={"use_sliding_window": False, "attention_bias": True},
    ),
    "qwen3": Family(
        "Qwen3ForCausalLM",
        head_norms=True,
        defaults={"max_position_embeddings": 32_768, "head_dim": 128},
        must_be={"use_sliding_window": False, "attention_bias": False},
        writes={"use_sliding_window": False, "attention_bias": False},
    ),
}
#: The family whose values a digest leaves out: digests of models of the first release stay.
IMPLIED = "qwen2"
