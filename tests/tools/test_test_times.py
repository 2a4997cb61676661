"""The tables of CONTRIBUTING.md on the time of the tests, and the workers that run them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
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

#: Apart: conftest.py, which reads this file too, must not find a fixture of a module in it.
SCOPE = "module"
SHARED = f"""
import pytest

@pytest.fixture(scope="{SCOPE}")
def shared(): return []
@pytest.mark.parametrize("number", range(8))
def test_it(shared, number):
    shared.append(number)
    assert shared == list(range(number + 1))
"""


def passed(place: Path, tests: str, *options: str) -> None:
    """Run tests with this project's conftest.py, as in a checkout at `place`."""
    (place / "conftest.py").write_text((ROOT / "tests" / "conftest.py").read_text())
    (place / "test_it.py").write_text(tests)
    command = [sys.executable, "-m", "pytest", "--rootdir", str(place), *options]
    config = ["-c", str(ROOT / "pyproject.toml"), str(place / "test_it.py")]
    done = subprocess.run([*command, *config], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


@pytest.mark.slow(reason="runs pytest")
def test_each_loop_contains_those_before_it(tmp_path: Path) -> None:
    report = tmp_path / "report.xml"
    passed(tmp_path, TESTS, f"--junitxml={report}")
    times = read(report)
    assert [times.counts[loop] for loop in LOOPS] == [1, 1, 1]
    shown = tables(times)
    assert "| tests | 1 | 2 | 3 |" in shown
    assert "test_it::test_of_the_night` | 0 | `test-all` |" in shown


@pytest.mark.slow(reason="runs pytest on two workers")
def test_tests_that_share_what_their_module_sets_up_run_on_one_worker(tmp_path: Path) -> None:
    passed(tmp_path, SHARED, "--numprocesses", "2", "--dist", "loadscope")
