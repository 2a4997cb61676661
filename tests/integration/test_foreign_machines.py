"""Nodes for users and places that a container or another country has: no entry in passwd, no HOME,
a terminal without UTF-8, and a home with a name of many alphabets."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

_USER = ["unshare", "-U", "--map-user=12345", "--map-group=12345"]


def _has_users() -> bool:
    if shutil.which("unshare") is None:
        return False
    return subprocess.run([*_USER, "true"], capture_output=True, check=False).returncode == 0


pytestmark = pytest.mark.skipif(not _has_users(), reason="NOT RUN: needs user namespaces")


def run(
    place: Path, *command: str | Path, given: Mapping[str, str]
) -> subprocess.CompletedProcess[bytes]:
    """Run the program as a user that nothing knows, in an empty directory."""
    unknown = {"HOME", "USER", "LOGNAME", "LNAME", "USERNAME", "XDG_DATA_HOME", "XDG_CACHE_HOME"}
    kept = {name: text for name, text in os.environ.items() if name not in unknown}
    return subprocess.run(
        [*_USER, sys.executable, "-m", "swarm_node", *command],
        env=kept | {"PYTHONPATH": str(Path(__file__).parents[2])} | given,
        cwd=place,
        capture_output=True,
        check=False,
    )


@pytest.mark.slow(reason="it runs a node for two updates")
def test_a_home_is_all_that_an_unknown_user_names(tmp_path: Path) -> None:
    work = tmp_path / "work"
    work.mkdir()
    home = tmp_path / "Größe [x] 中"
    given = {"PYTHONIOENCODING": "latin-1"}
    asked = ("--model", "tiny", "--listen", "/ip4/127.0.0.1/tcp/0")
    asked += ("--set", "run.max_steps=2", "--set", "run.eval_tasks=1")
    done = run(work, "join", "--home", home, *asked, given=given)
    assert done.returncode == 0, done.stderr
    assert b"Traceback" not in done.stderr
    named = given | {"SWARM_NODE_HOME": str(home)}
    for command in (["doctor"], ["id"], ["eval", "--checkpoint", "all", "--limit", "1"]):
        done = run(work, *command, given=named)
        assert done.returncode == 0, done.stderr
    assert [*work.iterdir()] == [], "a library took ~ for a name"


def test_without_a_home_an_unknown_user_is_asked_for_one(tmp_path: Path) -> None:
    done = run(tmp_path, "status", given={})
    assert done.returncode == 1
    assert b"Traceback" not in done.stderr
    assert b"--home or SWARM_NODE_HOME" in done.stderr
