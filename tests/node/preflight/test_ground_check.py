"""How many questions are few, and on how many tasks a constant answer is tried."""

from __future__ import annotations

import asyncio

import pytest

from swarm_node.environments.base import Task
from swarm_node.environments.host import InlineEnvironmentHost
from swarm_node.environments.survey import Survey
from swarm_node.node.preflight import ground_check
from swarm_node.node.preflight.ground_check import _best_constant, _questions
from swarm_node.rollout import TaskRef


@pytest.mark.parametrize(
    ("about", "shared", "level"),
    [(9_999, 0, "warning"), (10_000, 0, "good"), (10_000, 1, "bad"), (10, 1, "bad")],
)
def test_fewer_than_ten_thousand_questions_are_few(about: int, shared: int, level: str) -> None:
    found = Survey(drawn=100, different=100, about=about, shared=shared, answers=(), cut=False)
    said = _questions("gcd", found)
    assert (said.level, said.remedy == "") == (level, level == "good")


class Agreeing:
    """Every second task wants a yes, the others anything."""

    name, version, families = "agreeing", "1", ("one",)

    def derive(self, ref: TaskRef) -> Task:
        return Task(ref, ref.seed % 2)

    def render(self, task: Task) -> str:
        return "Is it?"

    def score(self, task: Task, text: str) -> float:
        return float(text == "yes" or task.payload)


def test_the_best_constant_is_that_over_so_many_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ground_check, "_SCORED", 40)
    monkeypatch.setattr(ground_check, "_SCORE_SECONDS", 600.0)

    async def tried() -> tuple[str, float, int]:
        host = InlineEnvironmentHost(Agreeing())
        return await _best_constant(host, await host.start(), "one", ["no", "yes", "perhaps"])

    assert asyncio.run(tried()) == ("yes", 1.0, 40)
