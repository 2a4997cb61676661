"""Weights in the memory of one GPU, shared with another process without a copy through the host
(CUDA IPC). The published file then has no tensors; its header says where the tensors are.

The memory belongs to the trainer. A version can be read until the trainer has put two newer ones,
or has ended. So a reader must check what it read (`canary.py`).
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from math import prod
from typing import Any

import torch
from torch import Tensor

from swarm_node.errors import ModelError, UnmappedError
from swarm_node.policy.placement import Placement

#: The setting by which torch's CUDA allocator has segments that grow in place. They fragment less:
#: without them a trainer reserved 14.3 GiB for 9.7 GiB of tensors (docs/research/one-gpu.md).
GROWING = "expandable_segments:True"
_KEY = "device_memory"
_SLOTS = 2
DTYPES: dict[str, torch.dtype] = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}
#: Tensors start at multiples of this many elements, for aligned access by GPU kernels.
_ALIGNMENT = 128


class DeviceBuffers:
    """Memory for the two newest versions on the trainer's GPU, one piece for each, in the type of
    the trainer's matrix products."""

    def __init__(self, placement: Placement) -> None:
        """
        Raises:
            ModelError: `placement` is not a GPU.
        """
        if placement.device == "cpu":
            raise ModelError("weights lie in a GPU's memory, and there is no GPU")
        self._device, self._dtype = placement.device, placement.products
        #: The newest last. Each with its handle: torch keeps something of every export until the
        #: memory goes.
        self._slots: list[tuple[Tensor, list[Any]]] = []

    def put(self, weights: Mapping[str, Tensor]) -> dict[str, str]:
        """Copy all weights of a model in; returns the header entries that locate them."""
        table, total = layout({name: tuple(tensor.shape) for name, tensor in weights.items()})
        if len(self._slots) < _SLOTS:
            with shareable():
                buffer = torch.empty(total, dtype=DTYPES[self._dtype], device=self._device)
            self._slots.append((buffer, export_buffer(buffer)))
        else:
            self._slots.append(self._slots.pop(0))  # the oldest version gives way
        slot, handle = self._slots[-1]
        fill(slot, weights, table)
        torch.cuda.synchronize(slot.device)
        entry = {"handle": handle, "dtype": self._dtype, "tensors": table}
        return {_KEY: json.dumps(entry)}


def in_place(part: Tensor, dtype: torch.dtype) -> Tensor:
    """The weight itself, without a copy; `DeviceBuffers.put` casts it."""
    return part.detach()


def layout(shapes: Mapping[str, Sequence[int]]) -> tuple[dict[str, tuple[int, list[int]]], int]:
    """The start (in elements) and shape of each tensor in one piece of memory, and the size of that
    piece."""
    table: dict[str, tuple[int, list[int]]] = {}
    end = 0
    for name, shape in shapes.items():
        table[name] = (end, list(shape))
        end += -(-prod(shape) // _ALIGNMENT) * _ALIGNMENT
    return table, end


def fill(
    buffer: Tensor, weights: Mapping[str, Tensor], table: Mapping[str, tuple[int, list[int]]]
) -> None:
    """Copy tensors to their places, casting to the type of `buffer`."""
    for name, view in views(buffer, table):
        view.copy_(weights[name])


def views(
    buffer: Tensor, table: Mapping[str, tuple[int, list[int]]]
) -> Iterator[tuple[str, Tensor]]:
    """The tensors that `table` places in `buffer`; no copies."""
    for name, (start, shape) in table.items():
        yield name, buffer[start : start + prod(shape)].view(shape)


def is_on_device(metadata: Mapping[str, str]) -> bool:
    """Check that a file with this header refers to weights on a GPU."""
    return _KEY in metadata


def read_device(metadata: Mapping[str, str], index: int = 0) -> Iterator[tuple[str, Tensor]]:
    """The tensors that a file's header refers to, as views of the trainer's memory. The reader must
    copy them before the next version is put. It must be another process than the trainer, whose GPU
    it sees under the number `index`."""
    entry = json.loads(metadata[_KEY])
    buffer = import_buffer(entry["handle"], DTYPES[entry["dtype"]], index)
    yield from views(buffer, entry["tensors"])


@contextmanager
def shareable() -> Iterator[None]:
    """GPU memory that is allocated in this block can be exported: it lies in segments that do not
    grow. Sharing those that do needs a system call that containers may refuse (pidfd_getfd, PyTorch
    issue 165685). With the setting off, the allocator takes no free block of a growing segment."""
    is_growing = os.environ.get("PYTORCH_CUDA_ALLOC_CONF") == GROWING
    try:
        if is_growing:
            torch._C._accelerator_setAllocatorSettings("expandable_segments:False")
        yield
    finally:
        if is_growing:
            torch._C._accelerator_setAllocatorSettings(GROWING)


def export_buffer(buffer: Tensor) -> list[Any]:
    """The handle of memory on a GPU, for `import_buffer` in another process: the arguments of
    `UntypedStorage._new_shared_cuda`, with bytes as hexadecimal text. The memory is one that was
    allocated as `shareable`. Export each once, and name the handle to a reader only when all
    writing is done: a reader waits for no event."""
    *handle, _ = buffer.untyped_storage()._share_cuda_()  # type: ignore[no-untyped-call]
    return [*(part.hex() if isinstance(part, bytes) else part for part in handle), False]


def import_buffer(handle: Sequence[Any], dtype: torch.dtype, gpu: int = 0) -> Tensor:
    """The memory that another process exported, flat. `gpu` is the number that this process has for
    the GPU. An engine sees only the GPUs that `engine_environment` lists, so its number is 0.

    Raises:
        UnmappedError: the other process has ended, or CUDA has no IPC here.
    """
    _, *parts = [bytes.fromhex(part) if isinstance(part, str) else part for part in handle]
    torch.cuda.init()  # type: ignore[no-untyped-call]  # `_new_shared_cuda` takes it for granted
    try:
        storage = torch.UntypedStorage._new_shared_cuda(gpu, *parts)
    except RuntimeError as error:
        raise UnmappedError(f"cannot map the trainer's memory on the GPU: {error}") from error
    return torch.empty(0, dtype=dtype, device=storage.device).set_(storage)
