"""A short campaign of `kill.py`. docs/research/campaigns.md has the long one."""

from __future__ import annotations

import subprocess
import sys

import pytest
from builders import ROOT


@pytest.mark.slow(reason="forks and kills processes that write checkpoints")
@pytest.mark.parametrize(
    "kills", [18, pytest.param(60, marks=pytest.mark.nightly(reason="a campaign"))]
)
def test_kill_9_loses_nothing_that_was_acknowledged_and_repeats_nothing(kills: int) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "campaigns.kill", "--rounds", str(kills), "--seed", "3"],
        cwd=ROOT / "tests",
        capture_output=True,
        text=True,
        timeout=250,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    *_, last = done.stdout.splitlines()
    assert last.startswith(f"{kills} kills")
    assert last.endswith(" 0 defects")
    died = dict(line.split(maxsplit=1)[::-1] for line in done.stdout.splitlines()[:-1])
    assert int(died.pop("at random")) >= kills // 3
    assert len(died) >= 5, "hardly any life ended at a named point"
