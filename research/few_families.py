"""The graded drills with some of their families, so that no other is measured. A module of its own,
because TRL imports it in an environment that has little else."""

from __future__ import annotations

from collections.abc import Sequence

from swarm_node.environments.base import Environment
from swarm_node.environments.bundled import drills
from swarm_node.errors import ConfigError

#: Those that a small language model is sometimes right about.
EASIEST = ("addition-1", "division-1", "multiplication-1", "subtraction-1")


def create(families: Sequence[str]) -> Environment:
    """
    Raises:
        ConfigError: there is no such family.
    """
    environment = drills.create("graded")
    unknown = sorted(set(families) - set(environment.families))
    if unknown:
        raise ConfigError(f"there is no family {unknown[0]}")
    environment.families = tuple(families)
    return environment
