"""Message bodies: typed, bounded MessagePack arrays. Only this module decodes them.

Every number, string and list has a bound in its type, so a decoder never recurses, and its memory
is bounded by the bytes it reads. Rules of a group that a type cannot express (lengths that must
agree, finite log-probs) are in groups.py. `pack` decodes its own output, so a node
never sends a body that its peers must refuse. docs/protocol.md is the byte-exact description.
"""

from __future__ import annotations

import functools
from typing import Annotated, Any, Final, Literal, TypeVar

import msgspec
from msgspec import Meta, Struct

from swarm_node.errors import Rejected
from swarm_node.rollout import MAX_TURNS

#: A sealed group may have 4 MiB.
MAX_SEALED_BYTES: Final = 4 * 1024 * 1024
MAX_COMPLETIONS: Final = 64
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


class Body(Struct, array_like=True, forbid_unknown_fields=True, frozen=True):
    """Base of all bodies: a MessagePack array of exactly the fields, in order."""


class Announcement(Body, frozen=True):
    """One entry of an author's log (Kind.RECORD): a group that can be pulled by `id`.

    `completions` is the number of completions. `mixed` is the author's hint that their rewards
    differ. A group without the hint is not pulled. For a pulled group the rewards are computed
    anew. `turns` is the most turns that the environment gives the model, 1 for an answer to one
    question."""

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
    turns: Annotated[int, Meta(ge=1, le=MAX_TURNS)]


class Heartbeat(Body, frozen=True):
    """A member's published state (Kind.HEAD): the addresses to dial and the newest sequence number
    of its log (`head`, 0 if the log of this `epoch` is empty). `revoked` and `secret` are the
    numbers of the newest revocation list and the newest secret that it holds, 0 for none. A node
    with `delegate` renews memberships. A node with `relays` forwards requests."""

    v: Version1
    addresses: Annotated[tuple[Address, ...], Meta(max_length=4)]
    policy_version: Counter
    epoch: Counter
    head: Counter
    issued_ms: Milliseconds
    agent: Agent
    revoked: Counter
    secret: Counter
    delegate: bool
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
    """`/swarm-node/pull/1`: the sealed group with this content id."""

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


T = TypeVar("T", bound=Struct)


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
    result = unpack(type(body), data, max_bytes=len(data))
    if isinstance(result, Rejected):
        raise ValueError(f"a {type(body).__name__} is outside its bounds: {result.detail}")
    return data


def printable(text: str, limit: int = 160) -> str:
    """`text` cut to `limit` characters, with "?" for each that is unsafe to print. An error message
    may quote bytes that a peer chose."""
    return "".join(c if c.isascii() and c.isprintable() else "?" for c in text[:limit])


@functools.cache
def _decoder(kind: type[Struct]) -> msgspec.msgpack.Decoder[Any]:
    return msgspec.msgpack.Decoder(kind)
