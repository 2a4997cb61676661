"""A scoring worker: derives tasks and scores texts, confined, in a process that a text may crash.

A text that takes over a scoring worker can write its replies, so the host does not trust them:
replies are typed and bounded, and each frame must carry the random number of its request."""

from __future__ import annotations

import contextlib
import math
import signal
from collections.abc import Callable, Iterator
from typing import Annotated, Literal

import msgspec

from swarm_node.clock import SYSTEM_CLOCK
from swarm_node.environments.answers.final import MAX_SCORED_CHARS
from swarm_node.environments.base import MAX_OBSERVATION_CHARS, Environment, Task
from swarm_node.environments.splits.splitting import SplitEnvironment
from swarm_node.environments.splits.survey import Survey, survey
from swarm_node.errors import UnknownTaskError
from swarm_node.rollout import MAX_TURNS, TaskRef

#: Each signal ends a process whose timer has run out. Both keep their default action, because no
#: handler in Python runs while a regular expression or big-number arithmetic holds the interpreter.
#: Both timers count processor time, so a busy machine causes no timeout.
DERIVING_TOO_LONG, SCORING_TOO_LONG = signal.SIGVTALRM, signal.SIGPROF
_DERIVING_TIMER, _SCORING_TIMER = signal.ITIMER_VIRTUAL, signal.ITIMER_PROF
MAX_REPLY_BYTES = 16 << 20
#: A sum of float32 weights strays from its bound by less than this, so a reward that is as little
#: beyond [0, 1] is meant to be the bound: twenty times .05 is 1.0000000000000002.
ROUNDING = 1e-6
_MAX_NAME = 64
#: Characters of a right answer that are shown.
_MAX_SHOWN = 80

PlainRef = tuple[str, str, str, int]
Prompt = Annotated[str, msgspec.Meta(max_length=1 << 18)]


class TextVerdict(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The reward of one text. `fault` is "" or the fault that made it zero. `raised` is "" or the
    name of the scorer's exception, which makes the text a wrong answer."""

    reward: Annotated[float, msgspec.Meta(ge=0.0, le=1.0)]
    fault: Literal["", "out_of_range", "observation"] = ""
    raised: Annotated[str, msgspec.Meta(max_length=_MAX_NAME, pattern=r"^[A-Za-z0-9_]*$")] = ""


class Derive(msgspec.Struct, frozen=True, tag=True, forbid_unknown_fields=True):
    """Make these tasks, each within `seconds` of processor time. `Score` and `RerunRollouts` refer
    to the last."""

    refs: list[PlainRef]
    seconds: float


class Score(msgspec.Struct, frozen=True, tag=True, forbid_unknown_fields=True):
    """Score texts for the task that was derived last, all within `seconds` of processor time."""

    texts: list[str]
    seconds: float


class GroupTexts(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A task and texts for it, to score within `seconds` of processor time."""

    ref: PlainRef
    texts: list[str]
    seconds: float


class ScoreGroups(msgspec.Struct, frozen=True, tag=True, forbid_unknown_fields=True):
    """Make the task of each group, within `derive_seconds` of processor time, and score its
    texts."""

    groups: list[GroupTexts]
    derive_seconds: float


class Transcript(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """All that the model said in a multi-turn rollout so far. It is `cut` if its last turn ran out
    of tokens: no observation follows a turn that did not end."""

    texts: Annotated[list[str], msgspec.Meta(min_length=1, max_length=MAX_TURNS)]
    cut: bool = False


class RerunRollouts(msgspec.Struct, frozen=True, tag=True, forbid_unknown_fields=True):
    """Re-run multi-turn rollouts of the task that was derived last, all within `seconds` of
    processor time."""

    transcripts: list[Transcript]
    seconds: float


class Check(msgspec.Struct, frozen=True, tag=True, forbid_unknown_fields=True):
    """Draw tasks of a family within `seconds` of processor time, to see that training and held-out
    questions are kept apart."""

    family: str
    seconds: float


class Draw(msgspec.Struct, frozen=True, tag=True, forbid_unknown_fields=True):
    """Survey `draws` tasks of a family, or as many as `seconds` allow."""

    family: str
    draws: int
    seconds: float


class ScoreAnswers(msgspec.Struct, frozen=True, tag=True, forbid_unknown_fields=True):
    """Make these tasks, each within `derive_seconds` of processor time, and score the right answer
    of each, in the form that its prompt asks for, within `seconds`. With `name` only say which it
    is and where it stands."""

    refs: list[PlainRef]
    derive_seconds: float
    seconds: float
    name: bool = False


class Derived(msgspec.Struct, frozen=True, tag=True, forbid_unknown_fields=True):
    """The prompts, and whether files and system calls are confined. `cramped` as in `Sandbox`."""

    prompts: list[Prompt]
    files: bool
    system_calls: bool
    cramped: bool = False


class Scored(msgspec.Struct, frozen=True, tag=True, forbid_unknown_fields=True):
    """A verdict on each text."""

    verdicts: list[TextVerdict]


class ScoredGroups(msgspec.Struct, frozen=True, tag=True, forbid_unknown_fields=True):
    """The prompt of each group, and a verdict on each of its texts."""

    groups: list[tuple[Prompt, list[TextVerdict]]]


class RerunLine(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A multi-turn rollout re-run: the observation after each turn until it was `over`. The verdict
    on one that is over; None also if the model said more after its end."""

    observations: Annotated[
        list[Annotated[str, msgspec.Meta(max_length=MAX_OBSERVATION_CHARS)]],
        msgspec.Meta(max_length=MAX_TURNS),
    ]
    over: bool
    verdict: TextVerdict | None = None


class RerunLines(msgspec.Struct, frozen=True, tag=True, forbid_unknown_fields=True):
    """Every multi-turn rollout re-run."""

    lines: list[RerunLine]


class Checked(msgspec.Struct, frozen=True, tag=True, forbid_unknown_fields=True):
    """The reason why a family cannot be used, "" if it can."""

    reason: Annotated[str, msgspec.Meta(max_length=1000)]


class Surveyed(msgspec.Struct, frozen=True, tag="Drawn", forbid_unknown_fields=True):
    """The survey that was made."""

    survey: Survey


class FailedAnswer(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A right answer that does not score 1: that of the task at `index` of those that were asked
    for. `place` is where its row stands, "" for no list; `answer` the text that was scored, cut;
    `reason` why, to go on after the answer."""

    index: Annotated[int, msgspec.Meta(ge=0)]
    place: Annotated[str, msgspec.Meta(max_length=_MAX_NAME)]
    answer: Annotated[str, msgspec.Meta(max_length=_MAX_SHOWN)]
    reason: Annotated[str, msgspec.Meta(max_length=2 * _MAX_NAME)]


class AnswersScored(msgspec.Struct, frozen=True, tag=True, forbid_unknown_fields=True):
    """Right answers were scored: `known` of them, of which these `failed`."""

    known: Annotated[int, msgspec.Meta(ge=0)]
    failed: list[FailedAnswer]


class Unknown(msgspec.Struct, frozen=True, tag=True, forbid_unknown_fields=True):
    """A task cannot be derived here."""

    reason: Annotated[str, msgspec.Meta(max_length=1000)]


Request = Derive | Score | ScoreGroups | RerunRollouts | Check | Draw | ScoreAnswers
Reply = Derived | Scored | ScoredGroups | RerunLines | Checked | Surveyed | AnswersScored | Unknown
_requests = msgspec.msgpack.Decoder(Request)


def score_text(environment: Environment, task: Task, text: str) -> TextVerdict:
    """The verdict on one text, whatever the scorer raises or returns."""
    return _verdict(lambda: environment.score(task, text))


def right_answer(environment: SplitEnvironment, task: Task) -> tuple[str, str] | None:
    """The right answer of a task, in the form that its prompt asks for, and where its row stands.
    None if no right answer is known.

    Raises:
        UnknownTaskError: the environment fails to say it.
    """
    try:
        text, place = environment.reference_completion(task), environment.place(task)
        return None if text is None else (str(text), place[:_MAX_NAME])
    except UnknownTaskError:
        raise
    except Exception as error:
        raise UnknownTaskError(
            f"{environment.name} fails to say the right answer of {task.ref.family}/{task.ref.seed}"
            f" ({type(error).__name__}: {error}); leave that family out"
        ) from error


def fault_of(environment: SplitEnvironment, task: Task, right: str) -> str:
    """The reason why the right answer of a task does not score 1, "" if it does. It is scored as
    the same text of a model is."""
    verdict = score_text(environment, task, right[-MAX_SCORED_CHARS:])
    if verdict.raised:
        return f"makes score() raise {verdict.raised}"
    if verdict.fault:
        return "has a reward that is not in [0, 1]"
    return "" if verdict.reward >= 1.0 - ROUNDING else f"scores {verdict.reward:g}"


def excerpt(text: str) -> str:
    """The beginning of a text, as a frame can carry it."""
    prefix = text if len(text) <= _MAX_SHOWN else f"{text[: _MAX_SHOWN - 1]}…"
    return prefix.encode(errors="replace").decode()


def rerun(environment: SplitEnvironment, task: Task, transcript: Transcript) -> RerunLine:
    """The observations after all turns, and the verdict if the multi-turn rollout is over, whatever
    the environment raises or returns. It is over after a turn without an observation, after the
    last one that it may have, and after one that was cut."""
    texts, observations = tuple(transcript.texts), list[str]()
    for count in range(1, len(texts) + 1):
        observation: str | None = None
        if count < environment.turns and not (transcript.cut and count == len(texts)):
            try:
                observation = environment.observation(task, texts[:count])
            except (Exception, SystemExit) as error:  # noqa: BLE001 - foreign code may also exit
                return RerunLine(
                    observations, True, TextVerdict(0.0, "observation", _error_name(error))
                )
            if observation is not None and not _sendable(observation):
                return RerunLine(observations, True, TextVerdict(0.0, "observation"))
        if observation is None:
            is_over = count == len(texts)
            verdict = _verdict(lambda: environment.reward(task, texts)) if is_over else None
            return RerunLine(observations, True, verdict)
        observations.append(observation)
    return RerunLine(observations, False)


def _sendable(observation: object) -> bool:
    """Check that an observation is text of a bounded length that every receiver can encode. No
    frame can carry an object of a class derived from `str`, which may also deny its length."""
    if type(observation) is not str or len(observation) > MAX_OBSERVATION_CHARS:
        return False
    return not any("\ud800" <= character <= "\udfff" for character in observation)


def _error_name(error: BaseException) -> str:
    name = type(error).__name__[:_MAX_NAME]
    return name if name.isascii() and name.isidentifier() else "Exception"


def _verdict(reward_of: Callable[[], float]) -> TextVerdict:
    try:
        reward = float(reward_of())
    except Exception as error:  # noqa: BLE001 - foreign code on hostile text may raise anything
        return TextVerdict(0.0, raised=_error_name(error))
    if not (math.isfinite(reward) and -ROUNDING <= reward <= 1.0 + ROUNDING):
        return TextVerdict(0.0, fault="out_of_range")
    return TextVerdict(min(max(reward, 0.0), 1.0))


def derive_prompt(environment: Environment, ref: TaskRef) -> tuple[Task, str]:
    """The task that `ref` names, and its prompt.

    Raises:
        UnknownTaskError: the environment has no such task, or fails to make it.
    """
    try:
        task = environment.derive(ref)
        return task, environment.render(task)
    except UnknownTaskError:
        raise
    except Exception as error:
        raise UnknownTaskError(
            f"{environment.name} fails to make the task {ref.family}/{ref.seed} "
            f"({type(error).__name__}: {error}); leave that family out"
        ) from error


class Scorer:
    """Answers the host's requests. A restart loses nothing but the current task."""

    def __init__(self, environment: SplitEnvironment) -> None:
        self._environment = environment
        self._task: Task | None = None
        #: True for files and for system calls if they are confined; set before the first request.
        self.confinement = (False, False)
        self.is_cramped = False

    def answer(self, body: bytes) -> bytes:
        request = _requests.decode(body)
        reply: Reply
        try:
            if isinstance(request, Derive):
                reply = Derived(self._derive(request), *self.confinement, self.is_cramped)
            elif isinstance(request, Check):
                reply = Checked(self._check(request)[:1000])
            elif isinstance(request, Draw):
                reply = Surveyed(self._draw(request))
            elif isinstance(request, RerunRollouts):
                reply = RerunLines(self._rerun(request))
            elif isinstance(request, ScoreAnswers):
                reply = self._score_answers(request)
            elif isinstance(request, ScoreGroups):
                reply = ScoredGroups(self._score_groups(request))
            else:
                reply = Scored(self._score(request))
        except UnknownTaskError as error:
            reply = Unknown(str(error)[:1000])
        return msgspec.msgpack.encode(reply)

    def _derive(self, request: Derive) -> list[str]:
        prompts = []
        for ref in request.refs:
            with _limit(_DERIVING_TIMER, request.seconds):
                self._task, prompt = derive_prompt(self._environment, TaskRef(*ref))
            prompts.append(prompt)
        return prompts

    def _check(self, request: Check) -> str:
        with _limit(_DERIVING_TIMER, request.seconds):
            return self._environment.refusal(request.family)

    def _draw(self, request: Draw) -> Survey:
        now = SYSTEM_CLOCK.now
        with _limit(_DERIVING_TIMER, 2 * request.seconds):
            return survey(self._environment, request.family, request.draws, request.seconds, now)

    def _score(self, request: Score) -> list[TextVerdict]:
        task = self._current_task()
        with _limit(_SCORING_TIMER, request.seconds):
            return [score_text(self._environment, task, text) for text in request.texts]

    def _score_groups(self, request: ScoreGroups) -> list[tuple[str, list[TextVerdict]]]:
        results = []
        for group in request.groups:
            (prompt,) = self._derive(Derive([group.ref], request.derive_seconds))
            results.append((prompt, self._score(Score(group.texts, group.seconds))))
        return results

    def _score_answers(self, request: ScoreAnswers) -> AnswersScored:
        known_count, failures = 0, list[FailedAnswer]()
        for index, ref in enumerate(request.refs):
            self._derive(Derive([ref], request.derive_seconds))
            environment, task = self._environment, self._current_task()
            with _limit(_SCORING_TIMER, request.seconds):
                right = right_answer(environment, task)
                reason = (
                    "" if right is None or request.name else fault_of(environment, task, right[0])
                )
            if right is None:
                continue
            known_count += 1
            if reason or request.name:
                failures.append(FailedAnswer(index, right[1], excerpt(right[0]), reason))
        return AnswersScored(known_count, failures)

    def _rerun(self, request: RerunRollouts) -> list[RerunLine]:
        task = self._current_task()
        with _limit(_SCORING_TIMER, request.seconds):
            return [
                rerun(self._environment, task, transcript) for transcript in request.transcripts
            ]

    def _current_task(self) -> Task:
        if self._task is None:
            raise UnknownTaskError("no task was derived")
        return self._task


@contextlib.contextmanager
def _limit(timer: int, seconds: float) -> Iterator[None]:
    signal.setitimer(timer, seconds)
    try:
        yield
    finally:
        signal.setitimer(timer, 0.0)
