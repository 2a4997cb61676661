"""The device and number types of the policy's computation. Pure, except for `hardware`,
`has_bitsandbytes` and `torch_version`."""

from __future__ import annotations

import importlib.util
import os
import re
from dataclasses import dataclass
from importlib import metadata
from typing import Literal, NamedTuple

from swarm_node.errors import ConfigError

#: The values of `run.device`.
DEVICE = r"auto|cpu|cuda(:\d{1,2})?"
#: The values of `run.trainer_hosts`: where this host listens, and how many there are; or none.
HOSTS = r"([A-Za-z0-9.-]{1,253}:[1-9]\d{0,4}\*([2-9]|[1-5]\d|6[0-4]))?"
#: A number type of matrix products.
Precision = Literal["float32", "bfloat16", "float16"]
#: The values of `training.dtype`; "auto" depends on the device.
DtypeName = Literal["auto", "float32", "bfloat16", "float16"]
OptimizerName = Literal["adamw", "adamw8bit"]
#: Compute capability of the oldest GPUs for which torch 2.13 and bitsandbytes 0.50 have kernels
#: (Turing), and of the first that multiply in bfloat16 (Ampere).
LEAST_CAPABILITY, BFLOAT16_CAPABILITY = (7, 5), (8, 0)
#: The first torch whose attention over sequences of many lengths takes fewer key heads than query
#: heads (the argument `enable_gqa` of `varlen_attn`).
_GROUPED_TORCH = (2, 12)
#: bfloat16 is taken on a CPU if its products take at most this share of float32's time: what is
#: computed between products takes longer in it.
WORTHWHILE = 2 / 3
#: Number type of the frozen base of adapters: the type of matrix products, or matrices of four
#: bits a weight (`models/decoder/nf4.py`).
BaseName = Literal["whole", "nf4"]


@dataclass(frozen=True, slots=True)
class Hardware:
    """`gpus` is the number of CUDA GPUs that torch computes on. `bfloat16` (from Ampere on) and
    `float16` are true if they compute in that type."""

    gpus: int
    bfloat16: bool
    float16: bool = False

    @property
    def products(self) -> Precision:
        """The fastest type of matrix products. Of two that are as fast, the one that does not
        overflow."""
        return "bfloat16" if self.bfloat16 else "float16" if self.float16 else "float32"


class ProductTimes(NamedTuple):
    """Seconds of a CPU for the matrix products of a token, measured in each number type."""

    float32: float
    bfloat16: float

    @property
    def share(self) -> float:
        """Time of bfloat16 as a share of float32's."""
        return self.bfloat16 / self.float32

    @property
    def worthwhile(self) -> bool:
        """Check that bfloat16 is so much faster that it is worth its rounding."""
        return self.share <= WORTHWHILE


@dataclass(frozen=True, slots=True)
class Placement:
    """`device` is "cpu" or "cuda:N", and `products` the type of matrix products. Trained weights
    are float32 whatever that type is."""

    device: str
    products: Precision

    @property
    def half(self) -> bool:
        """Check that numbers of the products have two bytes."""
        return self.products != "float32"


ON_CPU = Placement("cpu", "float32")


def place(
    device: str, dtype: DtypeName, machine: Hardware, *, rank: int = 0, ranks: int = 1
) -> Placement:
    """Choose the device and types of process number `rank` of `ranks`. `device` "auto" is CUDA if
    torch computes on a GPU. `dtype` "auto" is the fastest that the GPU has, and float32 on a CPU.
    There a start measures bfloat16 before it decides (`node/preflight/defaults.py`). Several
    processes take one GPU each, starting with the GPU that `device` names.

    Raises:
        ConfigError: `device` is not one of `DEVICE`, or there are too few GPUs.
    """
    if not re.fullmatch(DEVICE, device):
        raise ConfigError(f'run.device is "auto", "cpu", "cuda" or "cuda:N", not {device!r}')
    if device == "cpu" or (device == "auto" and not machine.gpus):
        return Placement("cpu", "float32" if dtype == "auto" else dtype)
    first = int(device.partition(":")[2] or 0)
    if first + ranks > machine.gpus:
        raise ConfigError(
            f"run.device = {device!r} and run.trainer_processes = {ranks} need GPU "
            f"{first + ranks - 1}, and torch sees {machine.gpus}, counted from 0",
            'set run.device to "cpu" or to a GPU that is there, or install a torch built for CUDA',
        )
    return Placement(f"cuda:{first + rank}", machine.products if dtype == "auto" else dtype)


def hardware(device: str = "auto") -> Hardware:
    """The hardware that torch finds on this machine; the number types are those of `device`. A node
    asks `probe.py` instead, which computes on the GPU, in another process."""
    count_by_bus()
    import torch  # here, so that importing this module does not import torch

    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    index = int(device.partition(":")[2] or 0)
    if index >= gpus:
        return Hardware(gpus, False)
    capability = torch.cuda.get_device_capability(index)
    return Hardware(gpus, capability >= BFLOAT16_CAPABILITY, capability >= LEAST_CAPABILITY)


def count_by_bus() -> None:
    """Let this process and its children count GPUs as nvidia-smi does, in the order of the bus, and
    not the fastest first."""
    os.environ.setdefault("CUDA_DEVICE_ORDER", "PCI_BUS_ID")


def has_bitsandbytes() -> bool:
    """Check that bitsandbytes is installed, without importing it."""
    return importlib.util.find_spec("bitsandbytes") is not None


def torch_version() -> str:
    """The version of the installed torch, without importing it; "" without one."""
    try:
        return metadata.version("torch")
    except metadata.PackageNotFoundError:
        return ""


def repeats_heads(torch: str, capability: tuple[int, int] | None = None) -> bool:
    """Check that attention on a GPU repeats keys and values for each query head that shares them
    (`models/decoder/attention.py`), in half precision; in float32 it always does. `torch` is a
    version, and `capability` the GPU's compute capability, None if unknown. The flash kernel, which
    takes fewer key heads, begins with Ampere."""
    version = re.match(r"(\d{1,4})\.(\d{1,4})", torch)
    if version is None or (int(version[1]), int(version[2])) < _GROUPED_TORCH:
        return True
    return capability is not None and capability < BFLOAT16_CAPABILITY
