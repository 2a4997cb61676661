"""The Environment protocol. Writing one takes three methods; see docs/environments.md."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from swarm_node.rollout import TaskRef


@dataclass(frozen=True, slots=True)
class Task:
    """A task derived from its reference; `payload` belongs to the environment that made it."""

    ref: TaskRef
    payload: Any


class Environment(Protocol):
    """Derives tasks from references and judges answers. Must be deterministic: every peer that
    holds the same `version` derives the same task and gives the same score."""

    name: str
    #: Changes whenever the same reference could mean another task or another score.
    version: str
    families: tuple[str, ...]
    # An environment that runs code from answers also sets `runs_code = True`. Then it starts only
    # on a machine that can confine it, and each group is scored in a new process.

    def derive(self, ref: TaskRef) -> Task:
        """The task that `ref` names.

        Raises:
            UnknownTaskError: another environment, version or family, or a seed out of range.
        """
        ...

    def render(self, task: Task) -> str:
        """The prompt text."""
        ...

    def score(self, task: Task, text: str) -> float:
        """A reward in [0, 1]. May raise on hostile text, which then scores zero."""
        ...
