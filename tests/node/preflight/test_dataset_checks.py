"""How many questions are few, and on how many tasks a constant answer is tried."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from builders import ROOT
from lasting import started

from swarm_node.environments.host import ProcessEnvironmentHost
from swarm_node.environments.splits.survey import Survey
from swarm_node.node.preflight import dataset_checks
from swarm_node.node.preflight.dataset_checks import _questions, best_constant


@pytest.mark.parametrize(
    ("about", "shared", "level"),
    [(9_999, 0, "warning"), (10_000, 0, "good"), (10_000, 1, "bad"), (10, 1, "bad")],
)
def test_fewer_than_ten_thousand_questions_are_few(about: int, shared: int, level: str) -> None:
    found = Survey(drawn=100, different=100, about=about, shared=shared, answers=(), cut=False)
    said = _questions("gcd", found)
    assert (said.level, said.remedy == "") == (level, level == "good")


AGREEING = """
from swarm_node.environments.base import Task

class Agreeing:
    name, version, families = "agreeing", "1", ("one",)

    def derive(self, ref):
        return Task(ref, ref.seed % 2)

    def question(self, task):
        return str(task.ref.seed)

    def render(self, task):
        return "Is it?"

    def score(self, task, text):
        return float(text == "yes" or task.payload)

def create():
    return Agreeing()
"""


def test_the_best_constant_is_that_over_so_many_tasks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every second task wants a yes, the others anything. No right answer is known."""
    (tmp_path / "agreeing.py").write_text(AGREEING)
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{ROOT}")
    monkeypatch.setattr(dataset_checks, "_SCORED", 40)
    monkeypatch.setattr(dataset_checks, "_SCORE_SECONDS", 600.0)

    async def tried() -> tuple[str, float, int, int]:
        host = ProcessEnvironmentHost("agreeing:create", {})
        async with started(host) as info:
            return await best_constant(host, info, "one", ["no", "yes", "perhaps"])

    assert asyncio.run(tried()) == ("yes", 1.0, 40, 0)
