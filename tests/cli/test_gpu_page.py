"""docs/research/one-gpu.md says what `swarm-node plan` says, and what gpu_proof.sh does."""

from __future__ import annotations

import ast
import json
import math
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import time
import zipfile
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from typing import Any

import psutil
import pytest
from builders import ROOT, LoadBenchmark, quiet_snapshot
from typer.testing import CliRunner

from swarm_node.cli.main import app
from swarm_node.policy.placement import repeats_heads, torch_version

_MIB = 1 << 20
BEFORE_A_CALL = pytest.mark.nightly(reason="a program for GPU machines, which no node runs")
_COLUMNS = ["GPU, GB", "model", "new tokens", "method", "weights", "optimizer", "KV"]
_COLUMNS += ["activations", "other", "plan", "by hand", "measured", "headroom"]
OF_THE_TABLE = pytest.mark.skipif(
    repeats_heads(torch_version()), reason="the table is that of torch 2.12 or newer"
)


def rows() -> list[dict[str, str]]:
    lines = (ROOT / "docs" / "research" / "one-gpu.md").read_text().splitlines()
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


def planned(row: dict[str, str], engine: str) -> dict[str, Any]:
    command = ["plan", "--model", row["model"], "--vram", f"{row['GPU, GB']}GB", "--json"]
    command += ["--set", f"sampling.engine={engine}"]
    command += ["--set", f"sampling.max_new_tokens={number(row['new tokens'])}"]
    shown = CliRunner().invoke(app, command, catch_exceptions=False)
    (plan,) = json.loads(shown.stdout)["cards"]
    return dict(plan)


@pytest.mark.slow(reason="plans eight models for two engines")
@OF_THE_TABLE
@pytest.mark.parametrize("row", rows(), ids=lambda row: f"{row['model']}-{row['GPU, GB']}")
def test_vllm_has_as_many_rows_or_more(row: dict[str, str]) -> None:
    if "nf4" in row["method"]:
        return  # that base is shared with the built-in sampler only
    built_in, vllm = (planned(row, engine) for engine in ("torch", "vllm"))
    assert vllm["fits"]
    assert built_in["rows"] <= vllm["rows"] <= 192
    if built_in["rows"] == vllm["rows"]:
        # The built-in sampler's CUDA graphs keep logits, which can cost tokens of a micro-batch.
        sizes, others = built_in["parts_bytes"], vllm["parts_bytes"]
        differ = {name for name, size in sizes.items() if others[name] != size}
        same = built_in["training"] == vllm["training"]
        assert differ == ({"reserve"} if same else {"reserve", "activations"})
    else:
        assert built_in["rows"] == 128, "all that it can use"


@pytest.mark.slow(reason="plans eight models")
@OF_THE_TABLE
@pytest.mark.parametrize("row", rows(), ids=lambda row: f"{row['model']}-{row['GPU, GB']}")
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
        env={**os.environ, "CUDA_VISIBLE_DEVICES": "", **environment},
    )


def results(out: Path) -> dict[str, Any]:
    return dict(json.loads((out / "results.json").read_text())["steps"])


def bundles() -> dict[str, list[str]]:
    lines = proof("--bundles").stdout.splitlines()
    return {name: steps.split() for name, _, steps in (line.partition(": ") for line in lines)}


def test_every_step_is_in_a_bundle_and_on_the_page() -> None:
    found = bundles()
    named = [step for steps in found.values() for step in steps]
    assert set(named) == set(proof("--list").stdout.split())
    twice = {step for step in named if named.count(step) > 1}
    assert twice == {"setup", "facts"}, "a call keeps nothing of the one before"
    assert all(found[call][:2] == ["setup", "facts"] for call in ("first", "second", "third"))
    page = (ROOT / "docs" / "research" / "one-gpu.md").read_text()
    assert all(
        f"| `{name}` | {', '.join(f'`{one}`' for one in steps)} |" in page
        for name, steps in found.items()
    )


@pytest.mark.slow(reason="runs the program of a GPU call twice")
def test_a_bundle_stops_when_its_time_is_over(tmp_path: Path) -> None:
    done = proof(str(tmp_path), "--bundle", "first", ON_GPU="", BUNDLE_SECONDS="0")
    assert done.returncode == 0
    steps = results(tmp_path)
    assert list(steps) == bundles()["first"]
    assert {(one["verdict"], one["why"]) for one in steps.values()} == {
        ("NOT RUN", "because the bundle's time was over")
    }
    assert proof(str(tmp_path), "--bundle", "frist").returncode == 2


@pytest.mark.slow(reason="four processes import torch")
def test_no_step_passes_on_the_cpu_beside_a_gpu_that_torch_does_not_see(tmp_path: Path) -> None:
    listing = tmp_path / "nvidia-smi"
    listing.write_text("#!/bin/sh\necho 'GPU 0: NVIDIA GeForce RTX 3060 (UUID: GPU-1)'\n")
    listing.chmod(0o755)
    path = {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    unseen = path | {"CUDA_VISIBLE_DEVICES": "0", "ON_GPU": ""}
    done = proof(str(tmp_path / "out"), "--only", "facts", "join-tiny", **unseen)
    assert done.returncode == 1, done.stderr
    assert list(results(tmp_path / "out")) == ["facts", "join-tiny"]
    for step in results(tmp_path / "out").values():
        assert step["verdict"] == "FAIL"
        assert step["why"].startswith("because torch does not see the GPU that nvidia-smi lists")
    facts = (tmp_path / "out" / "facts.log").read_text()
    assert "CUDA" in facts, "torch says why it sees none"
    proof(str(tmp_path / "cpu"), "--only", "setup", **path)
    assert results(tmp_path / "cpu")["setup"]["verdict"] == "PASS"


@BEFORE_A_CALL
@pytest.mark.slow(reason="installs a wheel")
def test_a_machine_without_this_project_gets_its_entry_points(tmp_path: Path) -> None:
    """Without them there is no environment `drills`, so `swarm-node join` does not start."""
    wheel = tmp_path / "wheels" / "carried-1.0-py3-none-any.whl"
    wheel.parent.mkdir()
    with zipfile.ZipFile(wheel, "w") as file:
        file.writestr("carried.py", "")
        file.writestr(
            "carried-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: carried\nVersion: 1.0\n"
        )
        file.writestr(
            "carried-1.0.dist-info/WHEEL",
            "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        )
        file.writestr("carried-1.0.dist-info/RECORD", "")
    given = {"WHEELS": str(wheel.parent), "TMPDIR": str(tmp_path), "PYTHON": sys.executable}
    out = tmp_path / "out"
    done = proof(str(out), "--only", "setup", ON_GPU="", **given)
    assert done.returncode == 0, (out / "setup.log").read_text()
    site = tmp_path / "swarm-node-gpu-proof" / "site"
    names = {
        point.name
        for found in metadata.distributions(path=[str(site)])
        for point in found.entry_points
    }
    assert {"swarm-node", "drills"} <= names
    assert (site / "carried.py").exists()
    wheel.write_text("cut off")
    shutil.rmtree(site)
    done = proof(str(out), "--only", "setup", ON_GPU="", **given)
    assert "FAIL because the wheels could not be installed" in done.stdout
    assert not site.exists(), "the next call on this machine would take it as complete"


def test_children_of_a_benchmark_import_what_it_can(
    load_benchmark: LoadBenchmark, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", "/the/wheels")
    load_benchmark("real_shapes").import_environments()
    assert os.environ["PYTHONPATH"].split(os.pathsep) == [
        str(ROOT / "benchmarks"),
        "/the/wheels",
    ]


@pytest.mark.slow(reason="reads every test of two rooms")
def test_gpu_tests_that_need_vllm_say_so() -> None:
    """A machine with a GPU may have no vLLM: such a test would fail, and with it the proof."""
    for room in ("policy", "node"):
        for file in sorted((ROOT / "tests" / room).rglob("test_*.py")):
            for test in ast.walk(ast.parse(file.read_text())):
                if isinstance(test, ast.FunctionDef) and "VllmSampler" in ast.dump(test):
                    marks = " ".join(map(ast.unparse, test.decorator_list))
                    assert "mark.gpu" not in marks or "NEEDS_VLLM" in marks, f"{file} {test.name}"


@BEFORE_A_CALL
@pytest.mark.slow(reason="two nodes with a trainer each")
@pytest.mark.timeout(300)
def test_the_step_that_joins_a_model_of_real_shape_runs_here_too(tmp_path: Path) -> None:
    done = proof(str(tmp_path), "--only", "join-torch", CUDA_VISIBLE_DEVICES="")
    assert done.returncode == 0, (tmp_path / "join-torch.log").read_text()[-3000:]
    told = results(tmp_path)["join-torch"]["figures"]
    updates = [one for one in told if "cpu_seconds" in one]
    assert {one["model"] for one in updates} == {"least"}
    assert told[-1]["planned_mib"] > 0
    assert told[-1]["faults"] == {}
    assert list(tmp_path.glob("join-torch.*.node.log")), "the log outlives the node's home"


@BEFORE_A_CALL
@pytest.mark.slow(reason="a whole node")
def test_a_proof_that_is_killed_leaves_what_it_told(tmp_path: Path) -> None:
    out, back = tmp_path / "out", tmp_path / "back"
    back.mkdir()
    running = subprocess.Popen(
        ["bash", ROOT / "benchmarks" / "gpu_proof.sh", out, "--only", "join-tiny"],
        env={**os.environ, "RETURN": str(back), "CUDA_VISIBLE_DEVICES": ""},
        start_new_session=True,
        stdout=subprocess.DEVNULL,
    )
    try:
        deadline, updates = time.monotonic() + 120, []
        while not updates and time.monotonic() < deadline:
            time.sleep(0.2)
            if (back / "results.json").exists():
                step = results(back)["join-tiny"]
                updates = [one for one in step["figures"] if "update" in one]
                assert step["verdict"] == "RUNNING"
    finally:
        members = [one for one in psutil.Process(running.pid).children(recursive=True)]
        os.killpg(running.pid, signal.SIGKILL)
        running.wait()
        for member in members:
            with suppress(psutil.NoSuchProcess):
                member.kill()
    assert updates[0]["planned_mib"] > 0
    assert {"kl", "halvings", "faults", "graphs", "peak_mib", "seconds"} <= updates[0].keys()
    assert {file.name for file in back.iterdir()} - {"summary.txt"} == {
        "results.json",
        "proof.tgz",
    }
    with tarfile.open(back / "proof.tgz") as archive:
        assert "join-tiny.tiny.node.log" in archive.getnames()


def test_a_report_that_pytest_had_not_written_whole_costs_no_results(
    tmp_path: Path, load_benchmark: LoadBenchmark
) -> None:
    figures = load_benchmark("figures")
    (tmp_path / "summary.txt").write_text("ipc              90 s  FAIL: over 90 s, see ipc.log\n")
    (tmp_path / "ipc.xml").write_text('<?xml version="1.0"?><testsuites><testsuite tests="3"')
    figures.collect(tmp_path, None)
    assert results(tmp_path)["ipc"]["tests"] is None


@BEFORE_A_CALL
@pytest.mark.slow(reason="a whole node")
def test_a_key_ends_the_proof_with_all_that_it_started(tmp_path: Path, hears_ctrl_c: None) -> None:
    out, back = tmp_path / "out", tmp_path / "back"
    running = subprocess.Popen(
        ["bash", ROOT / "benchmarks" / "gpu_proof.sh", out, "--only", "join-tiny", "facts"],
        env={**os.environ, "RETURN": str(back), "CUDA_VISIBLE_DEVICES": ""},
        stdout=subprocess.DEVNULL,
    )
    log, deadline = out / "join-tiny.tiny.node.log", time.monotonic() + 120
    while not (log.exists() and log.stat().st_size) and time.monotonic() < deadline:
        time.sleep(0.2)
    started = psutil.Process(running.pid).children(recursive=True)
    assert any("swarm_node" in " ".join(one.cmdline()) for one in started)
    running.send_signal(signal.SIGINT)
    assert running.wait(30) == 130
    _, alive = psutil.wait_procs(started, timeout=10)
    assert not alive
    assert list(results(back)) == ["join-tiny"], "no further step began"


@BEFORE_A_CALL
@pytest.mark.slow(reason="a trainer and a sampler at work")
def test_the_results_have_each_steps_figures(tmp_path: Path) -> None:
    steps = ["facts", "ipc", "plan-small", "decoding", "shared-prompts"]
    assert proof(str(tmp_path), "--only", *steps, CUDA_VISIBLE_DEVICES="").returncode == 0
    steps = results(tmp_path)
    assert steps["facts"]["verdict"] == "PASS"
    assert steps["facts"]["figures"][0]["device"] == "CPU"
    assert steps["ipc"]["verdict"] == "NOT RUN"  # its tests want a GPU, and were skipped
    assert steps["ipc"]["tests"]["skipped"] > 0
    (plan,) = steps["plan-small"]["figures"]
    assert plan["planned_mib"] > 0 < plan["taken_mib"]
    assert {one["rows"] for one in steps["decoding"]["figures"]} == {8, 16}
    cases = [one["case"] for one in steps["shared-prompts"]["figures"] if "attention" in one]
    assert cases == ["shared prompts", "rows of their own"]


def test_the_table_takes_what_a_gpu_measured(tmp_path: Path, load_benchmark: LoadBenchmark) -> None:
    measured = load_benchmark("gpu_table").measured
    plan = {"model": "qwen2.5-1.5b", "gib": 8.0, "new": 1024, "context_mib": 400.0, "set": []}
    figures = [
        plan | {"taken_mib": 7012.4, "planned_mib": 7200.0},
        plan | {"taken_mib": 1.0, "set": ["training.base=nf4"]},
    ]
    figures += [plan | {"taken_mib": 2.0, "context_mib": 0.0, "gib": 12.0}]  # on a CPU
    file = tmp_path / "results.json"
    file.write_text(json.dumps({"steps": {"plan-sizes": {"figures": figures}}}))
    assert measured([file]) == {("8", "qwen2.5-1.5b", "1,024"): (7200.0, "7,012")}


def test_a_run_with_another_plan_is_not_that_of_the_row(load_benchmark: LoadBenchmark) -> None:
    row_of, case = load_benchmark("gpu_table").row_of, (8, "qwen2.5-1.5b", 512)
    cells = [cell.strip() for cell in row_of(*case, "kept", None).split("|")]
    plan = float(cells[_COLUMNS.index("plan") + 1].replace(",", ""))
    for planned, shown in ((1.01 * plan, "7,012"), (1.03 * plan, "kept")):
        assert f"| {shown} |" in row_of(*case, "kept", (planned, "7,012"))


def test_a_failed_step_is_told_from_one_that_cannot_run_and_does_not_end_the_proof(
    tmp_path: Path,
) -> None:
    # Without a GPU, and with a Python that fails.
    done = proof(str(tmp_path), "--only", "facts", "plan-large", ON_GPU="", PYTHON="false")
    first, second = done.stdout.splitlines()
    assert "FAIL" in first
    assert second.endswith("NOT RUN because there is no CUDA device")
    assert done.returncode == 1
    assert (tmp_path / "summary.txt").read_text() == done.stdout
    assert proof(str(tmp_path), "--only", "plan-large", ON_GPU="", PYTHON="false").returncode == 0
    assert proof(str(tmp_path), "--only", "facst").returncode == 2


def joined_results(**facts: Any) -> dict[str, Any]:
    update = {"planned_mib": 9000.0, "halvings": 0, "kl": 2e-5, "graphs": 3}
    told = [{"device": "NVIDIA H100", "torch": "2.11.0+cu130", **facts}]
    told += [{"node": "n", "planned_mib": 9000.0, "free_mib": 12288.0}]
    told += [
        update
        | {"update": n, "seconds": 4.0 - n, "peak_mib": 8000.0 + n, "sampled_tokens_per_s": r}
        for n, r in ((1, None), (2, 5000.0), (3, 7000.0))
    ]
    return {
        "steps": {
            "join-card-12": {"verdict": "FAIL", "why": "because of | that", "figures": told},
            "join-card-8": {"verdict": "NOT RUN", "why": "for want of time", "figures": []},
        }
    }


def test_the_table_of_joins_has_what_a_gpu_did(
    tmp_path: Path, load_benchmark: LoadBenchmark
) -> None:
    table, file = load_benchmark("gpu_table"), tmp_path / "results.json"
    file.write_text(json.dumps(joined_results()))
    assert table.joined_rows([file]) == {
        "join-card-12": "| `join-card-12` | 1.5B, 12 GiB | NVIDIA H100, 2.11.0 | "
        "FAIL: because of / that | 3 | 9,000 | 8,003 | 6,000 | 1.50 | 2e-05 | 0 | 3 |"
    }
    file.write_text(json.dumps(joined_results(device="CPU")))
    assert table.joined_rows([file]) == {}


def test_a_join_fails_in_words(
    tmp_path: Path, load_benchmark: LoadBenchmark, monkeypatch: pytest.MonkeyPatch
) -> None:
    join = load_benchmark("gpu_join")
    node = load_benchmark("node_process").NodeProcess(tmp_path, [])
    watched = join.WatchedNode(
        node, "n", join.MemoryPeak(), graphs=2, updates=[{"mismatch_kl": 1e-5}]
    )
    monkeypatch.setattr(join, "ON_GPU", True)
    watched.snapshot = quiet_snapshot()
    assert join.node_faults(watched) == []
    watched.graphs, watched.updates = 0, [{"mismatch_kl": 0.02}, {"mismatch_kl": 1e-5}]
    watched.snapshot = quiet_snapshot(
        faults={"cuda_graph": 1, "memory": 2, "new": 3}, engine="torch (vLLM failed: gone)"
    )
    assert join.node_faults(watched) == [
        "a CUDA graph could not be captured, and decoding went on eagerly (1 times)",
        "memory ran out in an update, and micro-batches were halved (2 times)",
        "new (3 times)",
        "a fallback was taken: torch (vLLM failed: gone)",
        "sampler and trainer disagree: KL 0.02 in the first update",
        "no CUDA graph was captured",
    ]
    # Some groups of a first update have no advantage; a number that is none is a fault.
    reasons = ("no mixed rewards", None, "non-finite gradient", "non-finite gradient")
    watched.graphs, watched.snapshot = 2, quiet_snapshot()
    watched.updates = [{"mismatch_kl": math.nan, "skipped": why} for why in reasons]
    assert join.node_faults(watched) == [
        "sampler and trainer disagree: KL nan in the first update",
        "2 updates were skipped: non-finite gradient",
    ]


def test_a_join_ends_before_its_step_does(
    tmp_path: Path, load_benchmark: LoadBenchmark, monkeypatch: pytest.MonkeyPatch
) -> None:
    join = load_benchmark("gpu_join")
    node = load_benchmark("node_process").NodeProcess(tmp_path, [])
    watched = join.WatchedNode(node, "n", join.MemoryPeak())

    def poll(node: Any) -> None:
        node.updates.append({"mismatch_kl": 0.0})
        node.snapshot = quiet_snapshot(steps=len(node.updates))

    monkeypatch.setattr(join.WatchedNode, "poll", poll)
    monkeypatch.setattr(join, "_POLL_SECONDS", 0.0)
    monkeypatch.setenv("STEP_ENDS", str(int(time.time())))
    join.run_until(watched, 5)
    assert len(watched.updates) == 3, "two, of which the second is no warm-up, and a last look"
    monkeypatch.delenv("STEP_ENDS")
    join.run_until(watched, 5)
    assert len(watched.updates) >= 5


def test_facts_use_main_memory_that_may_have_to_grow(load_benchmark: LoadBenchmark) -> None:
    assert load_benchmark("gpu_proof").memory_after_growth(1) > 0


def test_a_node_s_peak_has_nothing_of_what_a_proof_holds(
    load_benchmark: LoadBenchmark, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of 80 free bytes: a second node gets a half of its own, whatever the first has taken."""
    import torch

    join = load_benchmark("gpu_join")
    free = 80

    def leave(wanted: int) -> tuple[Any, int]:
        held = torch.empty(free - wanted, dtype=torch.uint8) if 0 < wanted < free else None
        return held, wanted if held is not None else free

    monkeypatch.setattr(join, "leave", leave)
    filler, first = join.Filler(12), join.MemoryPeak()
    first.free = filler.free
    free -= 9  # by the first node
    filler.leave(12, first)
    second = join.MemoryPeak()
    second.free = filler.free
    assert (first.free - filler.free, second.free) == (9, 12)
    free -= 10  # by the second
    filler.leave(0, first, second)
    assert (first.free - filler.free, second.free - filler.free) == (19, 10)


def test_a_join_fails_that_takes_more_than_planned(load_benchmark: LoadBenchmark) -> None:
    join = load_benchmark("gpu_join")
    memory = join.MemoryPeak()
    memory.taken = 10_500 << 20
    assert join.memory_faults(memory, 10_000 << 20, context=512 << 20) == []
    memory.taken = 11_000 << 20
    assert join.memory_faults(memory, 10_000 << 20, context=512 << 20) == [
        "11,000 MiB were taken where 10,000 are planned"
    ]
    # A data-centre GPU's contexts: of the two processes of a node each took 712 MiB.
    assert join.memory_faults(memory, 10_100 << 20, context=712 << 20) == []
