"""Fit of a model to a machine and its disk, and the plan of the machine's use: one answer for
`swarm-node plan`, `join` and the engine. Pure, but for `this_machine` and `gpu_memory`.

Cheap to import, as a command line must be.
"""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, NamedTuple

from swarm_node.config import Settings
from swarm_node.errors import ConfigError, HomeError, ModelError, extra_of
from swarm_node.policy.memory.footprint import (
    KEPT_CHECKPOINTS,
    TrainingMethod,
    adapter_count,
    checkpoint_bytes,
    footprint,
)
from swarm_node.policy.memory.free import available_memory, check_memory
from swarm_node.policy.memory.plan import (
    DEFAULT_RANK,
    SPARE,
    Job,
    Plan,
    least_plan,
    make_plan,
    remedies,
    unplanned_ways,
)
from swarm_node.policy.models.config import Qwen2Config
from swarm_node.policy.placement import Hardware, Placement, hardware, has_bitsandbytes, place
from swarm_node.policy.sampling.sampler import MAX_ROWS
from swarm_node.policy.sampling.vllm.engine import (
    VLLM_VERSION,
    EngineChoice,
    VllmBuild,
    can_share,
    choose_engine,
    installed_vllm,
)
from swarm_node.policy.weights import KEEP_VERSIONS
from swarm_node.process.bounded import bounded_run

_GIB = 1 << 30
_MOST_GIB = 4096
#: An engine in float32 ends at its first adapter (assertion in lora_shrink_op.py, vLLM 0.32).
_ADAPTERS_NEED_HALF = "on a GPU, vLLM takes adapters in bfloat16 only"
_NO_HALF = (
    f"{_ADAPTERS_NEED_HALF}: set training.dtype to it where the GPU has it, or take the built-in "
    "sampler with `--sampler torch`"
)


class GpuMemory(NamedTuple):
    """Free and total bytes of a card."""

    free: int
    total: int


@dataclass(frozen=True, slots=True)
class Machine:
    """Facts of a machine that decide its use: the device of the policy, the free main memory in
    bytes, the GPU's memory (of the GPU with the least free; None on a CPU), the installed vLLM,
    `ipc` if processes can share GPU memory by CUDA IPC, and `bitsandbytes` if it is installed."""

    where: Placement
    free: int
    gpu: GpuMemory | None
    vllm: VllmBuild | None
    ipc: bool = True
    bitsandbytes: bool = False


@dataclass(frozen=True, slots=True)
class Fit:
    """The use of a machine. With `vllm`, vLLM samples; `why` is the reason for the choice of
    engine. `training` is the trainer's use of memory. `plan` divides the (first) GPU; None on a
    CPU. With `ipc`, vLLM gets all weights through GPU memory. With `shares_base`, the sampler
    shares the frozen base of adapters. `job` is the work that it was planned for."""

    where: Placement
    vllm: bool
    training: TrainingMethod
    plan: Plan | None = None
    ipc: bool = False
    shares_base: bool = False
    why: str = ""
    job: Job = field(default_factory=Job)

    @property
    def engine(self) -> EngineChoice:
        return EngineChoice(self.vllm, self.why)


def this_machine(settings: Settings) -> Machine:
    """Return this machine, as `settings` want to use it.

    Raises:
        ConfigError: see `computed_on`.
    """
    found = hardware(settings.run.device)
    where, gpu = computed_on(
        settings, found, lambda *cards: gpu_memory(*cards) or torch_memory(*cards)
    )
    return Machine(where, available_memory(), gpu, installed_vllm(), has_ipc(), has_bitsandbytes())


def computed_on(
    settings: Settings, found: Hardware, memory: Callable[[int, int], GpuMemory | None]
) -> tuple[Placement, GpuMemory | None]:
    """Return the policy's device by `settings`, and that GPU's memory (None on a CPU). `memory` is
    called with the first GPU's number and the number of GPUs.

    Raises:
        ConfigError: there is no such device, or nobody knows its memory.
    """
    processes = settings.run.trainer_processes
    where = place(settings.run.device, settings.training.dtype, found, ranks=processes)
    if where.device == "cpu":
        return where, None
    gpu = memory(int(where.device.partition(":")[2]), processes)
    if gpu is None:
        raise ConfigError(
            f"neither nvidia-smi nor torch says how much memory of {where.device} is free: repair "
            'the driver, or set run.device to "cpu"'
        )
    return where, gpu


def card(settings: Settings, vram: int) -> Machine:
    """Return a machine with plenty of main memory and a card of `vram` bytes, all free. It has this
    machine's vLLM, or the right one if `settings` ask for vLLM."""
    half, vllm = settings.training.dtype != "float32", installed_vllm()
    if settings.sampling.engine == "vllm":
        vllm = VllmBuild("vllm", VLLM_VERSION, on_cpu=False)
    found, four_bit = GpuMemory(vram, vram), has_bitsandbytes()
    return Machine(Placement("cuda:0", half), 1 << 60, found, vllm, bitsandbytes=four_bit)


def engine_of(
    settings: Settings, machine: Machine, shape: Qwen2Config | None = None, turns: int = 1
) -> EngineChoice:
    """Return the engine that samples on `machine`, and the reason. With the model's `shape`, "auto"
    takes the built-in sampler if only that fits dialogues of as many `turns`: it can share a base
    of four bits, too.

    Raises:
        ModelError: the settings ask for vLLM, and the machine has none that fits its device, or
            none that takes adapters in float32.
    """
    choice = choose_engine(settings.sampling.engine, machine.where.device, machine.vllm)
    if not (choice.vllm and machine.gpu and shape):
        return choice
    built_in = EngineChoice(False, "vLLM, with a base of its own, does not fit the card")
    with_vllm, without = (
        make_plan(shape, job_of(settings, machine, each, shape, turns), machine.gpu.free)
        for each in (choice, built_in)
    )
    if with_vllm and with_vllm.training.lora_rank and not machine.where.half:
        if settings.sampling.engine == "vllm":
            raise ModelError(_NO_HALF)
        return EngineChoice(False, _ADAPTERS_NEED_HALF)
    only_without = settings.sampling.engine == "auto" and without and not with_vllm
    return built_in if only_without else choice


def job_of(
    settings: Settings, machine: Machine, engine: EngineChoice, shape: Qwen2Config, turns: int = 1
) -> Job:
    """Return this node's demands on a GPU for a model of this shape and dialogues of as many
    `turns`. Settings that the user did not set stay open.

    Raises:
        ConfigError: settings do not fit together.
    """
    training, sampling, where = settings.training, settings.sampling, machine.where
    one_base = settings.run.ranks == 1 and (machine.gpu is None or machine.ipc)
    four_bits = machine.bitsandbytes and one_base and not engine.vllm
    one_base &= not engine.vllm or (training.base != "nf4" and can_share(shape, where.device))
    return Job(
        rows=rows_at_once(settings),
        max_new_tokens=sampling.max_new_tokens,
        lora_rank=training.lora_rank if "lora_rank" in training.model_fields_set else None,
        dtype=where.products,
        eight_bit=training.optimizer == "adamw8bit",
        # No card has shown yet that a wake-up finds its memory free (docs/models.md).
        can_sleep=False,
        one_base=one_base,
        base=_base(settings, possible=four_bits),
        processes=settings.run.ranks,
        cards=settings.run.trainer_processes if engine.vllm and machine.gpu else 1,
        turns=turns,
    )


def rows_at_once(settings: Settings) -> int:
    """Return the number of answers that are sampled at once."""
    return min(MAX_ROWS, settings.sampling.group_size * settings.sampling.tasks_per_call)


def fit(settings: Settings, shape: Qwen2Config, machine: Machine, turns: int = 1) -> Fit:
    """Plan how a node with these settings trains and samples a model of this shape on `machine`, in
    dialogues of as many `turns`.

    Raises:
        ModelError: it cannot; the message says which memory is short and what would fit.
        ConfigError: `training.base` cannot be had here.
    """
    engine = engine_of(settings, machine, shape, turns)
    job = job_of(settings, machine, engine, shape, turns)
    _check_base(settings, machine, shared=engine.vllm or job.one_base)
    plan, ipc = None, False
    if machine.gpu is None:
        training = _unplanned(settings, shape, job, machine)
    else:
        plan = _planned(shape, job, machine.gpu)
        training = plan.training
    if plan is not None and settings.run.ranks == 1:
        # The two newest versions, in the sampler's type (`weights/device.py`).
        copies = 2 * plan.parts.sampler_weights
        ipc = engine.vllm and machine.ipc and not training.lora_rank and plan.fits(copies)
    check_memory(
        shape,
        training.lora_rank,
        placement=machine.where,
        trainer_processes=settings.run.trainer_processes,
        one_base=job.one_base,
        nf4=training.nf4,
        free=machine.free,
    )
    shares = job.one_base and training.lora_rank > 0
    return Fit(machine.where, engine.vllm, training, plan, ipc, shares, engine.why, job)


def _planned(shape: Qwen2Config, job: Job, gpu: GpuMemory) -> Plan:
    made = make_plan(shape, job, gpu.free)
    if made is None:
        ways = remedies(shape, job, gpu.free) or ["a machine with more memory"]
        needed = least_plan(shape, job, gpu.free).total
        each = f" on the first of {job.processes} cards" * (job.processes > 1)
        raise ModelError(
            f"a model of {shape.weight_count / 1e6:,.0f} million weights needs at least "
            f"{needed / _GIB:.1f} GiB of GPU memory{each} with these settings and "
            f"{gpu.free / _GIB:.1f} are free: take {', or '.join(ways)}, or train on the CPU "
            '(run.device = "cpu")'
        )
    return made


def check_disk(home: Path, shape: Qwen2Config, found: Fit, room: int) -> str | None:
    """Check the disk of `home`, on which checkpoints may take `room` bytes, existing ones
    included. Returns a warning, None if all checkpoints to keep fit.

    Raises:
        HomeError: the first two do not fit. One must stay while the next is written.
    """
    rank, eight_bit = found.training.lora_rank, found.job.eight_bit
    each = checkpoint_bytes(shape, rank, eight_bit=eight_bit)
    if room >= KEPT_CHECKPOINTS * each:
        return None
    needs = (
        f"a checkpoint takes {each / 1e9:,.1f} GB here, and {room / 1e9:,.1f} GB are free on the "
        f"disk of {home}"
    )
    if room >= 2 * each:
        return f"{needs}: fewer than {KEPT_CHECKPOINTS} will be kept"
    smaller = checkpoint_bytes(shape, DEFAULT_RANK, eight_bit=eight_bit) / 1e9
    lighter = (
        f", or train adapters (training.lora_rank = {DEFAULT_RANK}), whose checkpoints take "
        f"{smaller:,.1f} GB"
    ) * (not rank)
    raise HomeError(
        f"{needs}, where two must fit: free {(2 * each - room) / 1e9:,.1f} GB there, give a "
        f"home on another disk (--home){lighter}"
    )


def shared_bytes(shape: Qwen2Config, found: Fit) -> int:
    """Bytes of shared memory for passing weights to the sampler: the versions that are kept, the
    next one, and a base that both processes map."""
    rank, copies, width = found.training.lora_rank, KEEP_VERSIONS + 1, 2 if found.where.half else 4
    if found.ipc:
        return 0
    if rank and (found.vllm or found.shares_base):
        mapped = found.shares_base and found.where.device == "cpu"
        versions = copies * 4 * adapter_count(shape, rank)
        return versions + (width * shape.weight_count if mapped else 0)
    return copies * width * shape.weight_count


def gpu_memory(first: int = 0, count: int = 1) -> GpuMemory | None:
    """Ask nvidia-smi for the memory of `count` GPUs from `first` on, as torch numbers them. Returns
    that of the GPU with the least free, None without one of them or nvidia-smi. Uses no GPU
    memory."""
    command = shutil.which("nvidia-smi")
    names = [visible_gpu(index) for index in range(first, first + count)]
    visible = ",".join(name for name in names if name)
    if command is None or not all(names):
        return None
    query = ["--query-gpu=memory.free,memory.total", "--format=csv,noheader,nounits", "-i", visible]
    return _answered([command, *query], seconds=20)


def torch_memory(first: int = 0, count: int = 1) -> GpuMemory | None:
    """Ask torch the same, in a process that may die and whose context ends with it."""
    program = (
        "from swarm_node.policy.placement import hardware; hardware(); import torch; "
        f"[print(*(size >> 20 for size in torch.cuda.mem_get_info({first} + n)), sep=', ')"
        f" for n in range({count})]"
    )
    return _answered([sys.executable, "-c", program], seconds=90)


def _answered(command: list[str], seconds: float) -> GpuMemory | None:
    try:
        done = bounded_run(command, seconds)
    except (OSError, subprocess.SubprocessError):
        return None
    return None if done.returncode else parse_gpu_memory(done.stdout)


def has_ipc() -> bool:
    """Check for CUDA IPC, by which processes share a GPU's memory. WSL2 does not have it."""
    return "microsoft" not in platform.release()


def visible_gpu(index: int) -> str | None:
    """Return nvidia-smi's name of the GPU with CUDA's number `index`; None without one."""
    limited = os.environ.get("CUDA_VISIBLE_DEVICES")
    names = [str(index)] if limited is None else limited.split(",")[index : index + 1]
    visible = "".join(names).strip()
    known = re.fullmatch(r"[0-9]{1,3}|(GPU|MIG)-[A-Za-z0-9/-]{1,80}", visible)
    return visible if known else None


def parse_gpu_memory(answer: bytes) -> GpuMemory | None:
    """Parse one line "free, total" in MiB for each card. Returns the card with the least free, None
    if a line is malformed."""
    lines = [re.fullmatch(rb"\s*(\d{1,9}), *(\d{1,9})\s*", line) for line in answer.splitlines()]
    cards = [GpuMemory(int(one[1]) << 20, int(one[2]) << 20) for one in lines if one]
    sound = all(0 < free <= total <= _MOST_GIB * _GIB for free, total in cards)
    return min(cards) if cards and all(lines) and sound else None


def _unplanned(
    settings: Settings, shape: Qwen2Config, job: Job, machine: Machine
) -> TrainingMethod:
    """Choose a CPU trainer's method: the first with which this machine's processes fit its memory,
    else the one that takes least. All weights come before adapters, as in a plan."""
    for way in unplanned_ways(job):
        parts = footprint(
            shape,
            way,
            device="cpu",
            rows=job.rows,
            max_new_tokens=job.longest,
            one_base=job.one_base,
        )
        others = settings.run.trainer_processes - 1
        others *= parts.trainer_weights + parts.optimizer + parts.activations
        if parts.total() + others <= machine.free * (1 - SPARE):
            break
    return way


def _base(settings: Settings, *, possible: bool) -> Literal["auto", "whole", "nf4"]:
    """Return the allowed forms of the base. Four bits are tried if it is `possible`: the library is
    installed, and the built-in sampler shares the base.

    Raises:
        ConfigError: four bits are asked for, and no adapters.
    """
    training, base = settings.training, settings.training.base
    if base == "nf4" and "lora_rank" in training.model_fields_set and not training.lora_rank:
        raise ConfigError(
            f'training.base = "nf4" is for adapters: set training.lora_rank, say to {DEFAULT_RANK}'
        )
    return "whole" if base == "auto" and not possible else base


def _check_base(settings: Settings, machine: Machine, *, shared: bool) -> None:
    """Refuse a base of four bits that the user asks for and cannot have: the built-in sampler must
    have `shared` it."""
    training, reason = settings.training, ""
    if training.base != "nf4":
        return
    if not machine.bitsandbytes:
        reason = f"needs bitsandbytes: run {extra_of('gpu')}"
    elif settings.run.ranks > 1:
        reason = "works in one process: unset run.trainer_processes and run.trainer_hosts"
    elif not shared:
        reason = "needs processes that share the GPU's memory, as they do not under WSL2"
    if reason:
        raise ConfigError(f'training.base = "nf4" {reason}, or set training.base to "whole"')
