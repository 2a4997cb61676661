"""A count of a family's questions and answers: different questions, those on both sides, frequent
answers. Pure.

It shows an owner that a family can be learnt by heart, or answered without reading.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Annotated

import msgspec

from swarm_node.environments.splits.seeds import held_out_seed, task_seed
from swarm_node.environments.splits.split import HELD_OUT_SHARE, canonical
from swarm_node.environments.splits.splitting import SplitEnvironment, different
from swarm_node.rollout import TaskRef

#: Every draw of this number is of a held-out task, as often as such a text occurs.
_HELD_OUT_EVERY = round(1 / HELD_OUT_SHARE)
#: The most frequent right answers that are kept.
MAX_ANSWERS = 8
_MAX_ANSWER_CHARS = 1000

Count = Annotated[int, msgspec.Meta(ge=0)]


class Survey(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Counts over `drawn` tasks. `different` counts the different questions among them, and `about`
    estimates all that there are. `shared` counts the questions of both training and held-out tasks.
    `answers` are the most frequent right answers, in the
    form that the prompt asks for, none if none is known. `cut` is true if time ran
    out before all tasks were drawn."""

    drawn: Count
    different: Count
    about: Count
    shared: Count
    answers: Annotated[
        tuple[Annotated[str, msgspec.Meta(max_length=_MAX_ANSWER_CHARS)], ...],
        msgspec.Meta(max_length=MAX_ANSWERS),
    ]
    cut: bool


def survey(
    environment: SplitEnvironment,
    family: str,
    draws: int,
    seconds: float,
    now: Callable[[], float],
) -> Survey:
    """Draw `draws` tasks of a family, or as many as `seconds` allow, and count them."""
    sides: tuple[Counter[str], Counter[str]] = (Counter(), Counter())
    answers: Counter[str] = Counter()
    deadline, count = now() + seconds, 0
    while count < draws and (not count or now() < deadline):
        held_out = count % _HELD_OUT_EVERY == _HELD_OUT_EVERY - 1
        seed = (held_out_seed if held_out else task_seed)("survey", family, count)
        task = environment.derive(TaskRef(environment.name, environment.version, family, seed))
        sides[held_out][canonical(environment.question(task))] += 1
        right = environment.reference_completion(task)
        if right is not None and _sendable(right):
            answers[right] += 1
        count += 1
    totals = sides[0] + sides[1]
    return Survey(
        drawn=count,
        different=len(totals),
        about=different(totals),
        shared=len(sides[0].keys() & sides[1].keys()),
        answers=tuple(answer for answer, _ in answers.most_common(MAX_ANSWERS)),
        cut=count < draws,
    )


def _sendable(answer: str) -> bool:
    """Check that an answer is short, and has no lone surrogate, which cannot be encoded."""
    return len(answer) <= _MAX_ANSWER_CHARS and not any("\ud800" <= c <= "\udfff" for c in answer)
