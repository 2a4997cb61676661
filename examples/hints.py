"""Find a number with two hints. Save as hints.py."""

from random import Random

from swarm_node.environments.base import Task, check_ref


class Hints:
    name, version, families, turns = "hints", "1", ("small", "large"), 3

    def derive(self, ref):
        check_ref(self, ref)
        least = Random(ref.seed).randrange(10**6 if ref.family == "small" else 10**9)
        return Task(ref, (least, least + Random(ref.seed + 1).randrange(7)))

    def render(self, task):
        least, _ = task.payload
        return f"Find my number from {least} to {least + 6} in three tries."

    def reply(self, task, said):
        _, number = task.payload
        last = said[-1].strip()
        if not (last.isascii() and last.isdigit() and len(last) < 12) or int(last) == number:
            return None
        return "higher" if int(last) < number else "lower"

    def judge(self, task, said):
        return float(said[-1].strip() == str(task.payload[1]))


def create():
    return Hints()
