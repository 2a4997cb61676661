"""Scores the right answers of tasks, which are this node's own data, and finds those that end their
scoring worker.

An owner learns from it that a file, its scorer and the prompt's form fit together.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from swarm_node.environments.workers.fault_attribution import SUSPECT, WAITED
from swarm_node.environments.workers.processes import ScoringWorker, WorkerLostError
from swarm_node.environments.workers.retries import Limits
from swarm_node.environments.workers.scoring_worker import AnswersScored, FailedAnswer, PlainRef

#: Scoring workers that own texts are given while somebody else kills them.
OWN_TRIES: Final = 6


async def answers_scored(
    worker: ScoringWorker, refs: Sequence[PlainRef], limits: Limits
) -> AnswersScored:
    """The right answers of `refs` scored, which are this node's own data. To find one that ends its
    scoring worker, `refs` are halved; it fails, with the reason.

    Raises:
        UnknownTaskError: one of the tasks cannot be made.
        ChildError: no scoring worker can be started.
    """
    tries = 1
    while True:
        try:
            return await worker.score_answers(refs, limits.deriving, limits.scoring)
        except WorkerLostError as error:
            if error.reason in SUSPECT | WAITED or tries == OWN_TRIES:
                if len(refs) == 1:
                    return await _name_failed_answer(
                        worker, refs, limits, f"ends its scoring worker ({error.reason})"
                    )
                break
        tries += 1
    middle = len(refs) // 2
    first = await answers_scored(worker, refs[:middle], limits)
    second = await answers_scored(worker, refs[middle:], limits)
    second_failures = [
        msgspec.structs.replace(failure, index=failure.index + middle) for failure in second.failed
    ]
    return AnswersScored(first.known + second.known, [*first.failed, *second_failures])


async def _name_failed_answer(
    worker: ScoringWorker, refs: Sequence[PlainRef], limits: Limits, reason: str
) -> AnswersScored:
    """The failed answer of one task, with its place unless naming it ends the scoring worker
    too."""
    try:
        result = await worker.score_answers(refs, limits.deriving, limits.scoring, name=True)
        (failure,) = result.failed
    except WorkerLostError:
        failure = FailedAnswer(0, "", "", "")
    return AnswersScored(1, [msgspec.structs.replace(failure, reason=reason)])
