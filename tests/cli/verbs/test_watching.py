"""`samples`, `top` and `logs`."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import threading
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from control_servers import serving
from shown_cases import HOSTILE, printed
from typer.testing import CliRunner, Result

from swarm_node.cli.home import json_of
from swarm_node.cli.main import app
from swarm_node.cli.verbs.watching import _newer
from swarm_node.cli.views.samples_view import samples_view
from swarm_node.durable import Journal
from swarm_node.node.metrics.samples import SampleRow
from swarm_node.node.metrics.snapshot import PeerRow

ROWS = [
    SampleRow("gcd", "gcd of 12\nand 18?", "Yes", 0.0, 0),
    SampleRow("gcd", "gcd of 4 and 6?", "2", 1.0, 6640),
    SampleRow("gcd", "gcd of 3 and 9?", "", 1.0, 7, "12D3KooWxxxxxxxx12345678"),
    SampleRow("primes", HOSTILE, HOSTILE, 1.0, 7, HOSTILE),
]


@pytest.mark.parametrize("width", [60, 80, 120])
def test_samples_show_question_answer_author_and_verdict(width: int) -> None:
    known = [PeerRow("12D3KooWxxxxxxxx12345678", 7, 1.0, 1, 1, 0, [], name="laptop-2")]
    text = printed(samples_view(ROWS, known), width)
    assert all(character.isprintable() or character == "\n" for character in text)
    assert max(map(len, text.splitlines())) <= width
    words = " ".join(text.split())
    for said in (
        "gcd local v0 gcd of 12 ⏎ and 18? → Yes ✗",
        "v6640",
        "→ 2 ✓",
        "laptop-2",
        "nothing",
    ):
        assert said in words
    assert "[bold]markup" in words, "nothing is read as markup"


def test_a_dialogue_is_shown_turn_by_turn() -> None:
    asked = "Guess my number from 12 to 14."
    row = SampleRow("guess", asked, "", 1.0, 7, turns=["13", HOSTILE, ""])
    text = printed(samples_view([row], []), 60)
    lines = [line.split() for line in text.splitlines()]
    assert lines[1] == ["local", "v7", *asked.split(), "✓"]
    assert lines[2] == ["node", "13"]
    assert lines[3][0] == "observation"
    assert text.replace("\n", "").isprintable()
    assert ["node", "(nothing)"] in lines


def test_samples_come_from_the_running_node(tmp_path: Path) -> None:
    command = ["samples", "--home", str(tmp_path), "--json"]

    async def main() -> Result:
        async with serving(tmp_path, samples=lambda: ROWS):
            return await asyncio.to_thread(CliRunner().invoke, app, command)

    done = asyncio.run(main())
    assert done.exit_code == 0, done.stderr
    listed = json.loads(done.stdout)
    assert (listed["schema"], len(listed["samples"])) == (1, 4)


def test_json_has_all_that_peers_wrote_and_moves_no_cursor() -> None:
    hostile = "\x9b2J\x7f\u202eevil\U000e0041 é 中 \x1b[2J\u2028"
    text = json_of({"samples": [hostile]})
    assert text.isprintable()
    assert json.loads(text) == {"samples": [hostile]}
    assert "é 中" in text


def test_top_needs_a_terminal(tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["top", "--home", str(tmp_path)])
    assert done.exit_code == 1
    assert "-node status" in done.stderr


def test_logs_are_for_people_or_as_they_are(tmp_path: Path) -> None:
    def run(*options: str) -> str:
        done = CliRunner().invoke(app, ["logs", "--home", str(tmp_path), *options])
        assert done.exit_code == 0, done.stderr
        return done.stdout

    none = CliRunner().invoke(app, ["logs", "--home", str(tmp_path)])
    assert none.exit_code == 1
    assert "-node join" in none.stderr
    journal = Journal(tmp_path / "node.log", 1 << 20)
    for number in range(3):
        event = {"event": "progress", "level": "info", "timestamp": "2026-11-22T13:00:00.5Z"}
        journal.append(json.dumps({**event, "version": number}).encode())
    journal.append(b'{"event": "cut \x1b[31m')
    shown = run().splitlines()
    assert shown[0] == "2026-11-22T13:00:00Z progress version=0"
    assert shown[3] == '{"event": "cut ?[31m'
    assert run("-n", "2").count("\n") == 2
    assert run("-n", "0") == ""
    assert json.loads(run("--json", "-n", "2").splitlines()[0])["version"] == 2


@pytest.mark.slow(reason="a process follows a file")
def test_logs_follow_a_file_that_is_moved_away(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "node.log", 150)
    command = [sys.executable, "-m", "swarm_node", "logs", "-f", "--json", "--home", str(tmp_path)]
    reader = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    seen: list[int] = []
    ended = threading.Event()

    def write() -> None:
        number = 0
        while not ended.wait(0.05):
            journal.append(json.dumps({"event": "x" * 40, "number": number}).encode())
            number += 1

    writer = threading.Thread(target=write)
    writer.start()
    try:
        while len(seen) < 8:
            seen.append(json.loads(reader.stdout.readline())["number"])
    finally:
        ended.set()
        writer.join()
        reader.kill()
        reader.communicate()
    assert seen == sorted(set(seen))
    assert (tmp_path / "node.log.1").exists()


@pytest.mark.slow(reason="waits for a file that is away for half a second")
def test_a_log_that_is_not_there_for_a_moment_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the two steps of a rotation there is no file, also between a look and an opening."""
    log, look, seen = tmp_path / "node.log", Path.stat, list[bytes]()

    def look_and_rotate(path: Path, **options: Any) -> os.stat_result:
        state = look(path, **options)
        if path == log and seen == [b"1\n"] and not (tmp_path / "node.log.1").exists():
            log.rename(tmp_path / "node.log.1")
            threading.Timer(0.5, lambda: log.write_bytes(b"2\n")).start()
            return os.stat(tmp_path)  # another file
        return state

    monkeypatch.setattr(Path, "stat", look_and_rotate)
    threading.Timer(0.5, lambda: log.write_bytes(b"1\n")).start()
    with closing(_newer(log)) as lines:
        while len(seen) < 2:
            seen.append(next(lines))
    assert seen == [b"1\n", b"2\n"]
