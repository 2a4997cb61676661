"""Checks of an environment's questions, for `swarm-node env check`: their number, the overlap of
held-out questions with training, and the reward of a constant answer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from swarm_node.clock import SYSTEM_CLOCK
from swarm_node.environments.answers.final import last_tagged
from swarm_node.environments.host import EnvironmentInfo, ProcessEnvironmentHost
from swarm_node.environments.splits.seeds import task_seed
from swarm_node.environments.splits.survey import Survey
from swarm_node.node.metrics.snapshot import Said
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
    """Check the questions of a family."""
    survey = await host.survey(family, DRAWS, SECONDS)
    findings = [_questions(family, survey)]
    if not survey.answers:
        text = f"{family}: no reference answer is known, so no constant answer was tried"
        return [*findings, Said("constant", "good", text)]
    constant = await best_constant(host, info, family, survey.answers)
    return [*findings, _constant(family, constant)]


def _questions(family: str, survey: Survey) -> Said:
    text = f"{family}: {survey.different:,} different questions in {survey.drawn:,} draws"
    text += f" (cut off after {SECONDS:g} s)" if survey.cut else ""
    text += f", about {survey.about:,} in all; {survey.shared} in both splits"
    if survey.shared:
        return Said(
            "questions",
            "bad",
            text,
            "derive() or held_out_bounds must put a text on the same side every time",
        )
    if survey.about < _FEW_QUESTIONS:
        remedy = f"fewer than {_FEW_QUESTIONS:,}: a long run memorizes them; watch eval_reward"
        return Said("questions", "warning", text, remedy)
    return Said("questions", "good", text)


def _constant(family: str, constant: BestConstant) -> Said:
    answer = last_tagged(constant.answer) or constant.answer
    excerpt = " ".join(answer.split())[:_SHOWN_CHARS]
    excluded = f", without {constant.left_out} whose reference fails" if constant.left_out else ""
    if not constant.tasks:
        text = f"{family}: no constant answer was tried: no reference answer of {constant.left_out}"
        text += " scores 1"
        return Said("constant", "warning", text, "correct them: see above")
    text = f'{family}: "{excerpt}" for every task scores {constant.reward:.2f}'
    text += f" ({constant.tasks} tasks{excluded})"
    if constant.reward > _GOOD_CONSTANT:
        remedy = f"a constant answer scores above {_GOOD_CONSTANT:g}: compare rewards with that"
        return Said("constant", "warning", text, remedy)
    return Said("constant", "good", text)


async def best_constant(
    host: ProcessEnvironmentHost, info: EnvironmentInfo, family: str, answers: Sequence[str]
) -> BestConstant:
    """Find the best of `answers`, which are written as the prompt asks, on other tasks. A task
    whose reference answer fails is left out: no answer is credited there, so it would make every
    constant look worse than it is."""
    totals, tasks, left_out = [0.0] * len(answers), 0, 0
    deadline = SYSTEM_CLOCK.now() + _SCORE_SECONDS
    while (task_count := tasks + left_out) < _SCORED and (
        not task_count or SYSTEM_CLOCK.now() < deadline
    ):
        seeds = [task_seed("constant", family, task_count + at) for at in range(_AT_ONCE)]
        refs = [TaskRef(info.name, info.version, family, seed) for seed in seeds]
        failed_indexes = {failure.index for failure in (await host.score_answers(refs)).failed}
        for index, ref in enumerate(refs):
            if index not in failed_indexes:
                scores = await host.score(ref, answers)
                totals = [a + b for a, b in zip(totals, scores.rewards, strict=True)]
        tasks, left_out = tasks + len(refs) - len(failed_indexes), left_out + len(failed_indexes)
    best_index = max(range(len(answers)), key=totals.__getitem__)
    return BestConstant(answers[best_index], totals[best_index] / max(tasks, 1), tasks, left_out)
