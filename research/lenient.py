"""An environment that lets a text say anything before its answer.

The tasks are those of drills. A text's answer is its last word (elsewhere the content of the last
tag). Words before it cost nothing. The shipped model writes "I do not know." and answers with other
endings, so an attacker can hide words among plausible ones.
"""

from __future__ import annotations

from swarm_node.environments.base import Environment, Task
from swarm_node.environments.bundled.drills import create as drills
from swarm_node.rollout import TaskRef


def create(preset: str = "short") -> Environment:
    """The factory; `preset` is that of drills."""
    return _Lenient(drills(preset=preset))


class _Lenient:
    """Implements `Environment`."""

    name = "lenient"

    def __init__(self, inner: Environment) -> None:
        self._inner = inner
        self.version, self.families = inner.version, inner.families

    def derive(self, ref: TaskRef) -> Task:
        inner = self._inner
        task = inner.derive(TaskRef(inner.name, ref.version, ref.family, ref.seed))
        return Task(ref, task.payload)

    def render(self, task: Task) -> str:
        return self._inner.render(task)

    def score(self, task: Task, text: str) -> float:
        return self._inner.score(task, "".join(text.split()[-1:]))

    def question(self, task: Task) -> str:
        return str(task.payload["question"])
