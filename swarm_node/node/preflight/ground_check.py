"""Checks of an environment's questions, for `swarm-node env check`: their number, the overlap of
held-out questions with training, and the reward of a constant answer."""

from __future__ import annotations

from collections.abc import Sequence

from swarm_node.clock import SYSTEM_CLOCK
from swarm_node.environments.host import (
    EnvironmentHost,
    EnvironmentInfo,
    ProcessEnvironmentHost,
)
from swarm_node.environments.seeds import task_seed
from swarm_node.environments.survey import Survey
from swarm_node.node.figures.snapshot import Said
from swarm_node.rollout import TaskRef

#: The most draws of a family, and the seconds after which drawing is cut off.
DRAWS, SECONDS = 10_000, 5.0
#: A family with fewer questions can be learnt by heart.
_FEW_QUESTIONS = 10_000
#: A constant answer with a higher reward hides the learning of a model.
_GOOD_CONSTANT = 0.1
#: Other tasks on which the most frequent answers are scored, and the seconds for it.
_SCORED, _SCORE_SECONDS = 200, 5.0
_SHOWN_CHARS = 30


async def check_questions(
    host: ProcessEnvironmentHost, info: EnvironmentInfo, family: str
) -> list[Said]:
    """Judge the questions of a family."""
    found = await host.survey(family, DRAWS, SECONDS)
    said = [_questions(family, found)]
    if not found.answers:
        text = f"{family}: no right answer is known, so no constant answer was tried"
        return [*said, Said("constant", "good", text)]
    answer, reward, tasks = await _best_constant(host, info, family, found.answers)
    return [*said, _constant(family, answer, reward, tasks)]


def _questions(family: str, found: Survey) -> Said:
    text = f"{family}: {found.different:,} different questions in {found.drawn:,} draws"
    text += f" (cut off after {SECONDS:g} s)" if found.cut else ""
    text += f", about {found.about:,} in all; {found.shared} held-out ones among those of training"
    if found.shared:
        return Said(
            "questions",
            "bad",
            text,
            "derive() or held_out_bounds must put a text on the same side every time",
        )
    if found.about < _FEW_QUESTIONS:
        remedy = f"fewer than {_FEW_QUESTIONS:,}: a model can learn them by heart; widen settings"
        return Said("questions", "warning", text, remedy)
    return Said("questions", "good", text)


def _constant(family: str, answer: str, reward: float, tasks: int) -> Said:
    shown = " ".join(answer.split())[:_SHOWN_CHARS]
    text = f'{family}: "{shown}" for every task scores {reward:.2f} ({tasks} tasks)'
    if reward > _GOOD_CONSTANT:
        remedy = f"a constant answer scores above {_GOOD_CONSTANT:g}: read rewards beside it"
        return Said("constant", "warning", text, remedy)
    return Said("constant", "good", text)


async def _best_constant(
    host: EnvironmentHost, info: EnvironmentInfo, family: str, answers: Sequence[str]
) -> tuple[str, float, int]:
    """Return the best of `answers` on other tasks, its mean reward, and the number of tasks."""
    totals, tasks = [0.0] * len(answers), 0
    until = SYSTEM_CLOCK.now() + _SCORE_SECONDS
    while tasks < _SCORED and (not tasks or SYSTEM_CLOCK.now() < until):
        ref = TaskRef(info.name, info.version, family, task_seed("constant", family, tasks))
        judged = await host.judge(ref, answers)
        totals = [a + b for a, b in zip(totals, judged.rewards, strict=True)]
        tasks += 1
    best = max(range(len(answers)), key=totals.__getitem__)
    return answers[best], totals[best] / tasks, tasks
