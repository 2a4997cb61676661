"""The tables of CONTRIBUTING.md on the time of the tests."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from builders import ROOT
from test_times import LOOPS, read, tables

TESTS = """
import pytest

def test_quick(): pass
@pytest.mark.slow(reason="so")
def test_slow(): pass
@pytest.mark.nightly(reason="so")
def test_of_the_night(): pass
@pytest.mark.nightly(reason="so")
def test_skipped(): pytest.skip("here")
"""


def test_each_loop_contains_those_before_it(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text((ROOT / "tests" / "conftest.py").read_text())
    (tmp_path / "test_it.py").write_text(TESTS)
    report = tmp_path / "report.xml"
    command = [sys.executable, "-m", "pytest", f"--junitxml={report}", "--rootdir", str(tmp_path)]
    options = ["-c", str(ROOT / "pyproject.toml"), str(tmp_path / "test_it.py")]
    subprocess.run([*command, *options], cwd=ROOT, check=True, capture_output=True)
    times = read(report)
    assert [times.counts[loop] for loop in LOOPS] == [1, 1, 1]
    shown = tables(times)
    assert "| tests | 1 | 2 | 3 |" in shown
    assert "test_it::test_of_the_night` | 0 | `test-all` |" in shown
