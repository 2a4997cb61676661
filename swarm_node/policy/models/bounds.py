"""Bounds of a model directory, checked before anything large is made of it. No torch.

A directory may come from anybody. Each refusal says what was refused and why.
"""

from __future__ import annotations

import struct
import subprocess
import sys
from functools import lru_cache
from pathlib import Path

from swarm_node.errors import ModelError, reason_of
from swarm_node.policy.models.config import ModelConfig, parse_json, read_json, weight_files
from swarm_node.process.bounded import bounded_run

#: The deepest models that are known have some 130 layers.
MAX_LAYERS = 1024
#: Tensors of one layer, with their biases and norms, and those outside of layers.
_TENSORS_PER_LAYER, _TENSORS_OUTSIDE = 16, 16
_MAX_HEADER_BYTES = 4 << 20
#: No file format that is read here stores a weight in less.
_LEAST_WEIGHT_BYTES = 1
#: The longest chat templates in use have some 10 kB.
MAX_TEMPLATE_CHARS = 1 << 16
#: A busy machine may not run the trial for long; its own processor time is limited in `trial`.
_TRIAL_SECONDS = 120.0
_READ_BY_TRANSFORMERS = (
    *("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"),
    *("added_tokens.json", "generation_config.json", "chat_template.json"),
)


def check_directory(path: Path, config: ModelConfig) -> None:
    """Check the sizes of what is in a model's directory, and try its chat template in a child.

    Raises:
        ModelError: a bound is exceeded, or a file is malformed.
    """
    for name in _READ_BY_TRANSFORMERS:
        if (path / name).is_file():
            read_json(path / name)
    if any(path.glob("model.safetensors*")):
        _check_weights(weight_files(path), config, path)
    template = chat_template(path)
    templates = template if isinstance(template, list) else [template]
    for entry in templates:
        text = entry.get("template") if isinstance(entry, dict) else entry
        if isinstance(text, str):
            check_template(text)


def chat_template(path: Path) -> object:
    """The chat template of a directory as it stands there: text, named ones, or None.

    Raises:
        ModelError: it cannot be read, or is too long.
    """
    separate = path / "chat_template.jinja"
    if separate.is_file():
        try:
            with separate.open(encoding="utf-8") as file:
                text = file.read(MAX_TEMPLATE_CHARS + 1)
        except UnicodeDecodeError as error:
            raise ModelError(f"cannot read {separate}: it is not UTF-8 text") from error
        except OSError as error:
            raise ModelError(f"cannot read {separate}: {reason_of(error)}") from error
        if len(text) > MAX_TEMPLATE_CHARS:
            raise ModelError(f"{separate} has more than {MAX_TEMPLATE_CHARS} characters")
        return text
    settings = path / "tokenizer_config.json"
    return read_json(settings).get("chat_template") if settings.is_file() else None


@lru_cache(16)
def check_template(text: str) -> None:
    """Render a chat template in a child with limits of time, memory and output.

    Raises:
        ModelError: it exceeds one of them. A template that fails is refused when it is used.
    """
    if len(text) > MAX_TEMPLATE_CHARS:
        raise ModelError(
            f"the chat template has {len(text)} characters, at most {MAX_TEMPLATE_CHARS} are "
            "rendered",
            "choose another model",
        )
    program = Path(__file__).with_name("trial.py")
    try:
        result = bounded_run([sys.executable, "-I", str(program), text], _TRIAL_SECONDS)
    except subprocess.SubprocessError as error:
        raise ModelError(
            f"the chat template could not be tried in {_TRIAL_SECONDS:g} s ({error})",
            "try again when this machine is less busy, or choose another model",
        ) from error
    except OSError as error:
        raise ModelError(f"the chat template cannot be tried: {reason_of(error)}") from error
    if result.returncode:
        reason = result.stdout.decode("ascii", "replace").strip() or "it used up its CPU time"
        raise ModelError(f"the chat template is refused: {reason}", "choose another model")


def _check_weights(files: list[Path], config: ModelConfig, path: Path) -> None:
    if config.num_hidden_layers > MAX_LAYERS:
        raise ModelError(
            f"{path / 'config.json'}: {config.num_hidden_layers} layers, at most {MAX_LAYERS} run "
            "here",
            "choose another model",
        )
    max_tensors = _TENSORS_PER_LAYER * config.num_hidden_layers + _TENSORS_OUTSIDE
    tensors = size = 0
    for file in files:
        count, length = _count_tensors(file)
        tensors, size = tensors + count, size + length
        if tensors > max_tensors:
            raise ModelError(
                f"{file} brings the tensors to {tensors}, a model of {config.num_hidden_layers} "
                f"layers has {max_tensors} at most: they do not belong together"
            )
    if size < _LEAST_WEIGHT_BYTES * config.weight_count:
        raise ModelError(
            f"{path / 'config.json'} describes {config.weight_count:.2g} weights, and the files "
            f"have {size:.2g} bytes: they do not belong together"
        )


def _count_tensors(file: Path) -> tuple[int, int]:
    """The number of tensors in a safetensors file, and its size."""
    try:
        size = file.stat().st_size
        with file.open("rb") as stream:
            head = stream.read(8)
            (length,) = struct.unpack("<Q", head) if len(head) == 8 else (0,)
            if not 0 < length <= min(_MAX_HEADER_BYTES, size):
                raise ModelError(
                    f"{file}: its header has {length} bytes, a safetensors file of this size has "
                    f"at most {min(_MAX_HEADER_BYTES, size)}: it is damaged, or no model's"
                )
            header = stream.read(length)
    except OSError as error:
        raise ModelError(f"cannot read {file}: {error.strerror}") from error
    return len(parse_json(header, f"the header of {file}").keys() - {"__metadata__"}), size
