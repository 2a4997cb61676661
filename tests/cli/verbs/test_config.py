"""What `swarm-node config` says of each setting."""

from __future__ import annotations

import asyncio
import json
import re
import tomllib
from pathlib import Path

import pytest
from control_servers import serving
from structlog.testing import capture_logs
from typer.testing import CliRunner, Result

from swarm_node.cli.main import app
from swarm_node.cli.views.config_view import SettingRow, explain_settings
from swarm_node.config import Sources, load_settings, settings_keys
from swarm_node.config.reloading import Reloaded, Reloading
from swarm_node.config.remembered import recall
from swarm_node.config.sources import dotted_keys
from swarm_node.node.home.home import Home


def test_a_setting_is_explained(tmp_path: Path) -> None:
    file = tmp_path / "swarm.toml"
    file.write_text('[experience]\nlocal = 5\n[environment.options]\npreset = "sapo"\n')
    keys = {
        key.name: key
        for key in explain_settings(
            {"experience.max_staleness": 2},
            environ={"SWARM_NODE_TRAINING__LOSS": "gspo"},
            config=file,
        )
    }
    assert list(keys) == [name for name, _ in settings_keys()]
    own = keys["experience.local"]
    assert own[1:5] == (5, 4, "int 1..1024", str(file))
    assert keys["experience.external"].choices == "int 0..1024 | auto"
    assert keys["network.poll_seconds"].choices == "float >0..30"
    assert keys["run.seed"].choices == "int 0..<4294967296"
    assert keys["run.max_steps"].choices == "int 0.."
    assert keys["experience.max_staleness"][1:5] == (2, 8, "int 0..1024", "command line")
    assert keys["training.loss"].source == "SWARM_NODE_TRAINING__LOSS"
    assert "gspo" in keys["training.loss"].choices
    assert keys["environment.options"].value == {"preset": "sapo"}
    assert keys["run.seed"].source == "default"
    assert all(key.choices and key.description for key in keys.values())


def test_the_command_shows_it_to_people_and_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    secret = ["--set", "ticket=swarmjoin1.secret", "--set", "experience.local=6"]
    shown = CliRunner().invoke(app, ["config", *secret])
    assert "6 (default 4;" in " ".join(shown.stdout.split())
    listed = CliRunner().invoke(app, ["config", "--json", *secret])
    answer = json.loads(listed.stdout)
    assert answer["schema"] == 1
    assert len(answer["settings"]) == len(list(settings_keys()))
    assert "secret" not in shown.stdout + listed.stdout


def test_a_file_to_start_from_has_every_setting_and_means_the_same(tmp_path: Path) -> None:
    file, home = tmp_path / "swarm.toml", ["--home", str(tmp_path / "home")]
    options = '{preset = "short", "a b" = {c = [1, "\\u0007#"]}}'
    given = [f"environment.options={options}", "experience.local=4", "ticket=swarmjoin1.secret"]
    assigned = [word for each in given for word in ("--set", each)]
    done = CliRunner().invoke(app, ["config", "--toml", *home, *assigned])
    assert done.exit_code == 0, done.stderr
    assert "secret" not in done.stdout
    assert done.stdout.isascii() or done.stdout.replace("\n", "").isprintable()
    file.write_text(done.stdout)
    known = {name for name, _ in settings_keys()} - {"home", "ticket"}
    named = known.intersection(dotted_keys(tomllib.loads(done.stdout)))
    assert named == {"environment.options", "experience.local"}
    read = load_settings({}, environ={}, config=file)
    assert read.environment.options == {"preset": "short", "a b": {"c": [1, "\x07#"]}}
    # Each comment that holds a setting can be one.
    everything = re.sub(r"(?m)^# (\w+ = )", r"\1", done.stdout)
    file.write_text(everything)
    assert known == {*dotted_keys(tomllib.loads(everything))}
    assert load_settings({}, environ={}, config=file) == read


def test_set_refuses_what_it_cannot_write(tmp_path: Path) -> None:
    file = tmp_path / "node.toml"
    for arguments, told in (
        (["run.max_steps=-5", "--home", str(tmp_path / "home")], "run.max_steps"),
        (["run.max_steps", "--config", str(file)], "KEY=VALUE"),
        (["run.max_steps=-5", "--config", str(file)], "run.max_steps"),
    ):
        done = CliRunner().invoke(app, ["config", "set", *arguments])
        assert done.exit_code == 1
        assert told in done.stderr
    assert not file.exists()
    assert not (tmp_path / "home").exists()


def set_beside(home: Path, sources: Sources, *arguments: str) -> list[str]:
    """What `config set` says beside a node with these settings, which runs in a home."""
    reloading = Reloading(sources, sources.load())

    def reload() -> Reloaded:
        return reloading.reload(load_settings({}, environ={}))[1]

    async def asked() -> list[str]:
        async with serving(home, reload=reload):
            return await asyncio.to_thread(config_of, home, *arguments)

    with capture_logs():  # the node's, in this process
        return asyncio.run(asked())


def config_of(home: Path, *arguments: str) -> list[str]:
    command = ["config", *arguments, "--home", str(home)]
    done = CliRunner().invoke(app, command, env={"COLUMNS": "300"})
    assert done.exit_code == 0, done.stderr
    return done.stdout.splitlines()


def test_set_writes_the_file_and_says_what_the_running_node_does(tmp_path: Path) -> None:
    file, home = tmp_path / "node.toml", tmp_path / "home"
    home.mkdir()
    sources = Sources({"run.eval_tasks": 4}, {}, file)
    file.touch()
    changes = ["set", "run.max_steps=5", "run.eval_tasks=9", "experience.local=6"]
    said = set_beside(home, sources, "--config", str(file), *changes)
    assert said[0].startswith(f"{file}: run.max_steps, ")
    effects = [line.rpartition(": ")[2] for line in said[1:]]
    assert effects == ["run.max_steps", "experience.local", "run.eval_tasks"]
    other = tmp_path / "other.toml"
    said = set_beside(home, sources, *changes, "--config", str(other))
    assert said[1].endswith(f"--config {other}")
    assert f"runs in {home}" in config_of(home, *changes, "--config", str(file))[1]


def test_set_without_a_settings_file_changes_the_home(tmp_path: Path) -> None:
    file, home = tmp_path / "node.toml", tmp_path / "home"
    home.mkdir()
    sources = Sources({"home": home, "experience.local": 3}, {}, with_home=True)
    changes = ["set", "run.max_steps=5", "run.seed=2", "experience.local=6"]
    said = set_beside(home, sources, *changes)
    assert said[0].startswith(f"{home}: run.max_steps, ")
    effects = [line.rpartition(": ")[2] for line in said[1:]]
    assert effects == ["run.max_steps", "run.seed", "experience.local"]
    assert f"runs in {home}" in config_of(home, *changes)[1]
    assert "6 (default 4; " in "\n".join(config_of(home))
    file.write_text("[experience]\nlocal = 9\n")
    shown = "\n".join(config_of(home, "--config", str(file)))
    assert f"9 (default 4; {file})" in shown
    assert "2 (default 0; " in shown


def test_a_home_that_lost_what_it_remembered_says_so_until_a_start(tmp_path: Path) -> None:
    def command(*arguments: str) -> Result:
        done = CliRunner().invoke(app, [*arguments, "--home", str(tmp_path)])
        assert done.exit_code == 0, done.stderr
        return done

    command("config", "set", "run.seed=1")  # in a home without a swarm yet
    command("init", "team")
    assert command("config").stderr == ""
    (tmp_path / "settings.json").unlink()
    told = "settings.json is"
    assert told in command("config").stderr
    assert told in command("config", "set", "run.seed=2").stderr
    assert command("config").stderr == ""


def test_settings_that_a_founded_home_got_later_are_missed_too(tmp_path: Path) -> None:
    home = Home(tmp_path)
    home.found_swarm("team", 1_800_000_000.0)
    arguments = ["config", "set", "run.seed=1", "--home", str(tmp_path)]
    assert CliRunner().invoke(app, arguments).exit_code == 0
    (tmp_path / "settings.json").unlink()
    (fault,) = home.state().faults
    assert (fault.file, fault.level) == ("settings.json", "warning")
    assert "backup" in fault.remedy


def test_the_port_that_the_home_keeps_is_shown_beside_port_0(tmp_path: Path) -> None:
    def listen() -> tuple[str, SettingRow]:
        arguments = ["config", "--home", str(tmp_path)]
        shown = CliRunner().invoke(app, arguments, env={"COLUMNS": "300"}).stdout
        rows = {row.name: row for row in explain_settings({"home": tmp_path}, with_home=True)}
        return shown, rows["network.listen"]

    shown, row = listen()
    assert "in force" not in shown, "a port is chosen at the first start"
    assert row.in_force is None
    port = Home(tmp_path).port()
    shown, row = listen()
    assert f"['/ip4/0.0.0.0/tcp/{port}']" in shown
    assert (row.value, row.in_force) == (
        ["/ip4/0.0.0.0/tcp/0"],
        [f"/ip4/0.0.0.0/tcp/{port}"],
    )


def test_set_takes_a_key_and_a_value_as_two_words(tmp_path: Path) -> None:
    arguments = ["config", "set", "run.seed", "7", "--home", str(tmp_path)]
    done = CliRunner().invoke(app, arguments)
    assert (done.exit_code, recall(tmp_path)["run.seed"].value) == (0, 7), done.stderr
    done = CliRunner().invoke(app, [*arguments, "run.threads=2"])
    assert done.exit_code == 1
    assert "KEY=VALUE" in done.stderr
