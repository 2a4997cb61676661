"""GroupScores of answers, the node's own and those of peers, in the environment's process."""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from typing import TypeVar

import structlog

from swarm_node.clock import Clock
from swarm_node.environments.host import EnvironmentHost
from swarm_node.environments.scores import GroupRerun, GroupScores, Rerun
from swarm_node.environments.workers.scoring_worker import Transcript
from swarm_node.errors import SlowTaskError
from swarm_node.node.loops.node_parts import Tally
from swarm_node.p2p.limits.budgets import Effort
from swarm_node.rollout import TaskRef

_log = structlog.get_logger(__name__)
_Scored = TypeVar("_Scored", GroupScores, GroupRerun)


class Scoring:
    """Has texts scored, counts the scorer's faults, and charges the time to the texts' author."""

    def __init__(
        self, environment: EnvironmentHost, tally: Tally, effort: Effort, clock: Clock
    ) -> None:
        self._environment = environment
        self._tally = tally
        self._effort = effort
        self._clock = clock
        self._told_of_raising = False

    async def score_local(self, ref: TaskRef, texts: Sequence[str]) -> GroupScores:
        """Judge this node's own texts.

        Raises:
            ChildError: the environment's process cannot be kept alive.
        """
        return (await self.own_all([(ref, texts)]))[0]

    async def own_all(
        self, groups: Sequence[tuple[TaskRef, Sequence[str]]]
    ) -> Sequence[GroupScores]:
        """Judge this node's own groups, each a task and texts.

        Raises:
            ChildError: the environment's process cannot be kept alive.
        """
        all_scores = await self._environment.score_all(groups)
        for (ref, _), scores in zip(groups, all_scores, strict=True):
            self._count_texts(ref, scores)
        self._effort.charge_own(sum(scores.seconds for scores in all_scores), self._clock.now())
        return all_scores

    async def rerun(self, ref: TaskRef, transcripts: Sequence[Transcript]) -> Sequence[Rerun]:
        """Re-run this node's own multi-turn rollouts.

        Raises:
            ChildError: the environment's process cannot be kept alive.
        """
        result = await self._environment.rerun(ref, transcripts)
        self._effort.charge_own(result.seconds, self._clock.now())
        self._count(ref, result.reruns)
        return result.reruns

    def _count(self, ref: TaskRef, reruns: Sequence[Rerun]) -> None:
        """Count the faults of own multi-turn rollouts."""
        for rerun in reruns:
            if rerun.fault == "observation" and not self._tally.faults[f"scorer_{rerun.fault}"]:
                _log.warning(
                    "the environment's observation() raised or gave no text of at most 1,024 "
                    "characters, so the rollout ended with reward 0 (logged once, counted)",
                    family=ref.family,
                    raised=rerun.exception,
                )
            elif rerun.exception and not rerun.fault:
                self._tell_of_raising(ref, rerun.exception)
            elif rerun.fault == "ended":
                self._tell_of_change(ref)
            if rerun.fault:
                self._tally.faults[f"scorer_{rerun.fault}"] += 1

    def record_changed_observations(self, ref: TaskRef, count: int) -> None:
        """Count own multi-turn rollouts of a task in which an observation became another one."""
        if count:
            self._tell_of_change(ref)
            self._tally.faults["scorer_changed"] += count

    async def of_peer(self, ref: TaskRef, texts: Sequence[str], author: str) -> GroupScores:
        """Score the texts of the peer `author`.

        Raises:
            SlowTaskError: they took too long, which counts against their author.
            ChildError: the environment's process cannot be kept alive.
        """
        scores = await self._await_and_charge(self._environment.score(ref, texts, "peers"), author)
        self._count_texts(ref, scores)
        return scores

    async def rerun_of_peer(
        self, ref: TaskRef, rollouts: Sequence[tuple[Sequence[str], bool]], author: str
    ) -> GroupRerun:
        """Re-run multi-turn rollouts of the peer `author`, each with the texts that its policy
        said, and whether the last one was cut.

        Raises:
            SlowTaskError: they took too long, which counts against their author.
            ChildError: the environment's process cannot be kept alive.
        """
        transcripts = [Transcript(list(texts), is_truncated) for texts, is_truncated in rollouts]
        rerunning = self._environment.rerun(ref, transcripts, "peers")
        return await self._await_and_charge(rerunning, author)

    async def _await_and_charge(self, scoring: Awaitable[_Scored], author: str) -> _Scored:
        """Return the peers' scoring worker's finding. Its time counts against the author."""
        try:
            result = await scoring
        except SlowTaskError as error:
            self._effort.charge(author, error.seconds, self._clock.now())
            raise
        # Several groups are scored at once. The time that one waits for others is not counted.
        self._tally.scoring.add(result.seconds, 1)
        self._effort.charge(author, result.seconds, self._clock.now())
        if result.unscored:
            self._tally.faults[f"scoring_{result.unscored}"] += 1
        return result

    def _count_texts(self, ref: TaskRef, scores: GroupScores) -> None:
        if scores.faults:
            self._tally.faults[f"scorer_{scores.fault_reason}"] += scores.faults
        if scores.exception:
            self._tell_of_raising(ref, scores.exception)

    def _tell_of_change(self, ref: TaskRef) -> None:
        if self._tally.faults["scorer_changed"] or self._tally.faults["scorer_ended"]:
            return
        _log.warning(
            "the environment's observation() gave another text when a rollout was re-run, so the "
            "rollout ended with reward 0: it may depend on the task and on what was said alone "
            "(logged once, counted)",
            family=ref.family,
        )

    def _tell_of_raising(self, ref: TaskRef, error: str) -> None:
        if self._told_of_raising:
            return
        self._told_of_raising = True
        _log.warning(
            "the environment's score() raised on a completion, which gets reward 0 (logged once)",
            family=ref.family,
            raised=error,
        )
