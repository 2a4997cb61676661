"""The body of a rollout group (Kind.ROLLOUT). wire.py has all other bodies.

A completion is what the policy said in all turns: one in an answer to one question. What the
environment replied is not in it: every receiver derives the replies itself.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Annotated, Final

import numpy as np
from msgspec import Meta

from swarm_node.errors import Rejected
from swarm_node.p2p.wire.wire import (
    MAX_COMPLETIONS,
    MAX_SEALED_BYTES,
    Body,
    Counter,
    Digest,
    Label,
    Milliseconds,
    Sequence1,
    Version1,
    pack,
    unpack,
)
from swarm_node.rollout import (
    MAX_TURNS,
    SEED_LIMIT,
    Completion,
    EarlierTurn,
    Finish,
    PolicyRef,
    RolloutGroup,
    TaskRef,
    VersionSpan,
)

#: 1 KiB of a sealed group is for the envelope around its body.
MAX_GROUP_BYTES: Final = MAX_SEALED_BYTES - 1024
#: Of one turn.
MAX_TEXT_BYTES: Final = 64 * 1024
#: Of all turns of a completion together.
MAX_TOKENS: Final = 32 * 1024
MAX_SPANS: Final = 256
#: Log-softmax in f32 can round to just above zero (one ulp at |logit| = 100 is 8e-6).
MAX_LOGPROB: Final = 1e-4


class OversizeGroupError(ValueError):
    """A group has more bytes than a peer takes, or a turn of it has."""


class _Task(Body, frozen=True):
    environment: Label
    version: Label
    family: Label
    seed: Annotated[int, Meta(ge=0, lt=SEED_LIMIT)]


class _Policy(Body, frozen=True):
    model: Digest
    tokenizer: Digest
    version: Counter


class _Turn(Body, frozen=True):
    text: Annotated[str, Meta(max_length=MAX_TEXT_BYTES)]
    ids: Annotated[bytes, Meta(min_length=4, max_length=4 * MAX_TOKENS)]
    logp: Annotated[bytes, Meta(min_length=4, max_length=4 * MAX_TOKENS)]
    finish: Finish


class _Span(Body, frozen=True):
    version: Counter
    start: Annotated[int, Meta(ge=0, le=MAX_TOKENS)]
    end: Annotated[int, Meta(ge=0, le=MAX_TOKENS)]


class _Completion(Body, frozen=True):
    turns: Annotated[tuple[_Turn, ...], Meta(min_length=1, max_length=MAX_TURNS)]
    spans: Annotated[tuple[_Span, ...], Meta(min_length=1, max_length=MAX_SPANS)]

    @property
    def ends(self) -> list[int]:
        """The place where each turn ends among the tokens."""
        return list(accumulate(len(turn.ids) // 4 for turn in self.turns))


class _Group(Body, frozen=True):
    v: Version1
    epoch: Counter
    seq: Sequence1
    created_ms: Milliseconds
    task: _Task
    policy: _Policy
    completions: Annotated[tuple[_Completion, ...], Meta(min_length=1, max_length=MAX_COMPLETIONS)]
    claimed: Annotated[bytes, Meta(min_length=4, max_length=4 * MAX_COMPLETIONS)]


@dataclass(frozen=True, slots=True)
class GroupHeader:
    """The position of a group in its author's log. `created_ms` is for information only: no
    decision depends on a peer's clock."""

    epoch: int
    seq: int
    created_ms: int


def pack_group(group: RolloutGroup, *, epoch: int, seq: int, created_ms: int) -> bytes:
    """The body of a sealed group (Kind.ROLLOUT).

    Raises:
        OversizeGroupError: it is too large.
        ValueError: the group is outside the limits, so every peer would refuse it.
    """
    for text in (text for completion in group.completions for text in completion.turn_texts):
        if (size := len(text.encode(errors="surrogatepass"))) > MAX_TEXT_BYTES:
            raise OversizeGroupError(f"the group is outside the limits: a text of {size} bytes")
    task, policy = group.task, group.policy
    body = _Group(
        v=1,
        epoch=epoch,
        seq=seq,
        created_ms=created_ms,
        task=_Task(task.environment, task.version, task.family, task.seed),
        policy=_Policy(policy.model, policy.tokenizer, policy.version),
        completions=tuple(map(_pack_completion, group.completions)),
        claimed=np.asarray(group.claimed, dtype="<f4").tobytes(),
    )
    data = pack(body)
    if len(data) > MAX_GROUP_BYTES:
        raise OversizeGroupError(f"the group is outside the limits: {len(data)} bytes")
    rejection = _refuse(body)
    if rejection is not None:
        raise ValueError(f"the group is outside the limits: {rejection.detail}")
    return data


def unpack_group(body: bytes) -> tuple[GroupHeader, RolloutGroup] | Rejected:
    """The group in a body whose signature was already checked. Its arrays are writable copies.

    The reason of a refusal is "size", "schema" (not the fields of a group) or "content" (fields
    that contradict each other or are not finite).
    """
    wire = unpack(_Group, body, max_bytes=MAX_GROUP_BYTES)
    if isinstance(wire, Rejected):
        return wire
    rejection = _refuse(wire)
    if rejection is not None:
        return rejection
    task, policy = wire.task, wire.policy
    group = RolloutGroup(
        task=TaskRef(task.environment, task.version, task.family, task.seed),
        policy=PolicyRef(policy.model, policy.tokenizer, policy.version),
        completions=tuple(map(_unpack_completion, wire.completions)),
        claimed=tuple(np.frombuffer(wire.claimed, dtype="<f4").tolist()),
    )
    return GroupHeader(wire.epoch, wire.seq, wire.created_ms), group


def _pack_completion(completion: Completion) -> _Completion:
    last = len(completion.earlier_turns)
    ids, logp = completion.token_ids.astype("<u4"), completion.logprobs.astype("<f4")
    turns = tuple(
        _Turn(
            text,
            ids[begin:end].tobytes(),
            logp[begin:end].tobytes(),
            completion.finish if index == last else Finish.STOP,
        )
        for index, (text, (begin, end)) in enumerate(
            zip(completion.turn_texts, pairwise((0, *completion.ends)), strict=True)
        )
    )
    spans = tuple(_Span(span.version, span.start, span.end) for span in completion.spans)
    return _Completion(turns, spans)


def _unpack_completion(item: _Completion) -> Completion:
    *earlier_turns, last = item.turns
    ids = b"".join(turn.ids for turn in item.turns)
    logp = b"".join(turn.logp for turn in item.turns)
    return Completion(
        text=last.text,
        # Copies: a view of the received bytes is read-only, which torch.from_numpy warns about.
        token_ids=np.frombuffer(ids, dtype="<u4").astype(np.uint32),
        logprobs=np.frombuffer(logp, dtype="<f4").astype(np.float32),
        spans=tuple(VersionSpan(span.version, span.start, span.end) for span in item.spans),
        finish=last.finish,
        earlier_turns=tuple(
            EarlierTurn(turn.text, end) for turn, end in zip(earlier_turns, item.ends, strict=False)
        ),
    )


def _refuse(wire: _Group) -> Rejected | None:
    """The first reason against a group; None if its fields fit each other."""
    for item in wire.completions:
        rejection = _refuse_completion(item)
        if rejection is not None:
            return rejection
    # Of all turns at once: one by one, numpy's calls cost more than the rest of a group.
    logprobs = np.frombuffer(
        b"".join(turn.logp for item in wire.completions for turn in item.turns), dtype="<f4"
    )
    # Written so that NaN, for which every comparison is false, is refused.
    if not bool(((logprobs <= MAX_LOGPROB) & (logprobs > -np.inf)).all()):
        return Rejected("content", "a log-prob is positive or not finite")
    if len(wire.claimed) != 4 * len(wire.completions):
        return Rejected("content", "as many claimed rewards as completions are needed")
    if not np.isfinite(np.frombuffer(wire.claimed, dtype="<f4")).all():
        return Rejected("content", "a claimed reward is not finite")
    return None


def _refuse_completion(item: _Completion) -> Rejected | None:
    for turn in item.turns:
        if len(turn.text.encode()) > MAX_TEXT_BYTES:
            return Rejected("content", f"a text is longer than {MAX_TEXT_BYTES} bytes")
        if len(turn.ids) % 4 or len(turn.ids) != len(turn.logp):
            return Rejected("content", "token ids and log-probs differ in length")
    if any(turn.finish is not Finish.STOP for turn in item.turns[:-1]):
        return Rejected("content", "a turn was cut, and another follows it")
    ends = item.ends
    if not _covers(item.spans, ends[-1]):
        return Rejected("content", "the version spans do not cover the tokens in order")
    if not {*ends} <= {span.end for span in item.spans}:
        return Rejected("content", "a version span lies across two turns")
    return None


def _covers(spans: tuple[_Span, ...], length: int) -> bool:
    """Check that non-empty spans tile [0, length) in order."""
    position = 0
    for span in spans:
        if span.start != position or span.end <= span.start:
            return False
        position = span.end
    return position == length
