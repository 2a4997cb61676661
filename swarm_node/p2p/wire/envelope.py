"""Sealed bytes: one kind of statement, signed by one key, for one swarm. Pure.

An envelope is the MessagePack array [type, body, public key, signature]. The signature is over a
pre-authentication encoding after DSSE v1.0 (github.com/secure-systems-lab/dsse). The swarm id is
among the signed fields but not in the envelope, so no signature of one swarm verifies in another.

Invariants:
- The signature is checked before the body is parsed.
- Bodies above 64 KiB, and only those, are signed by digest, under a type of their own.
- Exactly one encoding of the four fields is accepted. The id of an envelope is the hash of its
  bytes, and a second encoding would give one statement a second id.
"""

from __future__ import annotations

import functools
import hashlib
import struct
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Final

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from msgspec import Meta

from swarm_node.errors import Rejected
from swarm_node.p2p.wire.identity import Identity, peer_id_of
from swarm_node.p2p.wire.transport import MAX_REQUEST_BYTES
from swarm_node.p2p.wire.wire import (
    MAX_ANNOUNCEMENT_BYTES,
    MAX_CERTIFICATE_BYTES,
    MAX_HEAD_BYTES,
    MAX_SEALED_BYTES,
    Body,
    unpack,
)

#: Longer bodies are signed by their sha256, so that signing costs one pass over the body.
DIGEST_ABOVE_BYTES: Final = 64 * 1024

_MAGIC = b"SWARMNODEv1"
_MULTIHASH_SHA256 = b"\x12\x20"
_FIELD_PRIME = 2**255 - 19

# The points whose order divides 8, in every encoding with y < p. Under such a key one signature
# verifies for every message, and OpenSSL accepts these keys (seen with `cryptography` 50.0.2).
_SMALL_ORDER_KEYS: Final = frozenset(
    bytes.fromhex(key)
    for key in (
        "0100000000000000000000000000000000000000000000000000000000000000",
        "0100000000000000000000000000000000000000000000000000000000000080",
        "0000000000000000000000000000000000000000000000000000000000000000",
        "0000000000000000000000000000000000000000000000000000000000000080",
        "ecffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
        "ecffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff",
        "26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc05",
        "26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc85",
        "c7176a703d4dd84fba3c0b760d10670f2a2053fa2c39ccc64ec7fd7792ac037a",
        "c7176a703d4dd84fba3c0b760d10670f2a2053fa2c39ccc64ec7fd7792ac03fa",
    )
)


class Kind(StrEnum):
    """The type of a sealed body. The signature covers it, so no kind can pass for another."""

    ROLLOUT = "application/vnd.swarm.rollout.v1+msgpack"
    RECORD = "application/vnd.swarm.record.v1+msgpack"
    HEAD = "application/vnd.swarm.head.v1+msgpack"
    CERT = "application/vnd.swarm.cert.v1+msgpack"
    ISSUER = "application/vnd.swarm.issuer.v1+msgpack"
    REVOKE = "application/vnd.swarm.revoke.v1+msgpack"
    RELAY = "application/vnd.swarm.relay.v1+msgpack"
    REPLY = "application/vnd.swarm.reply.v1+msgpack"
    CALL = "application/vnd.swarm.call.v1+msgpack"
    REPORT = "application/vnd.swarm.report.v1+msgpack"
    BATCH = "application/vnd.swarm.batch.v1+msgpack"
    SECRET = "application/vnd.swarm.secret.v1+msgpack"  # noqa: S105 - the name of a kind


#: The largest envelope of each kind. docs/protocol.md has them from here.
SEALED_BYTES: Final = {
    Kind.ROLLOUT: MAX_SEALED_BYTES,
    Kind.RECORD: MAX_ANNOUNCEMENT_BYTES,
    Kind.HEAD: MAX_HEAD_BYTES,
    Kind.CERT: MAX_CERTIFICATE_BYTES,
    Kind.ISSUER: MAX_CERTIFICATE_BYTES,
    Kind.REVOKE: 36 * 1024,  # 1,000 keys of 34 packed bytes, and an envelope
    Kind.SECRET: 36 * 1024,
    Kind.RELAY: MAX_REQUEST_BYTES,
    Kind.REPLY: 512,
    Kind.CALL: 576,
    Kind.REPORT: 32 * 1024,
    Kind.BATCH: 320,
}


@dataclass(frozen=True, slots=True)
class Opened:
    """An envelope with a valid signature. `author` is the peer id of `author_key` (32 bytes), `id`
    the content id of the sealed bytes (34 bytes); `body` is not parsed yet."""

    author_key: bytes
    author: str
    body: bytes
    id: bytes


class _Outer(Body, frozen=True):
    type: Annotated[str, Meta(max_length=64)]
    body: Annotated[bytes, Meta(max_length=MAX_SEALED_BYTES)]
    key: Annotated[bytes, Meta(min_length=32, max_length=32)]
    signature: Annotated[bytes, Meta(min_length=64, max_length=64)]


def seal(identity: Identity, swarm_id: bytes, kind: Kind, body: bytes) -> bytes:
    """Sign `body` as `kind` for the swarm `swarm_id` (32 bytes) and wrap it.

    Raises:
        ValueError: the envelope would exceed 4 MiB.
    """
    signature = identity.sign(signed_bytes(swarm_id, kind, body))
    data = _encode(kind, body, identity.public_key, signature)
    if len(data) > MAX_SEALED_BYTES:
        raise ValueError(f"a body of {len(body)} bytes does not fit a sealed envelope")
    return data


def open_sealed(
    data: bytes, swarm_id: bytes, kind: Kind, *, max_bytes: int | None = None
) -> Opened | Rejected:
    """Check an envelope, the cheapest test first, and return its body unparsed. `max_bytes` limits
    the envelope, by default to the limit of its kind.

    The caller checks that `author` is the expected one. Reasons of a refusal, in order: "size",
    "schema", "kind", "encoding", "key", "signature".
    """
    limit = SEALED_BYTES[kind] if max_bytes is None else max_bytes
    outer = unpack(_Outer, data, max_bytes=limit)
    if isinstance(outer, Rejected):
        return outer
    if outer.type != kind:
        return Rejected("kind", f"not a {kind.name} envelope")
    if data != _encode(kind, outer.body, outer.key, outer.signature):
        return Rejected("encoding", "not the canonical encoding of its fields")
    if not is_sound_key(outer.key):
        return Rejected("key", "a small-order or non-canonical public key")
    try:
        Ed25519PublicKey.from_public_bytes(outer.key).verify(
            outer.signature, signed_bytes(swarm_id, kind, outer.body)
        )
    except InvalidSignature:
        return Rejected("signature", "the signature is not valid for this swarm")
    return Opened(outer.key, _peer_id(outer.key), outer.body, content_id(data))


def content_id(data: bytes) -> bytes:
    """The 34-byte sha2-256 multihash of sealed bytes as they were received."""
    return _MULTIHASH_SHA256 + hashlib.sha256(data).digest()


def signed_bytes(swarm_id: bytes, kind: Kind, body: bytes) -> bytes:
    """The pre-authentication encoding that a key signs; lengths are ASCII decimal byte counts."""
    if len(swarm_id) != 32:
        raise ValueError("a swarm id has 32 bytes")
    name, payload = kind.encode(), body
    if len(body) > DIGEST_ABOVE_BYTES:
        name, payload = name + b";sha256", hashlib.sha256(body).digest()
    return b" ".join(
        (_MAGIC, b"%d" % len(name), name, b"32", swarm_id, b"%d" % len(payload), payload)
    )


def is_sound_key(key: bytes) -> bool:
    """Check that `key` (32 bytes) is a canonical encoding (RFC 8032, 5.1.3: y < p) of a point that
    can own a signature."""
    y = int.from_bytes(key, "little") & ~(1 << 255)
    return len(key) == 32 and y < _FIELD_PRIME and key not in _SMALL_ORDER_KEYS


def _encode(kind: Kind, body: bytes, key: bytes, signature: bytes) -> bytes:
    """Return the only accepted encoding: array of four, str 8 (every kind has 32 to 255 bytes), the
    shortest bin header for the body, bin 8, bin 8."""
    length, name = len(body), kind.encode()
    start = b"\x94\xd9" + bytes((len(name),)) + name
    if length < 1 << 8:
        header = struct.pack(">BB", 0xC4, length)
    elif length < 1 << 16:
        header = struct.pack(">BH", 0xC5, length)
    else:
        header = struct.pack(">BI", 0xC6, length)
    return b"".join((start, header, body, b"\xc4\x20", key, b"\xc4\x40", signature))


# Base58 in pure Python adds a tenth to the time to open a small envelope, and few keys occur.
_peer_id = functools.lru_cache(maxsize=4096)(peer_id_of)
