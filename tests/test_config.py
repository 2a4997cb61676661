"""Settings: precedence, and refusals that name the key."""

from pathlib import Path

import pytest

from swarm_node.config import load_settings, parse_assignments, settings_keys
from swarm_node.errors import ConfigError


def test_a_flag_beats_a_variable_beats_a_file_beats_the_default(tmp_path: Path) -> None:
    file = tmp_path / "node.toml"
    file.write_text("[policy]\nown = 5\nexternal = 5\nreuse = 5\n")
    settings = load_settings(
        {"policy.own": 7, "policy.external": None},
        environ={"SWARM_NODE_POLICY__OWN": "6", "SWARM_NODE_POLICY__EXTERNAL": "6"},
        config=file,
    )
    assert (settings.policy.own, settings.policy.external, settings.policy.reuse) == (7, 6, 5)
    assert settings.policy.max_lag == 8


def test_every_key_can_be_set_from_the_environment() -> None:
    variables = {f"SWARM_NODE_{key.upper().replace('.', '__')}": key for key, _ in settings_keys()}
    assert len(variables) <= 50
    assert "SWARM_NODE_POLICY__LEARNING_RATE" in variables
    settings = load_settings({}, environ={"SWARM_NODE_ENVIRONMENT__FAMILIES": '["gcd"]'})
    assert settings.environment.families == ["gcd"]


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("colour = 1", "colour"),
        ("[policy]\nowns = 1", "policy.owns"),
        ("[policy]\nown = 0", "policy.own"),
        ('[policy]\nloss = "sapo"', "policy.loss"),
        ('[policy]\nadvantage = "gae"', "policy.advantage"),
        ("[policy]\noff_policy_mask = 0.0", "policy.off_policy_mask"),
        ("[policy]\nlearning_rate = nan", "policy.learning_rate"),
        ("[sampling]\ntemperature = -1.0", "sampling.temperature"),
        ('[sampling]\nengine = "sglang"', "sampling.engine"),
        ('[environment]\nscoring = "fuzzy"', "environment.scoring"),
        ("[network]\nlisten = []", "network.listen"),
        ('[policy]\ndtype = "float16"', "policy.dtype"),
        ('[policy]\noptimizer = "sgd"', "policy.optimizer"),
        ('[run]\ndevice = "tpu"', "run.device"),
        ("[run]\ntrainer_processes = 0", "run.trainer_processes"),
        ("policy = 3", "policy"),
    ],
)
def test_a_bad_file_is_refused_by_the_name_of_the_key(tmp_path: Path, text: str, key: str) -> None:
    file = tmp_path / "node.toml"
    file.write_text(text)
    with pytest.raises(ConfigError, match=key.replace(".", r"\.")):
        load_settings({}, environ={}, config=file)


def test_an_unknown_variable_is_refused_by_name() -> None:
    with pytest.raises(ConfigError, match="SWARM_NODE_POLICY__OWNS"):
        load_settings({}, environ={"SWARM_NODE_POLICY__OWNS": "1"})


def test_a_missing_or_broken_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot read"):
        load_settings({}, environ={}, config=tmp_path / "none.toml")
    file = tmp_path / "broken.toml"
    file.write_bytes(b"[policy\n\xff")
    with pytest.raises(ConfigError, match="not TOML"):
        load_settings({}, environ={"SWARM_NODE_CONFIG": str(file)})


def test_assignments_read_as_toml_and_else_as_text() -> None:
    parsed = parse_assignments(["policy.own=6", "model=tiny", "network.bootstrap=[]"])
    assert parsed == {"policy.own": 6, "model": "tiny", "network.bootstrap": []}
    with pytest.raises(ConfigError, match="KEY=VALUE"):
        parse_assignments(["policy.own"])


def test_a_ticket_does_not_show_in_the_settings() -> None:
    settings = load_settings({"ticket": "swarmjoin1.secret"}, environ={})
    assert "secret" not in repr(settings)
