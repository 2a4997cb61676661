"""Trials of an environment before anything starts for it."""

from __future__ import annotations

import pytest

from swarm_node.environments.presets import try_environment
from swarm_node.environments.registry import available, create_environment
from swarm_node.errors import ConfigError


def test_the_turns_of_what_ships_are_known_and_those_of_others_are_asked() -> None:
    for name in ("drills", "games"):
        assert try_environment(name, {}).turns == create_environment(name, {}).turns
    assert {name for name in available() if try_environment(name, {}).turns > 1} == {"games"}
    assert try_environment("swarm_node.environments.games:create", {"digits": 3}).turns == 2
    with pytest.raises(ConfigError, match=r"^environment\.options\.digits: 1\b"):
        try_environment("swarm_node.environments.games:create", {"digits": 1})
