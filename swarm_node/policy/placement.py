"""Where the policy is computed and in which numbers. Pure, but for `hardware`, which looks."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from swarm_node.errors import ConfigError

#: What `run.device` takes.
DEVICE = r"auto|cpu|cuda(:\d{1,2})?"
#: Numbers of the matrix products; "auto" is chosen by the device.
DtypeName = Literal["auto", "float32", "bfloat16"]
OptimizerName = Literal["adamw", "adamw8bit"]


@dataclass(frozen=True, slots=True)
class Hardware:
    """How many CUDA `gpus` torch sees, and whether they compute in bfloat16 (from Ampere on)."""

    gpus: int
    bfloat16: bool


@dataclass(frozen=True, slots=True)
class Placement:
    """`device` is "cpu" or "cuda:N". In `half`, matrix products take and give bfloat16, while what
    the optimizer moves stays float32."""

    device: str
    half: bool


ON_CPU = Placement("cpu", half=False)


def place(
    device: str, dtype: DtypeName, found: Hardware, *, rank: int = 0, ranks: int = 1
) -> Placement:
    """Where process number `rank` of `ranks` computes: CUDA where there is any, unless `device`
    says otherwise; bfloat16 on a GPU that can, else float32, unless `dtype` says otherwise. Several
    processes take a GPU each, from the one named on.

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


def hardware() -> Hardware:
    """What torch finds on this machine."""
    import torch  # so that this module can be read without it

    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    return Hardware(gpus, bool(gpus) and torch.cuda.is_bf16_supported(including_emulation=False))
