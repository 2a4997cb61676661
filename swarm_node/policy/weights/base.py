"""The frozen base of adapters, held once for trainer and sampler: in a file of shared memory that
both processes map, or in the memory of the GPU (CUDA IPC).

The trainer makes it. Afterwards it publishes adapters. Beside each lies the index of the base: the
number type, whether matrices have four bits a weight, and the file or the handle of the memory on
the GPU.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from swarm_node.errors import ModelError
from swarm_node.policy.models.config import ModelConfig
from swarm_node.policy.models.decoder.causal_lm import (
    MATRICES,
    CausalLM,
    DecoderLayer,
    stored_weights,
)
from swarm_node.policy.models.decoder.nf4 import FourBit
from swarm_node.policy.placement import Placement
from swarm_node.policy.weights.device import (
    DTYPES,
    export_buffer,
    import_buffer,
    layout,
    shareable,
    views,
)

if TYPE_CHECKING:
    from swarm_node.policy.models.by_transformers.language_model import TransformersLM

_INDEX, _FILE = "base.json", "base.weights"


def make_base(
    model_dir: Path, directory: Path | None, placement: Placement, *, four_bit: bool = False
) -> CausalLM | TransformersLM:
    """The model in `model_dir`, frozen, in the type of the products at `placement`, its matrices in
    four bits if `four_bit`. Each weight goes straight to its device. The weights lie in memory that
    `map_base` shares through the trainer's private `directory`; None shares nothing. A file that an
    earlier trainer left there is mapped instead of written again. A model that transformers
    computes is neither shared nor held in four bits.

    Raises:
        ModelError: the model cannot be used, or `directory` has too little space.
        ConfigError: bitsandbytes is needed and not installed.
    """
    config, dtype = ModelConfig.from_directory(model_dir), placement.products
    if not config.native:
        assert directory is None, "a plan for other models shares nothing"
        assert not four_bit
        from swarm_node.policy.models.by_transformers.language_model import TransformersLM

        hf_model = TransformersLM.from_directory(model_dir, DTYPES[dtype])
        return hf_model.requires_grad_(False).to(placement.device)
    model = CausalLM(config, draw=False)
    _, total = _table(model, DTYPES[dtype], four_bit)
    on_host = placement.device == "cpu"
    if on_host and directory is not None:
        if (directory / _INDEX).exists():
            return map_base(directory, model.config)[0]
        buffer = _new_file(directory / _FILE, total)
    else:
        with shareable():
            buffer = torch.empty(total, dtype=torch.uint8, device=placement.device)
    _adopt(model, buffer, DTYPES[dtype], four_bit)
    model.load_hf_state(stored_weights(model_dir))
    if directory is None:
        return model
    if not on_host:
        torch.cuda.synchronize(buffer.device)
    handle = None if on_host else export_buffer(buffer)
    index = directory / _INDEX
    temp_path = index.with_suffix(".tmp")
    entry = {"dtype": dtype, "four_bit": four_bit, "handle": handle}
    temp_path.write_text(json.dumps(entry), encoding="ascii")
    temp_path.replace(index)
    return model


def map_base(directory: Path, config: ModelConfig, gpu: int | None = None) -> tuple[CausalLM, str]:
    """A model of the shared base, and the text of its index: another text is another base. The
    reader of memory on a GPU must be another process than the trainer. `gpu` is its number for that
    GPU, by default the trainer's.

    Raises:
        ModelError: the base is not of this shape.
        ConfigError: bitsandbytes is needed and not installed.
    """
    text = base_index(directory)
    entry: dict[str, Any] = json.loads(text)
    model, dtype, four_bit = CausalLM(config, draw=False), DTYPES[entry["dtype"]], entry["four_bit"]
    _, total = _table(model, dtype, four_bit)
    if entry["handle"] is None:
        file = directory / _FILE
        if file.stat().st_size != total:
            raise ModelError(f"{file} is not of this model", "remove it and start again")
        # Copied on write: a reader shares the pages and cannot change the trainer's weights.
        buffer = torch.from_file(str(file), shared=False, size=total, dtype=torch.uint8)
    else:
        # Trainer and node see the same GPUs, and the handle begins with the trainer's number.
        number = entry["handle"][0] if gpu is None else gpu
        buffer = import_buffer(entry["handle"], torch.uint8, number)
    _adopt(model, buffer, dtype, four_bit)
    return model, text


def base_index(directory: Path) -> str:
    """The text of the index; empty where no base is shared."""
    try:
        return (directory / _INDEX).read_text(encoding="ascii")
    except FileNotFoundError:
        return ""


def _table(
    model: CausalLM, dtype: torch.dtype, four_bit: bool
) -> tuple[dict[str, tuple[int, list[int]]], int]:
    """Place of each piece in bytes: a parameter, or the two parts of a matrix in four bits. Also
    their total."""
    pieces: dict[str, list[int]] = {}
    for name, part in model.named_parameters():
        if four_bit and name.endswith(MATRICES):
            code_bytes, absmax = FourBit.sizes(part.shape)
            pieces |= {f"{name}.packed": [code_bytes], f"{name}.absmax": [4 * absmax]}
        else:
            pieces[name] = [dtype.itemsize * part.numel()]
    return layout(pieces)


def _adopt(model: CausalLM, buffer: Tensor, dtype: torch.dtype, four_bit: bool) -> None:
    """Let the model's parameters, which are frozen, be views of `buffer` (bytes)."""
    pieces = dict(views(buffer, _table(model, dtype, four_bit)[0]))
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(False)
        if name in pieces:
            parameter.data = pieces[name].view(dtype).view(parameter.shape)
            continue
        path, _, site = name.rpartition(".")
        layer = model.get_submodule(path)
        assert isinstance(layer, DecoderLayer)
        codes, absmax = pieces[f"{name}.packed"], pieces[f"{name}.absmax"].view(torch.float32)
        layer.four_bit[site] = FourBit(codes, absmax, parameter.shape, dtype)
        # One NaN in memory, so that a read of it as a weight shows.
        placeholder = torch.full((), torch.nan, dtype=dtype, device=buffer.device)
        parameter.data = placeholder.expand(parameter.shape)


def _new_file(path: Path, size: int) -> Tensor:
    """A mapped file of `size` bytes. The space is taken now: a write to a mapping of a
    full file system would kill the process."""
    path.unlink(missing_ok=True)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        if hasattr(os, "posix_fallocate"):  # macOS has none
            os.posix_fallocate(descriptor, 0, size)
        os.truncate(descriptor, size)
    except OSError as error:
        path.unlink()
        raise ModelError(
            f"{path.parent} has no space for {size / 2**30:.1f} GiB of frozen weights "
            f"({error.strerror})",
            "free some, or give a container more with --shm-size",
        ) from error
    finally:
        os.close(descriptor)
    return torch.from_file(str(path), shared=True, size=size, dtype=torch.uint8)
