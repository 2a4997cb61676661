"""Right answers are scored in a judge, and one that ends it is found."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

import pytest
from lasting import started

from swarm_node.environments.host import ProcessEnvironmentHost
from swarm_node.environments.splits.split import with_split
from swarm_node.errors import UnknownTaskError
from swarm_node.rollout import TaskRef

SOURCE = """
import os
from swarm_node.environments.base import Task

ANSWERS = {3: "half", 5: "raise", 6: "seven", 11: "exit", 13: None, 17: "loop"}

class Made:
    name, version, families = "made", "1", ("one",)

    def derive(self, ref):
        return Task(ref, ref.seed)

    def render(self, task):
        return f"Say {task.payload}."

    def question(self, task):
        return "one of these" if task.payload < 1 << 61 else "another one of these"

    def answer(self, task):
        if task.payload == 19:
            raise KeyError("no answer")
        return ANSWERS.get(task.payload, "right")

    def place(self, task):
        return f"page {task.payload}"

    def score(self, task, text):
        match text:
            case "half":
                return 0.5
            case "raise":
                raise ZeroDivisionError
            case "seven":
                return 7.0
            case "exit":
                os._exit(3)
            case "loop":
                while True:
                    pass
        return 0.9999999

def create():
    return Made()
"""


@pytest.fixture
def made(importable: Callable[[str, str], None]) -> ProcessEnvironmentHost:
    importable("made", SOURCE)
    return ProcessEnvironmentHost("made:create", {}, ("none",), score_seconds=0.2)


def refs(*seeds: int) -> list[TaskRef]:
    return [TaskRef("made", with_split("1"), "one", seed) for seed in seeds]


@pytest.mark.slow(reason="judges are ended and started again")
async def test_every_answer_that_does_not_score_1_is_named_with_the_reason(
    made: ProcessEnvironmentHost,
) -> None:
    async with started(made):
        found = await made.score_answers(refs(*range(19)))
    assert found.known == 18
    assert [(each.index, each.place, each.answer) for each in found.failed] == [
        (3, "page 3", "half"),
        (5, "page 5", "raise"),
        (6, "page 6", "seven"),
        (11, "page 11", "exit"),
        (17, "page 17", "loop"),
    ]
    reasons = ("0.5", "ZeroDivisionError", "[0, 1]", "crashed", "timeout")
    assert [
        each for each, f in zip(reasons, found.failed, strict=True) if each not in f.reason
    ] == []


async def test_an_answer_that_cannot_be_said_is_an_error(made: ProcessEnvironmentHost) -> None:
    async with started(made):
        with pytest.raises(UnknownTaskError, match=r"one/19 \(KeyError"):
            await made.score_answers(refs(1, 19))


async def test_a_judge_that_somebody_kills_costs_no_answer(made: ProcessEnvironmentHost) -> None:
    async with started(made):
        before = made.losses
        pid = made.pids["scoring_own"]
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        found = await made.score_answers(refs(1, 2))
        assert (found.known, found.failed, made.losses) == (2, [], before + 1)
