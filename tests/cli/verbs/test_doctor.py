"""`swarm-node doctor` on this machine: what it prints, and its exit code."""

from __future__ import annotations

import json
import re
import socket
from pathlib import Path

import pytest
from gguf_files import write_gguf
from rich.console import Console
from typer.testing import CliRunner

from swarm_node.cli.main import app
from swarm_node.cli.verbs.doctor import findings_view
from swarm_node.errors import SwarmNodeError
from swarm_node.node.home.home import Home
from swarm_node.node.preflight.doctor import Finding
from swarm_node.p2p.addresses.addresses import coordinator_address
from swarm_node.p2p.wire.identity import Identity
from swarm_node.storage import KnownPeer, Storage


def run(home: Path, *options: str) -> tuple[int, str]:
    done = CliRunner().invoke(app, ["doctor", "--home", str(home), *options])
    return done.exit_code, done.output


def test_a_machine_that_can_start_is_told_so_and_nothing_is_written(tmp_path: Path) -> None:
    code, shown = run(tmp_path / "home", "--device", "cpu")
    assert code == 0
    assert "✗" not in shown
    for subject in ("python", "home", "gpu", "sampler", "memory", "model", "disk", "port"):
        assert re.search(rf"^[✓!] +{subject} ", shown, re.M), shown
    assert list(tmp_path.iterdir()) == []


def test_of_a_gguf_file_plan_and_doctor_say_its_encoding_and_dequantise_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    path = write_gguf(tmp_path / "m.gguf", "llama", "Q4_0")
    _, shown = run(tmp_path / "home", "--model", str(path), "--json")
    found = [each for each in json.loads(shown)["checks"] if each["subject"] == "model"]
    assert [each["level"] for each in found] == ["ok", "ok"]
    assert "Q4_0" in found[1]["found"]
    planned = CliRunner().invoke(app, ["plan", "--model", str(path), "--vram", "8GB"])
    assert planned.exit_code == 0
    assert "Q4_0" in planned.output
    assert list(tmp_path.iterdir()) == [path]
    cut = tmp_path / "cut.gguf"
    cut.write_bytes(path.read_bytes()[:-1])
    assert run(tmp_path / "home", "--model", str(cut))[0] == 1
    refused = CliRunner().invoke(app, ["plan", "--model", str(cut)])
    assert refused.exit_code == 1
    assert "is cut" in " ".join(refused.output.split())


@pytest.mark.parametrize("name", ["models/cut.gguf", "models/other.bin", "models/none.gguf"])
def test_what_is_here_is_no_model_of_the_hub_whatever_it_looks_like(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "models").mkdir()
    for each in ("cut.gguf", "other.bin"):
        (tmp_path / "models" / each).write_bytes(b"GGUF")
    code, shown = run(tmp_path / "home", "--model", name, "--json")
    assert code == 1
    found = [each for each in json.loads(shown)["checks"] if each["subject"] == "model"]
    assert [each["level"] for each in found] == ["error"], found


def test_an_error_has_exit_code_1_and_programs_get_json(tmp_path: Path) -> None:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        held.listen()
        port = held.getsockname()[1]
        option = f'network.listen=["/ip4/127.0.0.1/tcp/{port}"]'
        code, shown = run(tmp_path, "--json", "--set", option)
    assert code == 1
    answer = json.loads(shown)
    assert answer["schema"] == 1
    wrong = [check for check in answer["checks"] if check["level"] == "error"]
    assert [check["subject"] for check in wrong] == ["port"]
    assert str(port) in wrong[0]["found"]


def test_a_model_that_cannot_play_dialogues_is_an_error_and_nothing_is_written(
    tmp_path: Path,
) -> None:
    games = ("--device", "cpu", "--tasks", "games")
    code, shown = run(tmp_path / "home", *games)
    assert code == 1
    told = " ".join(shown.split())  # lines are as wide as the terminal
    assert "✗ turns tiny" in told
    assert "tiny-talk" in told
    code, shown = run(tmp_path / "home", "--model", "tiny-talk", *games)
    assert code == 0, shown
    assert list(tmp_path.iterdir()) == []


def test_a_mistyped_name_is_answered_first_and_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = ["--model", "no-such-model", "--environment", "none.jsonl"]
    code, shown = run(tmp_path, *options)
    marks = [line.split()[:2] for line in shown.splitlines() if line[0] != " "]
    assert (code, marks[:2]) == (1, [["✗", "environment"], ["✗", "model"]])
    assert [mark for mark, _ in marks].count("✗") == 2
    columns = {
        line.index(line.split(maxsplit=2)[2]) for line in shown.splitlines() if line[0] != " "
    }
    assert len(columns) == 1

    def interrupted(*_: object) -> None:
        raise SwarmNodeError("the machine was looked at")

    monkeypatch.setattr("swarm_node.cli.verbs.doctor.find", interrupted)
    assert run(tmp_path, *options)[1].startswith("✗")


def test_before_a_start_the_coordinator_and_the_peers_of_before_are_tried(tmp_path: Path) -> None:
    home, peer = tmp_path / "home", Identity.generate().peer_id
    Home(home).begin()
    relay = f"/ip4/127.0.0.1/tcp/2/p2p/{Identity.generate().peer_id}/p2p-circuit"
    known = KnownPeer(peer, (relay, "/ip4/127.0.0.1/tcp/1"), 9.0)
    storage = Storage(home / "node.db")
    storage.remember_peers([known, KnownPeer(Identity.generate().peer_id, (relay,), 9.0)])
    storage.close()
    Home(home).save("bootstrap", coordinator_address("http://127.0.0.1:1").encode())
    code, shown = run(home, "--network")
    assert code == 1
    lines = [line.rstrip().split(maxsplit=2)[1:] for line in shown.splitlines() if line[0] != " "]
    assert [subject for subject, _ in lines][1:4] == ["peer", "coordinator", "peers"]
    assert lines[1][1].startswith("127.0.0.1:1 refuses ")
    assert lines[2][1].startswith("http://127.0.0.1:1 ")
    assert lines[3][1].startswith("nobody")


def test_before_a_start_a_coordinator_that_is_silent_is_an_error(tmp_path: Path) -> None:
    code, shown = run(tmp_path, "--network", "--set", "network.coordinator=http://127.0.0.1:1")
    assert (code, "nobody" in shown) == (1, True)
    assert run(tmp_path, "--network")[0] == 0


@pytest.mark.parametrize("width", [60, 80, 120])
def test_nothing_is_cut_off(width: int) -> None:
    finding = Finding("shared", "warning", "found " * 40 + "the end", "remedy " * 40 + "at last")
    console = Console(width=width)
    with console.capture() as capture:
        console.print(findings_view([finding]))
    shown = " ".join(capture.get().split())
    assert "end → remedy" in shown
    assert "at last" in shown
    assert "…" not in shown
