"""Checks the facts that a start depends on: `swarm-node doctor` shows all findings, `join` the
faults. Pure, but for `this_machine` and `measure_product_times`.

An error makes a start impossible. A warning says that the node will not work as its owner expects.
"""

from __future__ import annotations

import errno
import math
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from typing import Literal, NamedTuple

from swarm_node.config import Settings
from swarm_node.environments.extras import EXTRAS
from swarm_node.errors import ConfigError, HomeError, MachineError, ModelError
from swarm_node.node.preflight.defaults import demand_of
from swarm_node.node.preflight.facts import Card, Facts, find_gpu
from swarm_node.node.preflight.machine import computed_on
from swarm_node.node.preflight.probe import Seen, time_products
from swarm_node.p2p.transports.libp2p import INSTALL
from swarm_node.policy.memory.free import available_memory
from swarm_node.policy.memory.plan import Plan, make_plan
from swarm_node.policy.models.config import ModelConfig
from swarm_node.policy.placement import has_bitsandbytes, repeats_heads, torch_version
from swarm_node.policy.planning.demand import ONE_ANSWER, Lengths
from swarm_node.policy.planning.disk_space import check_disk, shared_bytes
from swarm_node.policy.planning.fit import Fit, GpuMemory, Machine, engine_of, fit
from swarm_node.policy.sampling.vllm.engine import (
    INSTALL_CUDA,
    VLLM_VERSION,
    EngineChoice,
    VllmBuild,
    choose_engine,
    installed_vllm,
)
from swarm_node.storage import MAX_DATABASE_BYTES

Level = Literal["ok", "warning", "error"]
_GIB = 1 << 30
_DAY = 86_400
_WARN_DAYS = 14
#: All subjects in the order in which they are shown.
_SUBJECTS = (
    *("python", "home", "gpu", "device", "dtype", "sampler", "compiler", "memory", "model"),
    *("shm", "disk", "environment", "clock", "backend", "port", "ticket", "membership"),
)
_OF_MODEL = frozenset({"dtype", "sampler", "compiler", "model", "shm", "disk"})
_ON_CPU = "the CPU with `--set run.device=cpu`"
#: The first NVIDIA driver for each major version of CUDA.
_DRIVERS = {12: 525, 13: 580}


class Finding(NamedTuple):
    """One check's result: the text `found`, and the `remedy` if something is wrong."""

    subject: str
    level: Level
    found: str
    remedy: str = ""


class Examined(NamedTuple):
    """Findings on a machine before the model is known, and the machine, None if nothing can be
    computed on it."""

    findings: list[Finding]
    machine: Machine | None


def examine_machine(facts: Facts, settings: Settings) -> Examined:
    """Check all facts of a start with `settings` that no model decides."""
    findings, machine = [_python(facts), *_home(facts), _gpu(facts, settings.run.device)], None
    try:
        machine = machine_of(facts, settings)
    except ConfigError as error:
        if findings[-1].level != "error":
            text, remedy = error.split_remedies()
            findings.append(Finding("device", "error", text, remedy))
    else:
        engine = settings.sampling.engine
        device, choose = machine.placement.device, partial(choose_engine, engine)
        sampler = [*_sampler(facts, engine, device, partial(choose, device, machine.vllm))]
        findings += [*sampler, _memory(facts, machine)]
        if sampler[0].level != "error":
            text = f"{settings.model}: its size is known after the download of its config.json"
            findings.append(Finding("model", "ok", text))
    findings += [*_environment(facts, settings.environment.name), _clock(facts)]
    findings += [*_stack(facts, settings.network.backend), _port(facts, settings.network.listen)]
    return Examined([*findings, *_ticket(facts), *_membership(facts)], machine)


def examine_fit(
    examination: Examined, facts: Facts, settings: Settings, shape: ModelConfig, model_fit: Fit
) -> list[Finding]:
    """Return the findings of `examination`, made before the model was known, completed by those on
    a model of this `shape`, which runs as `model_fit` says."""
    gpu = None if examination.machine is None else examination.machine.gpu
    sampler = _sampler(
        facts, settings.sampling.engine, model_fit.placement.device, lambda: model_fit.engine
    )
    numbers = [Finding("dtype", "ok", model_fit.numbers)] if model_fit.numbers else []
    model = _model(facts, settings.model, shape, model_fit, gpu)
    return _with_model(examination.findings, [*numbers, *sampler, *model])


def examine(
    facts: Facts,
    settings: Settings,
    shape: ModelConfig | None,
    lengths: Lengths = ONE_ANSWER,
) -> list[Finding]:
    """Check all facts of a start with `settings` on tasks of these `lengths`, and a model of this
    shape, None if unknown."""
    examination = examine_machine(facts, settings)
    findings, machine = examination
    if shape is None or machine is None or not _has_engine(findings):
        return findings
    demand = demand_of(settings, shape, lengths)
    choose = partial(engine_of, demand, machine)
    sampler: list[Finding] = []
    try:
        sampler += _sampler(facts, settings.sampling.engine, machine.placement.device, choose)
        if facts.is_running or not _has_engine(sampler):  # a plan depends on the engine
            return _with_model(findings, sampler)
        model_fit = fit(demand, machine)
    except (ConfigError, ModelError) as error:
        text, remedy = error.split_remedies()
        if isinstance(error, ConfigError):  # settings that cannot be had here, whatever is free
            return _with_model(findings, [*sampler, Finding("model", "error", text, remedy)])
        ends = f"; or end what holds the GPU: {_memory_holders(facts)}" if facts.holders else ""
        return _with_model(findings, [*sampler, Finding("model", "error", text, remedy + ends)])
    return examine_fit(examination, facts, settings, shape, model_fit)


def _has_engine(findings: list[Finding]) -> bool:
    return all(item.level != "error" for item in findings if item.subject == "sampler")


def _with_model(findings: list[Finding], of_model: list[Finding]) -> list[Finding]:
    """Put the findings `of_model` in place of those that were made without it."""
    other_findings = [finding for finding in findings if finding.subject not in _OF_MODEL]
    return sorted(
        [*other_findings, *of_model], key=lambda finding: _SUBJECTS.index(finding.subject)
    )


def refuse(findings: list[Finding]) -> None:
    """Raise if a start is impossible.

    Raises:
        MachineError: with every error and its remedy.
    """
    errors = [item for item in findings if item.level == "error"]
    if errors:
        remedies = [item.remedy for item in errors if item.remedy]
        cause = "; ".join(item.found for item in errors)
        raise MachineError(cause, *remedies, "`swarm-node doctor` lists all checks")


def machine_of(facts: Facts, settings: Settings) -> Machine:
    """Return the machine of these facts.

    Raises:
        ConfigError: see `computed_on`.
    """
    torch = "" if facts.torch is None else facts.torch.version
    machine = _machine(
        settings, facts.card, facts.probe, facts.memory, facts.vllm, facts.bitsandbytes, torch
    )
    return replace(machine, products=facts.products)


def measure_product_times(facts: Facts, settings: Settings, shape: ModelConfig) -> Facts:
    """Return `facts` of this machine with the times of its CPU's products, if the number type of a
    model of this shape depends on them."""
    on_cpu = settings.run.device == "cpu" or not facts.probe.hardware.gpus
    if facts.torch is None or not (on_cpu and demand_of(settings, shape).times_decide):
        return facts
    return replace(facts, products=time_products(shape))


def this_machine(settings: Settings) -> Machine:
    """Return this machine, as `settings` want to use it.

    Raises:
        ConfigError: see `computed_on`.
    """
    card, _, probe_result = find_gpu(settings.run.device, settings.run.trainer_processes)
    memory, vllm, four_bit = available_memory(), installed_vllm(), has_bitsandbytes()
    return _machine(settings, card, probe_result, memory, vllm, four_bit, torch_version())


def _machine(
    settings: Settings,
    card: Card | None,
    probe: Seen,
    memory: int,
    vllm: VllmBuild | None,
    bitsandbytes: bool,
    torch: str,
) -> Machine:
    free = (card and card.memory) or probe.memory
    placement, gpu = computed_on(settings, probe.hardware, lambda *_: free)
    repeats = repeats_heads(torch, probe.capability)
    return Machine(placement, memory, gpu, vllm, not probe.unshared, bitsandbytes, repeats)


def _python(facts: Facts) -> Finding:
    text = f"{facts.python[0]}.{facts.python[1]} on {facts.system}"
    if facts.python < (3, 11):
        return Finding("python", "error", text, "install Python 3.11 or newer")
    return Finding("python", "ok", text)


def _home(facts: Facts) -> Iterator[Finding]:
    if facts.is_running:
        text = f"a node runs in {facts.home}: it holds memory that is not free below"
        yield Finding("home", "warning", text, "stop it first to see the memory of a start")
    for fault in facts.faults:
        yield Finding("home", fault.level, fault.problem, fault.remedy)
    if not facts.is_running and not facts.faults:
        yield Finding("home", "ok", str(facts.home))


def _gpu(facts: Facts, device: str) -> Finding:
    card = facts.card
    if device == "cpu":
        return Finding("gpu", "ok", 'not used: run.device is "cpu"')
    if facts.probe.hardware.gpus:
        text = f"{facts.probe.hardware.gpus} seen by torch, and no nvidia-smi"
        text = text if card is None else f"{card}"
        if facts.probe.unshared:
            text += f"; processes do not share its memory ({facts.probe.unshared})"
        return Finding("gpu", "ok", text)
    if card is None and not facts.smi_fault:
        text = "none" + ", Apple's GPU is not used" * (facts.system == "Darwin")
        if device == "auto":
            return Finding("gpu", "ok", f"{text}: the node computes on the CPU")
        return Finding("gpu", "error", f"{text}, and run.device is {device}", f"take {_ON_CPU}")
    reason, remedy = _unseen(facts)
    level: Level = "warning" if device == "auto" else "error"
    text = reason + ", so the node computes on the CPU" * (level == "warning")
    return Finding("gpu", level, text, f"{remedy}, or take {_ON_CPU}")


def _unseen(facts: Facts) -> tuple[str, str]:
    """Explain why torch sees none of the machine's GPUs, with a remedy."""
    card, torch = facts.card, facts.torch
    if facts.probe.capability is not None:
        gpu = "the GPU" if card is None else str(card)
        return f"torch does not compute on {gpu}: {facts.probe.fault}", "use a newer GPU"
    if card is None:
        reason = f"NVIDIA's driver does not answer ({facts.smi_fault})"
        return reason, "install the driver, restart the machine, or give a container its GPU"
    if torch is None or torch.cuda is None:
        build = "no torch" if torch is None else f"torch {torch.version}, built for the CPU,"
        version_pin = "" if torch is None else f"=={torch.version.partition('+')[0]}"
        remedy = f"run `pip uninstall --yes torch`, then `pip install torch{version_pin}`"
        return f"{card}, and {build} is installed", remedy
    major = int(torch.cuda.partition(".")[0])
    if card.cuda is not None and card.cuda[0] < major:
        build = f"torch {torch.version}, built for CUDA {torch.cuda}"
        reason = f"{card}, too old a driver for {build}"
        driver = f" to {_DRIVERS[major]} or newer" if major in _DRIVERS else ""
        return reason, f"update NVIDIA's driver{driver}"
    remedy = "check CUDA_VISIBLE_DEVICES, restart the machine if the driver was updated"
    return f"{card}, which torch cannot use ({facts.probe.fault or 'no reason given'})", remedy


def _sampler(
    facts: Facts, engine: str, device: str, choose: Callable[[], EngineChoice]
) -> Iterator[Finding]:
    """Check the engine that `choose` returns, or its refusal. `engine` is the setting."""
    on_gpu, build = device != "cpu", facts.vllm
    try:
        choice = choose()
    except ModelError as error:
        text, remedy = error.split_remedies()
        yield Finding("sampler", "error", text, remedy)
        return
    if not choice.vllm:
        unfit = on_gpu and build is not None and build.on_cpu
        passed_over = unfit and engine == "auto"
        text = f"the built-in sampler: {choice.reason}"
        level: Level = "warning" if passed_over else "ok"
        yield Finding("sampler", level, text, f"run {INSTALL_CUDA}" if passed_over else "")
        return
    assert build is not None
    text = f"{build}: {choice.reason}"
    torch = facts.torch.version if facts.torch is not None else "none"
    if build.torch is not None and not _same(torch, build.torch):
        text = f"{build} was built with torch {build.torch}, and torch {torch} is installed"
        remedy = f'run `pip install "torch=={build.torch}"`, or take `--sampler torch`'
        yield Finding("sampler", "error", text, remedy)
    elif not _same(build.version, VLLM_VERSION):
        remedy = f"run `pip install vllm=={VLLM_VERSION}`, the version that is tested"
        yield Finding("sampler", "warning", text, remedy)
    else:
        yield Finding("sampler", "ok", text)
    if on_gpu:
        yield _compiler(facts)


def _compiler(facts: Facts) -> Finding:
    missing_parts = ["a C compiler"] * (facts.compiler is None) + ["Python.h"] * (not facts.headers)
    if not missing_parts:
        return Finding("compiler", "ok", f"{facts.compiler}, and Python.h")
    text = f"{' and '.join(missing_parts)} not found: vLLM compiles when it starts on a GPU"
    remedy = "run `apt-get install gcc libc6-dev python3-dev`, or take `--sampler torch`"
    return Finding("compiler", "error", text, remedy)


def _memory(facts: Facts, machine: Machine) -> Finding:
    text = f"{amount(facts.memory)} of RAM free"
    if machine.gpu is not None:
        text += f"; GPU: {gib(machine.gpu.free)} of {gib(machine.gpu.total)} GiB free"
        text += f", used by {_memory_holders(facts)}" if facts.holders else ""
    return Finding("memory", "ok", text)


def _model(
    facts: Facts, name: str, shape: ModelConfig, model_fit: Fit, gpu: GpuMemory | None
) -> Iterator[Finding]:
    """Check a model that fits main memory and GPU: its place in shared memory and on the disk."""
    plan = model_fit.plan
    if plan is None or gpu is None:
        yield Finding("model", "ok", f"{name} fits")
    else:
        text = f"{name} fits: {plan.describe()}"
        full_plan = make_plan(shape, model_fit.job, gpu.total)
        if full_plan is None or not _is_noticeable(full_plan, plan):
            yield Finding("model", "ok", text)
        else:
            remedy = f"free the whole GPU for {full_plan.describe()}"
            yield Finding("model", "warning", text, remedy)
    yield _check_shared_memory(facts, shared_bytes(shape, model_fit))
    yield _disk(facts, shape, model_fit)


def _is_noticeable(better: Plan, plan: Plan) -> bool:
    """Check that a user would notice the better plan. Larger micro-batches, or a few more answers
    at once, are no reason to clear a GPU."""
    method = better.training.lora_rank > 0, better.sharing
    is_different = method != (plan.training.lora_rank > 0, plan.sharing)
    return is_different or better.rows >= 2 * plan.rows


def _check_shared_memory(facts: Facts, need: int) -> Finding:
    purpose = f"{amount(need)} for the weights on their way to the sampler"
    if facts.shared_memory is not None and facts.shared_memory >= need:
        return Finding("shm", "ok", f"{amount(facts.shared_memory)} of /dev/shm free, {purpose}")
    shortage = (
        "no /dev/shm"
        if facts.shared_memory is None
        else f"{amount(facts.shared_memory)} of /dev/shm free"
    )
    remedy = f"give a container more: `--shm-size {math.ceil(need / 2**30)}g`"
    if facts.temp_space >= need:
        level: Level = "ok" if facts.shared_memory is None else "warning"
        text = f"{shortage}: {purpose} go through the disk (TMPDIR)"
        return Finding("shm", level, text, "" if level == "ok" else remedy)
    text = (
        f"{shortage} and {amount(facts.temp_space)} for temporary files, and {purpose} are needed"
    )
    return Finding("shm", "error", text, f"{remedy}, or name a larger disk in TMPDIR")


def _disk(facts: Facts, shape: ModelConfig, model_fit: Fit) -> Finding:
    try:
        warning = check_disk(facts.home, shape, model_fit, facts.disk)
    except HomeError as error:
        text, remedy = error.split_remedies()
        return Finding("disk", "error", text, remedy)
    if warning is not None:
        return Finding("disk", "warning", warning, "free some, or name another disk with --home")
    growth = max(0, MAX_DATABASE_BYTES - facts.database)
    room = f"{amount(facts.disk)} for checkpoints and node.db in {facts.home}"
    try:
        warning = check_disk(facts.home, shape, model_fit, facts.disk - growth)
    except HomeError:
        warning = "no room for two checkpoints"
    if warning is not None:
        text = f"{room}; once node.db has grown by {amount(growth)}: {warning}"
        return Finding("disk", "warning", text, "free some, or name another disk with --home")
    return Finding("disk", "ok", f"{room}, which grows by {amount(growth)} at most")


def _clock(facts: Facts) -> Finding:
    text = f"{_date(facts.now)} by this machine's clock"
    if facts.now < facts.installed_at - _DAY:
        text += f", and this program was installed on {_date(facts.installed_at)}"
        return Finding("clock", "error", text, "set the clock: memberships depend on it")
    if facts.synchronized is False:
        remedy = "run `timedatectl set-ntp true`: memberships depend on the clock"
        return Finding("clock", "warning", text + ", which nothing synchronizes", remedy)
    return Finding("clock", "ok", text)


def _environment(facts: Facts, name: str) -> Iterator[Finding]:
    """Check the package of an environment that is an extra; others give no finding."""
    if name not in EXTRAS:
        return
    extra = EXTRAS[name]
    if name in facts.extras:
        yield Finding("environment", "ok", f"{extra.package} is installed")
    else:
        text = f"environment.name is {name}, and {extra.package} is not installed"
        yield Finding("environment", "error", text, extra.remedy)


def _stack(facts: Facts, stack: str) -> Iterator[Finding]:
    """Check the network stack that is not always installed; the other one gives no finding."""
    if stack != "libp2p":
        return
    if facts.libp2p:
        yield Finding("backend", "ok", "py-libp2p is installed")
    else:
        remedy = f"run {INSTALL}, or take `--set network.backend=hivemind`"
        yield Finding("backend", "error", "py-libp2p is not installed", remedy)


def _port(facts: Facts, listen: Sequence[str]) -> Finding:
    if facts.is_running:
        return Finding("port", "ok", "the running node has it")
    if not facts.busy_addresses:
        return Finding("port", "ok", f"free: {', '.join(listen)}")
    text = ", ".join(f"{address}: {reason}" for address, reason in facts.busy_addresses)
    remedy = "end what listens there, or take another port with `--listen /ip4/0.0.0.0/tcp/PORT`"
    if any(
        reason == os.strerror(errno.EADDRNOTAVAIL).lower() for _, reason in facts.busy_addresses
    ):
        remedy = "it is no address of this machine: listen on 0.0.0.0, and `--advertise` it"
    return Finding("port", "error", text, remedy)


def _ticket(facts: Facts) -> Iterator[Finding]:
    paper = facts.ticket
    if paper is None:
        return
    if paper.valid_until is not None:
        yield Finding("ticket", "ok", f"admits until {_date(paper.valid_until)}")
        return
    text, _, remedy = paper.fault.partition(": ")
    if paper.is_needed:
        yield Finding("ticket", "error", text, remedy)
    else:
        yield Finding("ticket", "ok", f"{text}, and this data directory is a member without it")


def _membership(facts: Facts) -> Iterator[Finding]:
    paper = facts.membership
    has_renewal = facts.ticket is not None and facts.ticket.valid_until is not None
    if paper is None or has_renewal:
        return
    if paper.valid_until is None:
        text, _, remedy = paper.fault.partition(": ")
        yield Finding("membership", "error", text, remedy)
        return
    days, end = (paper.valid_until - facts.now) / _DAY, _date(paper.valid_until)
    remedy = "ask for a new ticket and join with --ticket-file"
    if days < 0:
        yield Finding("membership", "error", f"this node's membership ended on {end}", remedy)
    elif days < _WARN_DAYS:
        yield Finding("membership", "warning", f"ends on {end}, in {days:.0f} days", remedy)
    else:
        yield Finding("membership", "ok", f"until {end}, {days:.0f} days")


def _memory_holders(facts: Facts) -> str:
    """List the processes that hold the GPU's memory."""
    return ", ".join(
        f"{holder.name} (process {holder.pid}"
        + (f", {gib(holder.memory)} GiB)" if holder.memory is not None else ")")
        for holder in facts.holders
    )


def _same(version: str, other_version: str) -> bool:
    """Compare two versions. A build ("+cpu") counts only if both name one."""
    pair = version.partition("+"), other_version.partition("+")
    return pair[0][0] == pair[1][0] and (not (pair[0][2] and pair[1][2]) or pair[0] == pair[1])


def _date(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d")


def gib(size: int) -> str:
    """Format a size in GiB, the unit of GPU memory."""
    return f"{size / _GIB:,.1f}"


def amount(size: int) -> str:
    """Format a size of main memory or disk, as `swarm-node` writes it."""
    return f"{size / 1e9:,.1f} GB" if size >= 1e8 else f"{size / 1e6:,.1f} MB"
