"""docs/research/one-card.md says what `swarm-node plan` says, and what gpu_proof.sh does."""

from __future__ import annotations

import importlib
import json
import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
from builders import ROOT
from typer.testing import CliRunner

from swarm_node.cli.main import app
from swarm_node.policy.placement import repeats_heads, torch_version

_MIB = 1 << 20
_COLUMNS = ["card, GB", "model", "new tokens", "method", "weights", "optimizer", "KV"]
_COLUMNS += ["activations", "other", "plan", "by hand", "measured", "headroom"]
OF_THE_TABLE = pytest.mark.skipif(
    repeats_heads(torch_version()), reason="the table is that of torch 2.12 or newer"
)


def rows() -> list[dict[str, str]]:
    lines = (ROOT / "docs" / "research" / "one-card.md").read_text().splitlines()
    first = lines.index("| " + " | ".join(_COLUMNS) + " |") + 2
    found = []
    for line in lines[first:]:
        if not line.startswith("|"):
            break
        cells = [cell.strip() for cell in line.split("|")[1:-1]]
        found.append(dict(zip(_COLUMNS, cells, strict=True)))
    return found


def number(cell: str) -> int:
    return int(cell.replace(",", ""))


def test_the_page_has_the_cards_that_people_own() -> None:
    middle = {number(row["card, GB"]) for row in rows() if row["model"] == "qwen2.5-1.5b"}
    assert middle == {8, 12, 16, 24}


def planned(row: dict[str, str], engine: str) -> dict[str, Any]:
    command = ["plan", "--model", row["model"], "--vram", f"{row['card, GB']}GB", "--json"]
    command += ["--set", f"sampling.engine={engine}"]
    command += ["--set", f"sampling.max_new_tokens={number(row['new tokens'])}"]
    shown = CliRunner().invoke(app, command, catch_exceptions=False)
    (plan,) = json.loads(shown.stdout)["cards"]
    return dict(plan)


@OF_THE_TABLE
@pytest.mark.parametrize("row", rows(), ids=lambda row: f"{row['model']}-{row['card, GB']}")
def test_vllm_has_as_many_rows_or_more(row: dict[str, str]) -> None:
    if "nf4" in row["method"]:
        return  # that base is shared with the built-in sampler only
    built_in, vllm = (planned(row, engine) for engine in ("torch", "vllm"))
    assert vllm["fits"]
    assert built_in["rows"] <= vllm["rows"] <= 192
    if built_in["rows"] == vllm["rows"]:
        differ = {
            name
            for name, size in built_in["parts_bytes"].items()
            if vllm["parts_bytes"][name] != size
        }
        assert differ == {"reserve"}, "it has the CUDA graphs"
    else:
        assert built_in["rows"] == 128, "all that it can use"


@OF_THE_TABLE
@pytest.mark.parametrize("row", rows(), ids=lambda row: f"{row['model']}-{row['card, GB']}")
def test_a_row_of_the_table_is_the_plan(row: dict[str, str]) -> None:
    plan = planned(row, "torch")
    parts, training, total = plan["parts_bytes"], plan["training"], plan["total_bytes"]
    other = parts["workspace"] + parts["published"] + parts["reserve"]
    expected = {
        "weights": parts["sampler_weights"] + parts["trainer_weights"],
        "optimizer": parts["optimizer"],
        "KV": parts["kv"],
        "activations": parts["activations"],
        "other": other,
        "plan": total,
        "headroom": plan["vram_bytes"] - total,
    }
    assert {name: number(row[name]) for name in expected} == {
        name: round(size / _MIB) for name, size in expected.items()
    }
    assert ("does not fit" in row["method"]) is not plan["fits"]
    assert ("nf4" in row["method"]) is training["nf4"]
    assert ("recomputed" in row["method"]) is training["checkpointing"]
    assert f"{training['micro_batch_tokens']:,} tokens, {plan['rows']} answers" in row["method"]
    # The formula on the page is another one, of the same things.
    assert number(row["by hand"]) == pytest.approx(total / _MIB, rel=0.05)


def proof(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [ROOT / "benchmarks" / "gpu_proof.sh", *arguments],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, **environment},
    )


def test_the_page_names_every_step_of_the_proof() -> None:
    steps = proof("--list").stdout.split()
    page = (ROOT / "docs" / "research" / "one-card.md").read_text()
    table = page[page.index("| step |") :].split("\n\n")[0].splitlines()[2:]
    assert [
        name for line in table for name in re.findall("`([a-z0-9-]+)`", line.split("|")[1])
    ] == (steps)


def results(out: Path) -> dict[str, Any]:
    return dict(json.loads((out / "results.json").read_text())["steps"])


def test_the_bundles_have_every_step_once() -> None:
    lines = proof("--bundles").stdout.splitlines()
    bundles = {name: steps.split() for name, _, steps in (line.partition(": ") for line in lines)}
    named = [step for steps in bundles.values() for step in steps]
    assert sorted(named) == sorted(proof("--list").stdout.split())
    assert bundles["first"][:1] == ["facts"]  # it says what the other figures were measured on
    page = (ROOT / "docs" / "research" / "one-card.md").read_text()
    assert all(
        f"| `{name}` | {', '.join(f'`{one}`' for one in steps)} |" in page
        for name, steps in bundles.items()
    )


def test_a_bundle_stops_when_its_time_is_over(tmp_path: Path) -> None:
    done = proof(str(tmp_path), "--bundle", "first", ON_CARD="", BUNDLE_SECONDS="0")
    assert done.returncode == 0
    steps = results(tmp_path)
    assert list(steps) == ["facts", "ipc", "plan-small", "join-torch", "attention"]
    assert {(one["verdict"], one["why"]) for one in steps.values()} == {
        ("NOT RUN", "because the bundle's time was over")
    }
    assert proof(str(tmp_path), "--bundle", "frist").returncode == 2


@pytest.mark.slow(reason="a trainer and a sampler at work")
def test_the_results_have_each_steps_figures(tmp_path: Path) -> None:
    steps = ["facts", "ipc", "plan-small", "decoding"]
    assert proof(str(tmp_path), "--only", *steps, CUDA_VISIBLE_DEVICES="").returncode == 0
    steps = results(tmp_path)
    assert steps["facts"]["verdict"] == "PASS"
    assert steps["facts"]["figures"][0]["device"] == "CPU"
    assert steps["ipc"]["verdict"] == "NOT RUN"  # its tests want a card, and were skipped
    assert steps["ipc"]["tests"]["skipped"] > 0
    (plan,) = steps["plan-small"]["figures"]
    assert plan["planned_mib"] > 0 < plan["taken_mib"]
    assert {one["rows"] for one in steps["decoding"]["figures"]} == {8, 16}


def test_the_table_takes_what_a_card_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    measured = importlib.import_module("gpu_table").measured
    plan = {"model": "qwen2.5-1.5b", "card": 8.0, "new": 1024, "context_mib": 400.0, "set": []}
    figures = [
        plan | {"taken_mib": 7012.4},
        plan | {"taken_mib": 1.0, "set": ["training.base=nf4"]},
    ]
    figures += [plan | {"taken_mib": 2.0, "context_mib": 0.0, "card": 12.0}]  # on a CPU
    file = tmp_path / "results.json"
    file.write_text(json.dumps({"steps": {"plan-cards": {"figures": figures}}}))
    assert measured([file]) == {("8", "qwen2.5-1.5b", "1,024"): "7,012"}


def test_a_failed_step_is_told_from_one_that_cannot_run_and_does_not_end_the_proof(
    tmp_path: Path,
) -> None:
    # Without a card, and with a Python that fails.
    done = proof(str(tmp_path), "--only", "facts", "plan-large", ON_CARD="", PYTHON="false")
    first, second = done.stdout.splitlines()
    assert "FAIL" in first
    assert second.endswith("NOT RUN because there is no CUDA device")
    assert done.returncode == 1
    assert (tmp_path / "summary.txt").read_text() == done.stdout
    assert proof(str(tmp_path), "--only", "plan-large", ON_CARD="", PYTHON="false").returncode == 0
    assert proof(str(tmp_path), "--only", "facst").returncode == 2
