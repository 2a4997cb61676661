"""The machine that a node plans for, as its settings want to use it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from swarm_node.config import Settings
from swarm_node.errors import ConfigError
from swarm_node.policy.placement import (
    Hardware,
    Placement,
    has_bitsandbytes,
    place,
    repeats_heads,
    torch_version,
)
from swarm_node.policy.planning.fit import GpuMemory, Machine
from swarm_node.policy.sampling.vllm.engine import VLLM_VERSION, VllmBuild, installed_vllm


def computed_on(
    settings: Settings, hardware: Hardware, memory: Callable[[int, int], GpuMemory | None]
) -> tuple[Placement, GpuMemory | None]:
    """Return the policy's device by `settings`, and that GPU's memory (None on a CPU). `memory` is
    called with the first GPU's number and the number of GPUs.

    Raises:
        ConfigError: there is no such device, or nobody knows its memory.
    """
    processes = settings.run.trainer_processes
    placement = place(settings.run.device, settings.training.dtype, hardware, ranks=processes)
    if placement.device == "cpu":
        return placement, None
    if (
        settings.training.dtype == "auto"
        and placement.products == "float16"
        and settings.run.ranks > 1
    ):
        placement = replace(placement, products="float32")  # its loss scale is for one process
    gpu = memory(int(placement.device.partition(":")[2]), processes)
    if gpu is None:
        raise ConfigError(
            f"neither nvidia-smi nor torch says how much memory of {placement.device} is free: "
            'repair the driver, or set run.device to "cpu"'
        )
    return placement, gpu


def card(settings: Settings, vram: int) -> Machine:
    """Return a machine with plenty of main memory and a GPU of `vram` bytes, all free, of Ampere or
    newer. It has this machine's torch and vLLM, or the right vLLM if `settings` ask for vLLM."""
    dtype, vllm = settings.training.dtype, installed_vllm()
    if settings.sampling.engine == "vllm":
        vllm = VllmBuild("vllm", VLLM_VERSION, on_cpu=False)
    return Machine(
        Placement("cuda:0", "bfloat16" if dtype == "auto" else dtype),
        1 << 60,
        GpuMemory(vram, vram),
        vllm,
        bitsandbytes=has_bitsandbytes(),
        repeats_heads=repeats_heads(torch_version()),
    )
