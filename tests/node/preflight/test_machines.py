"""A table of machines: `plan`, `doctor` and `join` decide alike on each, and every remedy that one
of them prints is applied here and then fits."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import msgspec
import pytest
from fits import decide
from machines import LAPTOP
from typer.testing import CliRunner

from swarm_node.cli.main import app
from swarm_node.cli.verbs.plan import shape_of
from swarm_node.config import load_settings
from swarm_node.errors import ConfigError, ModelError
from swarm_node.node.preflight.defaults import for_model
from swarm_node.node.preflight.doctor import Finding, examine, machine_of
from swarm_node.node.preflight.facts import Card, Facts, Torch
from swarm_node.node.preflight.facts_file import FactsFile, read_facts, to_stored
from swarm_node.node.preflight.probe import Answer, Seen, classify
from swarm_node.node.start.derive import trainer_settings
from swarm_node.policy.placement import Precision, ProductTimes
from swarm_node.policy.planning.fit import Decision, GpuMemory
from swarm_node.policy.sampling.vllm.engine import VllmBuild

GB, GIB = 10**9, 1 << 30
#: A card's name, its compute capability, and the number types in which it multiplies right.
GENERATIONS: dict[str, tuple[tuple[int, int], list[Precision]]] = {
    "GTX 1080": ((6, 1), []),
    "V100": ((7, 0), []),
    "T4": ((7, 5), ["float32", "float16"]),
    "RTX 3090": ((8, 6), ["float32", "bfloat16", "float16"]),
    "RTX 4090": ((8, 9), ["float32", "bfloat16", "float16"]),
    "RTX 5090": ((12, 0), ["float32", "bfloat16", "float16"]),
}
MEMORIES, MAIN_MEMORIES = (6, 8, 12, 16, 24), (8, 16, 32, 64)
MODELS = ("qwen2.5-0.5b", "qwen2.5-1.5b", "qwen3-4b", "qwen3-8b")
WHOLE_TABLE = pytest.mark.nightly(reason="all machines of the table, and other models")
FOR_GPU = VllmBuild("vllm", "0.32.0", on_cpu=False, torch="2.13.0")


def machine(
    name: str,
    gib: float,
    *,
    shares: bool = True,
    bitsandbytes: bool = True,
    main: int = 32,
    vllm: VllmBuild | None = None,
) -> Facts:
    """A machine whose card is all free, as `gather` describes it."""
    capability, products = GENERATIONS[name]
    memory = int(gib * GIB)
    answer = Answer(1, capability, products, [(memory, memory)], "" if shares else "no CUDA IPC")
    return replace(
        LAPTOP,
        card=Card(name, "580.65", (13, 0), GpuMemory(memory, memory)),
        torch=Torch("2.13.0", "13.0"),
        probe=classify(answer),
        vllm=vllm,
        bitsandbytes=bitsandbytes,
        compiler="gcc",
        headers=True,
        memory=main * GB,
        shared_memory=main * GB // 4,
        temp_space=500 * GB,
        disk=500 * GB,
    )


def table() -> Iterator[Facts]:
    for name, gib, shares, four_bit in product(GENERATIONS, MEMORIES, (True, False), (True, False)):
        for main in MAIN_MEMORIES:
            yield machine(name, gib, shares=shares, bitsandbytes=four_bit, main=main)


@cache
def known(model: str) -> Any:
    return shape_of(model)


def decided(facts: Facts, model: str, **flags: Any) -> Decision:
    """What `join` decides; what `resolve_start` does besides depends on a home."""
    settings = for_model(load_settings({**flags, "model": model}, environ={}), known(model))
    return decide(settings, known(model), machine_of(facts, settings))


def findings(facts: Facts, model: str, **flags: Any) -> dict[str, Finding]:
    settings = for_model(load_settings({**flags, "model": model}, environ={}), known(model))
    return {each.subject: each for each in examine(facts, settings, known(model))}


def printed(advice: str) -> Iterator[tuple[dict[str, Any], bool]]:
    """The settings that each part of an advice names, and True where it names bitsandbytes."""
    assert advice.startswith("take ")
    for part in advice.removeprefix("take ").split(", or "):
        found = re.search(r"\(([a-z_.]+) = ([^()]+)\)", part)
        if found is not None:
            yield {found[1]: found[2]}, False
        elif "bitsandbytes" in part:
            yield {}, True
        else:
            assert part == "a machine with more memory"


def applied(facts: Facts, model: str, changed: dict[str, Any], more: bool, **flags: Any) -> bool:
    facts = replace(facts, bitsandbytes=facts.bitsandbytes or more)
    chosen = {**flags, "model": model, **changed}
    named = chosen.pop("model")
    return decided(facts, named, **chosen).fit is not None


FLAGS: list[dict[str, Any]] = [{}, {"training.lora_rank": 0}, {"training.base": "whole"}]


@pytest.mark.parametrize(
    ("model", "every"),
    [("qwen2.5-1.5b", 5), *(pytest.param(model, 1, marks=WHOLE_TABLE) for model in MODELS)],
)
def test_doctor_and_join_decide_alike_and_every_printed_remedy_fits(model: str, every: int) -> None:
    refused = 0
    for facts, flags in product([*table()][::every], FLAGS):
        decision, told = decided(facts, model, **flags), findings(facts, model, **flags)["model"]
        if decision.fit is not None:
            assert told.level != "error"
            if decision.plan is not None:
                assert decision.plan.describe() in told.found
            continue
        refused += 1
        assert (told.level, told.found) == ("error", decision.reason)
        assert told.remedy == decision.advice
        for changed, more in printed(told.remedy):
            assert applied(facts, model, changed, more, **flags), (facts, flags, changed)
    assert refused


@pytest.mark.slow(reason="plans many machines and models")
@pytest.mark.parametrize("name", ["GTX 1080", "T4", "RTX 4090"])
@pytest.mark.parametrize("shares", [True, False])
@pytest.mark.parametrize("model", ["qwen2.5-1.5b", "qwen3-8b"])
def test_plan_says_what_join_does_of_a_machine_in_a_file(
    tmp_path: Path, name: str, shares: bool, model: str
) -> None:
    file, run = tmp_path / "facts.json", CliRunner()
    for gib, main in ((8, 8), (16, 32)):
        facts = machine(name, gib, shares=shares, main=main)
        file.write_bytes(msgspec.json.encode(FactsFile(1, to_stored(facts))))
        options = ["--model", model, "--facts", str(file), "--json"]
        done = run.invoke(app, ["plan", *options])
        (shown,) = json.loads(done.stdout)["cards"]
        decision = decided(facts, model)
        assert (done.exit_code == 0) is shown["fits"] is (decision.fit is not None)
        assert shown["instead"] == [*map(str, decision.remedies)]
        if decision.fit is not None:
            assert shown["training"]["lora_rank"] == decision.fit.training.lora_rank
            assert shown["training"]["nf4"] == decision.fit.training.nf4
            assert shown["training"]["dtype"] == decision.fit.training.dtype
            assert shown["shares_base"] == decision.fit.shares_base
            assert decision.plan is None or shown["total_bytes"] == decision.plan.total
        judged_there = run.invoke(app, ["doctor", *options])
        checks = {row["subject"]: row for row in json.loads(judged_there.stdout)["checks"]}
        assert (checks["model"]["level"] != "error") is shown["fits"]
        assert not {"port", "clock", "home", "ticket"} & checks.keys()


@pytest.mark.parametrize(
    ("name", "torch", "dtype", "repeats"),
    [
        ("RTX 4090", "2.13.0+cu130", "auto", False),
        ("RTX 4090", "2.13.0+cu130", "float32", True),
        ("RTX 4090", "2.11.0+cu130", "auto", True),
        ("T4", "2.13.0+cu130", "auto", True),  # flash attention begins with Ampere
    ],
)
def test_the_heads_that_attention_repeats_are_counted(
    name: str, torch: str, dtype: str, repeats: bool
) -> None:
    facts = replace(machine(name, 24), torch=Torch(torch, "13.0"))
    flags = {"training.lora_rank": 32, "training.dtype": dtype}
    decision = decided(facts, "qwen2.5-1.5b", **flags)
    assert decision.plan is not None
    assert decision.job.repeats_heads is decision.fit.training.repeats_heads is repeats
    on_cpu = decided(facts, "qwen2.5-1.5b", **flags, **{"run.device": "cpu"})
    assert not on_cpu.job.repeats_heads


@pytest.mark.parametrize("name", ["GTX 1080", "V100"])
def test_a_card_before_turing_is_named_at_once_and_the_cpu_is_taken(name: str) -> None:
    facts = machine(name, 16, main=64)
    said = findings(facts, "qwen2.5-0.5b")["gpu"]
    assert said.level == "warning"
    assert "compute capability" in said.found
    assert "7.5" in said.found
    decision = decided(facts, "qwen2.5-0.5b")
    assert decision.fit.placement.device == "cpu"
    assert trainer_settings(load_settings({}, environ={}), decision.fit).device == "cpu"
    with pytest.raises(ConfigError, match=r"run\.device"):
        decided(facts, "qwen2.5-0.5b", **{"run.device": "cuda"})
    forced = findings(facts, "qwen2.5-0.5b", **{"run.device": "cuda"})
    assert forced["gpu"].level == "error"


def test_a_card_whose_kernels_do_not_run_is_not_taken() -> None:
    listed = classify(Answer(1, (8, 6), [], [], "nothing was computed", "no kernel image"))
    assert listed.hardware.gpus == 0
    assert "kernel image" in listed.fault
    assert classify(Answer(0, fault="too old")) == Seen(listed.hardware, "too old")


def test_a_card_of_8_gb_without_sharing_trains_1_5_billion_in_four_bits() -> None:
    facts = machine("RTX 4090", 8, shares=False, main=8)
    found = decided(facts, "qwen2.5-1.5b", **{"sampling.max_new_tokens": 512}).fit
    assert found.training.nf4
    assert not found.shares_base
    assert found.plan.total <= 7.3 * GIB
    assert trainer_settings(load_settings({}, environ={}), found).published == "adapter"


@pytest.mark.parametrize(("name", "gib"), [("T4", 14.5), ("T4", 7.6)])
def test_turing_cards_are_planned_in_float16(name: str, gib: float) -> None:
    found = decided(machine(name, gib), "qwen2.5-1.5b").fit
    assert found.placement.products == found.training.dtype == "float16"
    made = trainer_settings(load_settings({}, environ={}), found)
    assert (made.device, made.dtype) == ("cuda:0", "float16")
    assert "in float16" in found.plan.describe()
    same = decided(machine("RTX 4090", gib), "qwen2.5-1.5b").fit
    # What is recomputed begins with numbers of four bytes.
    assert found.plan.rows <= same.plan.rows


def test_a_base_that_may_not_be_shared_is_planned_twice() -> None:
    facts = machine("RTX 4090", 24)
    shared, own = (
        decided(facts, "qwen2.5-1.5b", **{"training.base": base, "training.lora_rank": 32})
        for base in ("auto", "own")
    )
    assert (shared.fit.shares_base, own.fit.shares_base) == (True, False)
    assert own.job.base == "auto"
    unshared = decided(
        machine("RTX 4090", 24, shares=False), "qwen2.5-1.5b", **{"training.lora_rank": 32}
    )
    assert own.plan == unshared.plan


@pytest.mark.parametrize("broken", [b"", b"{}", b"[" * 70_000, b'{"schema": 1, "facts": {}}'])
def test_a_file_that_has_no_facts_is_refused(tmp_path: Path, broken: bytes) -> None:
    file = tmp_path / "facts.json"
    file.write_bytes(broken)
    with pytest.raises(ConfigError, match="doctor --json"):
        read_facts(file, tmp_path)


def test_facts_out_of_bounds_or_of_another_version_are_refused(tmp_path: Path) -> None:
    good = msgspec.json.decode(msgspec.json.encode(FactsFile(1, to_stored(machine("T4", 16)))))
    file = tmp_path / "facts.json"
    for change in (
        {"schema": 2},
        {"facts": {**good["facts"], "memory": -1}},
        {"facts": {**good["facts"], "colour": "blue"}},
        {"facts": {**good["facts"], "system": "x" * 301}},
        {"facts": {**good["facts"], "torch": {"version": "2.13.0", "cuda": "new"}}},
        {"facts": {**good["facts"], "products": [1e-5, 0.0]}},
        {"facts": {**good["facts"], "products": [1e-5]}},
    ):
        file.write_bytes(msgspec.json.encode({**good, **change}))
        with pytest.raises(ConfigError, match="doctor --json"):
            read_facts(file, tmp_path)
    file.write_bytes(msgspec.json.encode(good).ljust((1 << 16) + 1))
    with pytest.raises(ConfigError, match="65,536"):
        read_facts(file, tmp_path)
    with pytest.raises(ConfigError, match="such file"):
        read_facts(tmp_path / "missing", tmp_path)


@pytest.mark.slow(reason="calls a command for each of many fields")
def test_words_of_a_file_move_no_cursor(tmp_path: Path) -> None:
    evil = "\x1b[2J\x07\x9b\u202e[red]x[/red]"
    facts = replace(
        machine("RTX 4090", 16),
        system=evil,
        card=Card(evil, evil, (13, 0), GpuMemory(GIB, GIB)),
        probe=classify(Answer(1, (8, 9), ["float32"], [(GIB, GIB)], evil)),
    )
    good = msgspec.json.encode(FactsFile(1, to_stored(facts)))
    run, file = CliRunner(), tmp_path / "facts.json"
    named = json.dumps(evil).encode()  # a field that is unknown
    for written in (good, good.replace(b'"bitsandbytes"', named)):
        file.write_bytes(written)
        for verb, more in product(("plan", "doctor"), ([], ["--json"])):
            done = run.invoke(app, [verb, "--model", "qwen2.5-0.5b", "--facts", str(file), *more])
            assert all(c.isprintable() or c == "\n" for c in done.output), done.output


def test_a_base_that_cannot_be_had_is_a_finding_of_doctor_and_refused_by_join() -> None:
    facts, flags = machine("RTX 4090", 16, bitsandbytes=False), {"training.base": "nf4"}
    with pytest.raises(ConfigError, match="needs bitsandbytes"):
        decided(facts, "qwen2.5-1.5b", **flags)
    said = findings(facts, "qwen2.5-1.5b", **flags)["model"]
    assert (said.level, "bitsandbytes" in said.found) == ("error", True)
    assert said.remedy.endswith('to "whole"')
    assert applied(facts, "qwen2.5-1.5b", {"training.base": "whole"}, False)


def test_facts_that_were_written_are_read_as_they_were(tmp_path: Path) -> None:
    facts = machine("T4", 16, shares=False, vllm=FOR_GPU)
    file = tmp_path / "facts.json"
    file.write_bytes(
        msgspec.json.encode({"checks": [], **{"schema": 1, "facts": to_stored(facts)}})
    )
    again = read_facts(file, facts.home)
    for name in ("system", "card", "torch", "probe", "vllm", "bitsandbytes", "memory", "disk"):
        assert getattr(again, name) == getattr(facts, name)
    assert again.products is None
    measured = replace(facts, products=ProductTimes(2e-5, 1e-5))
    file.write_bytes(msgspec.json.encode({"schema": 1, "facts": to_stored(measured)}))
    assert read_facts(file, facts.home).products == measured.products


def test_a_vllm_that_is_asked_for_and_does_not_fit_names_the_built_in_sampler() -> None:
    facts = machine("RTX 4090", 8, vllm=FOR_GPU, shares=False)
    flags = {"sampling.engine": "vllm", "training.base": "auto"}
    decision = decided(facts, "qwen2.5-1.5b", **flags)
    assert decision.fit is None
    assert "engine = torch)" in decision.advice
    for changed, more in printed(decision.advice):
        assert applied(facts, "qwen2.5-1.5b", changed, more, **flags)
    with pytest.raises(ModelError, match="needs vllm"):
        decided(replace(facts, vllm=None), "qwen2.5-1.5b", **flags)
