"""Where the node gets prompts and rewards: an environment behind a process boundary.

The node never imports an environment. Judges do, in processes of their own that may die: one for
this node's answers and one for peers' answers, so that own work never waits for peers' work.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from swarm_node.environments.base import Environment
from swarm_node.environments.judging.judge import PlainRef, Verdict, derive_prompt, score_text
from swarm_node.environments.judging.processes import (
    EnvironmentProcess,
    JudgeLostError,
    JudgeProcess,
)
from swarm_node.environments.judging.sandbox import Sandbox
from swarm_node.errors import ConfigError, UnknownTaskError
from swarm_node.rollout import TaskRef

MAX_TEXTS = 64
#: Of a longer text only this end is judged: a final answer stands at the end. It bounds what any
#: scorer can be made to read.
MAX_JUDGED_CHARS = 4096
#: A judgement may end its judge this often one text at a time; what is left is not tried.
MAX_LOST_JUDGES = 2
#: Processor seconds for making one task, and for scoring all texts of one group.
DERIVE_SECONDS = 5.0
SCORE_SECONDS = 5.0
#: How much own work is preferred where both judges want the processor.
_PEERS_NICENESS = 5

Whose = Literal["own", "peers"]


@dataclass(frozen=True, slots=True)
class EnvironmentInfo:
    """What an environment says of itself, and what confines those who judge by it: None where they
    run in the node's own process."""

    name: str
    version: str
    families: tuple[str, ...]
    sandbox: Sandbox | None = None


@dataclass(frozen=True, slots=True)
class Judgement:
    """Prompt and rewards (one per text, each in [0, 1]) of a group.

    `faults` of the rewards are zero because scoring failed; `fault_reason` says how the first did:
    "out_of_range", "unsendable", "timeout", "crashed", "stuck", "forged", "abandoned", or "" for
    none. `raised` names the first exception of a scorer, "" for none: such a text is a wrong
    answer. `lost` says how peers' texts ended their judge, by one of these reasons; then none of
    them was scored."""

    prompt: str
    rewards: tuple[float, ...]
    faults: int = 0
    fault_reason: str = ""
    raised: str = ""
    lost: str = ""


class EnvironmentHost(Protocol):
    """What the node needs from whoever runs the environment."""

    async def start(self) -> EnvironmentInfo:
        """Make the environment ready.

        Raises:
            ConfigError: there is no such environment, or it refuses its options.
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
        MAX_TEXTS. Whatever an own text does to its scorer ends as a zero and a fault. Peers' texts
        that end their judge are not scored at all.

        Raises:
            UnknownTaskError: the task cannot be derived here.
            ChildError: the process cannot be restarted.
            ValueError: too many texts.
        """
        ...

    async def close(self) -> None:
        """End the process."""
        ...


class ProcessEnvironmentHost:
    """An `EnvironmentHost` whose environment lives in a process that forks confined judges.

    A group is scored in one request. Where that ends the judge, own texts are scored again one by
    one in new judges, which tells the guilty from the others, until MAX_LOST_JUDGES are lost.
    """

    def __init__(
        self,
        name: str,
        options: Mapping[str, Any],
        *,
        derive_seconds: float = DERIVE_SECONDS,
        score_seconds: float = SCORE_SECONDS,
    ) -> None:
        """`name` and `options` as for `registry.create_environment`; processor seconds for making
        one task, and for scoring all texts of one group."""
        if min(derive_seconds, score_seconds) <= 0:
            raise ValueError("a judge needs more than 0 seconds")
        self._derive_seconds = derive_seconds
        self._score_seconds = score_seconds
        self._environment = EnvironmentProcess(name, options)
        self._judges: Mapping[Whose, JudgeProcess] = {
            "own": JudgeProcess(self._environment, niceness=0),
            "peers": JudgeProcess(self._environment, niceness=_PEERS_NICENESS),
        }
        self._turns: Mapping[Whose, asyncio.Lock] = {"own": asyncio.Lock(), "peers": asyncio.Lock()}

    @property
    def pids(self) -> dict[str, int | None]:
        """Of the running processes, by their part in the node."""
        return {
            "environment": self._environment.pid,
            **{f"judge_{whose}": judge.pid for whose, judge in self._judges.items()},
        }

    @property
    def losses(self) -> int:
        """How often a judge ended on its own."""
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
                f"environment.name: {said.name} runs code that stands in answers, and this "
                f"machine cannot confine it{how}: use another environment, or another machine or "
                "container setting"
            )
        return EnvironmentInfo(said.name, said.version, said.families, sandbox)

    async def render(self, refs: Sequence[TaskRef]) -> list[str]:
        async with self._turns["own"]:
            return list(await self._derived(self._judges["own"], [_plain(ref) for ref in refs]))

    async def judge(self, ref: TaskRef, texts: Sequence[str], whose: Whose = "own") -> Judgement:
        _check_count(texts)
        sent = [cut for text in texts if (cut := _cut(text)) is not None]
        async with self._turns[whose]:
            judge = self._judges[whose]
            prompt = await self._prompt(judge, ref)
            verdicts: Sequence[Verdict | str]
            try:
                verdicts = await judge.score(sent, self._score_seconds)
            except JudgeLostError as lost:
                if whose == "peers":
                    return Judgement(prompt, (0.0,) * len(texts), lost=lost.reason)
                verdicts = await self._scored_singly(judge, ref, sent)
        return _judgement(prompt, texts, verdicts)

    async def close(self) -> None:
        for judge in self._judges.values():
            await judge.close()
        await self._environment.stop()

    async def _prompt(self, judge: JudgeProcess, ref: TaskRef) -> str:
        try:
            (prompt,) = await self._derived(judge, [_plain(ref)])
        except JudgeLostError as lost:
            raise UnknownTaskError(
                f"making the task {ref.family}/{ref.seed} ended its process ({lost}); leave that "
                "family out"
            ) from lost
        return prompt

    async def _derived(self, judge: JudgeProcess, refs: Sequence[PlainRef]) -> tuple[str, ...]:
        try:
            return await judge.derive(refs, self._derive_seconds)
        except JudgeLostError:  # perhaps killed from outside: once more
            return await judge.derive(refs, self._derive_seconds)

    async def _scored_singly(
        self, judge: JudgeProcess, ref: TaskRef, texts: Sequence[str]
    ) -> list[Verdict | str]:
        """A verdict on each text, or the reason why there is none."""
        verdicts: list[Verdict | str] = []
        lost_judges = 0
        for text in texts:
            if lost_judges == MAX_LOST_JUDGES:
                verdicts.append("abandoned")
                continue
            await self._prompt(judge, ref)
            try:
                verdicts.extend(await judge.score([text], self._score_seconds / len(texts)))
            except JudgeLostError as lost:
                lost_judges += 1
                verdicts.append(lost.reason)
        return verdicts


class InlineEnvironmentHost:
    """An `EnvironmentHost` in this process, for simulations of trusted nodes: the same rewards,
    but no time limit and nothing that survives a scorer which kills its process."""

    def __init__(self, environment: Environment) -> None:
        self._environment = environment

    async def start(self) -> EnvironmentInfo:
        environment = self._environment
        return EnvironmentInfo(environment.name, environment.version, environment.families)

    async def render(self, refs: Sequence[TaskRef]) -> list[str]:
        return [derive_prompt(self._environment, ref)[1] for ref in refs]

    async def judge(self, ref: TaskRef, texts: Sequence[str], whose: Whose = "own") -> Judgement:
        _check_count(texts)
        task, prompt = derive_prompt(self._environment, ref)
        cuts = [cut for text in texts if (cut := _cut(text)) is not None]
        return _judgement(prompt, texts, [score_text(self._environment, task, cut) for cut in cuts])

    async def close(self) -> None:
        return None


def _plain(ref: TaskRef) -> PlainRef:
    return ref.environment, ref.version, ref.family, ref.seed


def _check_count(texts: Sequence[str]) -> None:
    if len(texts) > MAX_TEXTS:
        raise ValueError(f"{len(texts)} texts in one judgement: send at most {MAX_TEXTS}")


def _cut(text: str) -> str | None:
    """What of a text is judged; None for one with lone surrogates, which no frame can carry."""
    end = text[-MAX_JUDGED_CHARS:]
    try:
        end.encode()
    except UnicodeEncodeError:
        return None
    return end


def _judgement(prompt: str, texts: Sequence[str], verdicts: Sequence[Verdict | str]) -> Judgement:
    """Put the verdicts, or the reasons why there are none, on the texts that were sent back among
    those that were not."""
    sent = iter(verdicts)
    whole = ["unsendable" if _cut(text) is None else next(sent) for text in texts]
    known = [Verdict(0.0) if isinstance(verdict, str) else verdict for verdict in whole]
    faults = [verdict if isinstance(verdict, str) else verdict.fault for verdict in whole]
    failed = [fault for fault in faults if fault]
    return Judgement(
        prompt=prompt,
        rewards=tuple(verdict.reward for verdict in known),
        faults=len(failed),
        fault_reason=next(iter(failed), ""),
        raised=next((verdict.raised for verdict in known if verdict.raised), ""),
    )
