"""What sampler and trainer of a node do now, with estimates of how long it takes. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from swarm_node.node.metrics.snapshot import WorkRow
from swarm_node.policy.sampling.sampler import Progress

#: Tokens before a rate is told: the first ones wait for the prompts to be read.
_LEAST_TOKENS = 16


@dataclass(slots=True, eq=False)
class SamplerCall:
    """A call to the sampler under way: `answers` of up to `max_tokens` tokens each, for `kind`
    ("sampling" own `groups`, or "evaluating"). `started_at` is when the sampler came to it, at the
    counts `tokens` and `finished_answers`."""

    kind: str
    groups: int
    answers: int
    max_tokens: int
    started_at: float
    tokens: int
    finished_answers: int


class Underway:
    """The calls of a node to its sampler, and its update under way. A sampler takes calls in order,
    so what it counts belongs to the oldest one. An engine that interleaves them counts the answers
    of both for the first."""

    def __init__(self) -> None:
        self._calls: list[SamplerCall] = []
        self._rate: float | None = None
        self.update_began: float | None = None

    def begin(
        self, kind: str, groups: int, answers: int, max_tokens: int, now: float, at: Progress
    ) -> SamplerCall:
        """Note a call that begins `now`, when the sampler's counts are `at`."""
        call = SamplerCall(kind, groups, answers, max_tokens, now, at.tokens, at.answers)
        self._calls.append(call)
        return call

    def end(self, call: SamplerCall, now: float, at: Progress) -> None:
        """Note that `call` ended. The sampler comes to the next one."""
        self._rate = self._per_second(call, now, at) or self._rate
        self._calls.remove(call)
        if self._calls:
            first = self._calls[0]
            first.started_at, first.tokens, first.finished_answers = now, at.tokens, at.answers

    def row(
        self, now: float, at: Progress | None, missing_groups: int, end: float | None
    ) -> WorkRow:
        """Return what goes on `now`. `missing_groups` is the number of local groups that the first
        step still waits for, 0 after it began. `end` estimates the seconds until the last step. A
        sampler that counts nothing has no `at`."""
        updating = None if self.update_began is None else now - self.update_began
        if not self._calls:
            return WorkRow(training=updating, end=end)
        call = self._calls[0]
        row = WorkRow(sampler=call.kind, completions=call.answers, training=updating, end=end)
        if at is None:
            return row
        finished_count = min(call.answers, at.answers - call.finished_answers)
        rate = self._per_second(call, now, at) or self._rate
        left = remaining_seconds(call, now, at)
        first = None
        if missing_groups and left is not None and call.kind == "sampling":
            extra_calls = max(0, missing_groups - call.groups) / call.groups
            first = left + extra_calls * (now - call.started_at + left)
        return WorkRow(
            sampler=call.kind,
            done=max(0, finished_count),
            completions=call.answers,
            tokens_per_second=rate,
            left=left,
            training=updating,
            first_step=first,
            end=end,
        )

    def _per_second(self, call: SamplerCall, now: float, at: Progress) -> float | None:
        tokens, seconds = at.tokens - call.tokens, now - call.started_at
        return tokens / seconds if tokens >= _LEAST_TOKENS and seconds > 0 else None


def remaining_seconds(call: SamplerCall, now: float, at: Progress) -> float | None:
    """Estimate the seconds until `call` is complete, None before its first tokens. The answers that
    go on are taken to end at the rate of those that ended: the mean length of an exponential
    distribution whose samples are censored is all tokens divided by the answers that ended. No
    answer is longer than `longest`."""
    tokens, finished_count = at.tokens - call.tokens, at.answers - call.finished_answers
    seconds, going = now - call.started_at, call.answers - finished_count
    if tokens < _LEAST_TOKENS or seconds <= 0:
        return None
    if going <= 0:
        return 0.0
    token_limit = call.answers * call.max_tokens - tokens
    token_estimate = (
        min(going * tokens / finished_count, token_limit) if finished_count > 0 else token_limit
    )
    return max(0.0, token_estimate) * seconds / tokens


def describe_work(row: WorkRow, steps: int) -> Iterator[str]:
    """What goes on at a node that has made `steps`, in parts of one sentence."""
    if row.sampler:
        prefix = "" if row.done is None else f"{row.done} of "
        text = f"{row.sampler}: {prefix}{row.completions} completions"
        if row.tokens_per_second is not None:
            text += f", {row.tokens_per_second:.0f} tokens/s"
        if row.left is not None and row.first_step is None:
            text += f", about {span(row.left)} left"
        yield text
    if row.training is not None:
        yield f"training: step {steps + 1:,} for {span(row.training)}"
    if row.first_step is not None:
        yield f"first step begins in about {span(row.first_step)}"
    if row.end is not None:
        yield f"all steps done in about {span(row.end)}"


def span(seconds: float) -> str:
    """A duration in the unit that suits it."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
