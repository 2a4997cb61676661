"""The node's source of prompts and rewards: an environment behind a process boundary.

The node never imports an environment. A process of its own does, and forks scoring workers, which
may crash: one for this node's answers and one for peers' answers, so own groups never wait for
peers' groups."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Protocol, TypeVar

from swarm_node.clock import SYSTEM_CLOCK
from swarm_node.environments.scores import (
    GroupRerun,
    GroupScores,
    check_count,
    cut,
    cut_transcript,
    group_scores,
    reruns_of,
)
from swarm_node.environments.splits.splitting import Asking, SplitEnvironment
from swarm_node.environments.splits.survey import Survey
from swarm_node.environments.workers.fault_attribution import SUSPECT, WAITED, Reason
from swarm_node.environments.workers.messages import Sandbox
from swarm_node.environments.workers.processes import (
    EnvironmentProcess,
    ScoringWorker,
    WorkerLostError,
)
from swarm_node.environments.workers.retries import Limits, PeersAttempts, rerunning, scoring
from swarm_node.environments.workers.right_answers import OWN_TRIES, answers_scored
from swarm_node.environments.workers.scoring_worker import (
    AnswersScored,
    GroupTexts,
    PlainRef,
    TextVerdict,
    Transcript,
    derive_prompt,
    rerun,
    score_text,
)
from swarm_node.errors import ConfigError, SlowTaskError, UnknownTaskError
from swarm_node.rollout import TaskRef

#: Once texts that are scored one by one have ended this many scoring workers, no further text is
#: scored.
MAX_LOST_WORKERS = 2
#: After a batch of groups that ended its scoring worker, so many batches are scored group by group.
WARY_BATCHES = 16
#: Processor seconds for making one task, and for scoring all texts of one group.
DERIVE_SECONDS = 5.0
SCORE_SECONDS = 5.0
#: The number of texts for which an environment says how long scoring takes.
SAID_TEXTS = 8
#: The niceness of the scoring worker of peers' groups: own groups get the processor first.
_PEERS_NICENESS = 5

Whose = Literal["own", "peers"]
_Sent = TypeVar("_Sent")
_Given = TypeVar("_Given")


@dataclass(frozen=True, slots=True)
class EnvironmentInfo:
    """The description of an environment. `sandbox` confines its scoring workers; None if they run
    in the node's own process. `notes` are sentences about its tasks that the owner should read, and
    `warnings` of what is probably wrong with them. `turns` is the most turns of a model in a
    multi-turn rollout, 1 for an answer to one question. `score_seconds` is the time that SAID_TEXTS
    texts may take, as the environment says, and 0 if it does not say. For a list of questions
    `sizes` has by family the numbers of rows for training and held out."""

    name: str
    version: str
    families: tuple[str, ...]
    sandbox: Sandbox | None = None
    notes: tuple[str, ...] = ()
    turns: int = 1
    score_seconds: float = 0.0
    sizes: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()


class EnvironmentHost(Protocol):
    """The node's interface to an environment."""

    async def start(self) -> EnvironmentInfo:
        """Make the environment ready.

        Raises:
            ConfigError: there is no such environment, it refuses its options, or it cannot keep
                training and held-out texts apart.
            ChildError: its process does not start.
        """
        ...

    async def render(self, refs: Sequence[TaskRef]) -> list[str]:
        """The prompts of `refs`, in their order.

        Raises:
            UnknownTaskError: one of them cannot be derived here.
            ChildError: the process cannot be kept alive.
        """
        ...

    async def score(self, ref: TaskRef, texts: Sequence[str], origin: Whose = "own") -> GroupScores:
        """Derive the task and score the last MAX_SCORED_CHARS of each of `texts`, at most
        MAX_TEXTS. An own text that ends its scoring worker scores zero and counts as a fault. If
        peers' texts end their scoring worker, or this node cannot run one, none of them is scored.

        Raises:
            UnknownTaskError: the task cannot be derived here. SlowTaskError: not in time.
            ChildError: the process cannot be restarted for own texts.
            ValueError: too many texts.
        """
        ...

    async def score_all(
        self, groups: Sequence[tuple[TaskRef, Sequence[str]]]
    ) -> Sequence[GroupScores]:
        """Score own groups, each a task and texts, as `score` does.

        Raises:
            UnknownTaskError, SlowTaskError, ChildError, ValueError: as of `score`.
        """
        ...

    async def rerun(
        self, ref: TaskRef, transcripts: Sequence[Transcript], origin: Whose = "own"
    ) -> GroupRerun:
        """Derive the task and re-run `transcripts` of it, at most MAX_TEXTS: what the environment
        says after each turn, and the rewards of those that are over. Texts are cut as by `score`.
        An own one that ends its scoring worker ends its multi-turn rollout. If peers' multi-turn
        rollouts end their scoring worker, or this node cannot run one, none of them is re-run.

        Raises:
            UnknownTaskError: the task cannot be derived here. SlowTaskError: not in time.
            ChildError: the process cannot be restarted for own multi-turn rollouts.
            ValueError: too many multi-turn rollouts.
        """
        ...

    async def close(self) -> None:
        """End the process."""
        ...


class ProcessEnvironmentHost:
    """An `EnvironmentHost` whose environment lives in a process that forks confined scoring
    workers.

    A group is scored in one request. If that ends the scoring worker, and nobody else did, own
    texts are scored again one by one, to find the text that ended it. That stops once
    MAX_LOST_WORKERS scoring workers are lost. Peers' texts are scored again until it is known whose
    fault it was."""

    def __init__(
        self,
        name: str,
        options: Mapping[str, Any],
        families: Sequence[str] = (),
        *,
        derive_seconds: float = DERIVE_SECONDS,
        score_seconds: float = SCORE_SECONDS,
    ) -> None:
        """`name` and `options` are as for `registry.create_environment`. It does not start if
        training and held-out texts of one of `families`, () for all, cannot be kept apart.
        `derive_seconds` is the processor time for making one task, `score_seconds` for scoring all
        texts of one group, unless the environment says more."""
        if min(derive_seconds, score_seconds) <= 0:
            raise ValueError("a scoring worker needs more than 0 seconds")
        self._derive_seconds = derive_seconds
        self._score_seconds = score_seconds
        self._said_seconds = 0.0
        self._wary_batches = 0
        self._options = options
        self._environment = EnvironmentProcess(name, options)
        self._families = tuple(families)
        self._scoring_workers: Mapping[Whose, ScoringWorker] = {
            "own": ScoringWorker(self._environment, niceness=0),
            "peers": ScoringWorker(self._environment, niceness=_PEERS_NICENESS),
        }
        self._turns: Mapping[Whose, asyncio.Lock] = {"own": asyncio.Lock(), "peers": asyncio.Lock()}

    @property
    def pids(self) -> dict[str, int | None]:
        """Process ids by the part of the process in the node, None if it does not run."""
        return {
            "environment": self._environment.pid,
            **{f"scoring_{origin}": worker.pid for origin, worker in self._scoring_workers.items()},
        }

    @property
    def system(self) -> str:
        """The system message of every prompt, "" for none.

        Raises:
            ConfigError: the option is no such text.
        """
        return Asking.of(self._options).system

    @property
    def losses(self) -> int:
        """Number of scoring workers that were lost."""
        return sum(worker.losses for worker in self._scoring_workers.values())

    async def start(self) -> EnvironmentInfo:
        await self.close()
        message = await self._environment.start()
        self._said_seconds = message.score_seconds
        await self._scoring_workers["own"].derive([], self._derive_seconds)
        sandbox = self._scoring_workers["own"].sandbox
        for family in self._families or message.families:
            if family in message.families and (reason := await self._refusal(family)):
                await self.close()
                raise ConfigError(f"environment.options: {reason}")
        return EnvironmentInfo(
            *(message.name, message.version, message.families, sandbox, message.notes),
            turns=message.turns,
            score_seconds=message.score_seconds,
            sizes=message.sizes,
            warnings=message.warnings,
        )

    def _seconds(self, texts: int) -> float:
        """Processor seconds for scoring a group of `texts` texts. The time that the environment
        states is raised for larger groups."""
        return max(self._score_seconds, self._said_seconds * max(1.0, texts / SAID_TEXTS))

    async def _refusal(self, family: str) -> str:
        try:
            return await self._scoring_workers["own"].check(family, self._derive_seconds)
        except WorkerLostError as error:
            reason = f"making its tasks ended their process ({error.reason})"
            return f"family {family}: {reason}; leave it out"

    async def render(self, refs: Sequence[TaskRef]) -> list[str]:
        async with self._turns["own"]:
            return list(
                await self._derive_prompts(
                    self._scoring_workers["own"], [_plain(ref) for ref in refs]
                )
            )

    async def score(self, ref: TaskRef, texts: Sequence[str], origin: Whose = "own") -> GroupScores:
        check_count(texts)
        parts = [cut(text) for text in texts]
        sent_parts = [part for part in parts if part is not None]
        async with self._turns[origin]:
            worker, start_time = self._scoring_workers[origin], SYSTEM_CLOCK.now()
            if origin == "peers":
                limits = Limits(self._derive_seconds, self._seconds(len(sent_parts)))
                request = scoring(worker, sent_parts)
                result = await PeersAttempts(worker, _plain(ref), request, limits).score()
                peer_verdicts = result.answers or [TextVerdict(0.0)] * len(sent_parts)
                return replace(
                    group_scores(result.prompt, parts, peer_verdicts),
                    loss_reason=result.blamed,
                    unscored=result.unscored,
                    seconds=result.seconds,
                )
            prompt = await self._prompt(worker, ref)
            verdicts = await self._ask_about_task(worker, ref, worker.score, sent_parts)
            seconds = SYSTEM_CLOCK.now() - start_time
        return replace(group_scores(prompt, parts, verdicts), seconds=seconds)

    async def score_all(
        self, groups: Sequence[tuple[TaskRef, Sequence[str]]]
    ) -> Sequence[GroupScores]:
        for _, texts in groups:
            check_count(texts)
        group_parts = [[cut(text) for text in texts] for _, texts in groups]
        requests = []
        for (ref, _), parts in zip(groups, group_parts, strict=True):
            sent_parts = [part for part in parts if part is not None]
            requests.append(GroupTexts(_plain(ref), sent_parts, self._seconds(len(sent_parts))))
        async with self._turns["own"]:
            start_time = SYSTEM_CLOCK.now()
            results = await self._together(requests)
            seconds = (SYSTEM_CLOCK.now() - start_time) / max(len(groups), 1)
        if results is None:
            return [await self.score(ref, texts) for ref, texts in groups]
        return [
            replace(group_scores(prompt, parts, verdicts), seconds=seconds)
            for (prompt, verdicts), parts in zip(results, group_parts, strict=True)
        ]

    async def _together(
        self, groups: Sequence[GroupTexts]
    ) -> Sequence[tuple[str, list[TextVerdict]]] | None:
        """Prompts and verdicts of own groups from one request. None if one of them ended the
        scoring worker, or one did lately: to find it, they are scored group by group."""
        if self._wary_batches:
            self._wary_batches -= 1
            return None
        try:
            return await self._scoring_workers["own"].score_groups(groups, self._derive_seconds)
        except (WorkerLostError, UnknownTaskError):
            self._wary_batches = WARY_BATCHES
            return None

    async def rerun(
        self, ref: TaskRef, transcripts: Sequence[Transcript], origin: Whose = "own"
    ) -> GroupRerun:
        check_count(transcripts)
        parts = [cut_transcript(transcript) for transcript in transcripts]
        sent_parts = [transcript for transcript in parts if transcript is not None]
        async with self._turns[origin]:
            worker, start_time = self._scoring_workers[origin], SYSTEM_CLOCK.now()
            if origin == "peers":
                # Its author had as long for each turn, of multi-turn rollouts that were not over
                # before.
                turns = max((len(transcript.texts) for transcript in sent_parts), default=1)
                limits = Limits(self._derive_seconds, self._seconds(len(sent_parts)) * turns)
                request = rerunning(worker, sent_parts)
                result = await PeersAttempts(worker, _plain(ref), request, limits).score()
                reruns = reruns_of(parts, result.answers) if result.answers else ()
                reasons = result.blamed, result.unscored
                return GroupRerun(result.prompt, reruns, *reasons, seconds=result.seconds)
            prompt = await self._prompt(worker, ref)
            lines = await self._ask_about_task(worker, ref, worker.rerun, sent_parts)
            seconds = SYSTEM_CLOCK.now() - start_time
        return GroupRerun(prompt, reruns_of(parts, lines), seconds=seconds)

    async def score_answers(self, refs: Sequence[TaskRef]) -> AnswersScored:
        """Score the right answer of each of `refs`, in the form that its prompt asks for. One that
        ends its scoring worker fails, with the reason.

        Raises:
            UnknownTaskError: one of the tasks cannot be made.
            ChildError: the scoring worker cannot be started.
        """
        limits = Limits(self._derive_seconds, self._seconds(1))
        async with self._turns["own"]:
            return await answers_scored(
                self._scoring_workers["own"], [_plain(ref) for ref in refs], limits
            )

    async def survey(self, family: str, draws: int, seconds: float) -> Survey:
        """Survey `draws` tasks of a family, or as many as `seconds` allow.

        Raises:
            UnknownTaskError: one of the tasks cannot be made.
            ChildError: the scoring worker ended, or cannot be started.
        """
        async with self._turns["own"]:
            return await self._scoring_workers["own"].survey(family, draws, seconds)

    async def close(self) -> None:
        for worker in self._scoring_workers.values():
            await worker.close()
        await self._environment.stop()

    async def _prompt(self, worker: ScoringWorker, ref: TaskRef) -> str:
        try:
            (prompt,) = await self._derive_prompts(worker, [_plain(ref)])
        except WorkerLostError as error:
            if error.reason == "derive":
                raise SlowTaskError(
                    f"making the task {ref.family}/{ref.seed} took too long; leave that family out",
                    2 * self._derive_seconds,  # it was tried twice
                ) from error
            if error.reason not in SUSPECT:
                raise
            raise UnknownTaskError(
                f"making the task {ref.family}/{ref.seed} ended its process ({error}); leave that "
                "family out"
            ) from error
        return prompt

    async def _derive_prompts(
        self, worker: ScoringWorker, refs: Sequence[PlainRef]
    ) -> tuple[str, ...]:
        for _ in range(OWN_TRIES - 1):
            try:
                return await worker.derive(refs, self._derive_seconds)
            except WorkerLostError as error:
                if error.reason in SUSPECT:
                    break
        return await worker.derive(refs, self._derive_seconds)  # one end is no evidence

    async def _ask_about_task(
        self,
        worker: ScoringWorker,
        ref: TaskRef,
        ask: Callable[[Sequence[_Sent], float], Awaitable[list[_Given]]],
        items: Sequence[_Sent],
    ) -> Sequence[_Given | str]:
        """The scoring worker's answers to own texts or multi-turn rollouts, for the task derived
        last. They are sent together. If that ends the scoring worker, they are sent one by one, and
        a text that ends it gets the reason in place of an answer."""
        answers = await self._ask_worker(worker, ref, ask, items, self._seconds(len(items)))
        if isinstance(answers, list):
            return answers
        return await self._asked_singly(worker, ref, ask, items)

    async def _ask_worker(
        self,
        worker: ScoringWorker,
        ref: TaskRef,
        ask: Callable[[Sequence[_Sent], float], Awaitable[list[_Given]]],
        items: Sequence[_Sent],
        seconds: float,
    ) -> list[_Given] | Reason:
        """The scoring worker's answers, or the reason why it was ended. A scoring worker that
        somebody else killed is replaced."""
        tries = 1
        while True:
            try:
                return await ask(items, seconds)
            except WorkerLostError as error:
                if error.reason in SUSPECT | WAITED or tries == OWN_TRIES:
                    return error.reason
            tries += 1
            await self._prompt(worker, ref)

    async def _asked_singly(
        self,
        worker: ScoringWorker,
        ref: TaskRef,
        ask: Callable[[Sequence[_Sent], float], Awaitable[list[_Given]]],
        items: Sequence[_Sent],
    ) -> list[_Given | str]:
        """The scoring worker's answer to each, or the reason why there is none."""
        answers: list[_Given | str] = []
        lost_workers = 0
        for item in items:
            if lost_workers == MAX_LOST_WORKERS:
                answers.append("abandoned")
                continue
            await self._prompt(worker, ref)
            seconds = self._seconds(len(items)) / len(items)
            result = await self._ask_worker(worker, ref, ask, [item], seconds)
            if isinstance(result, list):
                answers.extend(result)
            else:
                lost_workers += 1
                answers.append(result)
        return answers


class InlineEnvironmentHost:
    """An `EnvironmentHost` in this process, for simulations of trusted nodes. It gives the same
    rewards, but has no time limit, and a scorer that ends its process ends the simulation."""

    def __init__(self, environment: SplitEnvironment, families: Sequence[str] = ()) -> None:
        """`families` are checked at the start; () for all."""
        self._environment = environment
        self._families = tuple(families)

    async def start(self) -> EnvironmentInfo:
        environment = self._environment
        for family in self._families or environment.families:
            if family in environment.families and (reason := environment.refusal(family)):
                raise ConfigError(f"environment.options: {reason}")
        return EnvironmentInfo(
            environment.name,
            environment.version,
            environment.families,
            notes=environment.notes,
            turns=environment.turns,
        )

    async def render(self, refs: Sequence[TaskRef]) -> list[str]:
        return [derive_prompt(self._environment, ref)[1] for ref in refs]

    async def score(self, ref: TaskRef, texts: Sequence[str], origin: Whose = "own") -> GroupScores:
        check_count(texts)
        task, prompt = derive_prompt(self._environment, ref)
        parts = [cut(text) for text in texts]
        sent_parts = [part for part in parts if part is not None]
        return group_scores(
            prompt, parts, [score_text(self._environment, task, part) for part in sent_parts]
        )

    async def score_all(
        self, groups: Sequence[tuple[TaskRef, Sequence[str]]]
    ) -> Sequence[GroupScores]:
        return [await self.score(ref, texts) for ref, texts in groups]

    async def rerun(
        self, ref: TaskRef, transcripts: Sequence[Transcript], origin: Whose = "own"
    ) -> GroupRerun:
        check_count(transcripts)
        start_time = SYSTEM_CLOCK.now()
        task, prompt = derive_prompt(self._environment, ref)
        parts = [cut_transcript(transcript) for transcript in transcripts]
        sent_parts = [transcript for transcript in parts if transcript is not None]
        lines = [rerun(self._environment, task, transcript) for transcript in sent_parts]
        seconds = SYSTEM_CLOCK.now() - start_time
        return GroupRerun(prompt, reruns_of(parts, lines), seconds=seconds)

    async def close(self) -> None:
        return None


def _plain(ref: TaskRef) -> PlainRef:
    return ref.environment, ref.version, ref.family, ref.seed
