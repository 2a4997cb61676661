"""`swarm-node demo` as a user runs it: report, picture, and a clean end at any time."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from swarm_node.demo import write_report
from swarm_node.node.snapshot import EvalPoint

COMMAND = [sys.executable, "-m", "swarm_node", "demo", "--nodes", "2"]
CURVES = {"node 1": [EvalPoint(1.0, 0, 0.1, 0.1, 0.1, {}, seen=0.2, split=1)], "alone": []}
NODE_KEYS = {
    "name",
    "peer_id",
    "updates",
    "reward_start",
    "reward_end",
    "borrowed_start",
    "borrowed_end",
    "seen_start",
    "seen_end",
    "groups_published",
    "groups_trained_own",
    "groups_trained_external",
    "rejected",
}


@pytest.mark.slow(reason="runs a whole swarm of real nodes")
@pytest.mark.timeout(900)
def test_the_demo_leaves_a_report_and_a_picture(tmp_path: Path) -> None:
    done = subprocess.run(
        [*COMMAND, "--minutes", "1", "--report", str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=840,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["schema"] == 1
    assert report["seconds"] > 30
    *swarm, alone = report["nodes"]
    assert [node["name"] for node in report["nodes"]] == ["node 1", "node 2", "alone"]
    assert alone["groups_trained_external"] == 0
    for node in swarm:
        assert set(node) == NODE_KEYS
        assert node["groups_trained_external"] > 0
        assert node["reward_end"] > node["reward_start"] + 0.1
    assert (tmp_path / "learning.png").read_bytes().startswith(b"\x89PNG")
    assert "borrowed" in done.stdout


@pytest.mark.slow(reason="runs a whole swarm of real nodes")
@pytest.mark.timeout(600)
@pytest.mark.usefixtures("hears_ctrl_c")
@pytest.mark.parametrize("seconds", [0.0, 15.0])
def test_ctrl_c_ends_the_demo_cleanly(tmp_path: Path, seconds: float) -> None:
    process = subprocess.Popen(
        [*COMMAND, "--report", str(tmp_path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "TMPDIR": str(tmp_path)},
    )
    # Before this directory exists, Python itself starts. Under load that takes many seconds.
    while process.poll() is None and not list(tmp_path.glob("swarm-node-demo-*")):
        time.sleep(0.05)
    time.sleep(seconds)
    children = psutil.Process(process.pid).children(recursive=True)
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=300)
    assert process.returncode in (0, 130), output
    assert "Traceback" not in output
    _, alive = psutil.wait_procs(children, timeout=10)  # init takes note of the guards' end
    assert [child for child in alive if child.status() != psutil.STATUS_ZOMBIE] == []


def test_an_earlier_report_stays(tmp_path: Path) -> None:
    places = [write_report(tmp_path / "demo-report", 1.0, [], CURVES)[0].parent for _ in range(3)]
    assert [place.name for place in places] == ["demo-report", "demo-report-2", "demo-report-3"]
