"""What `swarm-node config` says of each setting."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from swarm_node.cli.config import explain_settings
from swarm_node.cli.main import app
from swarm_node.config import settings_keys


def test_a_setting_is_explained(tmp_path: Path) -> None:
    file = tmp_path / "swarm.toml"
    file.write_text('[experience]\nown = 5\n[environment.options]\npreset = "sapo"\n')
    keys = {
        key.name: key
        for key in explain_settings(
            {"experience.max_age": 2},
            environ={"SWARM_NODE_TRAINING__LOSS": "gspo"},
            config=file,
        )
    }
    assert list(keys) == [name for name, _ in settings_keys()]
    own = keys["experience.own"]
    assert own[1:5] == (5, 8, "int 1..1024", str(file))
    assert keys["experience.external"].choices == "int 0..1024 | auto"
    assert keys["network.poll_seconds"].choices == "float >0..30"
    assert keys["run.seed"].choices == "int 0..<4294967296"
    assert keys["run.updates"].choices == "int 0.."
    assert keys["experience.max_age"][1:5] == (2, 32, "int 0..65536", "command line")
    assert keys["training.loss"].source == "SWARM_NODE_TRAINING__LOSS"
    assert "gspo" in keys["training.loss"].choices
    assert keys["environment.options"].value == {"preset": "sapo"}
    assert keys["run.seed"].source == "default"
    assert all(key.choices and key.description for key in keys.values())


def test_the_command_shows_it_to_people_and_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    secret = ["--set", "ticket=swarmjoin1.secret", "--set", "experience.own=6"]
    shown = CliRunner().invoke(app, ["config", *secret])
    assert "6 (default 8; command line)" in " ".join(shown.stdout.split())
    listed = CliRunner().invoke(app, ["config", "--json", *secret])
    answer = json.loads(listed.stdout)
    assert answer["schema"] == 1
    assert len(answer["settings"]) == len(list(settings_keys()))
    assert "secret" not in shown.stdout + listed.stdout
