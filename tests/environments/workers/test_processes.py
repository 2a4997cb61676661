"""What of a node's own variables an environment's process gets."""

from __future__ import annotations

import subprocess
import sys

import pytest

from swarm_node.environments.workers.processes import variables


def test_an_environment_inherits_what_it_needs_and_no_secret(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    given = {"LC_TIME": "C", "PYTHONPATH": "/there", "HOME": "/home", "HF_HOME": "/cache"}
    kept = {"HF_TOKEN": "a secret", "MY_PYTHON": "1", "AWS_SECRET_ACCESS_KEY": "a secret"}
    for name, text in {**given, **kept}.items():
        monkeypatch.setenv(name, text)
    found = variables()
    assert given.items() <= found.items()
    assert not kept.keys() & found.keys()
    assert found["PYTHONHASHSEED"] == "0", "nodes agree on what iterates over a set"


def test_what_an_environment_prints_fits_every_locale(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONIOENCODING", "ascii")
    printing = [sys.executable, "-c", "print('✓')"]
    done = subprocess.run(printing, env=variables() | {"PYTHONUTF8": "0"}, capture_output=True)
    assert done.returncode == 0
