"""Find a number with two hints. Save as hints.py."""

from random import Random

from swarm_node.environments.base import Task, check_ref


class Hints:
    name, version, families, turns = "hints", "1", ("small", "large"), 3

    def derive(self, ref):
        check_ref(self, ref)
        low = Random(ref.seed).randrange(10**6 if ref.family == "small" else 10**9)
        return Task(ref, (low, low + Random(ref.seed + 1).randrange(7)))

    def render(self, task):
        low, _ = task.payload
        return f"Find my number from {low} to {low + 6} in three tries."

    def observation(self, task, completions):
        _, number = task.payload
        last = completions[-1].strip()
        if not (last.isascii() and last.isdigit() and len(last) < 12) or int(last) == number:
            return None
        return "higher" if int(last) < number else "lower"

    def reward(self, task, completions):
        return float(completions[-1].strip() == str(task.payload[1]))


def create():
    return Hints()
