"""The engine's view of a model: the same function, with a head size that its kernels take.

Heads of size d are padded with zeros to size D. The function stays the same if the rotary angles
stay those of the small head: its pair i of d/2 turns by θ^(-2i/d), and becomes pair i·D/d of the
padded head's D/2, which turns by the same angle. The engine divides scores by √D instead of √d, so
queries are scaled by √(D/d).
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

from swarm_node.policy.models.config import ModelConfig, weight_files
from swarm_node.policy.models.decoder.lora import ADAPTER_FILE
from swarm_node.policy.weights.device import is_on_device, read_device


@dataclass(frozen=True, slots=True)
class HeadPadding:
    """Pads heads of size `head_size` (d) to `padded_size` (D), which is a multiple of d."""

    head_size: int
    padded_size: int

    def pad(self, name: str, tensor: Tensor) -> Tensor:
        """The padded form of the tensor that transformers or peft call `name`; tensors without
        heads are unchanged."""
        if self.head_size == self.padded_size:
            return tensor
        module, kind = _module_and_kind(name)
        if kind != "lora_A" and module in ("q_proj", "k_proj"):
            scale = (self.padded_size / self.head_size) ** 0.5 if module == "q_proj" else 1.0
            return self._rotary_rows(tensor) * scale
        if kind != "lora_A" and module == "v_proj":
            return self._plain_rows(tensor)
        if kind in ("weight", "lora_A") and module == "o_proj":
            return self._plain_rows(tensor.T).T.contiguous()
        return tensor

    def _rotary_rows(self, tensor: Tensor) -> Tensor:
        """[heads * d, ...] to [heads * D, ...]; each half of a head spreads over a padded half."""
        rest, step = tensor.shape[1:], self.padded_size // self.head_size
        padded_rows = tensor.new_zeros(
            tensor.shape[0] // self.head_size, 2, self.padded_size // 2, *rest
        )
        padded_rows[:, :, ::step] = tensor.reshape(-1, 2, self.head_size // 2, *rest)
        return padded_rows.reshape(-1, *rest)

    def _plain_rows(self, tensor: Tensor) -> Tensor:
        """[heads * d, ...] to [heads * D, ...]; zeros follow each head."""
        rest = tensor.shape[1:]
        padded_rows = tensor.new_zeros(tensor.shape[0] // self.head_size, self.padded_size, *rest)
        padded_rows[:, : self.head_size] = tensor.reshape(-1, self.head_size, *rest)
        return padded_rows.reshape(-1, *rest)


def _module_and_kind(name: str) -> tuple[str, str]:
    parts = name.split(".")
    if len(parts) >= 3 and parts[-2] in ("lora_A", "lora_B"):
        return parts[-3], parts[-2]
    return parts[-2] if len(parts) >= 2 else "", parts[-1]


def engine_config(model: ModelConfig, padding: HeadPadding) -> dict[str, Any]:
    """`config.json` for the engine. Not every class of vLLM has a configurable head size. Its Llama
    with or without biases on q, k and v is the same network and has one. Of a model that
    transformers computes it gets the directory's own, without types, code and stray windows."""
    if padding.head_size == padding.padded_size:
        return model.to_hf()
    config = replace(model, model_type="llama", head_dim=padding.padded_size).to_hf()
    return config | {"qkv_bias": model.family.qkv_bias}


def write_view(
    model: ModelConfig, padding: HeadPadding, directory: Path, weights: Path | None = None
) -> None:
    """Write the files that the engine reads at its start: the architecture, and links to the
    weights in the directory `weights` if it reads them itself. In that directory's own
    `config.json` may be entries that only the engine would follow."""
    (directory / "config.json").write_text(json.dumps(engine_config(model, padding)))
    for file in weight_files(weights) if weights else ():
        link = directory / file.name
        link.unlink(missing_ok=True)  # of an engine before
        link.symlink_to(file.absolute())


def read_padded(path: Path, padding: HeadPadding, device: str) -> Iterator[tuple[str, Tensor]]:
    """The padded tensors of a safetensors file or a model's directory, one by one on `device`. A
    file may also refer to tensors in a GPU's memory (`weights/device.py`)."""
    for part in weight_files(path) if path.is_dir() else [path]:
        with safe_open(part, framework="pt", device=device) as file:
            metadata = file.metadata() or {}
            if is_on_device(metadata):
                yield from read_device(metadata)
            for name in file.keys():  # noqa: SIM118 - not a mapping
                yield name, padding.pad(name, file.get_tensor(name))


def pad_adapter(source: Path, padding: HeadPadding, target: Path) -> Path:
    """The directory of a peft adapter for the padded model: `source` itself if heads are not
    padded, and else a padded copy in the directory `target`."""
    if padding.head_size == padding.padded_size:
        return source
    target.mkdir(mode=0o700, exist_ok=True)
    with torch.no_grad():
        tensors = {
            name: padding.pad(name, tensor).contiguous()
            for name, tensor in load_file(source / ADAPTER_FILE).items()
        }
    save_file(tensors, target / ADAPTER_FILE)
    (target / "adapter_config.json").write_bytes((source / "adapter_config.json").read_bytes())
    return target
