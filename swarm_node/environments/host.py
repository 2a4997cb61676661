"""The node's source of prompts and rewards: an environment behind a process boundary.

The node never imports an environment. A process of its own does, and forks judges, which may crash:
one for this node's answers and one for peers' answers, so own groups never wait for peers' groups.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Protocol, TypeVar

from swarm_node.clock import SYSTEM_CLOCK
from swarm_node.environments.judgement import (
    JudgedDialogues,
    Judgement,
    check_count,
    cut,
    cut_transcript,
    judgement,
    replayed,
)
from swarm_node.environments.splits.splitting import Asking, SplitEnvironment
from swarm_node.environments.splits.survey import Survey
from swarm_node.environments.workers.fault_attribution import SUSPECT, WAITED, Reason
from swarm_node.environments.workers.messages import Sandbox
from swarm_node.environments.workers.processes import (
    EnvironmentProcess,
    JudgeLostError,
    JudgeProcess,
)
from swarm_node.environments.workers.retries import Limits, PeersAttempts, replaying, scoring
from swarm_node.environments.workers.right_answers import OWN_TRIES, answers_scored
from swarm_node.environments.workers.scoring_worker import (
    AnswersScored,
    GroupTexts,
    PlainRef,
    TextVerdict,
    Transcript,
    derive_prompt,
    replay_dialogue,
    score_text,
)
from swarm_node.errors import ConfigError, SlowTaskError, UnknownTaskError
from swarm_node.rollout import TaskRef

#: Once texts that are scored one by one have ended this many judges, no further text is scored.
MAX_LOST_JUDGES = 2
#: After a batch of groups that ended its judge, so many batches are judged group by group.
WARY_BATCHES = 16
#: Processor seconds for making one task, and for scoring all texts of one group.
DERIVE_SECONDS = 5.0
SCORE_SECONDS = 5.0
#: The number of texts for which an environment says how long scoring takes.
SAID_TEXTS = 8
#: The niceness of the judge of peers' groups: own groups get the processor first.
_PEERS_NICENESS = 5

Whose = Literal["own", "peers"]
_Sent = TypeVar("_Sent")
_Given = TypeVar("_Given")


@dataclass(frozen=True, slots=True)
class EnvironmentInfo:
    """The description of an environment. `sandbox` confines its judges; None if they run in the
    node's own process. `notes` are sentences about its tasks that the owner should read, and
    `warnings` of what is probably wrong with them. `turns` is the most turns of a model in a
    dialogue, 1 for an answer to one question. `score_seconds` is the time that SAID_TEXTS texts may
    take, as the environment says, and 0 if it does not say. For a list of questions `sizes` has by
    family the numbers of rows for training and held out."""

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

    async def judge(self, ref: TaskRef, texts: Sequence[str], origin: Whose = "own") -> Judgement:
        """Derive the task and score the last MAX_JUDGED_CHARS of each of `texts`, at most
        MAX_TEXTS. An own text that ends its judge scores zero and counts as a fault. If peers'
        texts end their judge, or this node cannot run one, none of them is scored.

        Raises:
            UnknownTaskError: the task cannot be derived here. SlowTaskError: not in time.
            ChildError: the process cannot be restarted for own texts.
            ValueError: too many texts.
        """
        ...

    async def judge_all(
        self, groups: Sequence[tuple[TaskRef, Sequence[str]]]
    ) -> Sequence[Judgement]:
        """Judge own groups, each a task and texts, as `judge` does.

        Raises:
            UnknownTaskError, SlowTaskError, ChildError, ValueError: as of `judge`.
        """
        ...

    async def replay(
        self, ref: TaskRef, dialogues: Sequence[Transcript], origin: Whose = "own"
    ) -> JudgedDialogues:
        """Derive the task and replay `dialogues` of it, at most MAX_TEXTS: what the environment
        replies to each turn, and the rewards of those that are over. Texts are cut as by `judge`.
        An own one that ends its judge ends its dialogue. If peers' dialogues end their judge, or
        this node cannot run one, none of them is replayed.

        Raises:
            UnknownTaskError: the task cannot be derived here. SlowTaskError: not in time.
            ChildError: the process cannot be restarted for own dialogues.
            ValueError: too many dialogues.
        """
        ...

    async def close(self) -> None:
        """End the process."""
        ...


class ProcessEnvironmentHost:
    """An `EnvironmentHost` whose environment lives in a process that forks confined judges.

    A group is scored in one request. If that ends the judge, and nobody else did, own texts are
    scored again one by one, to find the text that ended it. That stops once MAX_LOST_JUDGES judges
    are lost. Peers' texts are scored again until it is known whose fault it was.
    """

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
            raise ValueError("a judge needs more than 0 seconds")
        self._derive_seconds = derive_seconds
        self._score_seconds = score_seconds
        self._said_seconds = 0.0
        self._wary_batches = 0
        self._options = options
        self._environment = EnvironmentProcess(name, options)
        self._families = tuple(families)
        self._judges: Mapping[Whose, JudgeProcess] = {
            "own": JudgeProcess(self._environment, niceness=0),
            "peers": JudgeProcess(self._environment, niceness=_PEERS_NICENESS),
        }
        self._turns: Mapping[Whose, asyncio.Lock] = {"own": asyncio.Lock(), "peers": asyncio.Lock()}

    @property
    def pids(self) -> dict[str, int | None]:
        """Process ids by the part of the process in the node, None if it does not run."""
        return {
            "environment": self._environment.pid,
            **{f"judge_{origin}": judge.pid for origin, judge in self._judges.items()},
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
        """Number of judges that were lost."""
        return sum(judge.losses for judge in self._judges.values())

    async def start(self) -> EnvironmentInfo:
        await self.close()
        message = await self._environment.start()
        self._said_seconds = message.score_seconds
        await self._judges["own"].derive([], self._derive_seconds)
        sandbox = self._judges["own"].sandbox
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
            return await self._judges["own"].check(family, self._derive_seconds)
        except JudgeLostError as error:
            reason = f"making its tasks ended their process ({error.reason})"
            return f"family {family}: {reason}; leave it out"

    async def render(self, refs: Sequence[TaskRef]) -> list[str]:
        async with self._turns["own"]:
            return list(await self._derived(self._judges["own"], [_plain(ref) for ref in refs]))

    async def judge(self, ref: TaskRef, texts: Sequence[str], origin: Whose = "own") -> Judgement:
        check_count(texts)
        parts = [cut(text) for text in texts]
        sent_parts = [part for part in parts if part is not None]
        async with self._turns[origin]:
            judge, start_time = self._judges[origin], SYSTEM_CLOCK.now()
            if origin == "peers":
                limits = Limits(self._derive_seconds, self._seconds(len(sent_parts)))
                request = scoring(judge, sent_parts)
                result = await PeersAttempts(judge, _plain(ref), request, limits).score()
                peer_verdicts = result.answers or [TextVerdict(0.0)] * len(sent_parts)
                return replace(
                    judgement(result.prompt, parts, peer_verdicts),
                    loss_reason=result.blamed,
                    unjudged=result.unjudged,
                    seconds=result.seconds,
                )
            prompt = await self._prompt(judge, ref)
            verdicts = await self._answered(judge, ref, judge.score, sent_parts)
            seconds = SYSTEM_CLOCK.now() - start_time
        return replace(judgement(prompt, parts, verdicts), seconds=seconds)

    async def judge_all(
        self, groups: Sequence[tuple[TaskRef, Sequence[str]]]
    ) -> Sequence[Judgement]:
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
            return [await self.judge(ref, texts) for ref, texts in groups]
        return [
            replace(judgement(prompt, parts, verdicts), seconds=seconds)
            for (prompt, verdicts), parts in zip(results, group_parts, strict=True)
        ]

    async def _together(
        self, groups: Sequence[GroupTexts]
    ) -> Sequence[tuple[str, list[TextVerdict]]] | None:
        """Prompts and verdicts of own groups from one request. None if one of them ended the judge,
        or one did lately: to find it, they are judged group by group."""
        if self._wary_batches:
            self._wary_batches -= 1
            return None
        try:
            return await self._judges["own"].score_groups(groups, self._derive_seconds)
        except (JudgeLostError, UnknownTaskError):
            self._wary_batches = WARY_BATCHES
            return None

    async def replay(
        self, ref: TaskRef, dialogues: Sequence[Transcript], origin: Whose = "own"
    ) -> JudgedDialogues:
        check_count(dialogues)
        parts = [cut_transcript(transcript) for transcript in dialogues]
        sent_parts = [transcript for transcript in parts if transcript is not None]
        async with self._turns[origin]:
            judge, start_time = self._judges[origin], SYSTEM_CLOCK.now()
            if origin == "peers":
                # Its author had as long for each turn, of dialogues that were not over before.
                turns = max((len(transcript.texts) for transcript in sent_parts), default=1)
                limits = Limits(self._derive_seconds, self._seconds(len(sent_parts)) * turns)
                request = replaying(judge, sent_parts)
                result = await PeersAttempts(judge, _plain(ref), request, limits).score()
                replays = replayed(parts, result.answers) if result.answers else ()
                reasons = result.blamed, result.unjudged
                return JudgedDialogues(result.prompt, replays, *reasons, seconds=result.seconds)
            prompt = await self._prompt(judge, ref)
            lines = await self._answered(judge, ref, judge.replay, sent_parts)
            seconds = SYSTEM_CLOCK.now() - start_time
        return JudgedDialogues(prompt, replayed(parts, lines), seconds=seconds)

    async def score_answers(self, refs: Sequence[TaskRef]) -> AnswersScored:
        """Score the right answer of each of `refs`, in the form that its prompt asks for. One that
        ends its judge fails, with the reason.

        Raises:
            UnknownTaskError: one of the tasks cannot be made.
            ChildError: the judge cannot be started.
        """
        limits = Limits(self._derive_seconds, self._seconds(1))
        async with self._turns["own"]:
            return await answers_scored(self._judges["own"], [_plain(ref) for ref in refs], limits)

    async def survey(self, family: str, draws: int, seconds: float) -> Survey:
        """Survey `draws` tasks of a family, or as many as `seconds` allow.

        Raises:
            UnknownTaskError: one of the tasks cannot be made.
            ChildError: the judge ended, or cannot be started.
        """
        async with self._turns["own"]:
            return await self._judges["own"].survey(family, draws, seconds)

    async def close(self) -> None:
        for judge in self._judges.values():
            await judge.close()
        await self._environment.stop()

    async def _prompt(self, judge: JudgeProcess, ref: TaskRef) -> str:
        try:
            (prompt,) = await self._derived(judge, [_plain(ref)])
        except JudgeLostError as error:
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

    async def _derived(self, judge: JudgeProcess, refs: Sequence[PlainRef]) -> tuple[str, ...]:
        for _ in range(OWN_TRIES - 1):
            try:
                return await judge.derive(refs, self._derive_seconds)
            except JudgeLostError as error:
                if error.reason in SUSPECT:
                    break
        return await judge.derive(refs, self._derive_seconds)  # one end is no evidence

    async def _answered(
        self,
        judge: JudgeProcess,
        ref: TaskRef,
        ask: Callable[[Sequence[_Sent], float], Awaitable[list[_Given]]],
        items: Sequence[_Sent],
    ) -> Sequence[_Given | str]:
        """The judge's answers to own texts or dialogues, for the task derived last. They are sent
        together. If that ends the judge, they are sent one by one, and a text that ends it gets the
        reason in place of an answer."""
        answers = await self._asked(judge, ref, ask, items, self._seconds(len(items)))
        if isinstance(answers, list):
            return answers
        return await self._asked_singly(judge, ref, ask, items)

    async def _asked(
        self,
        judge: JudgeProcess,
        ref: TaskRef,
        ask: Callable[[Sequence[_Sent], float], Awaitable[list[_Given]]],
        items: Sequence[_Sent],
        seconds: float,
    ) -> list[_Given] | Reason:
        """The judge's answers, or the reason why it was ended. A judge that somebody else killed
        is replaced."""
        tries = 1
        while True:
            try:
                return await ask(items, seconds)
            except JudgeLostError as error:
                if error.reason in SUSPECT | WAITED or tries == OWN_TRIES:
                    return error.reason
            tries += 1
            await self._prompt(judge, ref)

    async def _asked_singly(
        self,
        judge: JudgeProcess,
        ref: TaskRef,
        ask: Callable[[Sequence[_Sent], float], Awaitable[list[_Given]]],
        items: Sequence[_Sent],
    ) -> list[_Given | str]:
        """The judge's answer to each, or the reason why there is none."""
        answers: list[_Given | str] = []
        lost_judges = 0
        for item in items:
            if lost_judges == MAX_LOST_JUDGES:
                answers.append("abandoned")
                continue
            await self._prompt(judge, ref)
            seconds = self._seconds(len(items)) / len(items)
            result = await self._asked(judge, ref, ask, [item], seconds)
            if isinstance(result, list):
                answers.extend(result)
            else:
                lost_judges += 1
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

    async def judge(self, ref: TaskRef, texts: Sequence[str], origin: Whose = "own") -> Judgement:
        check_count(texts)
        task, prompt = derive_prompt(self._environment, ref)
        parts = [cut(text) for text in texts]
        sent_parts = [part for part in parts if part is not None]
        return judgement(
            prompt, parts, [score_text(self._environment, task, part) for part in sent_parts]
        )

    async def judge_all(
        self, groups: Sequence[tuple[TaskRef, Sequence[str]]]
    ) -> Sequence[Judgement]:
        return [await self.judge(ref, texts) for ref, texts in groups]

    async def replay(
        self, ref: TaskRef, dialogues: Sequence[Transcript], origin: Whose = "own"
    ) -> JudgedDialogues:
        check_count(dialogues)
        start_time = SYSTEM_CLOCK.now()
        task, prompt = derive_prompt(self._environment, ref)
        parts = [cut_transcript(transcript) for transcript in dialogues]
        sent_parts = [transcript for transcript in parts if transcript is not None]
        lines = [replay_dialogue(self._environment, task, transcript) for transcript in sent_parts]
        seconds = SYSTEM_CLOCK.now() - start_time
        return JudgedDialogues(prompt, replayed(parts, lines), seconds=seconds)

    async def close(self) -> None:
        return None


def _plain(ref: TaskRef) -> PlainRef:
    return ref.environment, ref.version, ref.family, ref.seed
