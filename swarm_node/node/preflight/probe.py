"""Probes: facts of a GPU or a CPU that only computing on it shows.

The probe of a GPU is a short process, which may die. A card can be listed and yet have no kernel
for it, or no memory that processes share (WSL2, virtual GPUs, some allocators). So the process
multiplies two matrices in each number type. Then it exports a MiB, and a child of its own maps that
by the code that maps a base (`weights/device.py`). On a machine without a GPU no process is
started. The probe of a CPU times products in this process.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Annotated, NamedTuple

import msgspec

from swarm_node.errors import words_of
from swarm_node.policy.models.config import ModelConfig
from swarm_node.policy.placement import (
    BFLOAT16_CAPABILITY,
    LEAST_CAPABILITY,
    Hardware,
    Precision,
    ProductTimes,
    count_by_bus,
)
from swarm_node.policy.planning.fit import GpuMemory
from swarm_node.process.bounded import bounded_run

_MOST_GIB = 4096
MOST_MEMORY = _MOST_GIB << 30
_SECONDS, _MAP_SECONDS, _SMI_SECONDS = 90.0, 60.0, 20.0
_SHARED_BYTES = 1 << 20
_TYPES: tuple[Precision, ...] = ("float32", "bfloat16", "float16")
_MOST_CHARS = 300
#: The probe of a CPU: rows of a step that samples and of a trainer's micro-batch, weights of the
#: part of a matrix, and repetitions, of which the fastest counts.
_STEP_ROWS, _BATCH_ROWS, _PROBED_WEIGHTS, _REPETITIONS = 64, 256, 1 << 20, 2
#: Device files of NVIDIA's drivers, on Linux and under WSL2.
_DEVICES = ("/dev/nvidiactl", "/dev/dxg")
_Small = Annotated[int, msgspec.Meta(ge=0, le=1000)]
_Bytes = Annotated[int, msgspec.Meta(ge=0, le=MOST_MEMORY)]
_Words = Annotated[str, msgspec.Meta(max_length=_MOST_CHARS)]


class Answer(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The process's findings. `gpus` is torch's number of GPUs. `capability` is the compute
    capability of the GPU that the process was asked for, and `products` are the number types whose
    products are right there. `memory` has the (free, total) bytes of each card that the node would
    use. `unshared` is the reason why no other process maps the GPU's memory, "" if one does.
    `fault` is the first error of a product."""

    gpus: _Small = 0
    capability: tuple[_Small, _Small] = (0, 0)
    products: Annotated[list[Precision], msgspec.Meta(max_length=len(_TYPES))] = []
    memory: Annotated[list[tuple[_Bytes, _Bytes]], msgspec.Meta(max_length=64)] = []
    unshared: _Words = ""
    fault: _Words = ""


class Seen(NamedTuple):
    """The GPUs on which torch computes, and the reason if there are none. The other fields are
    those of the GPU that the node would use: its `memory` according to torch, its compute
    `capability` if known, and in `unshared` the reason why processes cannot share its memory, "" if
    they can."""

    hardware: Hardware
    fault: str = ""
    memory: GpuMemory | None = None
    capability: tuple[int, int] | None = None
    unshared: str = ""


NOTHING_SEEN = Seen(Hardware(0, False))


def probe(device: str, cards: int = 1) -> Seen:
    """Compute on `device` (the setting), one of `cards` GPUs from it on, in another process."""
    count_by_bus()
    first = int(device.partition(":")[2] or 0)
    command = [sys.executable, "-m", "swarm_node.node.preflight.probe", str(first), str(cards)]
    try:
        result = bounded_run(command, _SECONDS)
    except (OSError, subprocess.SubprocessError) as error:
        return NOTHING_SEEN._replace(fault=words_of(error)[:_MOST_CHARS])
    complaint = result.stderr.decode(errors="replace").strip().rpartition("\n")[2][:_MOST_CHARS]
    try:
        answer = msgspec.json.decode(result.stdout.strip().rpartition(b"\n")[2], type=Answer)
    except msgspec.DecodeError:
        return NOTHING_SEEN._replace(fault=complaint or "torch did not answer")
    return classify(
        answer if answer.gpus or answer.fault else msgspec.structs.replace(answer, fault=complaint)
    )


def classify(answer: Answer) -> Seen:
    """Check whether torch computes on the card, and in which types."""
    if not answer.gpus or answer.capability == (0, 0):
        return Seen(Hardware(answer.gpus, False), answer.fault)
    version = ".".join(map(str, answer.capability))
    fault = ""
    if answer.capability < LEAST_CAPABILITY:
        minimum = ".".join(map(str, LEAST_CAPABILITY))
        fault = f"its compute capability is {version}, and the kernels of torch begin at {minimum}"
    elif "float32" not in answer.products:
        fault = f"no product is right on it: {answer.fault or 'no reason given'}"
    hardware = Hardware(
        0 if fault else answer.gpus,
        answer.capability >= BFLOAT16_CAPABILITY and "bfloat16" in answer.products,
        "float16" in answer.products,
    )
    memory = min((GpuMemory(*sizes) for sizes in answer.memory), default=None)
    return Seen(hardware, fault, memory, answer.capability, answer.unshared)


def time_products(shape: ModelConfig) -> ProductTimes:
    """Time products of a model of this shape on this CPU, in one thread. The matrix is a part of
    the MLP's first. The time per row is that of a step that samples, plus twice that of a
    micro-batch, which goes there and back. It takes tens of milliseconds, or a few hundred where
    bfloat16 is emulated."""
    import torch
    import torch.nn.functional as F

    outputs = max(1, min(2 * shape.intermediate_size, _PROBED_WEIGHTS // shape.hidden_size))
    weight = torch.randn(outputs, shape.hidden_size)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        row_seconds = []
        for dtype in (torch.float32, torch.bfloat16):
            matrix, total = weight.to(dtype), 0.0
            for rows, times in ((_STEP_ROWS, 1), (_BATCH_ROWS, 2)):
                inputs, best_seconds = torch.randn(rows, shape.hidden_size).to(dtype), float("inf")
                for _ in range(_REPETITIONS):
                    start = time.thread_time()
                    F.linear(inputs, matrix)
                    best_seconds = min(best_seconds, time.thread_time() - start)
                total += times * best_seconds / rows
            row_seconds.append(max(total, 1e-9))
    finally:
        torch.set_num_threads(threads)
    return ProductTimes(*row_seconds)


def gpu_memory(first: int = 0, count: int = 1) -> GpuMemory | None:
    """Ask nvidia-smi for the memory of `count` GPUs from `first` on, as torch numbers them. Returns
    that of the GPU with the least free, None without one of them or nvidia-smi. Uses no GPU
    memory."""
    command = shutil.which("nvidia-smi")
    names = [visible_gpu(index) for index in range(first, first + count)]
    gpu_ids = ",".join(name for name in names if name)
    if command is None or not all(names):
        return None
    query = ["--query-gpu=memory.free,memory.total", "--format=csv,noheader,nounits", "-i", gpu_ids]
    try:
        result = bounded_run([command, *query], _SMI_SECONDS)
    except (OSError, subprocess.SubprocessError):
        return None
    return None if result.returncode else parse_gpu_memory(result.stdout)


def visible_gpu(index: int) -> str | None:
    """Return nvidia-smi's name of the GPU with CUDA's number `index`; None without one."""
    limited = os.environ.get("CUDA_VISIBLE_DEVICES")
    names = [str(index)] if limited is None else limited.split(",")[index : index + 1]
    gpu_id = "".join(names).strip()
    match = re.fullmatch(r"[0-9]{1,3}|(GPU|MIG)-[A-Za-z0-9/-]{1,80}", gpu_id)
    return gpu_id if match else None


def parse_gpu_memory(answer: bytes) -> GpuMemory | None:
    """Parse one line "free, total" in MiB for each card. Returns the card with the least free, None
    if a line is malformed."""
    lines = [re.fullmatch(rb"\s*(\d{1,9}), *(\d{1,9})\s*", line) for line in answer.splitlines()]
    cards = [GpuMemory(int(match[1]) << 20, int(match[2]) << 20) for match in lines if match]
    is_valid = all(0 < free <= total <= MOST_MEMORY for free, total in cards)
    return min(cards) if cards and all(lines) and is_valid else None


def has_nvidia() -> bool:
    """Check for a device file of NVIDIA's drivers, or a display controller (class 03) of NVIDIA in
    Linux's list of PCI devices."""
    if any(Path(device).exists() for device in _DEVICES):
        return True
    for device in Path("/sys/bus/pci/devices").glob("*"):
        try:
            kind, vendor = (device / "class").read_text(), (device / "vendor").read_text()
        except OSError:  # it was unplugged
            continue
        if kind.startswith("0x03") and vendor.strip() == "0x10de":
            return True
    return False


def _look(first: int, cards: int) -> Answer:
    """Compute on the GPU number `first`. Run by the process of `probe`."""
    import torch

    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if first >= gpus:
        return Answer(gpus)
    fault, products = "", []
    for name in _TYPES:
        try:
            matrix = torch.full((32, 32), 0.5, dtype=getattr(torch, name), device=f"cuda:{first}")
            if bool((matrix @ matrix == 8.0).all()):
                products.append(name)
        except RuntimeError as error:
            fault = fault or str(error).partition("\n")[0][:_MOST_CHARS]
    return Answer(
        gpus,
        torch.cuda.get_device_capability(first),
        products,
        [torch.cuda.mem_get_info(index) for index in range(first, min(first + cards, gpus))],
        _check_sharing(first) if products else "nothing was computed",
        fault,
    )


def _check_sharing(gpu: int) -> str:
    """Let another process map a MiB of the GPU and add up its bytes."""
    import torch

    from swarm_node.policy.weights.device import export_buffer

    numbers = torch.arange(_SHARED_BYTES, device=f"cuda:{gpu}") % 251
    try:
        byte_tensor = numbers.to(torch.uint8)
        handle = json.dumps(export_buffer(byte_tensor))
        torch.cuda.synchronize(gpu)
        module = "swarm_node.node.preflight.probe"
        result = bounded_run([sys.executable, "-m", module, "map", handle, str(gpu)], _MAP_SECONDS)
    except (RuntimeError, OSError, subprocess.SubprocessError) as error:
        return words_of(error).partition("\n")[0][:_MOST_CHARS]
    if result.stdout.strip() == str(int(numbers.sum())).encode():
        return ""
    message = result.stderr.decode(errors="replace").strip().rpartition("\n")[2]
    return (message or "another process reads other bytes there")[:_MOST_CHARS]


def _map(handle: str, gpu: int) -> int:
    """Map the memory that `handle` names, and add up its bytes."""
    import torch

    from swarm_node.policy.weights.device import import_buffer

    return int(import_buffer(json.loads(handle), torch.uint8, gpu).long().sum())


if __name__ == "__main__":
    if sys.argv[1] == "map":
        print(_map(sys.argv[2], int(sys.argv[3])))
    else:
        print(msgspec.json.encode(_look(int(sys.argv[1]), int(sys.argv[2]))).decode())
