"""Reading a model directory: `config.json` and the list of its safetensors files. No torch.

A directory may come from anybody. So files are bounded and checked, no file outside the directory
is opened, and only safetensors, which hold no code, count as weights.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

from swarm_node.errors import ModelError

MAX_JSON_BYTES = 16 << 20
MAX_JSON_DEPTH = 64
_MAX_JSON_VALUES, _MAX_JSON_LISTS = 1 << 20, 1 << 19
_ARCHITECTURES = {"qwen2": "Qwen2ForCausalLM", "qwen3": "Qwen3ForCausalLM"}
_QWEN3_HEAD_DIM = 128
#: Characters of a wrong value in an error.
_SHOWN = 80


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """The fields of `config.json` that define the function this model computes.

    `model_type` is "qwen2", or "qwen3": the same decoder with query and key normalised per head and
    without biases. A `head_dim` of 0 becomes hidden_size / num_attention_heads."""

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    rope_theta: float = 10000.0
    rms_norm_eps: float = 1e-6
    max_position_embeddings: int = 32768
    tie_word_embeddings: bool = False
    model_type: str = "qwen2"
    head_dim: int = 0

    def __post_init__(self) -> None:
        sizes = {**asdict(self), "head_dim": self.head_dim or 1}
        numbers = [value for value in sizes.values() if not isinstance(value, bool | str)]
        if not all(isinstance(n, int | float) and 0 < n <= 1 << 40 for n in numbers):
            raise ModelError("config.json: every size must be a positive number")
        if self.model_type not in _ARCHITECTURES:
            raise ModelError(f"config.json: model_type {self.model_type!r} is neither qwen2 nor 3")
        if self.num_attention_heads % self.num_key_value_heads:
            raise ModelError("config.json: key/value heads must divide the attention heads")
        if self.head_dim == 0:
            if self.hidden_size % self.num_attention_heads:
                raise ModelError("config.json: hidden_size must be a multiple of the heads")
            object.__setattr__(self, "head_dim", self.hidden_size // self.num_attention_heads)
        if self.head_dim % 2:
            raise ModelError("config.json: head_dim must be even, to be rotated")

    @property
    def query_size(self) -> int:
        return self.num_attention_heads * self.head_dim

    @property
    def key_value_size(self) -> int:
        return self.num_key_value_heads * self.head_dim

    @property
    def normalises_heads(self) -> bool:
        """Qwen3 normalises each head's query and key (arXiv 2505.09388); Qwen2 has biases."""
        return self.model_type == "qwen3"

    @property
    def weight_count(self) -> int:
        """The number of weights; a tied output head counts once."""
        qkv = self.query_size + 2 * self.key_value_size
        small = 2 * self.head_dim if self.normalises_heads else qkv
        layer = self.hidden_size * (qkv + self.query_size + 3 * self.intermediate_size + 2) + small
        tables = 1 if self.tie_word_embeddings else 2
        embeddings = tables * self.vocab_size * self.hidden_size
        return embeddings + self.num_hidden_layers * layer + self.hidden_size

    @property
    def architecture(self) -> str:
        """The class of transformers that computes it."""
        return _ARCHITECTURES[self.model_type]

    def described(self) -> dict[str, Any]:
        """The fields that a digest covers: all but those that have a Qwen2's implied values."""
        fields = asdict(self)
        if self.model_type == "qwen2":
            del fields["model_type"]
        if self.query_size == self.hidden_size:
            del fields["head_dim"]
        return fields

    @classmethod
    def from_directory(cls, path: Path) -> Self:
        """Read `path/config.json`.

        Raises:
            ModelError: the file is missing or malformed, or it describes a function that this model
                does not compute exactly (another architecture, sliding windows, scaled rotary
                positions, ...).
        """
        raw = read_json(path / "config.json")
        _refuse_unsupported(raw)
        rope = raw.get("rope_parameters") or {}
        values: dict[str, Any] = {
            name: raw[name] for name in cls.__dataclass_fields__ if raw.get(name) is not None
        }
        values["rope_theta"] = rope.get("rope_theta", raw.get("rope_theta", 10000.0))
        values.setdefault("num_key_value_heads", raw.get("num_attention_heads"))
        if values["model_type"] == "qwen3":
            values.setdefault("head_dim", _QWEN3_HEAD_DIM)
        try:
            return cls(**{name: _checked(name, value) for name, value in values.items()})
        except TypeError as error:
            raise ModelError(f"{path / 'config.json'} lacks a field: {error}") from error

    def to_hf(self) -> dict[str, Any]:
        """The same architecture as a `config.json` of transformers."""
        fields = asdict(self)
        rope = {"rope_type": "default", "rope_theta": fields["rope_theta"]}
        return {
            "architectures": [self.architecture],
            "hidden_act": "silu",
            "use_sliding_window": False,
            "attention_bias": not self.normalises_heads,
            "rope_parameters": rope,
            **fields,
        }


def _checked(name: str, value: Any) -> Any:
    want: type | tuple[type, ...] = int
    if name == "tie_word_embeddings":
        want = bool
    elif name == "model_type":
        want = str
    elif name in ("rope_theta", "rms_norm_eps"):
        want = (int, float)
    if not isinstance(value, want) or (want is int and isinstance(value, bool)):
        raise ModelError(f"config.json: {name} is {repr(value)[:_SHOWN]}")
    return value


def _refuse_unsupported(raw: dict[str, Any]) -> None:
    rope = raw.get("rope_parameters") or {}
    scaling = raw.get("rope_scaling") or {}
    if not isinstance(rope, dict) or not isinstance(scaling, dict):
        raise ModelError("config.json: rope_parameters and rope_scaling must be objects")
    if any(isinstance(value, dict) for value in rope.values()):
        raise ModelError("config.json: rope_parameters per kind of layer are unsupported")
    heads, model_type = raw.get("num_attention_heads"), str(raw.get("model_type"))[:_SHOWN]
    head_dim = raw.get("head_dim")
    layers = raw.get("layer_types")
    plain_layers = isinstance(layers, list) and set(map(str, layers)) <= {"full_attention"}
    kinds = [part.get("rope_type", part.get("type", "default")) for part in (rope, scaling)]
    checks = {
        f"model_type {model_type}": model_type in _ARCHITECTURES,
        "hidden_act": raw.get("hidden_act", "silu") == "silu",
        "use_sliding_window": not raw.get("use_sliding_window"),
        "layer_types": layers is None or plain_layers,
        f"rope scaling {kinds}"[:_SHOWN]: kinds == ["default", "default"],
        "partial_rotary_factor": rope.get("partial_rotary_factor", 1.0) == 1.0,
        "quantization_config": raw.get("quantization_config") is None,
        "head_dim": model_type == "qwen3"
        or head_dim is None
        or (
            isinstance(heads, int)
            and isinstance(head_dim, int)
            and head_dim * heads == raw.get("hidden_size")
        ),
        "attention_bias": model_type != "qwen3" or not raw.get("attention_bias"),
    }
    wrong = [name for name, fine in checks.items() if not fine]
    if wrong:
        raise ModelError(
            f"config.json: unsupported {', '.join(wrong)}; only plain Qwen2, Qwen2.5 and Qwen3 "
            "models with full attention and unscaled positions run here, such as qwen2.5-0.5b"
        )


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from a file of at most 16 MiB, within the bounds of `parse_json`.

    Raises:
        ModelError: missing, too large or not a JSON object.
    """
    try:
        if path.is_fifo():  # it may never end
            raise ModelError(f"{path} is no file")
        with path.open("rb") as file:
            data = file.read(MAX_JSON_BYTES + 1)
        if len(data) > MAX_JSON_BYTES:
            raise ModelError(f"{path} is larger than {MAX_JSON_BYTES} bytes")
    except OSError as error:
        raise ModelError(f"cannot read {path}: {error.strerror}; is this a model?") from error
    return parse_json(data, str(path))


def parse_json(data: bytes, name: str) -> dict[str, Any]:
    """A JSON object whose values are few enough for memory, and nested no deeper than a model's.

    Raises:
        ModelError: it exceeds a bound, or is no JSON object.
    """
    # Characters inside strings count too: the tokenizer of a Qwen3 has 0.6 million of the first.
    values, nested = data.count(b","), data.count(b"[") + data.count(b"{")
    if values > _MAX_JSON_VALUES or nested > _MAX_JSON_LISTS:
        raise ModelError(
            f"{name} has {values} values and {nested} lists and objects; at most "
            f"{_MAX_JSON_VALUES} and {_MAX_JSON_LISTS} are read, which no model needs"
        )
    try:
        value = json.loads(data)
    except RecursionError as error:
        raise ModelError(f"{name} is nested deeper than {MAX_JSON_DEPTH} levels") from error
    except ValueError as error:
        raise ModelError(f"{name} is not JSON: {str(error)[:_SHOWN]}") from error
    if not isinstance(value, dict):
        raise ModelError(f"{name} does not hold a JSON object")
    level: list[Any] = [value]
    for _ in range(MAX_JSON_DEPTH):
        level = [
            inner
            for outer in level
            for inner in (outer.values() if isinstance(outer, dict) else outer)
            if isinstance(inner, dict | list)
        ]
    if level:
        raise ModelError(f"{name} is nested deeper than {MAX_JSON_DEPTH} levels")
    return value


def weight_files(path: Path) -> list[Path]:
    """The safetensors files of a model directory, in a fixed order.

    Raises:
        ModelError: there are none, or the index names a file outside the directory.
    """
    single = path / "model.safetensors"
    if single.is_file():
        return [single]
    index = path / "model.safetensors.index.json"
    if not index.is_file():
        raise ModelError(f"{path} holds no model.safetensors; only safetensors weights are read")
    names = read_json(index).get("weight_map")
    if not isinstance(names, dict) or not names:
        raise ModelError(f"{index} has no weight_map")
    shards = sorted({str(name) for name in names.values()})
    if any(Path(name).name != name or not name.endswith(".safetensors") for name in shards):
        raise ModelError(f"{index} names a file outside {path}")
    return [path / name for name in shards]
