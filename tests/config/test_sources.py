"""Settings: precedence, and refusals that name the key."""

import re
from pathlib import Path

import pytest

from swarm_node.config import Sources, load_settings, parse_assignments, settings_keys
from swarm_node.config.model import public_values
from swarm_node.errors import ConfigError


def test_a_name_of_a_file_that_is_no_utf_8_is_refused() -> None:
    for options in ({"path": "na\udcefme.jsonl"}, {"path": ["a", "na\udcefme.jsonl"]}):
        with pytest.raises(ConfigError, match=r"environment\.options.*rename"):
            load_settings({"environment.options": options}, environ={})


def test_a_flag_beats_a_variable_beats_a_file_beats_the_default(tmp_path: Path) -> None:
    file = tmp_path / "node.toml"
    file.write_text("[experience]\nlocal = 5\nexternal = 5\nmax_staleness = 5\n")
    settings = load_settings(
        {"experience.local": 7, "experience.external": None},
        environ={"SWARM_NODE_EXPERIENCE__LOCAL": "6", "SWARM_NODE_EXPERIENCE__EXTERNAL": "6"},
        config=file,
    )
    experience = settings.experience
    assert (experience.local, experience.external, experience.max_staleness) == (7, 6, 5)
    assert experience.external_correction == "positive_only"


def test_every_key_can_be_set_from_the_environment() -> None:
    variables = {f"SWARM_NODE_{key.upper().replace('.', '__')}": key for key, _ in settings_keys()}
    assert len(variables) <= 44
    assert "SWARM_NODE_TRAINING__LEARNING_RATE" in variables
    settings = load_settings({}, environ={"SWARM_NODE_ENVIRONMENT__FAMILIES": '["gcd"]'})
    assert settings.environment.families == ["gcd"]


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("colour = 1", "colour"),
        ("[experience]\nowns = 1", "mean experience.local?"),
        ("[experience]\nlocal = 0", "experience.local"),
        ('[training]\nloss = "sapo"', "training.loss"),
        ('[training]\nadvantage = "gae"', "training.advantage"),
        ("[sampling]\ntemperature = -1.0", "sampling.temperature"),
        ('[sampling]\nengine = "sglang"', "sampling.engine"),
        ("[network]\nlisten = []", "network.listen"),
        ('[network]\nstack = "quic"', "network.backend"),
        ('[training]\ndtype = "float8"', "training.dtype"),
        ('[training]\noptimizer = "sgd"', "training.optimizer"),
        ("[run]\ntrainer_processes = 0", "run.trainer_processes"),
        ('[run]\ntrainer_hosts = "10.0.0.1:29400"', "run.trainer_hosts"),
        ('[run]\ntrainer_hosts = "10.0.0.1:29400*1"', "run.trainer_hosts"),
        ("experience = 3", "experience"),
        ("[policy]\nreply = 3", "policy"),
        ('ticket_file = "ticket"', "mean ticket?"),
    ],
)
def test_a_bad_file_is_refused_by_the_name_of_the_key(tmp_path: Path, text: str, key: str) -> None:
    file = tmp_path / "node.toml"
    file.write_text(text)
    with pytest.raises(ConfigError, match=re.escape(key)):
        load_settings({}, environ={}, config=file)


def test_each_key_has_the_file_that_names_it(tmp_path: Path) -> None:
    file = tmp_path / "node.toml"
    file.write_text("[run]\n[experience]\nlocal = 5\n[environment.options]\n")
    origins = Sources({}, {}, file).origins()
    assert origins["experience.local"] == str(file)
    assert origins["environment.options"] == str(file)


def test_an_unknown_variable_is_refused_by_name() -> None:
    with pytest.raises(ConfigError, match="SWARM_NODE_EXPERIENCE__LOCALS"):
        load_settings({}, environ={"SWARM_NODE_EXPERIENCE__LOCALS": "1"})


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("run.threads", "0", "run.threads: 0 .* whole number from 1 to 256, or auto"),
        ("sampling.top_p", "0.9", "there is no sampling.top_p: .* set sampling.temperature"),
        ("run.max_steps", "abc", "run.max_steps: abc .* whole number, 0 or more"),
        ("training.learning_rate", "nan", "learning_rate: NaN .* number, above 0, at most 1"),
        ("run.device", "gpu", "run.device: gpu .* cuda:N"),
        ("log_format", "xml", "log_format: xml .* auto, text or json"),
        ("training", "3", "training: 3 .* a table"),
        ("network.bootstrap", "[3]", "network.bootstrap: 3 .* list of texts"),
    ],
)
def test_a_value_is_refused_in_words(key: str, value: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        load_settings(parse_assignments([f"{key}={value}"]), environ={})


def test_a_missing_or_broken_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot read"):
        load_settings({}, environ={}, config=tmp_path / "none.toml")
    file = tmp_path / "broken.toml"
    file.write_bytes(b"[policy\n\xff")
    with pytest.raises(ConfigError, match="not TOML"):
        load_settings({}, environ={"SWARM_NODE_CONFIG": str(file)})


def test_assignments_read_as_toml_and_else_as_text() -> None:
    parsed = parse_assignments(["experience.local=6", "model=tiny", "network.bootstrap=[]"])
    assert parsed == {"experience.local": 6, "model": "tiny", "network.bootstrap": []}
    with pytest.raises(ConfigError, match="KEY=VALUE"):
        parse_assignments(["experience.local"])


def test_a_ticket_does_not_show_in_the_settings() -> None:
    settings = load_settings({"ticket": "swarmjoin1.secret"}, environ={})
    assert "secret" not in repr(settings)


def test_public_values_are_all_settings_but_the_ticket(tmp_path: Path) -> None:
    settings = load_settings({"home": tmp_path, "ticket": "secret", "run.seed": 7}, environ={})
    values = public_values(settings)
    assert {*values} == {key for key, _ in settings_keys()} - {"ticket"}
    assert values["run.seed"] == 7
    assert values["home"] == str(tmp_path)
    assert "secret" not in str(values)
