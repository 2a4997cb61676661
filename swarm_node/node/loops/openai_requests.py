"""Answers for the programs of a node's owner, sampled between the node's own.

A request's rows wait in a bounded queue. They are sampled in slices of a few tokens, many rows at
once, each with the newest weights. A sampler of one thread takes a slice between two own calls, and
slices take at most `share` of the time. An engine that interleaves takes own rows first.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple

from swarm_node.errors import ModelError, SwarmNodeError
from swarm_node.policy.sampling.sampler import (
    MeteredSampler,
    Sampler,
    SampleRequest,
    SelectiveSampler,
    continue_request,
)
from swarm_node.rollout import Completion, Finish, Ranking

#: Tokens of a slice. Its prompt is read anew for each, so few make an answer dear; many make own
#: calls wait.
SLICE: Final = 16
#: Rows of a slice, and rows that wait or are sampled.
PLACES: Final = 16
MOST_ROWS: Final = 64
#: Share of the time of a sampler that samples for nobody else meanwhile.
SHARE: Final = 0.05


class RankedToken(NamedTuple):
    """The log-prob of a token, and the likeliest tokens of its place with theirs."""

    logprob: float
    likeliest: tuple[tuple[int, float], ...]


@dataclass(slots=True, eq=False)
class SampledChoice:
    """Token ids of an answer so far, without an end token. `finish` is None until it has ended.
    `ranked_tokens` has, for each of these tokens, the log-probs that the request asks for with its
    `ranked_tokens`."""

    ids: list[int] = field(default_factory=list)
    finish: Finish | None = None
    ranked_tokens: list[RankedToken] = field(default_factory=list)


class SampledChoices:
    """Answers to one request, which grow. `version` is the policy of the newest tokens."""

    def __init__(self, request: SampleRequest, is_gone: Callable[[], bool], version: int) -> None:
        self.request = request
        self.rows = [SampledChoice() for _ in range(request.n)]
        self.version = version
        self.error: SwarmNodeError | None = None
        self._is_abandoned = is_gone
        self._left = False
        self._change_event = asyncio.Event()

    @property
    def over(self) -> bool:
        """Check that no row is to be sampled any more: they ended, failed, or nobody waits."""
        return self.is_abandoned or self.error is not None or all(row.finish for row in self.rows)

    @property
    def is_abandoned(self) -> bool:
        """Check that nobody waits for the answers."""
        return self._left or self._is_abandoned()

    async def news(self) -> None:
        """Wait until a row has grown or ended, or all is over."""
        await self._change_event.wait()
        self._change_event.clear()

    def leave(self) -> None:
        """Stop sampling: nobody waits for these answers."""
        self._left = True
        self.tell()

    def fail(self, error: SwarmNodeError) -> None:
        self.error = error
        self.tell()

    def tell(self) -> None:
        self._change_event.set()


class OpenAIRequests:
    """The queue of requests, and its sampling. A loop of the node takes the steps."""

    def __init__(
        self,
        sampler: Sampler,
        share: float = SHARE,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._sampler = sampler
        self._share = share
        self._now = now
        self._waiting: deque[SampledChoices] = deque()
        self._request_event = asyncio.Event()
        self._rests_until = 0.0

    @property
    def version(self) -> int:
        """The policy version that the next token is sampled from."""
        return self._sampler.version

    @property
    def rows(self) -> int:
        """Number of rows that wait or are sampled."""
        return sum(answers.request.n for answers in self._waiting)

    def refusal(self, request: SampleRequest) -> str:
        """The reason why the sampler cannot do what is asked; empty if it can."""
        sampler = self._sampler
        return sampler.refusal(request) if isinstance(sampler, SelectiveSampler) else ""

    def ask(self, request: SampleRequest, is_gone: Callable[[], bool]) -> SampledChoices | None:
        """Queue a request; None if too many rows wait. It is dropped once `is_gone` returns
        True."""
        self._drop()
        if self.rows + request.n > MOST_ROWS:
            return None
        answers = SampledChoices(replace(request, guest=True), is_gone, self._sampler.version)
        self._waiting.append(answers)
        self._request_event.set()
        return answers

    def end(self) -> None:
        """Drop all requests: the server closes."""
        for answers in self._waiting:
            answers.leave()
        self._drop()

    async def step(self) -> None:
        """Sample one slice of the rows whose turn it is, once there are any."""
        await self._request_event.wait()
        await asyncio.sleep(max(0.0, self._rests_until - self._now()))
        self._drop()
        turn = self._turn()
        if not turn:
            self._request_event.clear()
            return
        start_seconds, started_at = self._spent_seconds(), self._now()
        try:
            completions = await self._sampler.sample(
                [
                    continue_request(answers.request, place, answers.rows[place].ids, SLICE)
                    for answers, place in turn
                ]
            )
        except (SwarmNodeError, ValueError) as error:
            failure = error if isinstance(error, SwarmNodeError) else ModelError(str(error))
            for answers, _ in turn:
                answers.fail(failure)
            return
        used_seconds = self._spent_seconds() - start_seconds
        self._rests_until = started_at + used_seconds / self._share
        for (answers, place), (completion,) in zip(turn, completions, strict=True):
            _grow(answers, place, completion)

    def _spent_seconds(self) -> float:
        sampler = self._sampler
        return sampler.guest_seconds if isinstance(sampler, MeteredSampler) else 0.0

    def _turn(self) -> list[tuple[SampledChoices, int]]:
        """The rows of the next slice. Requests that had no place now come first next time."""
        turn: list[tuple[SampledChoices, int]] = []
        for _ in range(len(self._waiting)):
            open_rows = [
                (self._waiting[0], place)
                for place, row in enumerate(self._waiting[0].rows)
                if row.finish is None
            ]
            if turn and len(turn) + len(open_rows) > PLACES:
                break
            turn += open_rows
            self._waiting.rotate(-1)
        return turn

    def _drop(self) -> None:
        for answers in [item for item in self._waiting if item.over]:
            self._waiting.remove(answers)
            answers.tell()


def _grow(answers: SampledChoices, place: int, completion: Completion) -> None:
    row, ids = answers.rows[place], completion.token_ids.tolist()
    if row.finish is None:
        has_stopped = completion.finish is Finish.STOP
        row.ids += ids[:-1] if has_stopped else ids
        if completion.ranking is not None:
            row.ranked_tokens += _ranked_tokens(completion.ranking)[: len(ids) - has_stopped]
        if has_stopped:
            row.finish = Finish.STOP
        elif len(row.ids) >= answers.request.max_new_tokens:
            row.finish = Finish.LENGTH
        if completion.spans:
            answers.version = completion.spans[-1].version
    answers.tell()


def _ranked_tokens(ranking: Ranking) -> list[RankedToken]:
    return [
        RankedToken(logprob, tuple(zip(ids, logprobs, strict=True)))
        for logprob, ids, logprobs in zip(
            ranking.sampled_logprobs.tolist(),
            ranking.ids.tolist(),
            ranking.logprobs.tolist(),
            strict=True,
        )
    ]
