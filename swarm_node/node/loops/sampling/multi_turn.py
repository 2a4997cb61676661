"""Multi-turn rollouts with the node's own policy, played turn by turn.

Every turn is a new request to the sampler, with all that was said before as its prompt. The
environment answers in its scoring worker, which re-runs the multi-turn rollout from the
model's texts. An answer to one question is a multi-turn rollout of one turn."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from swarm_node.clock import Clock
from swarm_node.environments.scores import Rerun
from swarm_node.environments.splits.seeds import task_seed
from swarm_node.environments.workers.scoring_worker import Transcript
from swarm_node.policy.models.text.codec import Codec
from swarm_node.policy.sampling.sampler import Sampler, SampleRequest
from swarm_node.rollout import Completion, EarlierTurn, Finish, TaskRef, VersionSpan

RerunFunction = Callable[[TaskRef, Sequence[Transcript]], Awaitable[Sequence[Rerun]]]

#: The fault of a multi-turn rollout whose next turn exceeds the model's positions.
TOO_LONG = "too_long"
#: The fault of a multi-turn rollout in which an observation became another one when it was re-run.
CHANGED = "changed"
_UNHEARD = Rerun(is_over=False)


@dataclass(slots=True, eq=False)
class MultiTurnRollout:
    """A multi-turn rollout with the policy, one of those that begin with `request`: the turns that
    it said, what it was told between them, and what the environment said last (`last_rerun`), at
    the end its verdict."""

    ref: TaskRef
    request: SampleRequest
    place: int
    turns: list[Completion] = field(default_factory=list)
    observations: list[str] = field(default_factory=list)
    last_rerun: Rerun = _UNHEARD

    @property
    def transcript(self) -> Transcript:
        return Transcript(
            [turn.text for turn in self.turns], self.turns[-1].finish is not Finish.STOP
        )

    def add_rerun(self, rerun: Rerun) -> None:
        """Take in what the environment says to the newest turn. Observations that the policy has
        read stay: if they were others now, the environment is no pure function."""
        if (
            not rerun.fault
            and list(rerun.observations[: len(self.observations)]) != self.observations
        ):
            rerun = Rerun(fault=CHANGED)
        self.last_rerun = rerun
        if not rerun.is_over:
            self.observations = list(rerun.observations)

    def context(self, codec: Codec) -> tuple[int, ...]:
        """All that the policy reads before its next turn."""
        ids = list(self.request.prompt_ids)
        for turn, observation in zip(self.turns, self.observations, strict=True):
            ids += [*turn.token_ids.tolist(), *codec.bridge(observation)]
        return tuple(ids)


class Player:
    """Plays multi-turn rollouts with a sampler and an environment."""

    def __init__(self, sampler: Sampler, codec: Codec, rerun: RerunFunction, clock: Clock) -> None:
        self._sampler = sampler
        self._codec = codec
        self._rerun = rerun
        self._clock = clock

    async def play(
        self, openings: Iterable[tuple[TaskRef, SampleRequest]]
    ) -> tuple[list[list[MultiTurnRollout]], float]:
        """Play all multi-turn rollouts to their ends, turn by turn and all at once. An opening is a
        task and the request for the first turns of its multi-turn rollouts. Returns the multi-turn
        rollouts of each opening, and the seconds that the sampler sampled.

        Raises:
            ChildError: the environment's process cannot be kept alive.
            SwarmNodeError: from the sampler.
        """
        groups = [
            [MultiTurnRollout(ref, request, place) for place in range(request.n)]
            for ref, request in openings
        ]
        drawing = 0.0
        while requests := self._requests(groups):
            started_at = self._clock.now()
            results = await self._sampler.sample([request for request, _ in requests])
            drawing += self._clock.now() - started_at
            for (_, rollouts), completions in zip(requests, results, strict=True):
                for rollout, completion in zip(rollouts, completions, strict=True):
                    rollout.turns.append(completion)
            for group in groups:
                open_rollouts = [rollout for rollout in group if not rollout.last_rerun.is_over]
                if open_rollouts:
                    reruns = await self._rerun(
                        group[0].ref, [rollout.transcript for rollout in open_rollouts]
                    )
                    for rollout, rerun in zip(open_rollouts, reruns, strict=True):
                        rollout.add_rerun(rerun)
        return groups, drawing

    def _requests(
        self, groups: Sequence[Sequence[MultiTurnRollout]]
    ) -> list[tuple[SampleRequest, Sequence[MultiTurnRollout]]]:
        """The requests for the next turn of every multi-turn rollout that is not over. All
        multi-turn rollouts of a group begin with the same prompt, in one request."""
        requests: list[tuple[SampleRequest, Sequence[MultiTurnRollout]]] = []
        for group in groups:
            if not group[0].turns:
                requests.append((group[0].request, group))
                continue
            for rollout in group:
                if rollout.last_rerun.is_over:
                    continue
                first, context = rollout.request, rollout.context(self._codec)
                if not self._codec.fits(context, first.max_new_tokens):
                    rollout.last_rerun = Rerun(fault=TOO_LONG)
                    continue
                seed = task_seed("turn", first.seed, rollout.place, len(rollout.turns))
                requests.append((replace(first, prompt_ids=context, n=1, seed=seed), (rollout,)))
        return requests


def join_turns(turns: Sequence[Completion]) -> Completion:
    """All turns of a multi-turn rollout as one completion."""
    ends = np.cumsum([turn.token_ids.size for turn in turns]).tolist()
    spans = [
        VersionSpan(span.version, span.start + begin, span.end + begin)
        for turn, begin in zip(turns, (0, *ends), strict=False)
        for span in turn.spans
    ]
    return replace(
        turns[-1],
        token_ids=np.concatenate([turn.token_ids for turn in turns]),
        logprobs=np.concatenate([turn.logprobs for turn in turns]),
        spans=tuple(spans),
        earlier_turns=tuple(
            EarlierTurn(turn.text, end) for turn, end in zip(turns[:-1], ends, strict=False)
        ),
    )
