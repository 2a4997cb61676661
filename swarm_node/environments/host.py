"""The node's source of prompts and rewards: an environment behind a process boundary.

The node never imports an environment. A process of its own does, and forks judges, which may crash:
one for this node's answers and one for peers' answers, so own groups never wait for peers' groups.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Protocol

from swarm_node.clock import SYSTEM_CLOCK
from swarm_node.environments.answers import MAX_JUDGED_CHARS
from swarm_node.environments.base import Environment
from swarm_node.environments.judging.attempts import Limits, PeersAttempts
from swarm_node.environments.judging.blame import SUSPECT, WAITED, Reason
from swarm_node.environments.judging.judge import PlainRef, TextVerdict, derive_prompt, score_text
from swarm_node.environments.judging.processes import (
    EnvironmentProcess,
    JudgeLostError,
    JudgeProcess,
)
from swarm_node.environments.judging.sandbox import Sandbox
from swarm_node.environments.splitting import SplitEnvironment
from swarm_node.environments.survey import Survey
from swarm_node.errors import ConfigError, SlowTaskError, UnknownTaskError
from swarm_node.rollout import TaskRef

MAX_TEXTS = 64
#: Judges that own texts are given while somebody else kills them.
_OWN_TRIES = 6
#: Once texts that are scored one by one have ended this many judges, no further text is scored.
MAX_LOST_JUDGES = 2
#: Processor seconds for making one task, and for scoring all texts of one group.
DERIVE_SECONDS = 5.0
SCORE_SECONDS = 5.0
#: The niceness of the judge of peers' groups: own groups get the processor first.
_PEERS_NICENESS = 5

Whose = Literal["own", "peers"]


@dataclass(frozen=True, slots=True)
class EnvironmentInfo:
    """The description of an environment, what confines its judges (None if they run in the node's
    own process), and sentences about its tasks that the owner should read."""

    name: str
    version: str
    families: tuple[str, ...]
    sandbox: Sandbox | None = None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Judgement:
    """Prompt and rewards (one per text, each in [0, 1]) of a group.

    `faults` counts the rewards that are zero because scoring failed. `fault_reason` is the reason
    of the first: "out_of_range", "unsendable", "abandoned", a reason of `blame.Reason`, or "" for
    none. `raised` names the first exception of a scorer, "" for none; such a text is a wrong
    answer. `lost` is the reason why peers' texts ended their judge, "asleep" if they made it sleep,
    "" if they did not; `unjudged` is the reason why this node could not score them, which is
    nobody's fault. With either, none of them was scored. `seconds` are those that the judge took,
    without the time that the group waited for it."""

    prompt: str
    rewards: tuple[float, ...]
    faults: int = 0
    fault_reason: str = ""
    raised: str = ""
    lost: str = ""
    unjudged: str = ""
    seconds: float = field(default=0.0, compare=False)


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

    async def judge(self, ref: TaskRef, texts: Sequence[str], whose: Whose = "own") -> Judgement:
        """Derive the task and score the last MAX_JUDGED_CHARS of each of `texts`, at most
        MAX_TEXTS. An own text that ends its judge scores zero and counts as a fault. If peers'
        texts end their judge, or this node cannot run one, none of them is scored.

        Raises:
            UnknownTaskError: the task cannot be derived here. SlowTaskError: not in time.
            ChildError: the process cannot be restarted for own texts.
            ValueError: too many texts.
        """
        ...

    async def close(self) -> None:
        """End the process."""
        ...


class ProcessEnvironmentHost:
    """An `EnvironmentHost` whose environment lives in a process that forks confined judges.

    A group is scored in one request. If that ends the judge, and nobody else did, own texts are
    scored again one by one, to find the text that ended it, until MAX_LOST_JUDGES judges are lost.
    Peers' texts are scored again until it is known whose fault it was.
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
        texts of one group."""
        if min(derive_seconds, score_seconds) <= 0:
            raise ValueError("a judge needs more than 0 seconds")
        self._derive_seconds = derive_seconds
        self._score_seconds = score_seconds
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
            **{f"judge_{whose}": judge.pid for whose, judge in self._judges.items()},
        }

    @property
    def losses(self) -> int:
        """Number of judges that were lost."""
        return sum(judge.losses for judge in self._judges.values())

    async def start(self) -> EnvironmentInfo:
        await self.close()
        said = await self._environment.start()
        try:
            await self._judges["own"].derive([], self._derive_seconds)
        except JudgeLostError:
            if not said.runs_code:
                raise
        sandbox = self._judges["own"].sandbox
        if said.runs_code and (sandbox is None or not sandbox.complete):
            await self.close()
            how = "" if sandbox is None else f" ({sandbox.described()})"
            raise ConfigError(
                f"environment.name: {said.name} runs code from answers, and this "
                f"machine cannot confine it{how}: use another environment, or another machine or "
                "container setting"
            )
        for family in self._families or said.families:
            if family in said.families and (why := await self._refusal(family)):
                await self.close()
                raise ConfigError(f"environment.options: {why}")
        return EnvironmentInfo(said.name, said.version, said.families, sandbox, said.notes)

    async def _refusal(self, family: str) -> str:
        try:
            return await self._judges["own"].check(family, self._derive_seconds)
        except JudgeLostError as lost:
            why = f"making its tasks ended their process ({lost.reason})"
            return f"family {family}: {why}; leave it out"

    async def render(self, refs: Sequence[TaskRef]) -> list[str]:
        async with self._turns["own"]:
            return list(await self._derived(self._judges["own"], [_plain(ref) for ref in refs]))

    async def judge(self, ref: TaskRef, texts: Sequence[str], whose: Whose = "own") -> Judgement:
        _check_count(texts)
        cuts = [_cut(text) for text in texts]
        sent = [cut for cut in cuts if cut is not None]
        async with self._turns[whose]:
            judge, began = self._judges[whose], SYSTEM_CLOCK.now()
            if whose == "peers":
                limits = Limits(self._derive_seconds, self._score_seconds)
                scored = await PeersAttempts(judge, _plain(ref), sent, limits).score()
                known = scored.verdicts or [TextVerdict(0.0)] * len(sent)
                return replace(
                    _judgement(scored.prompt, cuts, known),
                    lost=scored.blamed,
                    unjudged=scored.unjudged,
                    seconds=scored.seconds,
                )
            prompt = await self._prompt(judge, ref)
            together = await self._scored(judge, ref, sent, self._score_seconds)
            verdicts: Sequence[TextVerdict | str] = (
                await self._scored_singly(judge, ref, sent)
                if isinstance(together, str)
                else together
            )
            seconds = SYSTEM_CLOCK.now() - began
        return replace(_judgement(prompt, cuts, verdicts), seconds=seconds)

    async def survey(self, family: str, draws: int, seconds: float) -> Survey:
        """A survey of so many tasks of a family, in so many seconds at most.

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
        except JudgeLostError as lost:
            if lost.reason == "derive":
                raise SlowTaskError(
                    f"making the task {ref.family}/{ref.seed} took too long; leave that family out",
                    2 * self._derive_seconds,  # it was tried twice
                ) from lost
            if lost.reason not in SUSPECT:
                raise
            raise UnknownTaskError(
                f"making the task {ref.family}/{ref.seed} ended its process ({lost}); leave that "
                "family out"
            ) from lost
        return prompt

    async def _derived(self, judge: JudgeProcess, refs: Sequence[PlainRef]) -> tuple[str, ...]:
        for _ in range(_OWN_TRIES - 1):
            try:
                return await judge.derive(refs, self._derive_seconds)
            except JudgeLostError as lost:
                if lost.reason in SUSPECT:
                    break
        return await judge.derive(refs, self._derive_seconds)  # one end is no evidence

    async def _scored(
        self, judge: JudgeProcess, ref: TaskRef, texts: Sequence[str], seconds: float
    ) -> list[TextVerdict] | Reason:
        """Verdicts on own texts, for the task derived last, or the reason why they ended their
        judge. A judge that somebody else killed is replaced."""
        tries = 1
        while True:
            try:
                return await judge.score(texts, seconds)
            except JudgeLostError as lost:
                if lost.reason in SUSPECT | WAITED or tries == _OWN_TRIES:
                    return lost.reason
            tries += 1
            await self._prompt(judge, ref)

    async def _scored_singly(
        self, judge: JudgeProcess, ref: TaskRef, texts: Sequence[str]
    ) -> list[TextVerdict | str]:
        """A verdict on each text, or the reason why there is none."""
        verdicts: list[TextVerdict | str] = []
        lost_judges = 0
        for text in texts:
            if lost_judges == MAX_LOST_JUDGES:
                verdicts.append("abandoned")
                continue
            await self._prompt(judge, ref)
            scored = await self._scored(judge, ref, [text], self._score_seconds / len(texts))
            if isinstance(scored, str):
                lost_judges += 1
                verdicts.append(scored)
            else:
                verdicts.extend(scored)
        return verdicts


class InlineEnvironmentHost:
    """An `EnvironmentHost` in this process, for simulations of trusted nodes. It gives the same
    rewards, but has no time limit, and a scorer that ends its process ends the simulation."""

    def __init__(self, environment: Environment, families: Sequence[str] = ()) -> None:
        """`families` are checked at the start if the environment is split by text; () for all."""
        self._environment = environment
        self._families = tuple(families)

    async def start(self) -> EnvironmentInfo:
        environment = self._environment
        notes: tuple[str, ...] = ()
        if isinstance(environment, SplitEnvironment):
            for family in self._families or environment.families:
                if family in environment.families and (why := environment.refusal(family)):
                    raise ConfigError(f"environment.options: {why}")
            notes = environment.notes
        return EnvironmentInfo(
            environment.name, environment.version, environment.families, notes=notes
        )

    async def render(self, refs: Sequence[TaskRef]) -> list[str]:
        return [derive_prompt(self._environment, ref)[1] for ref in refs]

    async def judge(self, ref: TaskRef, texts: Sequence[str], whose: Whose = "own") -> Judgement:
        _check_count(texts)
        task, prompt = derive_prompt(self._environment, ref)
        cuts = [_cut(text) for text in texts]
        sent = [cut for cut in cuts if cut is not None]
        return _judgement(prompt, cuts, [score_text(self._environment, task, cut) for cut in sent])

    async def close(self) -> None:
        return None


def _plain(ref: TaskRef) -> PlainRef:
    return ref.environment, ref.version, ref.family, ref.seed


def _check_count(texts: Sequence[str]) -> None:
    if len(texts) > MAX_TEXTS:
        raise ValueError(f"{len(texts)} texts in one judgement: send at most {MAX_TEXTS}")


def _cut(text: str) -> str | None:
    """The part of a text that is judged; None for lone surrogates, which no frame can carry."""
    end = text[-MAX_JUDGED_CHARS:]
    try:
        end.encode()
    except UnicodeEncodeError:
        return None
    return end


def _judgement(
    prompt: str, cuts: Sequence[str | None], verdicts: Sequence[TextVerdict | str]
) -> Judgement:
    """The judgement of all texts, of which `cuts` are the judged parts. `verdicts` are those on the
    texts that were sent, or the reasons why there are none."""
    sent = iter(verdicts)
    whole = ["unsendable" if cut is None else next(sent) for cut in cuts]
    known = [TextVerdict(0.0) if isinstance(verdict, str) else verdict for verdict in whole]
    faults = [verdict if isinstance(verdict, str) else verdict.fault for verdict in whole]
    failed = [fault for fault in faults if fault]
    return Judgement(
        prompt=prompt,
        rewards=tuple(verdict.reward for verdict in known),
        faults=len(failed),
        fault_reason=next(iter(failed), ""),
        raised=next((verdict.raised for verdict in known if verdict.raised), ""),
    )
