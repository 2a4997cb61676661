"""Architectures without a native decoder: what transformers' own classes say of a `config.json`.

No remote code: `model_type` must be in transformers' table of causal models, and `auto_map` is not
read. The sizes come from transformers' configuration class, the number of weights from its model
without memory. A file of anybody is tried in a child with limits of time and memory first.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

from swarm_node.errors import ModelError, reason_of
from swarm_node.policy.models.config import ModelConfig, is_native, read_json
from swarm_node.process.bounded import bounded_run

#: Entries that do not change the function: names, versions, types of stored numbers, code that
#: never runs, and switches of outputs.
_NOT_FUNCTION = (
    *("_name_or_path", "architectures", "auto_map", "dtype", "torch_dtype", "transformers_version"),
    *("use_cache", "output_attentions", "output_hidden_states", "return_dict"),
    *("num_labels", "id2label", "label2id"),
)
#: How to compute, at any depth. A value such as "organisation/name" is a kernel of the hub, whose
#: code transformers runs where the package kernels is installed.
_IMPLEMENTATIONS = frozenset(
    {
        *("attn_implementation", "_attn_implementation", "_attn_implementation_internal"),
        *("experts_implementation", "_experts_implementation", "_experts_implementation_internal"),
    }
)
#: Windows of attention. vLLM computes those that a `config.json` has, whatever its model's class.
_WINDOWS = ("sliding_window", "layer_types", "attention_chunk_size")
_ENDS = ("bos_token_id", "eos_token_id", "decoder_start_token_id")
#: Kinds of layers whose keys and values a cache keeps.
_CACHED_LAYERS = {"full_attention", "sliding_attention"}
#: Rotary angles of these kinds change once a text is longer than the original positions.
_CHANGING_ROPE = ("dynamic", "longrope")
#: Names of a count of experts.
_EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
_NEEDED = (
    *("vocab_size", "hidden_size", "num_hidden_layers"),
    *("num_attention_heads", "max_position_embeddings"),
)
_MOST_LAYERS, _MOST_SIZE, _MOST_WEIGHTS = 1024, 1 << 24, 1 << 40
#: The base of rotary angles is larger than any size.
_MOST_BASE = 1 << 40
#: Heads, key heads or layers of a kind: longer lists are no model's.
_MOST_ENTRIES = 4096
#: Constants beside the weights, such as masks of all positions. GPT-Neo's have 0.1 GB.
_MOST_BUFFER_BYTES = 1 << 30
_TRIAL_SECONDS, _CPU_SECONDS, _MORE_MEMORY = 300.0, 120, 2 << 30
_SHOWN = 80
_SUPPORTED = (
    "use a decoder of text alone that keeps keys and values in a cache, such as gemma3_text, phi3, "
    "olmo2 or granite, or a model with a native decoder, such as qwen2.5-0.5b"
)


@dataclass(frozen=True, slots=True)
class TransformersModel:
    """What a model is that transformers computes. `text` is its `config.json` in canonical form,
    without entries that do not change the function. `adapter_width` is the sum of inputs and
    outputs of all linear layers, output head aside, which adapters take."""

    architecture: str
    text: str
    weights: int
    adapter_width: int


class ReadingConfig(NamedTuple):
    """A child process starts to read a `config.json` of this `model_type`, which takes seconds."""

    model_type: str

    def __str__(self) -> str:
        return (
            f"{self.model_type} has no native decoder: reading its config.json with transformers, "
            "in a separate process"
        )


#: What was read in this process, by the canonical text.
_known: dict[str, dict[str, Any]] = {}


def read(raw: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a `ModelConfig` for a `config.json` that has no native decoder.

    Raises:
        ModelError: transformers has no such class, or it cannot be sampled and trained here.
    """
    text = canonical(raw)
    if text not in _known:
        _check_numbers(raw)
        _known[text] = _read(raw, text)
    return dict(_known[text])


def read_config(
    path: Path, notify: Callable[[ReadingConfig], object] = lambda _: None
) -> ModelConfig:
    """`ModelConfig.from_directory` for a directory of anybody: transformers reads a `config.json`
    in a child first, of which `notify` gets to know.

    Raises:
        ModelError: see there; or the child exceeded its limits.
    """
    raw = read_json(path / "config.json")
    if not is_native(raw) and canonical(raw) not in _known:
        _check_numbers(raw)
        notify(ReadingConfig(_excerpt(raw.get("model_type"))))
        _known[canonical(raw)] = _read_in_child(path)
    return ModelConfig.from_directory(path)


def canonical(raw: Mapping[str, Any]) -> str:
    """The entries of a `config.json` that define the function, in one spelling."""
    entries = {name: value for name, value in raw.items() if name not in _NOT_FUNCTION}
    return json.dumps(
        _without_implementations(entries), sort_keys=True, separators=(",", ":"), ensure_ascii=True
    )


def _without_implementations(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {
            name: _without_implementations(inner)
            for name, inner in value.items()
            if name not in _IMPLEMENTATIONS
        }
    return list(map(_without_implementations, value)) if isinstance(value, list) else value


def digested_entries(text: str) -> dict[str, Any]:
    """The entries of `text` that a digest covers."""
    return {name: value for name, value in json.loads(text).items() if name not in _ENDS}


def for_engines(text: str) -> dict[str, Any]:
    """The entries of `text` without windows of attention that transformers' class does not have.
    Only answers longer than a window would show that an engine computed it."""
    raw = json.loads(text)
    rest = {name: value for name, value in raw.items() if name not in _WINDOWS}
    config = make_config(json.dumps(rest))
    return {name: value for name, value in raw.items() if name in rest or hasattr(config, name)}


def make_config(text: str) -> Any:
    """transformers' configuration for a canonical text.

    Raises:
        ModelError: transformers refuses it.
    """
    from transformers import CONFIG_MAPPING

    raw = json.loads(text)
    try:
        return CONFIG_MAPPING[raw["model_type"]].from_dict(raw)
    except Exception as error:  # its classes raise errors of any kind
        raise ModelError(
            f"config.json: transformers refuses this {_excerpt(raw['model_type'])} "
            f"({_first_line(error)})",
            "choose another model",
        ) from error


def linear_layers(decoder: Any) -> dict[str, tuple[int, int]]:
    """Name, inputs and outputs of every linear layer of a module."""
    from torch import nn
    from transformers.pytorch_utils import Conv1D

    shapes = {}
    for name, module in decoder.named_modules():
        if isinstance(module, nn.Linear):
            shapes[name] = (module.in_features, module.out_features)
        elif isinstance(module, Conv1D):
            shapes[name] = tuple(module.weight.shape)
    return shapes


def _read(raw: Mapping[str, Any], text: str) -> dict[str, Any]:
    model_type = raw.get("model_type")
    architecture = _architecture(model_type)
    config = make_config(text)
    _check_kind(config, architecture)
    fields = _sizes(config)
    model = _without_memory(config)
    if type(model)._is_stateful:
        raise _unsupported_error(config.model_type, "it keeps a state instead of keys and values")
    if _has_renamed_weights(model):
        raise _unsupported_error(
            config.model_type, "transformers computes with other names of weights"
        )
    weights = sum(parameter.numel() for parameter in model.parameters())
    if not 0 < weights <= _MOST_WEIGHTS:
        raise ModelError(f"config.json: {weights:.2g} weights, at most {_MOST_WEIGHTS:.2g} run")
    constants = sum(buffer.numel() * buffer.element_size() for buffer in model.buffers())
    if constants > _MOST_BUFFER_BYTES:
        raise ModelError(
            f"config.json: {constants:.2g} bytes besides the weights, at most "
            f"{_MOST_BUFFER_BYTES:.2g} are kept",
            "choose a model with a shorter context",
        )
    layers = linear_layers(model.get_decoder()).values()
    inner = getattr(config, "intermediate_size", None)
    # gpt2, bloom and opt have other names for it, or none.
    is_valid = type(inner) is int and inner > 0
    fields["intermediate_size"] = inner if is_valid else max(map(max, layers))
    lora_width = sum(map(sum, layers))
    return {**fields, "transformers": TransformersModel(architecture, text, weights, lora_width)}


def _architecture(model_type: object) -> str:
    """The class of transformers for a causal model of this type."""
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES as NAMES

    if not isinstance(model_type, str) or model_type not in NAMES:
        raise ModelError(
            f"config.json: model_type {_excerpt(model_type)} is no causal model of transformers, "
            f"and code of a repository never runs: {_SUPPORTED}"
        )
    architecture = str(NAMES[model_type])
    if not architecture.endswith(("ForCausalLM", "LMHeadModel")):
        raise _unsupported_error(model_type, f"{architecture} takes more than text")
    return architecture


def _check_kind(config: Any, architecture: str) -> None:
    """Refuse what cannot be sampled token by token as it is trained."""
    kind = config.model_type
    if config.is_encoder_decoder:
        raise _unsupported_error(kind, "it has an encoder")
    if config.get_text_config() is not config:
        raise _unsupported_error(kind, "it takes more than text")
    if not getattr(config, "is_decoder", True) and architecture.endswith("LMHeadModel"):
        raise _unsupported_error(kind, "it is an encoder: tokens see those after them")
    layers = set(map(str, getattr(config, "layer_types", None) or ()))
    if other_layers := sorted(layers - _CACHED_LAYERS):
        raise _unsupported_error(kind, f"it has layers of the kind {_excerpt(other_layers[0])}")
    if any(isinstance(getattr(config, name, None), int) for name in _EXPERTS):
        raise _unsupported_error(kind, "it is a mixture of experts")


def _sizes(config: Any) -> dict[str, Any]:
    """The fields of a `ModelConfig`, under transformers' names."""
    fields: dict[str, Any] = {name: getattr(config, name, None) for name in _NEEDED}
    if fields["max_position_embeddings"] is None:  # bloom has no embeddings of positions
        fields["max_position_embeddings"] = getattr(config, "seq_length", None)
    if missing_names := [name for name, value in fields.items() if type(value) is not int]:
        raise _unsupported_error(
            config.model_type, f"transformers does not say its {missing_names[0]}"
        )
    if invalid_names := [name for name, value in fields.items() if value < 1]:
        raise ModelError(f"config.json: {invalid_names[0]} is {fields[invalid_names[0]]}")
    heads = fields["num_attention_heads"]
    fields["num_key_value_heads"] = getattr(config, "num_key_value_heads", None) or heads
    fields["head_dim"] = getattr(config, "head_dim", None) or fields["hidden_size"] // heads
    fields["tie_word_embeddings"] = bool(config.tie_word_embeddings)
    fields["model_type"] = config.model_type
    for rope in _ropes(getattr(config, "rope_parameters", None)):
        original_limit = rope.get("original_max_position_embeddings")
        if rope.get("rope_type") in _CHANGING_ROPE and isinstance(original_limit, int):
            # Beyond them, keys that are cached have other angles than the same keys in training.
            limit = min(fields["max_position_embeddings"], original_limit)
            fields["max_position_embeddings"] = limit
    if fields["num_hidden_layers"] > _MOST_LAYERS:
        raise ModelError(
            f"config.json: {fields['num_hidden_layers']} layers, at most {_MOST_LAYERS} run here"
        )
    return fields


def _ropes(value: Any) -> Iterator[Mapping[str, Any]]:
    """Tables of rotary angles: one, or one for each kind of layer."""
    if isinstance(value, Mapping):
        yield value
        for inner in value.values():
            yield from _ropes(inner)


def _without_memory(config: Any) -> Any:
    import torch
    from transformers import AutoModelForCausalLM

    try:
        with torch.device("meta"):
            return AutoModelForCausalLM.from_config(config, trust_remote_code=False)
    except Exception as error:  # its classes raise errors of any kind
        raise ModelError(
            f"config.json: transformers cannot make this {_excerpt(config.model_type)} "
            f"({_first_line(error)})",
            "choose another model",
        ) from error


def _has_renamed_weights(model: Any) -> bool:
    """Check that transformers renames or joins weights between a file and the model."""
    from transformers.conversion_mapping import get_model_conversion_mapping

    return bool(get_model_conversion_mapping(model, add_legacy=False))


def _check_numbers(value: Any) -> None:
    """Bound every number and list, before a class makes anything of them."""
    level: list[Any] = [("config.json", value)]
    while level:
        name, item = level.pop()
        if isinstance(item, Mapping):
            level.extend(item.items())
        elif isinstance(item, list):
            if len(item) > _MOST_ENTRIES:
                raise ModelError(f"config.json: {_excerpt(name)} has {len(item)} entries")
            level.extend((name, inner) for inner in item)
        elif isinstance(item, int) and abs(item) > (_MOST_BASE if "theta" in name else _MOST_SIZE):
            raise ModelError(f"config.json: {_excerpt(name)} is {repr(item)[:_SHOWN]}")
        elif isinstance(item, float) and not abs(item) < float("inf"):
            raise ModelError(f"config.json: {_excerpt(name)} is {item}")


def _unsupported_error(model_type: object, reason: str) -> ModelError:
    return ModelError(
        f"config.json: {_excerpt(model_type)} is not supported, {reason}: {_SUPPORTED}"
    )


def _excerpt(value: object) -> str:
    return repr(value)[:_SHOWN]


def _first_line(error: BaseException) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0][:_SHOWN]


def _read_in_child(path: Path) -> dict[str, Any]:
    """The fields that a child read."""
    program = f"{__package__}.{Path(__file__).stem}"
    command = [sys.executable, "-P", "-m", program, str(path)]
    try:
        result = bounded_run(command, _TRIAL_SECONDS)
    except subprocess.SubprocessError as error:
        raise ModelError(
            f"{path / 'config.json'} could not be read by transformers in {_TRIAL_SECONDS:g} s "
            f"({error})",
            "try again when this machine is less busy, or choose another model",
        ) from error
    except OSError as error:
        raise ModelError(f"transformers cannot be started: {reason_of(error)}") from error
    try:
        answer = json.loads(result.stdout.splitlines()[-1])
        refusal, fields = answer.get("refusal"), answer.get("fields")
    except (ValueError, IndexError, AttributeError) as error:
        raise ModelError(
            f"{path / 'config.json'}: it takes more time or memory to read than a model does",
            "choose another model",
        ) from error
    if refusal is not None:
        raise ModelError(str(refusal))
    return {**fields, "transformers": TransformersModel(**fields["transformers"])}


def _limit() -> None:
    with open("/proc/self/statm") as statm:
        size = int(statm.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (size + _MORE_MEMORY,) * 2)
    resource.setrlimit(resource.RLIMIT_CPU, (_CPU_SECONDS, _CPU_SECONDS + 1))


def _child(path: Path) -> dict[str, Any]:
    raw = read_json(path / "config.json")
    try:
        fields = read(raw)
    except ModelError as error:
        return {"refusal": str(error)}
    return {"fields": {**fields, "transformers": asdict(fields["transformers"])}}


if __name__ == "__main__":
    if sys.platform == "linux":
        import_module("transformers.models.auto.modeling_auto")  # it takes what it takes
        _limit()
    print(json.dumps(_child(Path(sys.argv[1]))), flush=True)
