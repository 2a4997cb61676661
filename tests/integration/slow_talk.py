"""An environment of two turns whose replies take a while: imported by nodes that are killed in the
middle of a dialogue."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import pbkdf2_hmac

from swarm_node.environments.base import Task, check_ref
from swarm_node.rollout import TaskRef


class SlowTalk:
    name, version, families, turns = "slow-talk", "1", ("one",), 2

    def derive(self, ref: TaskRef) -> Task:
        check_ref(self, ref)
        return Task(ref, ref.seed % 10**9)

    def render(self, task: Task) -> str:
        return f"Say something about {task.payload}."

    def observation(self, task: Task, said: Sequence[str]) -> str | None:
        # A tenth of a second of a processor, and as pure as a reply must be.
        slow = pbkdf2_hmac("sha256", said[-1].encode(), b"slow", 200_000)
        return f"and {slow[0] % 10}?"

    def reward(self, task: Task, said: Sequence[str]) -> float:
        return float(len(said[-1]) % 2)


def create() -> SlowTalk:
    return SlowTalk()
