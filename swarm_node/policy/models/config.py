"""Reading a model directory: `config.json` and the list of its safetensors files. No torch.

A directory may come from anybody. So files are bounded and checked, no file outside the directory
is opened, and only safetensors, which hold no code, count as weights.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from swarm_node.errors import ModelError
from swarm_node.policy.models.decoder.rope import RopeScaling, rope_table
from swarm_node.policy.models.families import FAMILIES, IMPLIED, Family

if TYPE_CHECKING:
    from swarm_node.policy.models.by_transformers.config import TransformersModel

#: The largest tokenizer.json in use has 33 MB, and half a million merges that are lists of two.
MAX_JSON_BYTES = 64 << 20
MAX_JSON_DEPTH = 64
_MAX_JSON_VALUES, _MAX_JSON_LISTS = 1 << 21, 1 << 20
#: Characters of a wrong value in an error.
_SHOWN = 80
_MOST = 1 << 40
_PLAIN_LAYERS = {"full_attention"}
#: Scalings of rotary positions that transformers computes and the native decoder does not.
_OTHER_ROPES = ("yarn", "dynamic", "longrope")


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """The fields of `config.json` that define the function this model computes.

    `model_type` is a key of `families.FAMILIES`, which the native decoder computes. A `head_dim` of
    0 becomes hidden_size / num_attention_heads. `rope_scaling` is None for plain rotary positions.
    With `transformers`, that library's own class computes the model, of any `model_type`, and it
    says all that the sizes here do not."""

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
    model_type: str = IMPLIED
    head_dim: int = 0
    rope_scaling: RopeScaling | None = None
    transformers: TransformersModel | None = None

    def __post_init__(self) -> None:
        if self.native and self.model_type not in FAMILIES:
            raise _other_family(self.model_type)
        sizes = {**asdict(self), "head_dim": self.head_dim or 1}
        for name, value in sizes.items():
            if type(value) in (int, float) and not 0 < value <= _MOST:
                raise ModelError(
                    f"config.json: {name} is {repr(value)[:_SHOWN]}, and a size is more than 0 and "
                    f"at most {_MOST:,}"
                )
        if not self.native:
            return
        if self.num_attention_heads % self.num_key_value_heads:
            raise ModelError("config.json: key/value heads must divide the attention heads")
        if self.head_dim == 0:
            if self.hidden_size % self.num_attention_heads:
                raise ModelError(
                    f"config.json: {self.num_attention_heads} attention heads do not divide a "
                    f"hidden_size of {self.hidden_size}"
                )
            object.__setattr__(self, "head_dim", self.hidden_size // self.num_attention_heads)
        if self.head_dim % 2:
            raise ModelError("config.json: head_dim must be even, to be rotated")

    @property
    def native(self) -> bool:
        """Check that the native decoder computes it."""
        return self.transformers is None

    @property
    def query_size(self) -> int:
        return self.num_attention_heads * self.head_dim

    @property
    def key_value_size(self) -> int:
        return self.num_key_value_heads * self.head_dim

    @property
    def family(self) -> Family:
        """What the native decoder adds for it; of another model only the class is known."""
        if self.transformers is not None:
            return Family(self.transformers.architecture)
        return FAMILIES[self.model_type]

    @property
    def weight_count(self) -> int:
        """The number of weights; a tied output head counts once."""
        if self.transformers is not None:
            return self.transformers.weights
        qkv = self.query_size + 2 * self.key_value_size
        vector_weights = qkv * self.family.qkv_bias + 2 * self.head_dim * self.family.head_norms
        layer = (
            self.hidden_size * (qkv + self.query_size + 3 * self.intermediate_size + 2)
            + vector_weights
        )
        tables = 1 if self.tie_word_embeddings else 2
        embeddings = tables * self.vocab_size * self.hidden_size
        return embeddings + self.num_hidden_layers * layer + self.hidden_size

    @property
    def architecture(self) -> str:
        """The class of transformers that computes it."""
        return self.family.architecture

    def digested_fields(self) -> dict[str, Any]:
        """The fields that a digest covers: all but those that have implied values."""
        if self.transformers is not None:
            from swarm_node.policy.models.by_transformers.config import digested_entries

            return {"transformers": digested_entries(self.transformers.text)}
        fields = asdict(self)
        del fields["transformers"]
        if self.model_type == IMPLIED:
            del fields["model_type"]
        if self.query_size == self.hidden_size:
            del fields["head_dim"]
        if self.rope_scaling is None:
            del fields["rope_scaling"]
        return fields

    @classmethod
    def from_directory(cls, path: Path) -> Self:
        """Read `path/config.json`.

        Raises:
            ModelError: the file is missing or malformed, or it describes a function that neither
                the native decoder nor transformers computes here.
        """
        raw = read_json(path / "config.json")
        if not is_native(raw):
            from swarm_node.policy.models.by_transformers.config import read  # imports transformers

            return cls(**read(raw))
        _refuse_unsupported(raw)
        raw = FAMILIES[raw["model_type"]].fill_defaults(raw)
        # As transformers takes them: the older name first.
        rope = rope_table(raw, "rope_scaling") or rope_table(raw, "rope_parameters")
        values: dict[str, Any] = {
            name: raw[name] for name in cls.__dataclass_fields__ if raw.get(name) is not None
        }
        values.pop("transformers", None)
        values["rope_theta"] = rope.get("rope_theta", raw["rope_theta"])
        values["rope_scaling"] = RopeScaling.from_config(raw)
        values.setdefault("num_key_value_heads", raw.get("num_attention_heads"))
        try:
            return cls(**{name: _check_value(name, value) for name, value in values.items()})
        except TypeError as error:
            raise ModelError(f"{path / 'config.json'} lacks a field: {error}") from error

    def to_hf(self) -> dict[str, Any]:
        """The same architecture as a `config.json` of transformers."""
        if self.transformers is not None:
            from swarm_node.policy.models.by_transformers.config import for_engines

            return {
                **for_engines(self.transformers.text),
                "architectures": [self.architecture],
                "model_type": self.model_type,
            }
        fields = asdict(self)
        del fields["rope_scaling"], fields["transformers"]
        scaling = self.rope_scaling
        rope = {"rope_type": "default"} if scaling is None else scaling.parameters()
        return {
            "architectures": [self.architecture],
            "hidden_act": "silu",
            "rope_parameters": {**rope, "rope_theta": self.rope_theta},
            **self.family.writes,
            **fields,
        }


def _check_value(name: str, value: Any) -> Any:
    value_type: type | tuple[type, ...] = int
    if name == "tie_word_embeddings":
        value_type = bool
    elif name == "model_type":
        value_type = str
    elif name == "rope_scaling":
        value_type = (RopeScaling, type(None))
    elif name in ("rope_theta", "rms_norm_eps"):
        value_type = (int, float)
    if not isinstance(value, value_type) or (value_type is int and isinstance(value, bool)):
        raise ModelError(f"config.json: {name} is {repr(value)[:_SHOWN]}")
    return value


def is_native(raw: dict[str, Any]) -> bool:
    """Check that a `config.json` is for the native decoder. What is left are other architectures,
    and variants of its families that it does not compute, such as windows of attention.

    Raises:
        ModelError: its weights are quantised.
    """
    if raw.get("quantization_config") is not None:
        raise ModelError(
            f"config.json: {repr(raw.get('model_type'))[:_SHOWN]} with quantization_config is not "
            'supported: choose the unquantized model; training.base = "nf4" quantizes it to 4 bits'
        )
    model_type = raw.get("model_type")
    if not isinstance(model_type, str) or model_type not in FAMILIES:
        return False
    layers = raw.get("layer_types")
    has_plain_layers = layers is None or (
        isinstance(layers, list) and set(map(str, layers)) <= _PLAIN_LAYERS
    )
    is_usual = (
        has_plain_layers and raw.get("hidden_act", "silu") == "silu" and not _has_other_rope(raw)
    )
    return is_usual and not FAMILIES[model_type].unsupported_fields(raw)


def _has_other_rope(raw: Mapping[str, Any]) -> bool:
    tables = (raw.get(name) for name in ("rope_parameters", "rope_scaling"))
    return any(
        table.get("rope_type", table.get("type")) in _OTHER_ROPES
        for table in tables
        if isinstance(table, dict)
    )


def _refuse_unsupported(raw: dict[str, Any]) -> None:
    """Refuse a head size that the family's class does not take from `config.json`."""
    heads, head_dim = raw.get("num_attention_heads"), raw.get("head_dim")
    derived = (
        isinstance(heads, int)
        and isinstance(head_dim, int)
        and head_dim * heads == raw.get("hidden_size")
    )
    if not (head_dim is None or derived or FAMILIES[raw["model_type"]].own_head_dim):
        raise ModelError(
            f"config.json: a {raw['model_type']} model with {repr(heads)[:_SHOWN]} heads of "
            f"head_dim {repr(head_dim)[:_SHOWN]} and a hidden_size of "
            f"{repr(raw.get('hidden_size'))[:_SHOWN]} is not supported",
            "use one whose heads share the hidden size, such as qwen2.5-0.5b",
        )


def _other_family(model_type: object) -> ModelError:
    excerpt = repr(model_type)[:_SHOWN]
    return ModelError(
        f"config.json: model_type {excerpt} is not supported",
        f"use a model of {', '.join(FAMILIES)}",
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
    values, containers = data.count(b","), data.count(b"[") + data.count(b"{")
    if values > _MAX_JSON_VALUES or containers > _MAX_JSON_LISTS:
        raise ModelError(
            f"{name} has {values} values and {containers} lists and objects; at most "
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
        ModelError: there are none, or the index names a file outside the directory or of another
            kind.
    """
    single_file = path / "model.safetensors"
    if single_file.is_file():
        return [single_file]
    index = path / "model.safetensors.index.json"
    if not index.is_file():
        raise ModelError(f"{path} holds no model.safetensors; only safetensors weights are read")
    names = read_json(index).get("weight_map")
    if not isinstance(names, dict) or not names:
        raise ModelError(f"{index} has no weight_map")
    shards = sorted({str(name) for name in names.values()})
    if any(Path(name).name != name for name in shards):
        raise ModelError(f"{index} names a file outside {path}")
    if strays := [name for name in shards if not name.endswith(".safetensors")]:
        raise ModelError(
            f"{index} names {strays[0][:_SHOWN]}: only safetensors weights are read, other files "
            "may hold code"
        )
    files = [path / name for name in shards]
    if missing_files := [file for file in files if not file.is_file()]:  # a pipe is not waited for
        raise ModelError(f"{index} names {missing_files[0].name}, which is no file in {path}")
    return files
