"""A policy version in the memory of one GPU, read by another process without a copy through the
host (CUDA IPC). The published file then holds no tensors but says in its header where they are.

The memory belongs to the trainer: a version can be read until two newer ones were put, or the
trainer ended. Whoever reads must therefore check what it read (`canary`).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from math import prod
from typing import Any

import torch
from torch import Tensor

from swarm_node.errors import ModelError
from swarm_node.policy.placement import Placement

_KEY = "device_memory"
_SLOTS = 2
_DTYPES = {"bfloat16": torch.bfloat16, "float32": torch.float32}
#: Tensors start at multiples of so many elements, as kernels like it.
_ALIGNMENT = 128


class DeviceBuffers:
    """Memory for the two newest versions where a trainer computes, in one piece each, of the type
    that its matrix products take."""

    def __init__(self, where: Placement) -> None:
        """
        Raises:
            ModelError: it is not a GPU.
        """
        if where.device == "cpu":
            raise ModelError('sampling.sync = "ipc" needs a GPU: set it to "file"')
        self._device, self._dtype = where.device, "bfloat16" if where.half else "float32"
        self._slots: list[Tensor] = []
        self._next = 0

    def put(self, weights: Mapping[str, Tensor]) -> dict[str, str]:
        """Copy all of a model's weights in; returns what a file's header must say of them."""
        table, total = layout({name: tuple(tensor.shape) for name, tensor in weights.items()})
        if len(self._slots) < _SLOTS:
            dtype = _DTYPES[self._dtype]
            self._slots.append(torch.empty(total, dtype=dtype, device=self._device))
        slot = self._slots[self._next % _SLOTS]
        self._next += 1
        fill(slot, weights, table)
        torch.cuda.synchronize(slot.device)
        stored = {"handle": _exported(slot), "dtype": self._dtype, "tensors": table}
        return {_KEY: json.dumps(stored)}


def in_place(part: Tensor, dtype: torch.dtype) -> Tensor:
    """A weight where it is, for `DeviceBuffers.put`, which casts it."""
    return part.detach()


def layout(shapes: Mapping[str, Sequence[int]]) -> tuple[dict[str, tuple[int, list[int]]], int]:
    """Where each tensor starts in one piece of memory, in elements, with its shape; and the size of
    the whole."""
    table: dict[str, tuple[int, list[int]]] = {}
    end = 0
    for name, shape in shapes.items():
        table[name] = (end, list(shape))
        end += -(-prod(shape) // _ALIGNMENT) * _ALIGNMENT
    return table, end


def fill(
    flat: Tensor, weights: Mapping[str, Tensor], table: Mapping[str, tuple[int, list[int]]]
) -> None:
    """Copy tensors to their places, casting to the type of `flat`."""
    for name, view in views(flat, table):
        view.copy_(weights[name])


def views(flat: Tensor, table: Mapping[str, tuple[int, list[int]]]) -> Iterator[tuple[str, Tensor]]:
    """The tensors that `table` places in `flat`; no copies."""
    for name, (start, shape) in table.items():
        yield name, flat[start : start + prod(shape)].view(shape)


def is_on_device(metadata: Mapping[str, str]) -> bool:
    """Whether a file with this header stands for weights on a GPU."""
    return _KEY in metadata


def read_device(metadata: Mapping[str, str]) -> Iterator[tuple[str, Tensor]]:
    """The tensors that a file's header stands for, as views of the other process's memory: copy
    them before the next version is put. To be run in another process than `put` was, whose first
    visible GPU is the one that they are on."""
    stored = json.loads(metadata[_KEY])
    flat = _imported(stored["handle"], _DTYPES[stored["dtype"]])
    yield from views(flat, stored["tensors"])


def _exported(flat: Tensor) -> list[Any]:
    """What `UntypedStorage._new_shared_cuda` takes, bytes as hexadecimal text."""
    handle = flat.untyped_storage()._share_cuda_()  # type: ignore[no-untyped-call]
    return [part.hex() if isinstance(part, bytes) else part for part in handle]


def _imported(handle: Sequence[Any], dtype: torch.dtype) -> Tensor:
    _, *parts = [bytes.fromhex(part) if isinstance(part, str) else part for part in handle]
    # The trainer counts all GPUs of the machine, an engine those it may use (`engine_environment`).
    storage = torch.UntypedStorage._new_shared_cuda(0, *parts)
    return torch.empty(0, dtype=dtype, device=storage.device).set_(storage)
