"""An environment for models that need not learn: questions in the style of GSM8K, of 150 letters,
or plain sums, whose rewards are drawn by a hash of the answer. So nearly every group has an
advantage to train on.
"""

from __future__ import annotations

import hashlib
import random

from swarm_node.environments.base import Environment, Task
from swarm_node.rollout import TaskRef

QUESTIONS = {
    "story": (
        "Natalia sold {} clips in April and {} in May, at {} cents each. How many cents did she "
        "earn? Think step by step, then give the number after ####."
    ),
    "sum": "What is {} + {} + {}? Explain.",
}


class _Hashed:
    name, version = "hashed_questions", "1"

    def __init__(self, kind: str) -> None:
        self.families: tuple[str, ...] = (kind,)

    def derive(self, ref: TaskRef) -> Task:
        return Task(ref, ref.seed)

    def render(self, task: Task) -> str:
        numbers = random.Random(task.payload)
        return QUESTIONS[self.families[0]].format(*(numbers.randint(2, 99) for _ in range(3)))

    def score(self, task: Task, text: str) -> float:
        return float(hashlib.sha256(text.encode()).digest()[0] & 1)


def create(kind: str = "story") -> Environment:
    """`kind` is a key of `QUESTIONS`."""
    return _Hashed(kind)
