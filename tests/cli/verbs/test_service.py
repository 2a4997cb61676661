"""`swarm-node service install`: the unit that it writes, as systemd reads it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
from builders import ROOT
from typer.testing import CliRunner

from swarm_node.cli.main import app
from swarm_node.cli.verbs.service import unit_text
from swarm_node.errors import HomeError
from swarm_node.node.home.home import Home


def _verify(unit: Path) -> str:
    """What `systemd-analyze verify` says of a unit."""
    program = shutil.which("systemd-analyze")
    if program is None:
        pytest.skip("NOT RUN: needs systemd-analyze")
    done = subprocess.run(
        [program, "verify", "--user", "--man=no", str(unit)],
        capture_output=True,
        text=True,
        env={**os.environ, "XDG_RUNTIME_DIR": str(unit.parent)},
        timeout=60,
        check=False,
    )
    return done.stdout + done.stderr


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.delenv("PYTHONPATH", raising=False)
    place = tmp_path / 'a "home" of 100%h $USER'
    Home(place).found_swarm("team", time.time())
    return place


def _install(home: Path, *more: str) -> tuple[int, str]:
    done = CliRunner().invoke(app, ["service", "install", "--home", str(home), *more])
    return done.exit_code, " ".join((done.output + str(done.exception or "")).split())


def test_systemd_accepts_the_unit_and_reads_the_paths_as_they_are(
    home: Path, tmp_path: Path
) -> None:
    code, told = _install(home)
    unit = tmp_path / "config" / "systemd" / "user" / "swarm-node.service"
    assert code == 0, told
    assert "systemctl --user enable --now swarm-node" in told
    text = unit.read_text()
    assert f'ExecStart="{sys.executable}" "-P" "-m" "swarm_node" "join"\n' in text
    escaped = str(home).replace('"', '\\"').replace("%", "%%")
    assert f'Environment="SWARM_NODE_HOME={escaped}"\n' in text
    assert "PYTHONPATH" not in text
    assert "swarm-node.service" not in _verify(unit)
    unit.write_text(text.replace("Restart=on-failure", "Restart=perhaps"))
    assert "swarm-node.service:" in _verify(unit)  # it would have said so


def test_it_replaces_its_own_unit_and_no_other(home: Path, tmp_path: Path) -> None:
    assert _install(home, "--name", "second")[0] == 0
    assert _install(home, "--name", "second")[0] == 0
    unit = tmp_path / "config" / "systemd" / "user" / "second.service"
    unit.write_text("[Unit]\n")
    code, told = _install(home, "--name", "second")
    assert code == 1
    assert "was written by somebody else" in told
    assert unit.read_text() == "[Unit]\n"


def test_names_and_paths_that_would_say_something_else_are_refused(
    home: Path, tmp_path: Path
) -> None:
    for name in ("../x", "a b", "", "-x", "a@b", "x" * 99):
        code, told = _install(home, f"--name={name}")
        assert (code, "cannot be the name" in told) == (1, True), name
    with pytest.raises(HomeError, match="control character"):
        unit_text(["x"], tmp_path, {"PYTHONPATH": "a\nExecStartPre=evil"})
    code, told = _install(tmp_path / "empty")
    assert code == 1
    assert "swarm-node join" in told  # what makes a home


def test_modules_of_the_users_own_are_found_by_the_service_too(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", "mine:/opt/x")
    assert _install(home)[0] == 0
    unit = tmp_path / "config" / "systemd" / "user" / "swarm-node.service"
    assert f'Environment="PYTHONPATH={tmp_path}/mine:/opt/x"\n' in unit.read_text()


def test_what_both_units_say_is_the_same(tmp_path: Path) -> None:
    """The one that the image's directory has for a system service, and the one for a user."""
    of_system = _directives((ROOT / "docker" / "swarm-node.service").read_text())
    of_user = _directives(unit_text(["x"], tmp_path, {}))
    # Where the program and the data directory are, and who starts it.
    places = {"ExecStart", "WorkingDirectory", "WantedBy"}
    shared = of_user.keys() & of_system.keys() - places
    assert {"Type", "RestartPreventExitStatus", "KillMode", "TimeoutStopSec"} <= shared
    assert {key: of_user[key] for key in shared} == {key: of_system[key] for key in shared}


def _directives(text: str) -> dict[str, str]:
    pairs = (line.split("=", 1) for line in text.splitlines() if line[:1].isalpha())
    return {key: value for key, value in pairs}
