"""Scores the texts or multi-turn rollouts of one peer, in as many scoring workers as it takes to
know whose fault a lost one was.

All texts of a group have one author, so they are tried together: evidence against one of them is
evidence against its author.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from swarm_node.clock import SYSTEM_CLOCK
from swarm_node.environments.workers.fault_attribution import (
    WAITED,
    Attempt,
    Reason,
    Step,
    next_step,
)
from swarm_node.environments.workers.processes import ScoringWorker, WorkerLostError
from swarm_node.environments.workers.scoring_worker import (
    PlainRef,
    RerunLine,
    TextVerdict,
    Transcript,
)
from swarm_node.errors import ChildError, SlowTaskError, UnknownTaskError

#: A scorer that raises one of these may have been given less than every text is given.
_STARVED = frozenset({"MemoryError", "OSError"})
#: The pause before the second attempt; it doubles, so that a machine in need can recover.
_PAUSE_SECONDS = 0.05
_Sent = TypeVar("_Sent")
_Given = TypeVar("_Given")


@dataclass(frozen=True, slots=True)
class Limits:
    """Processor seconds for making one task, and for scoring the texts of one group."""

    deriving: float
    scoring: float


@dataclass(frozen=True, slots=True)
class ScoringRequest(Generic[_Sent, _Given]):
    """A request to a scoring worker about a group. `answer` has it answer each of `inputs` within a
    number of processor seconds. Every environment can answer `control`. `exception_of` is the
    exception in an answer. A `flawed` answer counts against the author."""

    answer: Callable[[Sequence[_Sent], float], Awaitable[Sequence[_Given]]]
    inputs: Sequence[_Sent]
    control: Sequence[_Sent]
    exception_of: Callable[[_Given], str]
    flawed: Callable[[_Given], bool]


def scoring(worker: ScoringWorker, texts: Sequence[str]) -> ScoringRequest[str, TextVerdict]:
    return ScoringRequest(
        worker.score, texts, [""], lambda verdict: verdict.raised, lambda _: False
    )


def rerunning(
    worker: ScoringWorker, transcripts: Sequence[Transcript]
) -> ScoringRequest[Transcript, RerunLine]:
    # A turn that an observation follows, and one to score: an environment that fails to do either
    # blames nobody.
    control = [Transcript([""]), Transcript([""], cut=True)]
    return ScoringRequest(
        worker.rerun,
        transcripts,
        control,
        lambda line: line.verdict.raised if line.verdict else "",
        lambda line: line.verdict is None or line.verdict.fault == "observation",
    )


@dataclass(frozen=True, slots=True)
class PeersScore(Generic[_Given]):
    """The prompt and the answers on a peer's texts, or the reason why there are none: `blamed` if
    the texts did it, else `unscored`. `seconds` count against the author."""

    prompt: str = ""
    answers: Sequence[_Given] = ()
    blamed: str = ""
    unscored: str = ""
    seconds: float = 0.0


@dataclass(slots=True)
class PeersAttempts(Generic[_Sent, _Given]):
    """The attempts at one group of a peer."""

    worker: ScoringWorker
    ref: PlainRef
    request: ScoringRequest[_Sent, _Given]
    limits: Limits
    _past: list[Attempt] = field(default_factory=list)
    _scoring_seconds: float = 0.0
    _sleep_seconds: float = 0.0
    _prompt: str = ""
    _starved_answers: Sequence[_Given] = ()
    _task_error: UnknownTaskError | None = None

    async def score(self) -> PeersScore[_Given]:
        """Score the texts in one scoring worker after another, until there are rewards or a
        finding.

        Raises:
            UnknownTaskError: the task cannot be made here. SlowTaskError: not in time.
        """
        while True:
            is_fresh, start_time = self.worker.fresh, SYSTEM_CLOCK.now()
            result = await self._try()
            if not isinstance(result, str):
                self._scoring_seconds += SYSTEM_CLOCK.now() - start_time
                if is_fresh or not any(map(self.request.flawed, result)):
                    return PeersScore(self._prompt, result, seconds=self._scoring_seconds)
                # Texts of another author may have changed the environment's state in this scoring
                # worker.
                await self.worker.close()
                continue
            if result == "asleep":
                self._sleep_seconds += SYSTEM_CLOCK.now() - start_time
            self._past.append(Attempt(result, is_fresh))
            step = next_step(self._past)
            if step is Step.CONTROL:
                step = next_step(self._past, await self._control_passes())
            if step is not Step.AGAIN:
                return self._finding(step, result)
            await self.worker.close()
            await asyncio.sleep(_PAUSE_SECONDS * 2 ** (len(self._past) - 1))

    async def _try(self) -> Sequence[_Given] | Reason:
        """The answers of one scoring worker, or the reason why it gave none."""
        try:
            (self._prompt,) = await self.worker.derive([self.ref], self.limits.deriving)
            answers = await self.request.answer(self.request.inputs, self.limits.scoring)
        except UnknownTaskError as error:
            self._task_error = error
            return "own" if self.worker.is_cramped else "unknown"
        except WorkerLostError as lost_error:
            # A scoring worker that was killed by somebody else cost the author what it had used by
            # then.
            max_seconds = self.limits.deriving + self.limits.scoring
            if lost_error.reason != "asleep":  # the whole wait counts there
                self._scoring_seconds += min(lost_error.processor_seconds, max_seconds)
            return "own" if self.worker.is_cramped else lost_error.reason
        except ChildError:  # no scoring worker can be started now
            return "own"
        if not any(self.request.exception_of(item) in _STARVED for item in answers):
            return answers
        if self.worker.is_cramped:
            return "own"
        if answers == self._starved_answers:
            return answers  # so it is with these texts
        self._starved_answers = answers
        return "starved"

    async def _control_passes(self) -> bool:
        """Check that a fresh scoring worker does the same for a control text. If the task could not
        even be made, it need only answer."""
        has_prompt = bool(self._prompt)
        await self.worker.close()
        try:
            await self.worker.derive([self.ref] if has_prompt else [], self.limits.deriving)
            if has_prompt:
                await self.request.answer(self.request.control, self.limits.scoring)
        except (ChildError, UnknownTaskError):
            return False
        return not self.worker.is_cramped

    def _finding(self, step: Step, reason: Reason) -> PeersScore[_Given]:
        """The finding as a value, or as the error of a task that cannot be made."""
        place = f"{self.ref[2]}/{self.ref[3]}"
        if step is Step.ASLEEP:  # all others waited for it, so all of it counts
            return PeersScore(
                self._prompt, blamed=reason, seconds=self._scoring_seconds + self._sleep_seconds
            )
        if step is not Step.BLAME:
            # A busy machine looks like this too, so its author is charged for a part only.
            waiting_seconds = self.limits.scoring if reason in WAITED else 0.0
            cause = "own" if step is Step.OWN_FAULT else reason
            return PeersScore(
                self._prompt, unscored=cause, seconds=self._scoring_seconds + waiting_seconds
            )
        if reason == "derive":
            raise SlowTaskError(
                f"making the task {place} took too long; leave that family out",
                2 * self.limits.deriving,  # it was tried twice
            )
        if reason == "unknown" and self._task_error is not None:
            raise self._task_error
        if not self._prompt:
            raise UnknownTaskError(
                f"making the task {place} ended its process ({reason}); leave that family out"
            )
        return PeersScore(self._prompt, blamed=reason, seconds=self._scoring_seconds)
