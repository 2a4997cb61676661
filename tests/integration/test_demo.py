"""`swarm-node demo` as a user runs it: report, picture, and a clean end at any time."""

from __future__ import annotations

import itertools
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import psutil
import pytest
from builders import quiet_snapshot
from rich.text import Text

from swarm_node.demo.nodes import DemoNode
from swarm_node.demo.report import result_of, summary, write_report
from swarm_node.demo.tasks import DRILLS, FAMILIES, GAMES, ground_of
from swarm_node.environments.bundled.drills import PRESETS
from swarm_node.errors import ConfigError
from swarm_node.node.home.home import Home
from swarm_node.node.metrics.history import GroupCounts
from swarm_node.node.metrics.snapshot import EvalPoint
from swarm_node.p2p.wire.reasons import REASONS, Blame

COMMAND = [sys.executable, "-m", "swarm_node", "demo", "--nodes", "2"]
CURVES = {
    "node 1": [EvalPoint(1.0, 0, 0.1, 0.1, 0.1, {}, train=0.2, split_version=1)],
    "isolated": [],
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
    assert [node["name"] for node in report["nodes"]] == ["node 1", "node 2", "isolated"]
    assert alone["groups_trained_external"] == 0
    for node in swarm:
        assert node["families_end"].keys() == set(FAMILIES)
        assert node["groups_trained_external"] > 0
        assert node["reward_end"] > node["reward_start"] + 0.1
    assert (tmp_path / "learning.png").read_bytes().startswith(b"\x89PNG")
    assert "Ctrl-C ends" in done.stdout, "a table each minute where there is no terminal"
    assert "external" in done.stdout


@pytest.mark.slow(reason="runs a whole swarm of real nodes")
@pytest.mark.timeout(1800)
@pytest.mark.nightly(reason="a second demo")
def test_the_demo_of_games_shows_each_nodes_reward_on_its_peers_games(tmp_path: Path) -> None:
    command = [*COMMAND[:-2], "--environment", "games", "--minutes", "1"]
    done = subprocess.run(
        [*command, "--report", str(tmp_path)], capture_output=True, text=True, timeout=1740
    )
    assert done.returncode == 0, done.stdout + done.stderr
    *swarm, alone = json.loads((tmp_path / "report.json").read_text())["nodes"]
    assert [node["samples"] for node in swarm] == [["guess"], ["calc"], ["weigh"]]
    assert alone["samples"] == ["guess"]
    assert alone["groups_trained_external"] == 0
    for node in swarm:
        assert node["families_end"].keys() == {"guess", "calc", "weigh"}
        assert node["groups_trained_external"] > 0
        assert not {why for why in node["rejected"] if REASONS[why] is Blame.VIOLATION}
    assert "guess (samples it)" in done.stdout
    assert (tmp_path / "learning.png").exists()


def test_each_node_of_the_demo_samples_games_that_its_peers_do_not() -> None:
    assert ground_of("drills", 9) is DRILLS
    assert [GAMES.families[index::3] for index in range(3)] == [("guess",), ("calc",), ("weigh",)]
    graded = ground_of("drills", 3, "smollm2-135m")
    shares = [graded.share(index, 3) for index in range(3)]
    assert [{family.rpartition("-")[0] for family in share} for share in shares] == [
        {"addition", "subtraction"},
        {"division", "word-problems"},
        {"multiplication"},
    ]
    assert sorted(itertools.chain(*shares)) == sorted(PRESETS["graded"])
    with pytest.raises(ConfigError, match="--model"):
        ground_of("games", 3, "smollm2-135m")
    with pytest.raises(ConfigError, match="at most 5 nodes"):
        ground_of("drills", 6, "smollm2-135m")
    with pytest.raises(ConfigError, match=r"games .* 3 nodes$"):
        ground_of("games", 4)
    with pytest.raises(ConfigError, match=r"'game'.* games\?"):
        ground_of("game", 3)


def test_the_summary_has_the_reward_on_every_game_and_marks_the_nodes_own(tmp_path: Path) -> None:
    ends = {"guess": 0.9, "calc": 1.0, "weigh": 0.5}
    evals = [
        EvalPoint(1.0, 0, 0.2, 0.4, 0.1, {"guess": 0.4, "calc": 0.1, "weigh": 0.1}, train=0.2),
        EvalPoint(9.0, 50, 0.8, 0.9, 0.75, ends, train=0.7),
    ]
    node = DemoNode("node 1", Home(tmp_path), ("guess",), ground=GAMES)
    node.snapshot = msgspec.structs.replace(
        quiet_snapshot(), steps=50, evals=evals, groups=GroupCounts(trained_external=7)
    )
    result = result_of(node)
    assert (result.samples, result.families_end) == (["guess"], ends)
    first, games, _ = (Text.from_markup(line).plain for line in summary(GAMES, [result]))
    assert "0.20→0.80" in first
    assert re.findall(r"(\w+)(?: \(samples it\))? (\S+→[\d.]+)", games) == [
        *(("guess", "0.40→0.90"), ("calc", "0.10→1.00"), ("weigh", "0.10→0.50"))
    ]
    assert len([*summary(DRILLS, [result])]) == 2, "nine in a row are for the report"
    node.snapshot = msgspec.structs.replace(node.snapshot, evals=evals[:1])
    first, *_ = summary(GAMES, [result_of(node)])
    assert "0.20→…" in first, "nobody knows what became of it"


@pytest.mark.slow(reason="runs a whole swarm of real nodes")
@pytest.mark.timeout(600)
@pytest.mark.usefixtures("hears_ctrl_c")
@pytest.mark.parametrize(
    ("measured", "times"),
    [
        (False, 1),
        pytest.param(True, 1, marks=pytest.mark.nightly(reason="the same, heard once")),
        (True, 2),
    ],
)
def test_ctrl_c_ends_the_demo_cleanly(tmp_path: Path, measured: bool, times: int) -> None:
    """The second time it ends the last measurement, too."""
    log = tmp_path / "log"
    # A terminal's table shows at once what the demo knows of its nodes.
    terminal = {"TTY_COMPATIBLE": "1", "TTY_INTERACTIVE": "1", "TERM": "xterm"}
    with log.open("wb") as file:
        process = subprocess.Popen(
            [*COMMAND, "--report", str(tmp_path)],
            stdout=file,
            stderr=file,
            env={**os.environ, **terminal, "TMPDIR": str(tmp_path)},
        )

    def output() -> str:
        return log.read_text(errors="replace")  # the last character may be half there

    def wait(event: Callable[[], object]) -> None:
        while not event():
            assert process.poll() is None, output()
            time.sleep(0.05)

    wait(lambda: [*tmp_path.glob("swarm-node-demo-*")])
    if measured:
        wait(lambda: re.search(r"\d→", output()))
    children = psutil.Process(process.pid).children(recursive=True)
    process.send_signal(signal.SIGINT)
    if times == 2:
        wait(lambda: "Ctrl-C skips it" in output())
        process.send_signal(signal.SIGINT)
    assert process.wait(300) == (0 if measured else 130), output()
    assert "Traceback" not in output()
    _, alive = psutil.wait_procs(children, timeout=10)  # init takes note of the guards' end
    assert [child for child in alive if child.status() != psutil.STATUS_ZOMBIE] == []


def test_an_earlier_report_stays(tmp_path: Path) -> None:
    places = [write_report(tmp_path / "demo-report", 1.0, [], CURVES)[0].parent for _ in range(3)]
    assert [place.name for place in places] == ["demo-report", "demo-report-2", "demo-report-3"]
