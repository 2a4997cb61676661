"""Log lines: for people, for programs, and in the home."""

from __future__ import annotations

import io
import json
import logging
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog

from swarm_node.durable import Journal
from swarm_node.node.metrics.snapshot import Ended
from swarm_node.node.start.progress import NodeProgress, end_text
from swarm_node.program.logs import keep_log, set_up_logging

HOSTILE = "\x1b[31mred\x1b]0;title\x07\r\nforged line\u202eevil\x9b2J"


class Told:
    """What went to stderr so far."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys
        self._read = ""

    def text(self) -> str:
        self._read += self._capsys.readouterr().err
        return self._read


@pytest.fixture
def told(capsys: pytest.CaptureFixture[str]) -> Iterator[Told]:
    yield Told(capsys)
    keep_log(None)
    structlog.reset_defaults()


def test_an_event_is_one_line_of_text(told: Told) -> None:
    set_up_logging(verbose=False)
    log = structlog.get_logger()
    log.info("started", peer="12D3", swarm="a b")
    log.warning("unreachable", error=HOSTILE)
    log.debug("rejected", reason="stale")
    log.info("progress", version=3, sentence="version 3")
    first, second, third = told.text().splitlines()
    assert first.split("Z ")[1] == 'started peer=12D3 swarm="a b"'
    assert second.split("Z ")[1].startswith("WARNING unreachable")
    assert all(character.isprintable() for character in second)
    assert third.split("Z ")[1] == "progress version 3"


def test_a_traceback_follows_its_line(told: Told) -> None:
    set_up_logging(verbose=False)
    try:
        raise ValueError(f"broken {HOSTILE}")
    except ValueError:
        structlog.get_logger().exception("a bug")
    lines = told.text().split("\n")
    assert lines[0].endswith("ERROR a bug")
    assert lines[1].startswith("Traceback")
    assert any(line.startswith("ValueError: broken") for line in lines)
    assert all(line.isprintable() for line in lines)


def test_programs_get_an_object_a_line_with_every_field(told: Told) -> None:
    set_up_logging(verbose=True, log_format="json")
    log = structlog.get_logger()
    log.debug("rejected", reason="stale")
    log.info("progress", version=3, sentence="version 3")
    rows = [json.loads(line) for line in told.text().splitlines()]
    assert [(row["event"], row["level"]) for row in rows] == [
        ("rejected", "debug"),
        ("progress", "info"),
    ]
    assert (rows[1]["version"], "sentence" in rows[1]) == (3, False)


def test_the_home_keeps_all_lines_and_a_drawing_screen_shows_warnings(
    told: Told, tmp_path: Path
) -> None:
    set_up_logging(verbose=False, warnings_only=True)
    keep_log(Journal(tmp_path / "node.log", 1 << 20))
    log = structlog.get_logger()
    log.info("progress", version=3)
    log.warning("look")
    kept = [json.loads(line) for line in (tmp_path / "node.log").read_text().splitlines()]
    assert [row["event"] for row in kept] == ["progress", "look"]
    assert told.text().count("\n") == 1
    assert "look" in told.text()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs Linux's /dev/full")
def test_a_full_disk_under_stderr_ends_nothing_and_is_told_afterwards(
    told: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_up_logging(verbose=False, log_format="json")
    log = structlog.get_logger()
    full = io.TextIOWrapper(io.FileIO("/dev/full", "w"), write_through=True)
    with monkeypatch.context() as patch, full:
        patch.setattr(sys, "stderr", full)
        log.warning("first")
        log.warning("second")
    log.info("third")
    log.info("fourth")
    rows = [json.loads(line) for line in told.text().splitlines()]
    assert [row["event"] for row in rows][::2] == ["third", "fourth"]
    assert (rows[1]["lines"], "space left" in rows[1]["reason"]) == (2, True)


def test_a_log_that_cannot_be_written_stops_nothing(told: Told, tmp_path: Path) -> None:
    set_up_logging(verbose=False)
    keep_log(Journal(tmp_path / "nowhere" / "node.log", 1 << 20))
    structlog.get_logger().warning("look")
    assert "look" in told.text()


def test_what_libraries_log_has_the_same_form(told: Told) -> None:
    for _ in range(2):  # a second set-up adds no second handler
        set_up_logging(verbose=False)
    logging.getLogger("hivemind").warning("a %s", "b")
    (line,) = told.text().splitlines()
    assert line.endswith(" a b logger=hivemind")


def test_p2pd_ends_without_an_error_line(told: Told) -> None:
    from swarm_node.p2p.transports.hivemind.daemon import _calm_logging

    set_up_logging(verbose=False)
    _calm_logging()
    log = logging.getLogger("hivemind.p2p.p2p_daemon")
    log.error("error accepting connection: accept unix /x.sock: use of closed network connection")
    assert told.text() == ""
    log.error("failed")
    assert "failed" in told.text()


def test_without_a_terminal_the_start_and_the_end_are_lines(told: Told) -> None:
    set_up_logging(verbose=False)
    screen = NodeProgress()
    with screen:
        screen.step("trainer")
        screen.show_end(Ended(6384, 0.84, True))
    first, last = (line.split("Z ")[1] for line in told.text().splitlines())
    assert first.endswith("part=trainer")
    assert last.startswith("stopped step 6,384 ")
    assert "one before" in end_text(Ended(6384, 0.0, False))
