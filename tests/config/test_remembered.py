"""A home remembers what its node was given."""

from __future__ import annotations

import json
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from swarm_node.config import Sources
from swarm_node.config.remembered import FILE, MAX_BYTES, recall
from swarm_node.config.sources import set_remembered
from swarm_node.errors import ConfigError
from swarm_node.program.private_directory import content_of, with_head


def sources(
    home: Path, config: Path | None = None, environ: Mapping[str, str] | None = None, **flags: Any
) -> Sources:
    given = {key.replace("__", "."): value for key, value in flags.items()}
    return Sources({"home": home, **given}, environ or {}, config, with_home=True)


def forget(home: Path, keys: list[str]) -> None:
    """A start that forgets these keys."""
    start = sources(home)
    start.forget(keys)
    start.load()
    start.remember()


def stored(home: Path) -> bytes:
    """The content of what a home remembers."""
    content = content_of((home / FILE).read_bytes())
    assert isinstance(content, bytes)
    return content


def test_a_start_without_flags_goes_on_as_the_one_before(tmp_path: Path) -> None:
    file, listen = tmp_path / "node.toml", ["/ip4/0.0.0.0/tcp/31330"]
    file.write_text("[run]\nseed = 3\n[environment.options]\npreset = 'sapo'\n")
    sources(tmp_path, file, network__listen=listen, experience__local=6).remember()
    later = sources(tmp_path)
    settings, origins = later.load(), later.origins()
    assert (settings.network.listen, settings.experience.local) == (listen, 6)
    assert (settings.run.seed, settings.environment.options) == (3, {"preset": "sapo"})
    keys = ("network.listen", "experience.local", "run.seed", "environment.options")
    assert {origins[key] for key in keys} == {"the data directory"}
    assert stat.S_IMODE((tmp_path / FILE).stat().st_mode) == 0o600
    later.remember()
    assert sources(tmp_path).load() == settings


def test_everything_that_is_given_now_is_stronger_than_the_home(tmp_path: Path) -> None:
    file = tmp_path / "node.toml"
    file.write_text("[experience]\nlocal = 3\n")
    sources(tmp_path, experience__local=2).remember()
    assert sources(tmp_path, file).load().experience.local == 3
    variable = {"SWARM_NODE_EXPERIENCE__LOCAL": "4"}
    assert sources(tmp_path, file, variable).load().experience.local == 4
    assert sources(tmp_path, file, variable, experience__local=5).load().experience.local == 5
    assert sources(tmp_path).load().experience.local == 2


def test_secrets_variables_and_what_is_for_one_start_are_not_remembered(tmp_path: Path) -> None:
    variable = {"SWARM_NODE_RUN__SEED": "4"}
    flags = {"ticket": "swarmjoin1.x", "verbose": True, "log_format": "json", "run__max_steps": 9}
    sources(tmp_path, None, variable, **flags, experience__local=6).remember()
    assert [*recall(tmp_path)] == ["experience.local"]
    for key in ("ticket", "home"):
        with pytest.raises(ConfigError, match=f"{key} .*remembered"):
            set_remembered(tmp_path, {key: "swarmjoin1.x"})


def test_a_settings_file_stands_for_all_that_one_said_before(tmp_path: Path) -> None:
    file = tmp_path / "node.toml"
    file.write_text("[run]\nseed = 3\nthreads = 2\n[training]\n")
    sources(tmp_path, file, experience__local=6).remember()
    file.write_text("[run]\nthreads = 2\n")
    again = sources(tmp_path, file)
    assert (again.load().run.seed, again.load().experience.local) == (0, 6)
    again.remember()
    assert sorted(recall(tmp_path)) == ["experience.local", "run.threads"]


def test_names_of_files_hold_in_every_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "sums.jsonl").touch()
    monkeypatch.chdir(tmp_path)
    options = {"path": ["sums.jsonl"], "split": 0.5}
    sources(tmp_path, model="model", environment__options=options).remember()
    kept = {key: each.value for key, each in recall(tmp_path).items()}
    assert kept["model"] == str(tmp_path / "model")
    assert kept["environment.options"] == {"path": [str(tmp_path / "sums.jsonl")], "split": 0.5}
    sources(tmp_path, model="qwen2.5-0.5b").remember()
    assert recall(tmp_path)["model"].value == "qwen2.5-0.5b"


def test_a_list_is_accepted_and_not_the_next_one(tmp_path: Path) -> None:
    first, second = {"path": "one.jsonl"}, {"path": "two.jsonl"}

    def accepted(**flags: Any) -> bool:
        return sources(tmp_path, **flags).load().environment.allow_invalid

    sources(tmp_path, environment__options=first, environment__allow_invalid=True).remember()
    assert accepted()
    assert accepted(environment__options=first, run__seed=3)
    assert not accepted(environment__options=second)
    assert not accepted(environment__name="games")
    assert accepted(environment__options=second, environment__allow_invalid=True)
    sources(tmp_path, environment__options=second).remember()
    assert not accepted()
    assert not accepted(environment__options=first)


def test_commands_that_change_the_list_take_its_acceptance_with_it(tmp_path: Path) -> None:
    for change in (
        lambda: set_remembered(tmp_path, {"environment.options.path": "two.jsonl"}),
        lambda: forget(tmp_path, ["environment.options"]),
    ):
        set_remembered(
            tmp_path, {"environment.options.path": "a", "environment.allow_invalid": True}
        )
        change()
        assert not sources(tmp_path).load().environment.allow_invalid


def test_a_key_is_forgotten_and_an_unknown_one_refused(tmp_path: Path) -> None:
    sources(tmp_path, experience__local=6, run__seed=3).remember()
    with pytest.raises(ConfigError, match=r"experience\.owns"):
        forget(tmp_path, ["experience.owns"])
    forget(tmp_path, ["experience.local", "run.threads"])
    assert [*recall(tmp_path)] == ["run.seed"]
    assert sources(tmp_path).load().experience.local == 4


def test_a_start_that_fails_forgets_nothing(tmp_path: Path) -> None:
    sources(tmp_path, experience__local=6).remember()
    start = sources(tmp_path)
    start.forget(["experience.local"])
    assert start.load().experience.local == 4
    assert [*recall(tmp_path)] == ["experience.local"]
    start.remember()
    assert not recall(tmp_path)
    set_remembered(tmp_path, {"experience.local": 7})
    assert start.load().experience.local == 7, "what is set while it runs is in force"


def test_a_value_that_is_no_longer_valid_is_named_with_the_way_to_forget_it(tmp_path: Path) -> None:
    sources(tmp_path, experience__local=6, run__seed=3).remember()
    text = stored(tmp_path)
    gone = text.replace(b"experience.local", b"experience.gone")
    (tmp_path / FILE).write_bytes(with_head(gone))
    with pytest.raises(ConfigError, match=r"experience\.gone`"):
        sources(tmp_path).load()
    forget(tmp_path, ["experience.gone"])
    assert sources(tmp_path).load().run.seed == 3
    held = json.loads(text)
    held["settings"]["experience.local"]["value"] = 6000
    (tmp_path / FILE).write_bytes(with_head(json.dumps(held).encode()))
    with pytest.raises(ConfigError, match=r"experience\.local`"):
        sources(tmp_path).load()
    assert sources(tmp_path, experience__local=2).load().experience.local == 2


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"{", "damaged"),
        (b'{"version":1,"settings":{"run.seed":3}}', "damaged"),
        (b'{"version":2,"anything":{}}', r"later release.*version 2"),
        (b" " * (MAX_BYTES + 1), "too long"),
        (b'{"version":1,"settings":' + b"[" * 5000, "damaged"),
    ],
)
def test_a_file_that_cannot_be_read_is_named(tmp_path: Path, content: bytes, said: str) -> None:
    (tmp_path / FILE).write_bytes(content)
    with pytest.raises(ConfigError, match=rf"(?s){said}.*{FILE}"):
        sources(tmp_path).load()


def test_what_a_home_remembers_is_bounded(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="settings file"):
        set_remembered(tmp_path, {"environment.options.text": "x" * MAX_BYTES})
    assert not (tmp_path / FILE).exists()


def test_set_changes_one_option_and_keeps_the_others(tmp_path: Path) -> None:
    set_remembered(tmp_path, {"environment.options": {"preset": "long", "seed": 1}})
    set_remembered(tmp_path, {"environment.options.preset": "short", "run.max_steps": 7})
    kept = {key: each.value for key, each in recall(tmp_path).items()}
    assert kept["environment.options"] == {"preset": "short", "seed": 1}
    assert kept["run.max_steps"] == 7
    before = stored(tmp_path)
    with pytest.raises(ConfigError, match=r"experience.local"):
        set_remembered(tmp_path, {"experience.local": 0, "run.seed": 1})
    assert stored(tmp_path) == before
