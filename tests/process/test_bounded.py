"""A program is asked within bounds, whatever it does."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from swarm_node.process.bounded import MOST_BYTES, bounded_run

pytestmark = pytest.mark.slow(reason="programs that hang or print for ever take seconds to end")


def python(code: str) -> list[str]:
    return [sys.executable, "-c", code]


def test_what_it_prints_and_how_it_ends_is_returned() -> None:
    done = bounded_run(python("import sys; print('a'); sys.stderr.write('b'); sys.exit(3)"), 30.0)
    assert (done.stdout, done.stderr, done.returncode) == (b"a\n", b"b", 3)


@pytest.mark.parametrize("stream", ["stdout", "stderr"])
def test_one_that_prints_for_ever_is_ended(stream: str) -> None:
    code = f"import sys\nwhile True: sys.{stream}.write('x' * 9999)"
    with pytest.raises(subprocess.SubprocessError, match="without end"):
        bounded_run(python(code), 60.0)
    exactly = bounded_run(python(f"print('x' * {MOST_BYTES - 1})"), 60.0)
    assert len(exactly.stdout) == MOST_BYTES


def test_one_that_hangs_is_ended_with_what_it_started(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    code = (
        "import os, subprocess, sys, time\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
        f"open({str(pids)!r}, 'w').write(str(child.pid))\n"
        "time.sleep(600)"
    )
    for seconds in (2.0, 60.0):  # the second where two interpreters take longer to start
        with pytest.raises(subprocess.SubprocessError, match="not answer"):
            bounded_run(python(code), seconds)
        if pids.exists() and pids.read_text():
            break
    child = int(pids.read_text())
    for _ in range(100):
        if not psutil.pid_exists(child) or psutil.Process(child).status() == "zombie":
            return
        time.sleep(0.1)
    raise AssertionError("the child of the program lives on")


def test_one_that_is_not_there_is_an_error_of_the_system() -> None:
    with pytest.raises(OSError, match="no-such-program"):
        bounded_run(["no-such-program"], 1.0)
