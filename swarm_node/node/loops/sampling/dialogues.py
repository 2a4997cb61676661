"""Dialogues with the node's own policy, played turn by turn.

Every turn is a new request to the sampler, with all that was said before as its prompt. The
environment replies in its judge, which replays the dialogue from the model's texts. An answer to
one question is a dialogue of one turn.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from swarm_node.clock import Clock
from swarm_node.environments.judgement import ReplayedDialogue
from swarm_node.environments.splits.seeds import task_seed
from swarm_node.environments.workers.scoring_worker import Transcript
from swarm_node.policy.models.text.codec import Codec
from swarm_node.policy.sampling.sampler import Sampler, SampleRequest
from swarm_node.rollout import Completion, EarlierTurn, Finish, TaskRef, VersionSpan

Replay = Callable[[TaskRef, Sequence[Transcript]], Awaitable[Sequence[ReplayedDialogue]]]

#: The fault of a dialogue whose next turn exceeds the model's positions.
TOO_LONG = "too_long"
#: The fault of a dialogue in which a reply became another one when it was replayed.
CHANGED = "changed"
_UNHEARD = ReplayedDialogue(is_over=False)


@dataclass(slots=True, eq=False)
class PlayedDialogue:
    """A dialogue with the policy, one of those that begin with `request`: the turns that it said,
    what it was told between them, and what the environment said last (`last_replay`), at the end
    its verdict."""

    ref: TaskRef
    request: SampleRequest
    place: int
    turns: list[Completion] = field(default_factory=list)
    replies: list[str] = field(default_factory=list)
    last_replay: ReplayedDialogue = _UNHEARD

    @property
    def transcript(self) -> Transcript:
        return Transcript(
            [turn.text for turn in self.turns], self.turns[-1].finish is not Finish.STOP
        )

    def add_replay(self, replay: ReplayedDialogue) -> None:
        """Take in what the environment says to the newest turn. Replies that the policy has read
        stay: if they were others now, the environment is no pure function."""
        if not replay.fault and list(replay.replies[: len(self.replies)]) != self.replies:
            replay = ReplayedDialogue(fault=CHANGED)
        self.last_replay = replay
        if not replay.is_over:
            self.replies = list(replay.replies)

    def context(self, codec: Codec) -> tuple[int, ...]:
        """All that the policy reads before its next turn."""
        ids = list(self.request.prompt_ids)
        for turn, reply in zip(self.turns, self.replies, strict=True):
            ids += [*turn.token_ids.tolist(), *codec.bridge(reply)]
        return tuple(ids)


class Player:
    """Plays dialogues with a sampler and an environment."""

    def __init__(self, sampler: Sampler, codec: Codec, replay: Replay, clock: Clock) -> None:
        self._sampler = sampler
        self._codec = codec
        self._replay = replay
        self._clock = clock

    async def play(
        self, openings: Iterable[tuple[TaskRef, SampleRequest]]
    ) -> tuple[list[list[PlayedDialogue]], float]:
        """Play all dialogues to their ends, turn by turn and all at once. An opening is a task and
        the request for the first turns of its dialogues. Returns the dialogues of each opening, and
        the seconds that the sampler sampled.

        Raises:
            ChildError: the environment's process cannot be kept alive.
            SwarmNodeError: from the sampler.
        """
        groups = [
            [PlayedDialogue(ref, request, place) for place in range(request.n)]
            for ref, request in openings
        ]
        drawing = 0.0
        while requests := self._requests(groups):
            started_at = self._clock.now()
            results = await self._sampler.sample([request for request, _ in requests])
            drawing += self._clock.now() - started_at
            for (_, dialogues), completions in zip(requests, results, strict=True):
                for dialogue, completion in zip(dialogues, completions, strict=True):
                    dialogue.turns.append(completion)
            for group in groups:
                open_dialogues = [
                    dialogue for dialogue in group if not dialogue.last_replay.is_over
                ]
                if open_dialogues:
                    replays = await self._replay(
                        group[0].ref, [dialogue.transcript for dialogue in open_dialogues]
                    )
                    for dialogue, replay in zip(open_dialogues, replays, strict=True):
                        dialogue.add_replay(replay)
        return groups, drawing

    def _requests(
        self, groups: Sequence[Sequence[PlayedDialogue]]
    ) -> list[tuple[SampleRequest, Sequence[PlayedDialogue]]]:
        """The requests for the next turn of every dialogue that is not over. All dialogues of a
        group begin with the same prompt, in one request."""
        requests: list[tuple[SampleRequest, Sequence[PlayedDialogue]]] = []
        for group in groups:
            if not group[0].turns:
                requests.append((group[0].request, group))
                continue
            for dialogue in group:
                if dialogue.last_replay.is_over:
                    continue
                first, context = dialogue.request, dialogue.context(self._codec)
                if not self._codec.fits(context, first.max_new_tokens):
                    dialogue.last_replay = ReplayedDialogue(fault=TOO_LONG)
                    continue
                seed = task_seed("turn", first.seed, dialogue.place, len(dialogue.turns))
                requests.append((replace(first, prompt_ids=context, n=1, seed=seed), (dialogue,)))
        return requests


def joined(turns: Sequence[Completion]) -> Completion:
    """All turns of a dialogue as one completion."""
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
