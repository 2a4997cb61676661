"""Fit of a model to a machine and its disk, and the plan of the machine's use: one answer for
`swarm-node plan`, `doctor`, `join` and the engine. Pure, but for `card`.

Cheap to import, as a command line must be.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal, NamedTuple

from swarm_node.config import Settings
from swarm_node.config.model import with_keys
from swarm_node.errors import ConfigError, ModelError, extra_of
from swarm_node.node.preflight.defaults import (
    PRETRAINED_WEIGHTS,
    batch_groups,
    lora_rank,
    rows_at_once,
    typed,
)
from swarm_node.policy.memory.footprint import (
    PROMPT_TOKENS,
    Footprint,
    TrainingMethod,
    footprint,
    tokens_of_prompt,
)
from swarm_node.policy.memory.free import needed_memory
from swarm_node.policy.memory.plan import (
    DEFAULT_RANK,
    SPARE,
    Job,
    Plan,
    least_plan,
    make_plan,
    unplanned_ways,
)
from swarm_node.policy.models.config import ModelConfig
from swarm_node.policy.models.shapes import smaller_models
from swarm_node.policy.placement import (
    ON_CPU,
    Hardware,
    Placement,
    ProductTimes,
    has_bitsandbytes,
    place,
    repeats_heads,
    torch_version,
)
from swarm_node.policy.sampling.vllm.engine import (
    MAX_TEMPERATURE,
    VLLM_VERSION,
    EngineChoice,
    VllmBuild,
    can_share,
    choose_engine,
    installed_vllm,
)

_GIB = 1 << 30
#: The shortest answers that are proposed.
_LEAST_TOKENS = 16
#: An engine in float32 ends at its first adapter (assertion in lora_shrink_op.py, vLLM 0.32).
_ADAPTERS_NEED_HALF = "on a GPU, vLLM takes no adapters in float32"
_NO_HALF = (
    f"{_ADAPTERS_NEED_HALF}: set training.dtype to what the GPU has, or take the built-in "
    "sampler with `--sampler torch`"
)


class Lengths(NamedTuple):
    """What an environment's tasks take: the most `turns` of a dialogue, and the UTF-8 bytes of the
    longest of some prompts, 0 if they are not known."""

    turns: int = 1
    prompt_bytes: int = 0


#: The lengths where nothing is known of the tasks.
ONE_ANSWER: Final = Lengths()


class GpuMemory(NamedTuple):
    """Free and total bytes of a GPU."""

    free: int
    total: int


@dataclass(frozen=True, slots=True)
class Machine:
    """Facts of a machine that decide its use: the device of the policy, the free main memory in
    bytes, the GPU's memory (of the GPU with the least free; None on a CPU), the installed vLLM,
    `ipc` if processes share GPU memory (CUDA IPC), `bitsandbytes` if it is installed, and
    `repeats_heads` if attention does so on the GPU in half precision (`placement.repeats_heads`).
    `products` are the times that products take on the CPU, if they were measured."""

    where: Placement
    free: int
    gpu: GpuMemory | None
    vllm: VllmBuild | None
    ipc: bool = True
    bitsandbytes: bool = False
    repeats_heads: bool = False
    products: ProductTimes | None = None


@dataclass(frozen=True, slots=True)
class Fit:
    """The use of a machine. With `vllm`, vLLM samples; `why` is the reason for the choice of
    engine, and `numbers` that for a number type that was left to a measurement, "" for others.
    `training` is the trainer's use of memory. `plan` divides the (first) GPU; None on a CPU. With
    `ipc`, vLLM gets all weights through GPU memory. With `shares_base`, the sampler shares the
    frozen base of adapters. `job` is the work that it was planned for."""

    where: Placement
    vllm: bool
    training: TrainingMethod
    plan: Plan | None = None
    ipc: bool = False
    shares_base: bool = False
    why: str = ""
    job: Job = field(default_factory=Job)
    numbers: str = ""

    @property
    def engine(self) -> EngineChoice:
        return EngineChoice(self.vllm, self.why)

    def parts(self, shape: ModelConfig) -> Footprint:
        """Return the memory for a model of `shape`: the plan's, or that of the CPU."""
        if self.plan is not None:
            return self.plan.parts
        return _without_plan(shape, self.training, self.job)


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
    if settings.training.dtype == "auto" and where.products == "float16" and settings.run.ranks > 1:
        where = replace(where, products="float32")  # its loss scale is for one process
    gpu = memory(int(where.device.partition(":")[2]), processes)
    if gpu is None:
        raise ConfigError(
            f"neither nvidia-smi nor torch says how much memory of {where.device} is free: repair "
            'the driver, or set run.device to "cpu"'
        )
    return where, gpu


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


def engine_of(
    settings: Settings,
    machine: Machine,
    shape: ModelConfig | None = None,
    lengths: Lengths = ONE_ANSWER,
) -> EngineChoice:
    """Return the engine that samples on `machine`, and the reason. With the model's `shape`, "auto"
    takes the built-in sampler if only that fits tasks of these `lengths`: it can share a base of
    four bits, too.

    Raises:
        ModelError: the settings ask for vLLM, and the machine has none that fits its device, or
            none that takes adapters in float32.
    """
    choice = choose_engine(settings.sampling.engine, machine.where.device, machine.vllm)
    if not (choice.vllm and machine.gpu and shape):
        return choice
    built_in = EngineChoice(False, "vLLM, with a base of its own, does not fit the card")
    with_vllm, without = (
        make_plan(shape, job_of(settings, machine, each, shape, lengths), machine.gpu.free)
        for each in (choice, built_in)
    )
    if with_vllm and with_vllm.training.lora_rank and not machine.where.half:
        if settings.sampling.engine == "vllm":
            raise ModelError(_NO_HALF)
        return EngineChoice(False, _ADAPTERS_NEED_HALF)
    only_without = settings.sampling.engine == "auto" and without and not with_vllm
    return built_in if only_without else choice


def job_of(
    settings: Settings,
    machine: Machine,
    engine: EngineChoice,
    shape: ModelConfig,
    lengths: Lengths = ONE_ANSWER,
) -> Job:
    """Return this node's demands on a machine for a model of this shape and tasks of these
    `lengths`. Settings that the user did not set stay open.

    Raises:
        ConfigError: settings do not fit together.
    """
    training, sampling, where = settings.training, settings.sampling, machine.where
    alone = settings.run.ranks == 1
    alone &= shape.native
    four_bits = machine.bitsandbytes and alone and not engine.vllm
    one_base = alone and training.base != "own" and (machine.gpu is None or machine.ipc)
    one_base &= not engine.vllm or (training.base != "nf4" and can_share(shape, where.device))
    prompt, turns = tokens_of_prompt(lengths.prompt_bytes), lengths.turns
    return Job(
        rows=rows_at_once(
            settings, shape, on_gpu=machine.gpu is not None, interleaved=engine.vllm and turns == 1
        ),
        max_new_tokens=sampling.max_new_tokens,
        lora_rank=lora_rank(settings, shape, on_gpu=machine.gpu is not None),
        dtype=where.products,
        eight_bit=training.optimizer == "adamw8bit",
        # No GPU has shown yet that a wake-up finds its memory free (docs/models.md).
        can_sleep=False,
        one_base=one_base,
        vllm=engine.vllm,
        base=_base(settings, possible=four_bits),
        processes=settings.run.ranks,
        cards=settings.run.trainer_processes if engine.vllm and machine.gpu else 1,
        turns=turns,
        repeats_heads=machine.gpu is not None and (machine.repeats_heads or not where.half),
        # The cache of a GPU is made once, and has half as many rows for prompts that are longer.
        prompt_tokens=prompt if machine.gpu is None else max(prompt, PROMPT_TOKENS),
        groups=batch_groups(settings, shape, on_gpu=machine.gpu is not None),
        group_size=sampling.group_size,
    )


class Remedy(NamedTuple):
    """A change after which a model fits, which was tried: of `settings`, or with bitsandbytes
    installed where there are none."""

    words: str
    settings: Mapping[str, Any] = {}

    def __str__(self) -> str:
        keys = ", ".join(f"{key} = {value}" for key, value in self.settings.items())
        return f"{self.words} ({keys})" if keys else self.words


@dataclass(frozen=True, slots=True)
class Decision:
    """The use that a node makes of a machine: `found`, None if it cannot start. `plan` is that of
    the GPU, or, if nothing fits, the one that takes least; None on a CPU. `why` says which memory
    is short, and `instead` what would fit."""

    engine: EngineChoice
    job: Job
    plan: Plan | None
    found: Fit | None = None
    why: str = ""
    instead: tuple[Remedy, ...] = ()

    @property
    def advice(self) -> str:
        """The remedies in words."""
        return f"take {', or '.join(map(str, self.instead))}" if self.instead else _NOTHING


_NOTHING = "take a machine with more memory"


def fit(
    settings: Settings, shape: ModelConfig, machine: Machine, lengths: Lengths = ONE_ANSWER
) -> Fit:
    """Plan how a node with these settings trains and samples a model of this shape on `machine`, in
    tasks of these `lengths`.

    Raises:
        ModelError: it cannot; the message says which memory is short and what would fit.
        ConfigError: `training.base` or `sampling.temperature` cannot be had here.
    """
    decided = decide(settings, shape, machine, lengths)
    if decided.found is None:
        raise ModelError(f"{decided.why}: {decided.advice}")
    return decided.found


def decide(
    settings: Settings, shape: ModelConfig, machine: Machine, lengths: Lengths = ONE_ANSWER
) -> Decision:
    """Return the answer of `plan`, `doctor` and `join` for a model of this shape on `machine`.

    Raises:
        ModelError: `sampling.engine` cannot be had here.
        ConfigError: `training.base` or `sampling.temperature` cannot be had here.
    """
    decided = _decided(settings, shape, machine, lengths)
    if decided.found is not None:
        return decided
    return replace(decided, instead=tuple(_remedies(settings, shape, machine, lengths)))


def _decided(
    settings: Settings, shape: ModelConfig, machine: Machine, lengths: Lengths
) -> Decision:
    """The answer without remedies."""
    where, numbers = typed(settings, shape, machine.where, machine.products)
    if not shape.native:
        where = _by_transformers(settings, shape, where)
    machine = replace(machine, where=where)
    engine = engine_of(settings, machine, shape, lengths)
    if engine.vllm and settings.sampling.temperature > MAX_TEMPERATURE:
        raise ConfigError(f"sampling.temperature: vLLM takes {MAX_TEMPERATURE:g} at most")
    job = job_of(settings, machine, engine, shape, lengths)
    _check_base(settings, machine)
    made, ipc = None, False
    if machine.gpu is None:
        training = _unplanned(settings, shape, job, machine)
    else:
        made = make_plan(shape, job, machine.gpu.free)
        if made is None:
            least = least_plan(shape, job, machine.gpu.free)
            why = _short(shape, least.total, job.processes, machine.gpu.free)
            return Decision(engine, job, least, why=why)
        training = made.training
    if made is not None and settings.run.ranks == 1:
        # The two newest versions, in the sampler's type (`weights/device.py`).
        copies = 2 * made.parts.sampler_weights
        ipc = engine.vllm and machine.ipc and not training.lora_rank and made.fits(copies)
    needed = needed_memory(
        shape,
        training.lora_rank,
        placement=machine.where,
        trainer_processes=settings.run.trainer_processes,
        one_base=job.one_base,
        nf4=training.nf4,
    )
    if needed > machine.free:
        why = (
            f"a model of {_millions(shape)} needs at least {needed / 1e9:.1f} GB of memory here "
            f"and {machine.free / 1e9:.1f} GB are free"
        )
        return Decision(engine, job, made, why=why)
    shares = job.one_base and training.lora_rank > 0
    found = Fit(where, engine.vllm, training, made, ipc, shares, engine.why, job, numbers)
    return Decision(engine, job, made, found)


def _short(shape: ModelConfig, needed: int, processes: int, free: int) -> str:
    each = f" on the first of {processes} cards" * (processes > 1)
    return (
        f"a model of {_millions(shape)} needs at least {needed / _GIB:.1f} GiB of GPU memory{each} "
        f"with these settings and {free / _GIB:.1f} are free"
    )


def _millions(shape: ModelConfig) -> str:
    return f"{shape.weight_count / 1e6:,.0f} million weights"


def _remedies(
    settings: Settings, shape: ModelConfig, machine: Machine, lengths: Lengths
) -> Iterator[Remedy]:
    """Changes after which a node starts, each tried. A smaller model is named where no other
    setting helps, and the CPU beside a GPU that is too small."""

    def fits(changed: Mapping[str, Any], of: ModelConfig = shape, on: Machine = machine) -> bool:
        try:
            return _decided(with_keys(settings, changed), of, on, lengths).found is not None
        except (ConfigError, ModelError):
            return False

    found = [*_lighter(settings, machine, fits)]
    if not found:
        smaller = (name for name, of in smaller_models(shape) if fits({}, of))
        found = [Remedy("a smaller model", {"model": name}) for name in smaller][:1]
    yield from found
    if machine.gpu is not None:
        dtype = settings.training.dtype
        where = replace(ON_CPU, products="float32" if dtype == "auto" else dtype)
        if fits({"run.device": "cpu"}, on=replace(machine, where=where, gpu=None)):
            yield Remedy("the CPU", {"run.device": "cpu"})


def _lighter(settings: Settings, machine: Machine, fits: Callable[..., bool]) -> Iterator[Remedy]:
    """Changes that keep the model and the device."""
    training = settings.training
    adapters = {"training.lora_rank": DEFAULT_RANK}
    chosen = "lora_rank" in training.model_fields_set
    if chosen and training.lora_rank != DEFAULT_RANK and fits(adapters):
        yield Remedy("LoRA", adapters)
    if training.base == "whole" and fits({"training.base": "nf4"}):
        yield Remedy("a base of four bits", {"training.base": "nf4"})
    elif not machine.bitsandbytes and fits({}, on=replace(machine, bitsandbytes=True)):
        yield Remedy(f"a base of four bits, which bitsandbytes has: {extra_of('gpu')}")
    if settings.sampling.engine == "vllm" and fits({"sampling.engine": "torch"}):
        yield Remedy("the built-in sampler", {"sampling.engine": "torch"})
    tokens = settings.sampling.max_new_tokens // 2
    while tokens >= _LEAST_TOKENS:
        if fits({"sampling.max_new_tokens": tokens}):
            yield Remedy("shorter answers", {"sampling.max_new_tokens": tokens})
            return
        tokens //= 2


def _unplanned(
    settings: Settings, shape: ModelConfig, job: Job, machine: Machine
) -> TrainingMethod:
    """Choose a CPU trainer's method: the first with which this machine's processes fit its memory,
    else the one that takes least. All weights come before adapters, as in a plan."""
    for way in unplanned_ways(job, small=shape.weight_count < PRETRAINED_WEIGHTS):
        parts = _without_plan(shape, way, job)
        others = settings.run.trainer_processes - 1
        others *= parts.trainer_weights + parts.optimizer + parts.activations
        if parts.total() + others <= machine.free * (1 - SPARE):
            break
    return way


def _without_plan(shape: ModelConfig, training: TrainingMethod, job: Job) -> Footprint:
    return footprint(
        shape,
        training,
        device="cpu",
        rows=job.rows,
        max_new_tokens=job.longest,
        one_base=job.one_base,
        vllm=job.vllm,
        prompt_tokens=job.prompt_tokens,
    )


def _base(settings: Settings, *, possible: bool) -> Literal["auto", "whole", "nf4"]:
    """Return the allowed forms of the base. Four bits are tried if it is `possible`: the library is
    installed, one process trains, and the built-in sampler samples.

    Raises:
        ConfigError: four bits are asked for, and no adapters.
    """
    training, base = settings.training, settings.training.base
    if base == "nf4":
        if "lora_rank" in training.model_fields_set and not training.lora_rank:
            raise ConfigError(
                'training.base = "nf4" is for adapters: set training.lora_rank, say to '
                f"{DEFAULT_RANK}"
            )
        return "nf4"
    return "auto" if possible and base != "whole" else "whole"


def _by_transformers(settings: Settings, shape: ModelConfig, where: Placement) -> Placement:
    """Return the device with the number type for a model that transformers computes, which trains
    in one process, on a whole base, and in a type with the range of float32.

    Raises:
        ConfigError: the settings ask for something else.
    """
    training, wrong = settings.training, ""
    if training.base == "nf4":
        wrong = 'training.base = "nf4": set it to "whole"'
    elif settings.run.ranks > 1:
        wrong = "several processes: unset run.trainer_processes and run.trainer_hosts"
    elif training.dtype == "float16":
        wrong = 'training.dtype = "float16": set it to "float32"'
    if wrong:
        raise ConfigError(
            f"{shape.model_type} has no native decoder, and transformers' does not take {wrong}, "
            "or take a model of a family with one, such as qwen2.5-0.5b"
        )
    return replace(where, products="float32") if where.products == "float16" else where


def _check_base(settings: Settings, machine: Machine) -> None:
    """Refuse a base of four bits that the user asks for and cannot have."""
    reason = ""
    if settings.training.base != "nf4":
        return
    if not machine.bitsandbytes:
        reason = f"needs bitsandbytes: run {extra_of('gpu')}"
    elif settings.run.ranks > 1:
        reason = "works in one process: unset run.trainer_processes and run.trainer_hosts"
    if reason:
        raise ConfigError(f'training.base = "nf4" {reason}, or set training.base to "whole"')
