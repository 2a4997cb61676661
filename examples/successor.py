"""Answer a number with the one that follows it. Save as successor.py."""

from random import Random

from swarm_node.environments.base import Task
from swarm_node.errors import UnknownTaskError


class Successor:
    name, version, families = "successor", "1", ("small", "large")

    def derive(self, ref):
        if (ref.environment, ref.version) != (self.name, self.version):
            raise UnknownTaskError("another environment: use the same one on all nodes")
        if ref.family not in self.families:
            raise UnknownTaskError(f"no family {ref.family!r}: use small or large")
        limit = 10_000 if ref.family == "small" else 10**9
        return Task(ref, Random(ref.seed).randrange(limit))

    def render(self, task):
        return f"Calculate {task.payload} + 1."

    def score(self, task, text):
        return float(text.strip() == str(task.payload + 1))


def create():
    return Successor()
