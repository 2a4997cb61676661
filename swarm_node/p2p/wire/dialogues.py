"""Version 2 of the bodies of groups and announcements: dialogues. wire.py has all other bodies.

A completion is what the policy said in all turns. What the environment replied is not in it: every
receiver derives the replies itself.
"""

from __future__ import annotations

from itertools import accumulate, pairwise
from typing import Annotated, Final, Literal

import numpy as np
from msgspec import Meta
from msgspec.structs import asdict

from swarm_node.errors import Rejected
from swarm_node.p2p.wire.envelope import Kind
from swarm_node.p2p.wire.wire import (
    MAX_ANNOUNCEMENT_BYTES,
    MAX_COMPLETIONS,
    MAX_GROUP_BYTES,
    MAX_SEALED_BYTES,
    MAX_SPANS,
    MAX_TEXT_BYTES,
    MAX_TOKENS,
    Announcement,
    Body,
    ContentId,
    Counter,
    Digest,
    GroupHeader,
    Label,
    Milliseconds,
    PolicyBody,
    Sequence1,
    SpanBody,
    TaskBody,
    check_texts,
    covers,
    logprobs,
    packed,
    policy_body,
    refuse_claims,
    refuse_lengths,
    refuse_logprobs,
    rollout_group,
    span_bodies,
    task_body,
    token_ids,
    unpack,
    unpack_group,
    version_spans,
)
from swarm_node.rollout import MAX_TURNS, Completion, EarlierTurn, Finish, RolloutGroup

#: Turns of the model in an environment of dialogues: fewer are a single answer.
LEAST_TURNS: Final = 2

Version2 = Literal[2]
Turns = Annotated[int, Meta(ge=LEAST_TURNS, le=MAX_TURNS)]


class DialogueAnnouncement(Body, frozen=True):
    """One entry of an author's log (Kind.RECORD_2): an `Announcement` of a group of dialogues.
    `turns` is the most turns that the environment gives the model."""

    v: Version2
    epoch: Counter
    seq: Sequence1
    id: ContentId
    size: Annotated[int, Meta(ge=1, le=MAX_SEALED_BYTES)]
    environment: Label
    version: Label
    family: Label
    model: Digest
    tokenizer: Digest
    policy_version: Counter
    completions: Annotated[int, Meta(ge=1, le=MAX_COMPLETIONS)]
    mixed: bool
    turns: Turns


class _Turn(Body, frozen=True):
    text: Annotated[str, Meta(max_length=MAX_TEXT_BYTES)]
    ids: Annotated[bytes, Meta(min_length=4, max_length=4 * MAX_TOKENS)]
    logp: Annotated[bytes, Meta(min_length=4, max_length=4 * MAX_TOKENS)]
    finish: Finish


class _Dialogue(Body, frozen=True):
    turns: Annotated[tuple[_Turn, ...], Meta(min_length=1, max_length=MAX_TURNS)]
    spans: Annotated[tuple[SpanBody, ...], Meta(min_length=1, max_length=MAX_SPANS)]


class _Dialogues(Body, frozen=True):
    v: Version2
    epoch: Counter
    seq: Sequence1
    created_ms: Milliseconds
    task: TaskBody
    policy: PolicyBody
    completions: Annotated[tuple[_Dialogue, ...], Meta(min_length=1, max_length=MAX_COMPLETIONS)]
    claimed: Annotated[bytes, Meta(min_length=4, max_length=4 * MAX_COMPLETIONS)]
    #: Room for groups that a completion was made from.
    sources: Annotated[tuple[bytes, ...], Meta(max_length=0)]


def pack_dialogues(group: RolloutGroup, *, epoch: int, seq: int, created_ms: int) -> bytes:
    """The body of a sealed group of dialogues (Kind.ROLLOUT_2).

    Raises:
        OversizeGroupError: it is too large.
        ValueError: the group is outside the limits, so every peer would refuse it.
    """
    check_texts(group)
    body = _Dialogues(
        v=2,
        epoch=epoch,
        seq=seq,
        created_ms=created_ms,
        task=task_body(group.task),
        policy=policy_body(group.policy),
        completions=tuple(_Dialogue(_turns(each), span_bodies(each)) for each in group.completions),
        claimed=np.asarray(group.claimed, dtype="<f4").tobytes(),
        sources=(),
    )
    return packed(body, _refuse_group)


def announced_dialogues(entry: Announcement, turns: int) -> DialogueAnnouncement:
    """An announcement of dialogues of at most `turns` turns, with the fields of `entry`."""
    return DialogueAnnouncement(**{**asdict(entry), "v": 2, "turns": turns})


def unpack_announcement(kind: Kind, body: bytes) -> Announcement | DialogueAnnouncement | Rejected:
    """The announcement in a body of this kind whose signature was already checked."""
    if kind is Kind.RECORD_2:
        return unpack(DialogueAnnouncement, body, max_bytes=MAX_ANNOUNCEMENT_BYTES)
    return unpack(Announcement, body, max_bytes=MAX_ANNOUNCEMENT_BYTES)


def unpack_rollouts(kind: Kind, body: bytes) -> tuple[GroupHeader, RolloutGroup] | Rejected:
    """The group in a body of this kind whose signature was already checked."""
    return unpack_dialogues(body) if kind is Kind.ROLLOUT_2 else unpack_group(body)


def unpack_dialogues(body: bytes) -> tuple[GroupHeader, RolloutGroup] | Rejected:
    """The group in a body whose signature was already checked. Reasons as of `unpack_group`."""
    wire = unpack(_Dialogues, body, max_bytes=MAX_GROUP_BYTES)
    if isinstance(wire, Rejected):
        return wire
    group = _group(wire)
    if isinstance(group, Rejected):
        return group
    return GroupHeader(wire.epoch, wire.seq, wire.created_ms), group


def _turns(completion: Completion) -> tuple[_Turn, ...]:
    last = len(completion.earlier)
    ids, logp = completion.token_ids.astype("<u4"), completion.logprobs.astype("<f4")
    return tuple(
        _Turn(
            text,
            ids[begin:end].tobytes(),
            logp[begin:end].tobytes(),
            completion.finish if index == last else Finish.STOP,
        )
        for index, (text, (begin, end)) in enumerate(
            zip(completion.said, pairwise((0, *completion.ends)), strict=True)
        )
    )


def _group(wire: _Dialogues) -> RolloutGroup | Rejected:
    return _refuse_group(wire) or rollout_group(
        wire.task, wire.policy, map(_completion, wire.completions), wire.claimed
    )


def _refuse_group(wire: _Dialogues) -> Rejected | None:
    """The first reason against a group; None if its fields fit each other."""
    for item in wire.completions:
        refused = _refuse(item)
        if refused is not None:
            return refused
    stated = b"".join(turn.logp for item in wire.completions for turn in item.turns)
    return refuse_logprobs(stated) or refuse_claims(wire.claimed, len(wire.completions))


def _refuse(item: _Dialogue) -> Rejected | None:
    for turn in item.turns:
        refused = refuse_lengths(turn.text, turn.ids, turn.logp)
        if refused is not None:
            return refused
    *earlier, _ = item.turns
    ends = _ends(item)
    if any(turn.finish is not Finish.STOP for turn in earlier):
        return Rejected("content", "a turn was cut, and another follows it")
    if not covers(item.spans, ends[-1]):
        return Rejected("content", "the version spans do not cover the tokens in order")
    if not {*ends} <= {span.end for span in item.spans}:
        return Rejected("content", "a version span lies across two turns")
    return None


def _ends(item: _Dialogue) -> list[int]:
    """The place where each turn ends among the tokens."""
    return list(accumulate(len(turn.ids) // 4 for turn in item.turns))


def _completion(item: _Dialogue) -> Completion:
    *earlier, last = item.turns
    return Completion(
        text=last.text,
        token_ids=token_ids(b"".join(turn.ids for turn in item.turns)),
        logprobs=logprobs(b"".join(turn.logp for turn in item.turns)),
        spans=version_spans(item.spans),
        finish=last.finish,
        earlier=tuple(
            EarlierTurn(turn.text, end) for turn, end in zip(earlier, _ends(item), strict=False)
        ),
    )
