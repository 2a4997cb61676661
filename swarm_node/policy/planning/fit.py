"""Fit of a model to a machine, and the plan of the machine's use: one answer for `swarm-node plan`,
`doctor`, `join` and the engine. Pure.

Cheap to import, as a command line must be.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple

from swarm_node.errors import ConfigError, ModelError, extra_of
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
from swarm_node.policy.placement import ON_CPU, WORTHWHILE, Placement, ProductTimes
from swarm_node.policy.planning.demand import Demand
from swarm_node.policy.sampling.vllm.engine import (
    MAX_TEMPERATURE,
    EngineChoice,
    VllmBuild,
    can_share,
    choose_engine,
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

    placement: Placement
    free: int
    gpu: GpuMemory | None
    vllm: VllmBuild | None
    ipc: bool = True
    bitsandbytes: bool = False
    repeats_heads: bool = False
    products: ProductTimes | None = None


@dataclass(frozen=True, slots=True)
class Fit:
    """The use of a machine. With `vllm`, vLLM samples; `reason` is the reason for the choice of
    engine, and `numbers` that for a number type that was left to a measurement, "" for others.
    `training` is the trainer's use of memory. `plan` divides the (first) GPU; None on a CPU. With
    `ipc`, vLLM gets all weights through GPU memory. With `shares_base`, the sampler shares the
    frozen base of adapters. `job` is the work that it was planned for."""

    placement: Placement
    vllm: bool
    training: TrainingMethod
    plan: Plan | None = None
    ipc: bool = False
    shares_base: bool = False
    reason: str = ""
    job: Job = field(default_factory=Job)
    numbers: str = ""

    @property
    def engine(self) -> EngineChoice:
        return EngineChoice(self.vllm, self.reason)

    def parts(self, shape: ModelConfig) -> Footprint:
        """Return the memory for a model of `shape`: the plan's, or that of the CPU."""
        if self.plan is not None:
            return self.plan.parts
        return _without_plan(shape, self.training, self.job)


def engine_of(demand: Demand, machine: Machine) -> EngineChoice:
    """Return the engine that samples on `machine`, and the reason. "auto" takes the built-in
    sampler if only that fits: it can share a base of four bits, too.

    Raises:
        ModelError: vLLM is demanded, and the machine has none that fits its device, or none that
            takes adapters in float32.
        ConfigError: settings do not fit together.
    """
    choice = choose_engine(demand.engine, machine.placement.device, machine.vllm)
    if not (choice.vllm and machine.gpu):
        return choice
    built_in = EngineChoice(False, "vLLM, with a base of its own, does not fit the GPU")
    with_vllm, without_vllm = (
        make_plan(demand.shape, job_of(demand, machine, engine), machine.gpu.free)
        for engine in (choice, built_in)
    )
    if with_vllm and with_vllm.training.lora_rank and not machine.placement.half:
        if demand.engine == "vllm":
            raise ModelError(_NO_HALF)
        return EngineChoice(False, _ADAPTERS_NEED_HALF)
    only_without = demand.engine == "auto" and without_vllm and not with_vllm
    return built_in if only_without else choice


def job_of(demand: Demand, machine: Machine, engine: EngineChoice) -> Job:
    """Return the work that a plan is made for. What the owner did not set stays open.

    Raises:
        ConfigError: settings do not fit together.
    """
    placement, on_gpu, turns = machine.placement, machine.gpu is not None, demand.lengths.turns
    is_single = demand.ranks == 1 and demand.shape.native
    one_base = is_single and demand.base != "own" and (not on_gpu or machine.ipc)
    one_base &= not engine.vllm or (
        demand.base != "nf4" and can_share(demand.shape, placement.device)
    )
    prompt = tokens_of_prompt(demand.lengths.prompt_bytes)
    return Job(
        rows=demand.rows(on_gpu=on_gpu, interleaved=engine.vllm and turns == 1),
        max_new_tokens=demand.max_new_tokens,
        lora_rank=demand.rank(on_gpu=on_gpu),
        dtype=placement.products,
        eight_bit=demand.eight_bit,
        # No GPU has shown yet that a wake-up finds its memory free (docs/gpus.md).
        can_sleep=False,
        one_base=one_base,
        vllm=engine.vllm,
        base=_base(demand, possible=machine.bitsandbytes and is_single and not engine.vllm),
        processes=demand.ranks,
        cards=demand.processes if engine.vllm and on_gpu else 1,
        turns=turns,
        repeats_heads=on_gpu and (machine.repeats_heads or not placement.half),
        # The cache of a GPU is made once, and has half as many rows for prompts that are longer.
        prompt_tokens=max(prompt, PROMPT_TOKENS) if on_gpu else prompt,
        groups=demand.batch_groups(on_gpu=on_gpu),
        group_size=demand.group_size,
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
    """The use that a node makes of a machine: `fit`, None if it cannot start. `plan` is that of the
    GPU, or, if nothing fits, the one that takes least; None on a CPU. `reason` says which memory is
    short, and `remedies` what would fit."""

    engine: EngineChoice
    job: Job
    plan: Plan | None
    fit: Fit | None = None
    reason: str = ""
    remedies: tuple[Remedy, ...] = ()

    @property
    def advice(self) -> str:
        """The remedies in words."""
        return f"take {', or '.join(map(str, self.remedies))}" if self.remedies else _NOTHING


_NOTHING = "take a machine with more memory"


def fit(demand: Demand, machine: Machine) -> Fit:
    """Plan how a node with these demands trains and samples on `machine`.

    Raises:
        ModelError: it cannot; the message says which memory is short and what would fit.
        ConfigError: `training.base` or `sampling.temperature` cannot be had here.
    """
    decision = decide(demand, machine)
    if decision.fit is None:
        raise ModelError(decision.reason, decision.advice)
    return decision.fit


def decide(demand: Demand, machine: Machine) -> Decision:
    """Return the answer of `plan`, `doctor` and `join`.

    Raises:
        ModelError: `sampling.engine` cannot be had here.
        ConfigError: `training.base` or `sampling.temperature` cannot be had here.
    """
    decision = _decide(demand, machine)
    if decision.fit is not None:
        return decision
    return replace(decision, remedies=tuple(_remedies(demand, machine)))


def _decide(demand: Demand, machine: Machine) -> Decision:
    """The answer without remedies."""
    shape = demand.shape
    placement, numbers = _choose_dtype(demand, machine.placement, machine.products)
    if not shape.native:
        placement = _by_transformers(demand, placement)
    machine = replace(machine, placement=placement)
    engine = engine_of(demand, machine)
    if engine.vllm and demand.temperature > MAX_TEMPERATURE:
        raise ConfigError(f"sampling.temperature: vLLM takes {MAX_TEMPERATURE:g} at most")
    job = job_of(demand, machine, engine)
    _check_base(demand, machine)
    plan, ipc = None, False
    if machine.gpu is None:
        training = _choose_unplanned_method(demand, job, machine)
    else:
        plan = make_plan(shape, job, machine.gpu.free)
        if plan is None:
            smallest_plan = least_plan(shape, job, machine.gpu.free)
            reason = _short(shape, smallest_plan.total, job.processes, machine.gpu.free)
            return Decision(engine, job, smallest_plan, reason=reason)
        training = plan.training
    if plan is not None and demand.ranks == 1:
        # The two newest versions, in the sampler's type (`weights/device.py`).
        copies = 2 * plan.parts.sampler_weights
        ipc = engine.vllm and machine.ipc and not training.lora_rank and plan.fits(copies)
    need = needed_memory(
        shape,
        training.lora_rank,
        placement=machine.placement,
        trainer_processes=demand.processes,
        one_base=job.one_base,
        nf4=training.nf4,
    )
    if need > machine.free:
        reason = (
            f"a model of {_millions(shape)} needs at least {need / 1e9:.1f} GB of memory here "
            f"and {machine.free / 1e9:.1f} GB are free"
        )
        return Decision(engine, job, plan, reason=reason)
    shares = job.one_base and training.lora_rank > 0
    result = Fit(placement, engine.vllm, training, plan, ipc, shares, engine.reason, job, numbers)
    return Decision(engine, job, plan, result)


def _short(shape: ModelConfig, need: int, processes: int, free: int) -> str:
    place = f" on the first of {processes} GPUs" * (processes > 1)
    return (
        f"a model of {_millions(shape)} needs at least {need / _GIB:.1f} GiB of GPU memory{place} "
        f"with these settings and {free / _GIB:.1f} are free"
    )


def _millions(shape: ModelConfig) -> str:
    return f"{shape.weight_count / 1e6:,.0f} million parameters"


def _choose_dtype(
    demand: Demand, placement: Placement, times: ProductTimes | None
) -> tuple[Placement, str]:
    """Return the device with the number type of the model, and the reason for the type if it was
    left to a measurement. `times` are those of the CPU, None if they were not measured."""
    if placement.device != "cpu" or not demand.times_decide:
        return placement, ""
    if times is None:
        return placement, "float32: products in bfloat16 were not timed on this CPU"
    if times.worthwhile:
        reason = f"bfloat16: on this CPU products take {times.share:.2f} of float32's time"
        return replace(placement, products="bfloat16"), reason
    return placement, (
        f"float32: on this CPU products in bfloat16 take {times.share:.2f} times as long, and "
        f"{WORTHWHILE:.2f} at most would be worth it"
    )


def _remedies(demand: Demand, machine: Machine) -> Iterator[Remedy]:
    """Changes after which a node starts, each tried. A smaller model is named where no other
    setting helps, and the CPU beside a GPU that is too small."""

    def fits(of: Demand = demand, on: Machine = machine) -> bool:
        try:
            return _decide(of, on).fit is not None
        except (ConfigError, ModelError):
            return False

    remedies = [*_lighter(demand, machine, fits)]
    if not remedies:
        models = smaller_models(demand.shape)
        names = (name for name, shape in models if fits(replace(demand, shape=shape)))
        remedies = [Remedy("a smaller model", {"model": name}) for name in names][:1]
    yield from remedies
    if machine.gpu is not None:
        placement = replace(ON_CPU, products="float32" if demand.dtype == "auto" else demand.dtype)
        if fits(on=replace(machine, placement=placement, gpu=None)):
            yield Remedy("the CPU", {"run.device": "cpu"})


def _lighter(demand: Demand, machine: Machine, fits: Callable[..., bool]) -> Iterator[Remedy]:
    """Changes that keep the model and the device."""
    is_rank_set = "lora_rank" in demand.chosen_names and demand.lora_rank != DEFAULT_RANK
    if is_rank_set and fits(replace(demand, lora_rank=DEFAULT_RANK)):
        yield Remedy("LoRA", {"training.lora_rank": DEFAULT_RANK})
    if demand.base == "whole" and fits(replace(demand, base="nf4")):
        yield Remedy("a 4-bit base", {"training.base": "nf4"})
    elif not machine.bitsandbytes and fits(on=replace(machine, bitsandbytes=True)):
        yield Remedy(f"a 4-bit base, which needs bitsandbytes: {extra_of('gpu')}")
    if demand.engine == "vllm" and fits(replace(demand, engine="torch")):
        yield Remedy("the built-in sampler", {"sampling.engine": "torch"})
    tokens = demand.max_new_tokens // 2
    while tokens >= _LEAST_TOKENS:
        if fits(replace(demand, max_new_tokens=tokens)):
            yield Remedy("shorter completions", {"sampling.max_new_tokens": tokens})
            return
        tokens //= 2


def _choose_unplanned_method(demand: Demand, job: Job, machine: Machine) -> TrainingMethod:
    """Choose a CPU trainer's method: the first with which this machine's processes fit its memory,
    else the one that takes least. All weights come before adapters, as in a plan."""
    for way in unplanned_ways(job, is_small=not demand.is_pretrained):
        parts = _without_plan(demand.shape, way, job)
        other_bytes = demand.processes - 1
        other_bytes *= parts.trainer_weights + parts.optimizer + parts.activations
        if parts.total() + other_bytes <= machine.free * (1 - SPARE):
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


def _base(demand: Demand, *, possible: bool) -> Literal["auto", "whole", "nf4"]:
    """Return the allowed forms of the base. Four bits are tried if it is `possible`: the library is
    installed, one process trains, and the built-in sampler samples.

    Raises:
        ConfigError: four bits are asked for, and no adapters.
    """
    if demand.base == "nf4":
        if "lora_rank" in demand.chosen_names and not demand.lora_rank:
            raise ConfigError(
                'training.base = "nf4" is for adapters: set training.lora_rank, say to '
                f"{DEFAULT_RANK}"
            )
        return "nf4"
    return "auto" if possible and demand.base != "whole" else "whole"


def _by_transformers(demand: Demand, placement: Placement) -> Placement:
    """Return the device with the number type for a model that transformers computes, which trains
    in one process, on a whole base, and in a type with the range of float32.

    Raises:
        ConfigError: the settings ask for something else.
    """
    conflict = ""
    if demand.base == "nf4":
        conflict = 'training.base = "nf4": set it to "whole"'
    elif demand.ranks > 1:
        conflict = "several processes: unset run.trainer_processes and run.trainer_hosts"
    elif demand.dtype == "float16":
        conflict = 'training.dtype = "float16": set it to "float32"'
    if conflict:
        raise ConfigError(
            f"{demand.shape.model_type} has no native decoder, and transformers' does not take "
            f"{conflict}, or take a model of a family with one, such as qwen2.5-0.5b"
        )
    return replace(placement, products="float32") if placement.products == "float16" else placement


def _check_base(demand: Demand, machine: Machine) -> None:
    """Refuse a base of four bits that the user asks for and cannot have."""
    reason = ""
    if demand.base != "nf4":
        return
    if not machine.bitsandbytes:
        reason = f"needs bitsandbytes: run {extra_of('gpu')}"
    elif demand.ranks > 1:
        reason = "works in one process: unset run.trainer_processes and run.trainer_hosts"
    if reason:
        raise ConfigError(f'training.base = "nf4" {reason}, or set training.base to "whole"')
