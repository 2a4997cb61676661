"""The screens of real nodes in terminals of several widths, kept by `screens.py`."""

from __future__ import annotations

import io
import os
import pty
import re
import subprocess
import sys

import pytest
from builders import ROOT
from rich.console import Console
from screens import PLACE, TEXTS, VIEWS, WIDTHS


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("view", VIEWS)
def test_a_view_is_what_the_terminal_showed(view: str, width: int) -> None:
    console = Console(file=io.StringIO(), width=width, highlight=False)
    console.print(VIEWS[view]())
    lines = [line.rstrip() for line in console.file.getvalue().rstrip().splitlines()]
    kept = (PLACE / f"{view}-{width}.txt").read_text().splitlines()
    assert lines == kept, "run `python -m screens` in tests, and look at what changed"
    assert max(map(len, kept)) <= width


@pytest.mark.parametrize("name", TEXTS)
def test_what_is_said_of_a_node_is_what_was_kept(name: str) -> None:
    kept = (PLACE / f"{name}.txt").read_text()
    assert TEXTS[name]() == kept, "run `python -m screens texts` in tests, and look at what changed"


@pytest.mark.parametrize("width", WIDTHS)
def test_join_ticks_its_steps_draws_and_says_how_it_ended(width: int) -> None:
    text = (PLACE / f"join-{width}.txt").read_text()
    assert max(map(len, text.splitlines())) <= width
    words = " ".join(text.split())
    places = [
        words.index(said)
        for said in ("✓ trainer", "✓ network", "listening", "no peers yet", "eval reward", "----")
    ]
    assert places == sorted(places)
    assert re.search(r"stopped: step [\d,]+ .* \(\d+\.\d s\)", words)
    assert re.search(r"export --home \S+ DIR", words)
    assert "swarm1-" not in text, "no ticket"
    assert "error" not in text.lower()


def drawn(**variables: str) -> bytes:
    """The status view as a process shows it in a terminal with these variables."""
    ours, theirs = pty.openpty()
    with subprocess.Popen(
        [sys.executable, "-m", "screens", "status"],
        cwd=ROOT / "tests",
        stdout=theirs,
        env={**os.environ, "PYTHONPATH": str(ROOT), "TERM": "xterm-256color", **variables},
    ) as process:
        os.close(theirs)
        text = b""
        try:
            while chunk := os.read(ours, 65_536):
                text += chunk
        except OSError:  # the other end closed
            pass
        assert process.wait(60) == 0
    os.close(ours)
    return text


@pytest.mark.slow(reason="draws a screen twice in a process of its own")
def test_no_color_means_none() -> None:
    assert b"\x1b[32m" in drawn()
    plain = drawn(NO_COLOR="1")
    assert re.search(rb"\x1b\[(3|4|9)[0-9]", plain) is None
    assert b"and sharing" in plain


@pytest.mark.slow(reason="draws a screen in a process of its own")
def test_without_a_terminal_there_are_no_escapes() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "screens", "status"],
        cwd=ROOT / "tests",
        capture_output=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert done.returncode == 0, done.stderr
    assert b"\x1b" not in done.stdout
