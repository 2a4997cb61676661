"""Settings of the parts of a node, derived from those of the user."""

from __future__ import annotations

from typing import Any

import pytest

from swarm_node.config import load_settings
from swarm_node.node.start.derive import replay_settings


@pytest.mark.parametrize(
    ("given", "past"),
    [
        ({}, 8),
        ({"environment.families": ["sorting"]}, 0),
        ({"environment.families": ["sorting"], "experience.past": 3}, 3),
        ({"experience.past": 0}, 0),
        ({"experience.correction": "own"}, 0),
    ],
)
def test_a_node_that_names_no_families_has_groups_of_its_own_past(
    given: dict[str, Any], past: int
) -> None:
    assert replay_settings(load_settings(given, environ={})).past == past
