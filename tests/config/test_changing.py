"""`swarm-node config set`: what it writes, and what it refuses to write."""

from __future__ import annotations

import os
import re
import stat
import tomllib
from pathlib import Path
from typing import Any

import pytest

from swarm_node.config import load_settings
from swarm_node.config.changing import change_file
from swarm_node.config.sources import MAX_FILE_BYTES
from swarm_node.errors import ConfigError

FILE = """\
# of the house
model = "tiny"  # small

experience.local = 4
[run]  # how long
max_steps = 10   # a short run
device = "cpu"

[environment.options]
preset = "short"
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "node.toml"
    path.write_text(FILE)
    path.chmod(0o640)
    return path


def test_values_change_and_comments_stay(file: Path) -> None:
    changes = {"run.max_steps": 20, "verbose": True, "experience.local": 6, "network.relay": "off"}
    change_file(file, {**changes, "environment.options.preset": "chat"})
    text = file.read_text()
    for kept in ("# of the house\n", '"tiny"  # small', "[run]  # how long", "20   # a short run"):
        assert kept in text
    settings = load_settings({}, environ={}, config=file)
    assert (settings.run.max_steps, settings.run.device, settings.verbose) == (20, "cpu", True)
    assert (settings.experience.local, settings.network.relay) == (6, "off")
    assert settings.environment.options == {"preset": "chat"}
    assert stat.S_IMODE(file.stat().st_mode) == 0o640


def test_a_new_file_is_for_its_owner_and_a_link_stays_one(file: Path, tmp_path: Path) -> None:
    new, link = tmp_path / "new.toml", tmp_path / "link.toml"
    change_file(new, {"run.max_steps": 3})
    assert new.read_text() == "[run]\nmax_steps = 3\n"
    assert stat.S_IMODE(new.stat().st_mode) == 0o600
    link.symlink_to(file)
    change_file(link, {"run.max_steps": 3})
    assert link.is_symlink()
    assert tomllib.loads(file.read_text())["run"]["max_steps"] == 3


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"experience.local": 0}, "experience.local"),
        ({"experience.owns": 1}, "experience.owns"),
        ({"policy.own": 3}, "setting policy"),
        ({"run.max_steps": 4, "run.device": "tpu"}, "run.device"),
        ({"model.name": "tiny"}, "model is"),
    ],
)
def test_what_a_start_would_refuse_is_not_written(
    file: Path, changes: dict[str, Any], told: str
) -> None:
    with pytest.raises(ConfigError, match=re.escape(told)):
        change_file(file, changes)
    assert file.read_text() == FILE


def test_a_file_that_cannot_be_used_is_said(file: Path, tmp_path: Path) -> None:
    file.write_text("run = [")
    with pytest.raises(ConfigError, match="not TOML"):
        change_file(file, {"run.max_steps": 3})
    file.write_text("#" * (MAX_FILE_BYTES + 1))
    with pytest.raises(ConfigError, match=f"longer than {MAX_FILE_BYTES} bytes"):
        change_file(file, {"run.max_steps": 3})
    for place in (tmp_path, tmp_path / "no" / "where.toml"):
        with pytest.raises(ConfigError, match=r"settings file"):
            change_file(place, {"run.max_steps": 3})
    assert os.listdir(tmp_path) == [file.name]
