"""Judgement of answers, the node's own and those of peers, in the environment's process."""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from typing import TypeVar

import structlog

from swarm_node.clock import Clock
from swarm_node.environments.host import EnvironmentHost
from swarm_node.environments.judgement import JudgedDialogues, Judgement, ReplayedDialogue
from swarm_node.environments.workers.scoring_worker import Transcript
from swarm_node.errors import SlowTaskError
from swarm_node.node.loops.node_parts import Tally
from swarm_node.p2p.limits.budgets import Effort
from swarm_node.rollout import TaskRef

_log = structlog.get_logger(__name__)
_Judged = TypeVar("_Judged", Judgement, JudgedDialogues)


class Scoring:
    """Has texts judged, counts the scorer's faults, and charges the time to the texts' author."""

    def __init__(
        self, environment: EnvironmentHost, tally: Tally, effort: Effort, clock: Clock
    ) -> None:
        self._environment = environment
        self._tally = tally
        self._effort = effort
        self._clock = clock
        self._told_of_raising = False

    async def own(self, ref: TaskRef, texts: Sequence[str]) -> Judgement:
        """Judge this node's own texts.

        Raises:
            ChildError: the environment's process cannot be kept alive.
        """
        return (await self.own_all([(ref, texts)]))[0]

    async def own_all(self, groups: Sequence[tuple[TaskRef, Sequence[str]]]) -> Sequence[Judgement]:
        """Judge this node's own groups, each a task and texts.

        Raises:
            ChildError: the environment's process cannot be kept alive.
        """
        judgements = await self._environment.judge_all(groups)
        for (ref, _), judgement in zip(groups, judgements, strict=True):
            self._count_texts(ref, judgement)
        self._effort.judged_own(
            sum(judgement.seconds for judgement in judgements), self._clock.now()
        )
        return judgements

    async def replay(
        self, ref: TaskRef, dialogues: Sequence[Transcript]
    ) -> Sequence[ReplayedDialogue]:
        """Replay this node's own dialogues.

        Raises:
            ChildError: the environment's process cannot be kept alive.
        """
        result = await self._environment.replay(ref, dialogues)
        self._effort.judged_own(result.seconds, self._clock.now())
        self._count(ref, result.dialogues)
        return result.dialogues

    def _count(self, ref: TaskRef, dialogues: Sequence[ReplayedDialogue]) -> None:
        """Count the faults of own dialogues."""
        for dialogue in dialogues:
            if dialogue.fault == "reply" and not self._tally.faults[f"scorer_{dialogue.fault}"]:
                _log.warning(
                    "the environment's reply() raised or gave no text of at most 1,024 characters, "
                    "so the dialogue ended with reward 0 (told once, counted)",
                    family=ref.family,
                    raised=dialogue.exception,
                )
            elif dialogue.exception and not dialogue.fault:
                self._tell_of_raising(ref, dialogue.exception)
            elif dialogue.fault == "ended":
                self._tell_of_change(ref)
            if dialogue.fault:
                self._tally.faults[f"scorer_{dialogue.fault}"] += 1

    def changed(self, ref: TaskRef, dialogues: int) -> None:
        """Count own dialogues of a task in which a reply became another one."""
        if dialogues:
            self._tell_of_change(ref)
            self._tally.faults["scorer_changed"] += dialogues

    async def of_peer(self, ref: TaskRef, texts: Sequence[str], author: str) -> Judgement:
        """Judge the texts of the peer `author`.

        Raises:
            SlowTaskError: they took too long, which counts against their author.
            ChildError: the environment's process cannot be kept alive.
        """
        judgement = await self._charged(self._environment.judge(ref, texts, "peers"), author)
        self._count_texts(ref, judgement)
        return judgement

    async def dialogues_of_peer(
        self, ref: TaskRef, dialogues: Sequence[tuple[Sequence[str], bool]], author: str
    ) -> JudgedDialogues:
        """Replay dialogues of the peer `author`, each with the texts that its policy said, and
        whether the last one was cut.

        Raises:
            SlowTaskError: they took too long, which counts against their author.
            ChildError: the environment's process cannot be kept alive.
        """
        transcripts = [Transcript(list(texts), is_truncated) for texts, is_truncated in dialogues]
        replaying = self._environment.replay(ref, transcripts, "peers")
        return await self._charged(replaying, author)

    async def _charged(self, judging: Awaitable[_Judged], author: str) -> _Judged:
        """Return the peers' judge's finding. Its time counts against the author."""
        try:
            result = await judging
        except SlowTaskError as error:
            self._effort.judged(author, error.seconds, self._clock.now())
            raise
        # Several groups are judged at once. The time that one waits for others is not counted.
        self._tally.judging.add(result.seconds, 1)
        self._effort.judged(author, result.seconds, self._clock.now())
        if result.unjudged:
            self._tally.faults[f"judge_{result.unjudged}"] += 1
        return result

    def _count_texts(self, ref: TaskRef, judgement: Judgement) -> None:
        if judgement.faults:
            self._tally.faults[f"scorer_{judgement.fault_reason}"] += judgement.faults
        if judgement.exception:
            self._tell_of_raising(ref, judgement.exception)

    def _tell_of_change(self, ref: TaskRef) -> None:
        if self._tally.faults["scorer_changed"] or self._tally.faults["scorer_ended"]:
            return
        _log.warning(
            "the environment's reply() gave another reply when a dialogue was replayed, so the "
            "dialogue ended with reward 0: it may depend on the task and on what was said alone "
            "(told once, counted)",
            family=ref.family,
        )

    def _tell_of_raising(self, ref: TaskRef, error: str) -> None:
        if self._told_of_raising:
            return
        self._told_of_raising = True
        _log.warning(
            "the environment's score() raised on an answer, which counts as wrong (told once)",
            family=ref.family,
            raised=error,
        )
