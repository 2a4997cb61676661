"""Dialogues with the node's own policy: played turn by turn, and made into groups to train on.

Every turn is a new request to the sampler, with all that was said before as its prompt. The
environment replies in its judge, which replays the dialogue from the model's texts.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

import numpy as np

from swarm_node.clock import Clock
from swarm_node.config import Sampling
from swarm_node.environments.judgement import ReplayedDialogue
from swarm_node.environments.judging.judge import Transcript
from swarm_node.environments.seeds import task_seed
from swarm_node.errors import ConfigError
from swarm_node.node.loops.parts import Parts, Tally, at_sampler
from swarm_node.node.loops.sampling.judging import Judging
from swarm_node.node.loops.sampling.rollout_maker import PAUSE_SECONDS, Deliver, FirstReport, tell
from swarm_node.node.loops.sampling.tasks import FittingTasks
from swarm_node.p2p.exchange.publishing import OwnGroup
from swarm_node.p2p.limits.gates import longest_turn
from swarm_node.policy.experience.batch import build_batch
from swarm_node.policy.experience.slots import Slots
from swarm_node.policy.models.text.codec import Codec
from swarm_node.policy.sampling.sampler import Sampler, SampleRequest
from swarm_node.rollout import (
    Completion,
    EarlierTurn,
    Finish,
    PolicyRef,
    RolloutGroup,
    TaskRef,
    VerifiedGroup,
    VersionSpan,
)

Replay = Callable[[TaskRef, Sequence[Transcript]], Awaitable[Sequence[ReplayedDialogue]]]

#: The fault of a dialogue whose next turn exceeds the model's positions.
TOO_LONG = "too_long"
#: The fault of a dialogue in which a reply became another one when it was replayed.
CHANGED = "changed"


class Talk(Protocol):
    """A part that knows the name of an environment, and the most turns of its dialogues."""

    @property
    def name(self) -> str: ...

    @property
    def turns(self) -> int: ...


def check_groups(info: Talk, codec: Codec, sampling: Sampling) -> None:
    """Refuse groups that peers do not take, and dialogues that the model cannot hold.

    Raises:
        ModelError: its chat template cannot be continued with a reply.
        ConfigError: all turns do not fit its positions, or a group that peers take.
    """
    longest = longest_turn(sampling.group_size, info.turns)
    if sampling.max_new_tokens > longest:
        of = "answers" if info.turns == 1 else f"dialogues of {info.turns} turns"
        raise ConfigError(
            f"sampling.max_new_tokens is {sampling.max_new_tokens}: groups of "
            f"{sampling.group_size} {of} of {info.name} can be larger than peers take: at most "
            f"{longest}, or fewer in a group (sampling.group_size)"
        )
    if info.turns == 1:
        return
    around = (info.turns - 1) * len(codec.bridge("")) + 1
    if not codec.fits((), info.turns * sampling.max_new_tokens + around):
        most = (codec.positions - around) // info.turns
        remedy = f"at most {most}" if most > 0 else "a model with more of them is needed"
        raise ConfigError(
            f"sampling.max_new_tokens is {sampling.max_new_tokens}: {info.turns} turns of "
            f"{info.name} exceed the model's {codec.positions} positions: {remedy}"
        )


@dataclass(frozen=True, slots=True)
class Opening:
    """The beginning of `n` dialogues of one task. Their samples depend on `seed`."""

    ref: TaskRef
    prompt_ids: tuple[int, ...]
    n: int
    seed: int


@dataclass(slots=True, eq=False)
class PlayedDialogue:
    """A dialogue with the policy, perhaps not over yet: the turns that it said, what it was told
    between them, and the environment's verdict at the end."""

    opening: Opening
    place: int
    turns: list[Completion] = field(default_factory=list)
    replies: list[str] = field(default_factory=list)
    end: ReplayedDialogue | None = None

    @property
    def transcript(self) -> Transcript:
        return Transcript(
            [turn.text for turn in self.turns], self.turns[-1].finish is not Finish.STOP
        )

    def hear(self, found: ReplayedDialogue) -> None:
        """Take in what the environment says to the newest turn. Replies that the policy has read
        stay: if they were others now, the environment is no pure function."""
        if found.fault:
            self.end = found
        elif list(found.replies[: len(self.replies)]) != self.replies:
            self.end = ReplayedDialogue(fault=CHANGED)
        elif found.over:
            self.end = found
        else:
            self.replies = list(found.replies)

    def context(self, codec: Codec) -> tuple[int, ...]:
        """All that the policy reads before its next turn."""
        ids = list(self.opening.prompt_ids)
        for turn, reply in zip(self.turns, self.replies, strict=True):
            ids += [*turn.token_ids.tolist(), *codec.bridge(reply)]
        return tuple(ids)


class Player:
    """Plays dialogues with a sampler and an environment."""

    def __init__(
        self, sampler: Sampler, codec: Codec, replay: Replay, sampling: Sampling, clock: Clock
    ) -> None:
        self._sampler = sampler
        self._codec = codec
        self._replay = replay
        self._sampling = sampling
        self._clock = clock

    async def play(self, openings: Sequence[Opening]) -> tuple[list[list[PlayedDialogue]], float]:
        """Play all dialogues to their ends, turn by turn and all at once. Returns them for each
        opening, and the seconds that the sampler sampled.

        Raises:
            ChildError: the environment's process cannot be kept alive.
            SwarmNodeError: from the sampler.
        """
        groups = [[PlayedDialogue(each, place) for place in range(each.n)] for each in openings]
        drawing = 0.0
        while requests := self._requests(groups):
            began = self._clock.now()
            sampled = await self._sampler.sample([request for request, _ in requests])
            drawing += self._clock.now() - began
            for (_, dialogues), completions in zip(requests, sampled, strict=True):
                for dialogue, completion in zip(dialogues, completions, strict=True):
                    dialogue.turns.append(completion)
            for group in groups:
                live = [dialogue for dialogue in group if dialogue.end is None]
                if live:
                    heard = await self._replay(
                        live[0].opening.ref, [dialogue.transcript for dialogue in live]
                    )
                    for dialogue, found in zip(live, heard, strict=True):
                        dialogue.hear(found)
        return groups, drawing

    def _requests(
        self, groups: Sequence[Sequence[PlayedDialogue]]
    ) -> list[tuple[SampleRequest, Sequence[PlayedDialogue]]]:
        """The requests for the next turn of every dialogue that is not over. All dialogues of a
        group begin with the same prompt, in one request."""
        found: list[tuple[SampleRequest, Sequence[PlayedDialogue]]] = []
        for group in groups:
            if not group[0].turns:
                opening = group[0].opening
                found.append((self._request(opening.prompt_ids, opening.n, opening.seed), group))
                continue
            for dialogue in group:
                if dialogue.end is not None:
                    continue
                context = dialogue.context(self._codec)
                if not self._codec.fits(context, self._sampling.max_new_tokens):
                    dialogue.end = ReplayedDialogue(fault=TOO_LONG)
                    continue
                opening = dialogue.opening
                seed = task_seed("turn", opening.seed, dialogue.place, len(dialogue.turns))
                found.append((self._request(context, 1, seed), (dialogue,)))
        return found

    def _request(self, prompt_ids: tuple[int, ...], n: int, seed: int) -> SampleRequest:
        sampling = self._sampling
        return SampleRequest(prompt_ids, n, seed, sampling.max_new_tokens, sampling.temperature)


class DialogueMaker:
    """Plays a group of dialogues for each chosen task, beside the `RolloutMaker` of answers."""

    def __init__(
        self,
        sampling: Sampling,
        parts: Parts,
        tally: Tally,
        judging: Judging,
        tasks: FittingTasks,
        slots: Slots,
        *,
        seed: int,
        peer_id: str,
    ) -> None:
        """Every group takes its slots from `slots` when its first turn is sampled."""
        self._sampling = sampling
        self._parts = parts
        self._tally = tally
        self._judging = judging
        self._tasks = tasks
        self._slots = slots
        self._seed = seed
        self._peer_id = peer_id
        self._first = FirstReport()
        self._player = Player(parts.sampler, parts.codec, judging.replay, sampling, parts.clock)

    async def make(self, count: int, deliver: Deliver) -> None:
        """Play `count` groups. `deliver` takes them with the rewards and replies found here. A
        group is left out if its prompt, or a dialogue of it, exceeds the model's positions.

        Raises:
            ChildError: the environment's process cannot be kept alive.
            SwarmNodeError: from the sampler or `deliver`.
        """
        clock, sampling = self._parts.clock, self._sampling
        started = clock.now()
        tasks = await self._tasks.next(count)
        self._slots.begin(len(tasks))
        try:
            version = self._parts.sampler.version
            openings = [
                Opening(
                    ref,
                    prompt_ids,
                    sampling.group_size,
                    task_seed("sample", self._seed, self._peer_id, ref.seed),
                )
                for ref, _, prompt_ids in tasks
            ]
            played, drawing = await self._play(openings)
            for opening, dialogues in zip(openings, played, strict=True):
                changed = sum(
                    each.end is not None and each.end.fault == CHANGED for each in dialogues
                )
                self._judging.changed(opening.ref, changed)
            groups = [
                self._group(prompt, dialogues, version)
                for (_, prompt, _), dialogues in zip(tasks, played, strict=True)
                if not any(each.end and each.end.fault == TOO_LONG for each in dialogues)
            ]
            if len(groups) < len(tasks):
                self._tally.faults["prompt_too_long"] += len(tasks) - len(groups)
            await deliver(groups)
        finally:
            self._slots.end(self._slots.sampling)
        if groups:
            self._tally.drawing.add(drawing, len(groups))
            self._tally.sampling.add(clock.now() - started, len(groups))
        else:
            await asyncio.sleep(PAUSE_SECONDS)  # the next dialogues may be as long: do not spin

    async def _play(self, openings: Sequence[Opening]) -> tuple[list[list[PlayedDialogue]], float]:
        longest, groups = self._sampling.max_new_tokens, len(openings)
        answers = groups * self._sampling.group_size
        with at_sampler(self._parts, self._tally, longest, groups=groups, answers=answers):
            return await self._player.play(openings)

    def _group(self, prompt: str, dialogues: Sequence[PlayedDialogue], version: int) -> OwnGroup:
        """The group of dialogues that are over. `version` is that of its first tokens."""
        ref, base = dialogues[0].opening.ref, self._parts.policy
        completions = tuple(joined(dialogue.turns) for dialogue in dialogues)
        rewards = tuple(each.end.reward if each.end else 0.0 for each in dialogues)
        group = RolloutGroup(
            ref, PolicyRef(base.model, base.tokenizer, version), completions, rewards
        )
        replies = tuple(tuple(dialogue.replies) for dialogue in dialogues)
        self._tally.sampled(group, prompt, replies)
        beginning = self._first.add(group)
        if beginning is not None and beginning.advice:
            self._tally.advice = beginning.advice
            tell(beginning, beginning.advice)
        # Peers score a text on which the scorer fails as this node does, and replay no dialogue in
        # which a reply failed or a text ended the judge.
        sound = all(each.end and each.end.fault in ("", "out_of_range") for each in dialogues)
        return OwnGroup(group, prompt, replies, sound)


def dialogues_fit(codec: Codec, group: VerifiedGroup) -> bool:
    """Check that every row of a peer's dialogues fits the model's positions: the prompt, all turns
    in this model's tokens, and the replies between them."""
    batch = build_batch(
        [group],
        codec.encode_prompt,
        codec.encode_answer,
        codec.eos_id,
        correction="own",  # every row, whatever its reward
        bridge=codec.bridge,
    )
    return all(codec.fits((), len(row)) for row in batch.rows)


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
        earlier=tuple(
            EarlierTurn(turn.text, end) for turn, end in zip(turns[:-1], ends, strict=False)
        ),
    )
