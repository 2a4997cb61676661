"""Tasks of environments by family and seed, and what it takes to run programs."""

from __future__ import annotations

from typing import Protocol

import pytest

from swarm_node.environments.base import Environment, Task
from swarm_node.environments.extras import installed_extras
from swarm_node.rollout import TaskRef

needs_programs = pytest.mark.skipif(
    "programs" not in installed_extras(),
    reason="the extra programs is not installed: make setup-tests",
)


class _Named(Protocol):
    """An environment, or what its process says of it."""

    @property
    def name(self) -> str: ...
    @property
    def version(self) -> str: ...
    @property
    def families(self) -> tuple[str, ...]: ...


def ref_to(environment: _Named, family: str = "", seed: int = 7) -> TaskRef:
    """A reference to a task of a family, by default of the first."""
    return TaskRef(environment.name, environment.version, family or environment.families[0], seed)


def task_of(environment: Environment, family: str = "", seed: int = 7) -> Task:
    """The task of such a reference."""
    return environment.derive(ref_to(environment, family, seed))
