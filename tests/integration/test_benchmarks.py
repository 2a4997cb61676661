"""Each benchmark runs to its end, in a short run whose figures say nothing."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from builders import ROOT

#: Arguments of a short run, by benchmark. A benchmark with several parts runs its cheapest.
SHORT = {
    "asynchrony": "--seconds 4 --repetitions 1",
    "bare_loop": "--pairs 1 --seconds 2",
    "churn": "dead --nodes 40",
    "coordinator_load": "--members 20 --seconds 5",
    "multi_turn": "--updates 2 --every 2 --tasks 4 --groups 2",
    "envelope": "--seconds 0.1",
    "exam": "--model tiny --file {questions} --minutes 0.2 --limit 1 --new 8",
    "kept_cache": "--rates 1e-3 --updates 1 --new 16",
    "scoring": "--families products --groups 2",
    "links": "--seconds 2 --stacks libp2p",
    "memory": "--seconds 3",
    "page": "--nodes 10 --updates 2",
    "peer_sampling": "--seeds 1",
    "number_types": "--seeds 1 --updates 3 --tasks 1",
    "plausible": "words --rounds 2",
    "programs": "--programs 4 --load 1",
    "real_beside_simulated": "--nodes 2 --updates 12",
    "refill": "--case tiny --pairs 1 --rows 16 --places 4",
    "relay": "--members 4 --groups 2 --kilobytes 10",
    "sampler": "--repetitions 1",
    "vllm_dispatch": "--calls 1 --repetitions 1 --places 4",
    "watching": "--pairs 2 --seconds 2 --watchers 2",
}
#: Benchmarks without a short run, and the reason.
TOO_LONG = {
    "checkpoint": "it writes gigabytes",
    "trainer": "its shapes are real ones: a minute of processor time",
    "hostile_peers": "each phase starts nodes: test_one_swarm.py has a hostile member",
    "plan": "its processes take minutes: tests/policy/memory has the parts",
    "stacks": "sixteen processes of each stack must meet: tests/integration has the parts",
}
ELSEWHERE = {
    "faulty_line": "it needs a faulty proxy and minutes: make test-sites",
    "returning": "it builds networks: make test-sites",
    "three_sites": "it builds networks: make test-sites",
    "gpu_engine": "a step of gpu_proof.sh",
    "gpu_plan": "a step of gpu_proof.sh",
    "gpu_proof": "a step of gpu_proof.sh",
    "head": "a step of gpu_proof.sh",
    "gpu_trainer": "a step of gpu_proof.sh",
    "real_defaults": "it takes hours: make real-defaults",
    "real_shapes": "tests/cli/test_gpu_page.py runs the step join-torch",
    "gpu_join": "a step of gpu_proof.sh: tests/cli/test_gpu_page.py",
    "gpu_attention": "a step of gpu_proof.sh: tests/cli/test_gpu_page.py",
    "one_base": "vLLM and half a billion weights",
    "vllm_sync": "vLLM's start takes a minute: tests/integration/test_vllm*",
    "trl_grpo": "it needs an environment with TRL: make bench-trl",
    "trl_child": "the child of trl_grpo",
    "trl_swarm": "it needs an environment with TRL: test_trl_member.py has a short run",
    "trl_alone": "a child of trl_swarm",
    "gpu_table": "it writes a page, whose rows tests/cli/test_gpu_page.py compares",
    "gpu_wheels": "it downloads packages",
    "gpu_call": "it downloads packages: tests/tools/test_gpu_call.py has the parts",
    "gpu_rehearsal": "bundles of gpu_proof.sh: tests/tools/test_gpu_rehearsal.py has the parts",
    "answers": "it is given files of public sets",
    "figures": "tests/cli/test_gpu_page.py runs it",
}


def test_every_benchmark_has_a_short_run_or_a_reason() -> None:
    programs = {
        file.stem
        for file in (ROOT / "benchmarks").glob("*.py")
        if '__name__ == "__main__"' in file.read_text()
    }
    assert programs == {*SHORT, *TOO_LONG, *ELSEWHERE}


@pytest.mark.timeout(900)  # vLLM's start, on a machine at a load of 8
@pytest.mark.slow(reason="a benchmark of real parts")
@pytest.mark.parametrize("name", SHORT)
@pytest.mark.nightly(reason="a benchmark")
def test_a_benchmark_runs_to_its_end(name: str, tmp_path: Path) -> None:
    if name == "page" and shutil.which("chromium") is None:
        pytest.skip("NOT RUN: needs chromium")
    if name == "vllm_dispatch" and importlib.util.find_spec("vllm") is None:
        pytest.skip("NOT RUN: needs vLLM")
    questions = tmp_path / "questions.jsonl"
    rows = [{"question": f"What is {n} + 2?", "answer": str(n + 2)} for n in range(200)]
    questions.write_text("".join(json.dumps(row) + "\n" for row in rows))
    arguments = SHORT[name].format(questions=questions).split()
    done = subprocess.run(
        [sys.executable, ROOT / "benchmarks" / f"{name}.py", *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=800,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT / "tests")},
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    assert any(character.isdigit() for character in done.stdout)
