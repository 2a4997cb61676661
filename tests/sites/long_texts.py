"""An environment whose answers are long and hardly any of two like: for groups that are large."""

from __future__ import annotations

from random import Random
from zlib import crc32

from swarm_node.environments.base import Task
from swarm_node.errors import UnknownTaskError
from swarm_node.rollout import TaskRef


class LongTexts:
    """Half of all answers are right."""

    name, version, families = "long_texts", "1", ("any",)

    def derive(self, ref: TaskRef) -> Task:
        if (ref.environment, ref.version, ref.family) != (self.name, self.version, "any"):
            raise UnknownTaskError("another environment: use the same one on all nodes")
        return Task(ref, Random(ref.seed).randrange(10**6))

    def render(self, task: Task) -> str:
        return f"Say much about {task.payload}."

    def score(self, task: Task, text: str) -> float:
        return float(crc32(text.encode()) & 1)


def create() -> LongTexts:
    return LongTexts()
