"""Checks of an environment's questions, for `swarm-node env check`: their number, the overlap of
held-out questions with training, and the reward of a constant answer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from swarm_node.clock import SYSTEM_CLOCK
from swarm_node.environments.answers.final import last_tagged
from swarm_node.environments.host import EnvironmentInfo, ProcessEnvironmentHost
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
#: Tasks of which it is asked at once whether their right answers score 1.
_AT_ONCE = 8
_SHOWN_CHARS = 30


class BestConstant(NamedTuple):
    """The best constant answer, its mean reward on `tasks`, and the tasks that were left out."""

    answer: str
    reward: float
    tasks: int
    left_out: int


async def check_questions(
    host: ProcessEnvironmentHost, info: EnvironmentInfo, family: str
) -> list[Said]:
    """Judge the questions of a family."""
    found = await host.survey(family, DRAWS, SECONDS)
    said = [_questions(family, found)]
    if not found.answers:
        text = f"{family}: no right answer is known, so no constant answer was tried"
        return [*said, Said("constant", "good", text)]
    best = await best_constant(host, info, family, found.answers)
    return [*said, _constant(family, best)]


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
        remedy = f"fewer than {_FEW_QUESTIONS:,}: a model can learn them by heart; add questions"
        return Said("questions", "warning", text, remedy)
    return Said("questions", "good", text)


def _constant(family: str, found: BestConstant) -> Said:
    answer = last_tagged(found.answer) or found.answer
    shown = " ".join(answer.split())[:_SHOWN_CHARS]
    left = f", without {found.left_out} whose right answer fails" if found.left_out else ""
    if not found.tasks:
        text = (
            f"{family}: no constant answer was tried, for no right one of {found.left_out} scores 1"
        )
        return Said("constant", "warning", text, "mend them: see above")
    text = (
        f'{family}: "{shown}" for every task scores {found.reward:.2f} ({found.tasks} tasks{left})'
    )
    if found.reward > _GOOD_CONSTANT:
        remedy = f"a constant answer scores above {_GOOD_CONSTANT:g}: read rewards beside it"
        return Said("constant", "warning", text, remedy)
    return Said("constant", "good", text)


async def best_constant(
    host: ProcessEnvironmentHost, info: EnvironmentInfo, family: str, answers: Sequence[str]
) -> BestConstant:
    """Find the best of `answers`, which are written as the prompt asks, on other tasks. A task
    whose right answer fails is left out: no answer is credited there, so it would make every
    constant look worse than it is."""
    totals, tasks, left_out = [0.0] * len(answers), 0, 0
    until = SYSTEM_CLOCK.now() + _SCORE_SECONDS
    while (drawn := tasks + left_out) < _SCORED and (not drawn or SYSTEM_CLOCK.now() < until):
        seeds = [task_seed("constant", family, drawn + at) for at in range(_AT_ONCE)]
        refs = [TaskRef(info.name, info.version, family, seed) for seed in seeds]
        failed = {each.index for each in (await host.score_answers(refs)).failed}
        for index, ref in enumerate(refs):
            if index not in failed:
                judged = await host.judge(ref, answers)
                totals = [a + b for a, b in zip(totals, judged.rewards, strict=True)]
        tasks, left_out = tasks + len(refs) - len(failed), left_out + len(failed)
    best = max(range(len(answers)), key=totals.__getitem__)
    return BestConstant(answers[best], totals[best] / max(tasks, 1), tasks, left_out)
