"""The frozen base of adapters, held once for trainer and built-in sampler: in a file of shared
memory that both processes map, or in the memory of the GPU (CUDA IPC).

The trainer makes it. What it publishes then is an adapter, and beside it lies the index of the
base: the number type, and the file or the handle of the memory on the GPU.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from swarm_node.errors import ModelError
from swarm_node.policy.models.config import Qwen2Config
from swarm_node.policy.models.qwen2 import Qwen2, stored_weights
from swarm_node.policy.placement import Placement
from swarm_node.policy.weights.device import DTYPES, exported, imported, layout, views

_INDEX, _FILE = "base.json", "base.weights"


def make_base(model_dir: Path, directory: Path, where: Placement) -> Qwen2:
    """The model in `model_dir`, with its weights in memory that `map_base` shares, in bfloat16 if
    `where` is `half`. `directory` is the trainer's private one. A file that an earlier trainer left
    there is mapped instead of written again.

    Raises:
        ModelError: the model cannot be used, or `directory` has too little space.
    """
    model = Qwen2(Qwen2Config.from_directory(model_dir), draw=False)
    _, total = _table(model)
    dtype = "bfloat16" if where.half else "float32"
    index, on_host = directory / _INDEX, where.device == "cpu"
    if on_host:
        if index.exists():
            return map_base(directory, model.config)[0]
        flat = _new_file(directory / _FILE, total, DTYPES[dtype])
    else:
        flat = torch.empty(total, dtype=DTYPES[dtype], device=where.device)
    _adopt(model, flat)
    model.load_hf_state(stored_weights(model_dir))
    if not on_host:
        torch.cuda.synchronize(flat.device)
    found = {"dtype": dtype, "handle": None if on_host else exported(flat)}
    temporary = index.with_suffix(".tmp")
    temporary.write_text(json.dumps(found), encoding="ascii")
    temporary.replace(index)
    return model


def map_base(directory: Path, config: Qwen2Config) -> tuple[Qwen2, str]:
    """A model of the shared base, and the text of its index: another text is another base. The
    reader of memory on a GPU must be another process than the trainer.

    Raises:
        ModelError: the base is not of this shape.
    """
    text = base_index(directory)
    found: dict[str, Any] = json.loads(text)
    model, dtype = Qwen2(config, draw=False), DTYPES[found["dtype"]]
    _, total = _table(model)
    if found["handle"] is None:
        file = directory / _FILE
        if file.stat().st_size != total * dtype.itemsize:
            raise ModelError(f"{file} is not of this model: remove it and start again")
        flat = torch.from_file(str(file), shared=True, size=total, dtype=dtype)
    else:
        # Trainer and node see the same GPUs, and the handle begins with the trainer's number.
        flat = imported(found["handle"], dtype, found["handle"][0])
    _adopt(model, flat)
    return model, text


def base_index(directory: Path) -> str:
    """The text of the index; empty where no base is shared."""
    try:
        return (directory / _INDEX).read_text(encoding="ascii")
    except FileNotFoundError:
        return ""


def _table(model: Qwen2) -> tuple[dict[str, tuple[int, list[int]]], int]:
    return layout({name: tuple(part.shape) for name, part in model.named_parameters()})


def _adopt(model: Qwen2, flat: Tensor) -> None:
    """Let the model's parameters, which are frozen, be views of `flat`."""
    parts = dict(model.named_parameters())
    for name, view in views(flat, _table(model)[0]):
        parts[name].data = view
        parts[name].requires_grad_(False)


def _new_file(path: Path, elements: int, dtype: torch.dtype) -> Tensor:
    """A mapped file with space for `elements`. The space is taken now: a write to a mapping of a
    full file system would kill the process."""
    path.unlink(missing_ok=True)
    size = elements * dtype.itemsize
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        if hasattr(os, "posix_fallocate"):  # macOS has none
            os.posix_fallocate(descriptor, 0, size)
        os.truncate(descriptor, size)
    except OSError as error:
        path.unlink()
        raise ModelError(
            f"{path.parent} has no space for {size / 2**30:.1f} GiB of frozen weights "
            f"({error.strerror}): free some, or give a container more with --shm-size"
        ) from error
    finally:
        os.close(descriptor)
    return torch.from_file(str(path), shared=True, size=elements, dtype=dtype)
