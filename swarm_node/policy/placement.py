"""The device and number types of the policy's computation. Pure, except for `hardware`
and `has_bitsandbytes`."""

from __future__ import annotations

import importlib.util
import os
import re
from dataclasses import dataclass
from typing import Literal

from swarm_node.errors import ConfigError

#: The values of `run.device`.
DEVICE = r"auto|cpu|cuda(:\d{1,2})?"
#: The values of `run.trainer_hosts`: where this host listens, and how many there are; or none.
HOSTS = r"([A-Za-z0-9.-]{1,253}:[1-9]\d{0,4}\*([2-9]|[1-5]\d|6[0-4]))?"
#: The number type of matrix products; "auto" depends on the device.
DtypeName = Literal["auto", "float32", "bfloat16"]
OptimizerName = Literal["adamw", "adamw8bit"]
#: Number type of the frozen base of adapters: the type of matrix products, or matrices of four
#: bits a weight (`models/nf4.py`).
BaseName = Literal["whole", "nf4"]


@dataclass(frozen=True, slots=True)
class Hardware:
    """Number of CUDA `gpus` that torch sees, and `bfloat16` if they compute in it (from Ampere
    on)."""

    gpus: int
    bfloat16: bool


@dataclass(frozen=True, slots=True)
class Placement:
    """`device` is "cpu" or "cuda:N". With `half`, matrix products are bfloat16, and trained weights
    stay float32."""

    device: str
    half: bool

    @property
    def products(self) -> Literal["float32", "bfloat16"]:
        """The type of matrix products."""
        return "bfloat16" if self.half else "float32"


ON_CPU = Placement("cpu", half=False)


def place(
    device: str, dtype: DtypeName, found: Hardware, *, rank: int = 0, ranks: int = 1
) -> Placement:
    """Choose the device and types of process number `rank` of `ranks`. `device` "auto" is CUDA if
    torch sees a GPU. `dtype` "auto" is bfloat16 on a GPU that supports it, and else float32.
    Several processes take one GPU each, starting with the GPU that `device` names.

    Raises:
        ConfigError: `device` is not one of `DEVICE`, or there are too few GPUs.
    """
    if not re.fullmatch(DEVICE, device):
        raise ConfigError(f'run.device is "auto", "cpu", "cuda" or "cuda:N", not {device!r}')
    if device == "cpu" or (device == "auto" and not found.gpus):
        return Placement("cpu", dtype == "bfloat16")
    first = int(device.partition(":")[2] or 0)
    if first + ranks > found.gpus:
        raise ConfigError(
            f"run.device = {device!r} and run.trainer_processes = {ranks} need GPU "
            f"{first + ranks - 1}, and torch sees {found.gpus}, counted from 0: set run.device to "
            '"cpu" or to a GPU that is there, or install a torch built for CUDA'
        )
    half = dtype == "bfloat16" or (dtype == "auto" and found.bfloat16)
    return Placement(f"cuda:{first + rank}", half)


def hardware(device: str = "auto") -> Hardware:
    """The hardware that torch finds on this machine. Support of bfloat16 is that of `device`. From
    here on this process and its children count GPUs as nvidia-smi does, in the order of the bus,
    and not the fastest first."""
    os.environ.setdefault("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
    import torch  # here, so that importing this module does not import torch

    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    index = int(device.partition(":")[2] or 0)
    if index >= gpus:
        return Hardware(gpus, False)
    with torch.cuda.device(index):
        return Hardware(gpus, torch.cuda.is_bf16_supported(including_emulation=False))


def has_bitsandbytes() -> bool:
    """Check that bitsandbytes is installed, without importing it."""
    return importlib.util.find_spec("bitsandbytes") is not None
