"""Message bodies: typed, bounded MessagePack arrays. Only this module decodes them.

Every number, string and list has a bound in its type, so a decoder never recurses, and its memory
is bounded by the bytes it reads. Rules that a type cannot express (lengths that must agree, finite
log-probs) are checked before a domain object is made. `pack` decodes its own output, so a node
never sends a body that its peers must refuse. docs/protocol.md is the byte-exact description.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal, TypeVar

import msgspec
import numpy as np
from msgspec import Meta, Struct
from numpy.typing import NDArray

from swarm_node.errors import Rejected
from swarm_node.rollout import (
    SEED_LIMIT,
    Completion,
    Finish,
    PolicyRef,
    RolloutGroup,
    TaskRef,
    VersionSpan,
)

#: A sealed group may have 4 MiB, of which 1 KiB is for the envelope around its body.
MAX_SEALED_BYTES: Final = 4 * 1024 * 1024
MAX_GROUP_BYTES: Final = MAX_SEALED_BYTES - 1024
MAX_COMPLETIONS: Final = 64
MAX_TEXT_BYTES: Final = 64 * 1024
MAX_TOKENS: Final = 32 * 1024
MAX_SPANS: Final = 256
MAX_ANNOUNCEMENT_BYTES: Final = 768
MAX_LIST_ITEMS: Final = 1000
MAX_PEERS: Final = 100
MAX_CERTIFICATE_BYTES: Final = 320
MAX_HEAD_BYTES: Final = 716
#: A heartbeat, two certificates and their headers.
MAX_PRESENCE_BYTES: Final = MAX_HEAD_BYTES + 2 * MAX_CERTIFICATE_BYTES + 10
#: The addresses of a heartbeat share this many characters, so that it fits MAX_HEAD_BYTES. That is
#: room for two IPv6 addresses and two circuits (addresses/circuit.py) through relays with IPv6
#: addresses.
MAX_HEARTBEAT_ADDRESS_CHARS: Final = 480
MAX_ADDRESS_CHARS: Final = 160
#: Claims in one reply.
MAX_CLAIMS: Final = 8
#: Log-softmax in f32 can round to just above zero (one ulp at |logit| = 100 is 8e-6).
MAX_LOGPROB: Final = 1e-4

_DIGEST = 32
_MULTIHASH = 34

Version1 = Literal[1]
Counter = Annotated[int, Meta(ge=0, lt=1 << 62)]
Sequence1 = Annotated[int, Meta(ge=1, lt=1 << 62)]
Milliseconds = Annotated[int, Meta(ge=0, lt=1 << 53)]
Digest = Annotated[bytes, Meta(min_length=_DIGEST, max_length=_DIGEST)]
ContentId = Annotated[bytes, Meta(min_length=_MULTIHASH, max_length=_MULTIHASH)]
#: Names appear in logs, metrics and pages. Control, quote, bracket and path characters are refused.
Label = Annotated[str, Meta(pattern=r"\A[A-Za-z0-9 _.:+@=,-]{1,64}\Z")]
Agent = Annotated[str, Meta(pattern=r"\A[A-Za-z0-9 _./+-]{0,24}\Z")]
Address = Annotated[str, Meta(pattern=r"\A/[A-Za-z0-9._:/%-]{1,159}\Z")]
Certificate = Annotated[bytes, Meta(max_length=MAX_CERTIFICATE_BYTES)]
Chain = Annotated[tuple[Certificate, ...], Meta(max_length=2)]
Addresses = Annotated[tuple[Address, ...], Meta(max_length=8)]


class OversizeGroupError(ValueError):
    """A group has more bytes than a peer takes, or a turn of it has."""


class Body(Struct, array_like=True, forbid_unknown_fields=True, frozen=True):
    """Base of all bodies: a MessagePack array of exactly the fields, in order."""


class Announcement(Body, frozen=True):
    """One entry of an author's log (Kind.RECORD): a group that can be pulled by `id`.

    `completions` is the number of completions, each of one turn. `mixed` is the author's hint that
    their rewards differ. A group without the hint is not pulled. For a pulled group the rewards are
    computed anew."""

    v: Version1
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

    @property
    def turns(self) -> int:
        """The most turns that a completion may have."""
        return 1


class Heartbeat(Body, frozen=True):
    """A member's published state (Kind.HEAD): the addresses to dial and the newest sequence number
    of its log (`head`, 0 if the log of this `epoch` is empty). `revoked` and `secret` are the
    numbers of the newest revocation list and the newest secret that it holds, 0 for none. A node
    with `steward` renews memberships. A node with `relays` forwards requests."""

    v: Version1
    addresses: Annotated[tuple[Address, ...], Meta(max_length=4)]
    policy_version: Counter
    epoch: Counter
    head: Counter
    issued_ms: Milliseconds
    agent: Agent
    revoked: Counter
    secret: Counter
    steward: bool
    relays: bool

    def __post_init__(self) -> None:
        if sum(map(len, self.addresses)) > MAX_HEARTBEAT_ADDRESS_CHARS:
            raise ValueError("the addresses together are too long for a heartbeat")


class Presence(Body, frozen=True):
    """A member's sealed heartbeat and its chain, as replies and the DHT carry them."""

    head: Annotated[bytes, Meta(max_length=MAX_HEAD_BYTES)]
    issuer: Certificate
    member: Certificate


class HelloRequest(Body, frozen=True):
    """`/swarm-node/hello/1`: the greeting of the caller. `chain` holds its sealed (issuer, member)
    certificates. `revoked` and `secret` are as in `Heartbeat`."""

    chain: Chain
    agent: Agent
    addresses: Addresses
    revoked: Counter
    secret: Counter


class HelloReply(HelloRequest, frozen=True):
    """The greeting of the peer that answers, with the same fields."""


class ListRequest(Body, frozen=True):
    """`/swarm-node/list/1`: the newest `limit` announcements of `epoch` with a sequence
    number above `since`."""

    epoch: Counter
    since: Counter
    limit: Annotated[int, Meta(ge=1, le=MAX_LIST_ITEMS)]


class ListReply(Body, frozen=True):
    """`epoch` and `head` are those of the log. `left_out` counts the older announcements above
    `since` that the limit left out. `items` are the sealed announcements in ascending order."""

    epoch: Counter
    head: Counter
    left_out: Counter
    items: Annotated[
        tuple[Annotated[bytes, Meta(max_length=MAX_ANNOUNCEMENT_BYTES)], ...],
        Meta(max_length=MAX_LIST_ITEMS),
    ]


class PullRequest(Body, frozen=True):
    """`/swarm-node/pull/1` and `/2`: the sealed group with this content id."""

    id: ContentId


class PeersRequest(Body, frozen=True):
    """`/swarm-node/peers/1`: up to `limit` presences of members the answering node knows."""

    limit: Annotated[int, Meta(ge=1, le=MAX_PEERS)]


class PeersReply(Body, frozen=True):
    """Packed presences, as their authors published them."""

    presences: Annotated[
        tuple[Annotated[bytes, Meta(max_length=MAX_PRESENCE_BYTES)], ...],
        Meta(max_length=MAX_PEERS),
    ]


class RenewReply(Body, frozen=True):
    """`/swarm-node/renew/1`: a new chain for the member that asked; the request is empty."""

    issuer: Certificate
    member: Certificate


class Claim(Body, frozen=True):
    """A key (`subject`) that an issuer of limited uses admitted, its chain, and the time at which a
    member first met it."""

    subject: Digest
    chain: Chain
    met_ms: Milliseconds


class ClaimsRequest(Body, frozen=True):
    """`/swarm-node/claims/1`: the digest of the claims that the caller holds."""

    known: Digest


class ClaimsReply(Body, frozen=True):
    """Some claims of the answering node, none if it holds the caller's."""

    claims: Annotated[tuple[Claim, ...], Meta(max_length=MAX_CLAIMS)]


class TaskBody(Body, frozen=True):
    """The task of a group."""

    environment: Label
    version: Label
    family: Label
    seed: Annotated[int, Meta(ge=0, lt=SEED_LIMIT)]


class PolicyBody(Body, frozen=True):
    """The policy that wrote a group."""

    model: Digest
    tokenizer: Digest
    version: Counter


class SpanBody(Body, frozen=True):
    """The tokens that one version of the policy sampled."""

    version: Counter
    start: Annotated[int, Meta(ge=0, le=MAX_TOKENS)]
    end: Annotated[int, Meta(ge=0, le=MAX_TOKENS)]


class _Completion(Body, frozen=True):
    text: Annotated[str, Meta(max_length=MAX_TEXT_BYTES)]
    ids: Annotated[bytes, Meta(min_length=4, max_length=4 * MAX_TOKENS)]
    logp: Annotated[bytes, Meta(min_length=4, max_length=4 * MAX_TOKENS)]
    spans: Annotated[tuple[SpanBody, ...], Meta(min_length=1, max_length=MAX_SPANS)]
    finish: Finish


class _Group(Body, frozen=True):
    v: Version1
    epoch: Counter
    seq: Sequence1
    created_ms: Milliseconds
    task: TaskBody
    policy: PolicyBody
    completions: Annotated[tuple[_Completion, ...], Meta(min_length=1, max_length=MAX_COMPLETIONS)]
    claimed: Annotated[bytes, Meta(min_length=4, max_length=4 * MAX_COMPLETIONS)]


@dataclass(frozen=True, slots=True)
class GroupHeader:
    """The position of a group in its author's log. `created_ms` is for information only: no
    decision depends on a peer's clock."""

    epoch: int
    seq: int
    created_ms: int


T = TypeVar("T", bound=Struct)
_Body = TypeVar("_Body", bound=Body)


def unpack(kind: type[T], data: bytes, *, max_bytes: int) -> T | Rejected:
    """Decode `data` as a `kind`. The reason of a refusal is "size" or "schema"."""
    if len(data) > max_bytes:
        return Rejected("size", f"{len(data)} bytes, at most {max_bytes} are allowed")
    try:
        value: T = _decoder(kind).decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, MemoryError) as error:
        return Rejected("schema", printable(str(error)))
    return value


def pack(body: Struct) -> bytes:
    """Encode a body.

    Raises:
        ValueError: a field is outside its bounds, so every peer would refuse it.
    """
    try:
        data = msgspec.msgpack.encode(body)
    except (UnicodeEncodeError, OverflowError) as error:
        raise ValueError(f"a {type(body).__name__} cannot be encoded: {error}") from error
    checked = unpack(type(body), data, max_bytes=len(data))
    if isinstance(checked, Rejected):
        raise ValueError(f"a {type(body).__name__} is outside its bounds: {checked.detail}")
    return data


def pack_group(group: RolloutGroup, *, epoch: int, seq: int, created_ms: int) -> bytes:
    """The body of a sealed group (Kind.ROLLOUT).

    Raises:
        OversizeGroupError: it is too large.
        ValueError: the group is outside the limits, so every peer would refuse it; or it is a
            dialogue: see `dialogues.pack_dialogues`.
    """
    check_texts(group)
    if any(completion.earlier for completion in group.completions):
        raise ValueError("version 1 has answers of one turn: pack the group as dialogues")
    body = _Group(
        v=1,
        epoch=epoch,
        seq=seq,
        created_ms=created_ms,
        task=task_body(group.task),
        policy=policy_body(group.policy),
        completions=tuple(
            _Completion(
                text=completion.text,
                ids=completion.token_ids.astype("<u4").tobytes(),
                logp=completion.logprobs.astype("<f4").tobytes(),
                spans=span_bodies(completion),
                finish=completion.finish,
            )
            for completion in group.completions
        ),
        claimed=np.asarray(group.claimed, dtype="<f4").tobytes(),
    )
    return packed(body, _refuse_group)


def packed(body: _Body, refuse: Callable[[_Body], Rejected | None]) -> bytes:
    """Encode the body of a group and check it with `refuse`.

    Raises:
        OversizeGroupError: it is too large.
        ValueError: the group is outside the limits.
    """
    data = pack(body)
    if len(data) > MAX_GROUP_BYTES:
        raise OversizeGroupError(f"the group is outside the limits: {len(data)} bytes")
    refused = refuse(body)
    if refused is not None:
        raise ValueError(f"the group is outside the limits: {refused.detail}")
    return data


def check_texts(group: RolloutGroup) -> None:
    """
    Raises:
        OversizeGroupError: a turn has more text than a peer takes.
    """
    for text in (text for completion in group.completions for text in completion.said):
        if (size := len(text.encode(errors="surrogatepass"))) > MAX_TEXT_BYTES:
            raise OversizeGroupError(f"the group is outside the limits: a text of {size} bytes")


def task_body(task: TaskRef) -> TaskBody:
    return TaskBody(task.environment, task.version, task.family, task.seed)


def policy_body(policy: PolicyRef) -> PolicyBody:
    return PolicyBody(policy.model, policy.tokenizer, policy.version)


def span_bodies(completion: Completion) -> tuple[SpanBody, ...]:
    return tuple(SpanBody(each.version, each.start, each.end) for each in completion.spans)


def unpack_group(body: bytes) -> tuple[GroupHeader, RolloutGroup] | Rejected:
    """The group in a body whose signature was already checked. Its arrays are writable copies.

    The reason of a refusal is "size", "schema" (not the fields of a group) or "content" (fields
    that contradict each other or are not finite).
    """
    wire = unpack(_Group, body, max_bytes=MAX_GROUP_BYTES)
    if isinstance(wire, Rejected):
        return wire
    group = _group(wire)
    if isinstance(group, Rejected):
        return group
    return GroupHeader(wire.epoch, wire.seq, wire.created_ms), group


def _group(wire: _Group) -> RolloutGroup | Rejected:
    return _refuse_group(wire) or rollout_group(
        wire.task, wire.policy, map(_completion, wire.completions), wire.claimed
    )


def _refuse_group(wire: _Group) -> Rejected | None:
    """The first reason against a group; None if its fields fit each other."""
    for item in wire.completions:
        refused = refuse_lengths(item.text, item.ids, item.logp)
        if refused is not None:
            return refused
        if not covers(item.spans, len(item.ids) // 4):
            return Rejected("content", "the version spans do not cover the tokens in order")
    # Of all answers at once: one by one, numpy's calls cost more than the rest of a group.
    stated = b"".join(item.logp for item in wire.completions)
    return refuse_logprobs(stated) or refuse_claims(wire.claimed, len(wire.completions))


def refuse_claims(claimed: bytes, completions: int) -> Rejected | None:
    """The reason against the claimed rewards of a group of `completions` completions."""
    if len(claimed) != 4 * completions:
        return Rejected("content", "as many claimed rewards as completions are needed")
    if not np.isfinite(np.frombuffer(claimed, dtype="<f4")).all():
        return Rejected("content", "a claimed reward is not finite")
    return None


def rollout_group(
    task: TaskBody, policy: PolicyBody, completions: Iterable[Completion], claimed: bytes
) -> RolloutGroup:
    """Make a group of fields that were checked."""
    return RolloutGroup(
        task=TaskRef(task.environment, task.version, task.family, task.seed),
        policy=PolicyRef(policy.model, policy.tokenizer, policy.version),
        completions=tuple(completions),
        claimed=tuple(np.frombuffer(claimed, dtype="<f4").tolist()),
    )


def printable(text: str, limit: int = 160) -> str:
    """`text` cut to `limit` characters, with "?" for each that is unsafe to print. An error message
    may quote bytes that a peer chose."""
    return "".join(c if c.isascii() and c.isprintable() else "?" for c in text[:limit])


def _completion(item: _Completion) -> Completion:
    return Completion(
        text=item.text,
        token_ids=token_ids(item.ids),
        logprobs=logprobs(item.logp),
        spans=version_spans(item.spans),
        finish=item.finish,
    )


def refuse_lengths(text: str, ids: bytes, logp: bytes) -> Rejected | None:
    """The reason against a text with its ids and log-probs, None if their lengths fit."""
    if len(text.encode()) > MAX_TEXT_BYTES:
        return Rejected("content", f"a text is longer than {MAX_TEXT_BYTES} bytes")
    if len(ids) % 4 or len(ids) != len(logp):
        return Rejected("content", "token ids and log-probs differ in length")
    return None


def refuse_logprobs(logp: bytes) -> Rejected | None:
    """The reason against a list of log-probs, None if every number can be a log-prob."""
    stated = np.frombuffer(logp, dtype="<f4")
    # Written so that NaN, for which every comparison is false, is refused.
    if not bool(((stated <= MAX_LOGPROB) & (stated > -np.inf)).all()):
        return Rejected("content", "a log-prob is positive or not finite")
    return None


def token_ids(raw: bytes) -> NDArray[np.uint32]:
    return _copy(np.frombuffer(raw, dtype="<u4"), np.uint32)


def logprobs(raw: bytes) -> NDArray[np.float32]:
    return _copy(np.frombuffer(raw, dtype="<f4"), np.float32)


def version_spans(spans: Iterable[SpanBody]) -> tuple[VersionSpan, ...]:
    return tuple(VersionSpan(each.version, each.start, each.end) for each in spans)


def covers(spans: tuple[SpanBody, ...], length: int) -> bool:
    """Check that non-empty spans tile [0, length) in order."""
    reached = 0
    for span in spans:
        if span.start != reached or span.end <= span.start:
            return False
        reached = span.end
    return reached == length


def _copy(array: NDArray[Any], dtype: type[Any]) -> NDArray[Any]:
    # A view of the received bytes is read-only, which torch.from_numpy warns about.
    return array.astype(dtype, copy=True)


@functools.cache
def _decoder(kind: type[Struct]) -> msgspec.msgpack.Decoder[Any]:
    return msgspec.msgpack.Decoder(kind)
