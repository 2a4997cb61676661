"""Sealed bytes: what opens, and that no altered byte does. The published vectors (test_vectors.py)
have one case of each reason for a refusal."""

import hashlib

import msgpack
import pytest
from vectors import ed25519

from swarm_node.errors import Rejected
from swarm_node.p2p.wire.envelope import (
    DIGEST_ABOVE_BYTES,
    SEALED_BYTES,
    Kind,
    Opened,
    content_id,
    is_sound_key,
    open_sealed,
    seal,
    signed_bytes,
)
from swarm_node.p2p.wire.identity import Identity
from swarm_node.p2p.wire.wire import MAX_SEALED_BYTES

AUTHOR = Identity.from_seed(bytes(range(32)))
SWARM = hashlib.sha256(b"a swarm").digest()
GOLDEN = seal(AUTHOR, SWARM, Kind.RECORD, b"what was said")

#: A point of order 8.
SMALL = "26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc05"


def reason(data: bytes, swarm: bytes = SWARM, kind: Kind = Kind.RECORD) -> str:
    result = open_sealed(data, swarm, kind)
    assert isinstance(result, Rejected)
    return result.reason


@pytest.mark.parametrize("length", [0, 1, 255, 256, 65535, 65536, 65537, 300_000])
def test_what_is_sealed_opens_and_is_canonical_msgpack(length: int) -> None:
    body = bytes(i * 7 % 256 for i in range(length))
    data = seal(AUTHOR, SWARM, Kind.ROLLOUT, body)
    opened = open_sealed(data, SWARM, Kind.ROLLOUT)
    assert isinstance(opened, Opened)
    assert opened == Opened(AUTHOR.public_key, AUTHOR.peer_id, body, content_id(data))
    fields = msgpack.unpackb(data)
    assert fields[:3] == [Kind.ROLLOUT.value, body, AUTHOR.public_key]
    assert msgpack.packb(fields) == data


def test_content_id_is_a_sha256_multihash() -> None:
    assert content_id(GOLDEN) == b"\x12\x20" + hashlib.sha256(GOLDEN).digest()


def test_every_flipped_bit_of_a_golden_envelope_is_refused() -> None:
    refused = set()
    for position in range(len(GOLDEN)):
        for bit in range(8):
            mutant = bytearray(GOLDEN)
            mutant[position] ^= 1 << bit
            refused.add(reason(bytes(mutant)))
    assert refused == {"schema", "kind", "signature"}


def test_every_other_value_of_every_structural_byte_is_refused() -> None:
    body_at = GOLDEN.index(b"what was said")
    key_at = body_at + len(b"what was said")
    structural = [*range(body_at), key_at, key_at + 1, key_at + 34, key_at + 35]
    for position in structural:
        for value in set(range(256)) - {GOLDEN[position]}:
            mutant = bytearray(GOLDEN)
            mutant[position] = value
            assert reason(bytes(mutant)) in {"schema", "kind", "encoding", "signature"}


def test_every_truncation_and_any_extension_is_refused() -> None:
    for length in range(len(GOLDEN)):
        assert reason(GOLDEN[:length]) == "schema"
    assert reason(GOLDEN + b"\x00") == "schema"
    assert reason(GOLDEN + GOLDEN) == "schema"


def test_the_form_that_is_signed_follows_from_the_length_alone() -> None:
    small, large = bytes(DIGEST_ABOVE_BYTES), bytes(DIGEST_ABOVE_BYTES + 1)
    assert signed_bytes(SWARM, Kind.ROLLOUT, small).endswith(b" 65536 " + small)
    assert signed_bytes(SWARM, Kind.ROLLOUT, large) == (
        b"SWARMNODEv1 47 application/vnd.swarm.rollout.v1+msgpack;sha256 32 "
        + SWARM
        + b" 32 "
        + hashlib.sha256(large).digest()
    )


def test_a_digest_cannot_pass_for_a_body() -> None:
    large = bytes(DIGEST_ABOVE_BYTES + 1)
    fields = msgpack.unpackb(seal(AUTHOR, SWARM, Kind.ROLLOUT, large))
    fields[1] = hashlib.sha256(large).digest()
    assert reason(msgpack.packb(fields), kind=Kind.ROLLOUT) == "signature"
    fields[0] += ";sha256"
    assert reason(msgpack.packb(fields), kind=Kind.ROLLOUT) == "kind"


def test_all_points_of_small_order_are_unsound_keys() -> None:
    eighth = ed25519.decoded(bytes.fromhex(SMALL))
    assert eighth is not None
    keys = {ed25519.encoded(ed25519.times(factor, eighth)) for factor in range(8)}
    assert len(keys) == 8
    for key in keys:
        assert not is_sound_key(key)
        if ed25519.encoded(ed25519.NEUTRAL)[:31] == key[:31]:  # x = 0 has a second encoding
            assert not is_sound_key(key[:31] + bytes([key[31] | 0x80]))


@pytest.mark.parametrize("sign", [0, 1 << 255])
def test_keys_with_y_at_or_above_the_prime_are_unsound(sign: int) -> None:
    for y in range(ed25519.P, 2**255):
        assert not is_sound_key((y | sign).to_bytes(32, "little"))
    assert is_sound_key((ed25519.P - 2 | sign).to_bytes(32, "little"))


def test_keys_of_another_length_are_unsound() -> None:
    assert not is_sound_key(AUTHOR.public_key[:31])
    assert not is_sound_key(AUTHOR.public_key + b"\x00")
    assert is_sound_key(AUTHOR.public_key)


def test_size_is_checked_before_anything_is_decoded() -> None:
    opened = open_sealed(GOLDEN, SWARM, Kind.RECORD, max_bytes=len(GOLDEN))
    assert isinstance(opened, Opened)
    refused = open_sealed(b"\xc1" * 100, SWARM, Kind.RECORD, max_bytes=99)
    assert refused.reason == "size"


@pytest.mark.parametrize("kind", Kind)
def test_every_kind_has_a_limit_of_its_own(kind: Kind) -> None:
    assert reason(bytes(SEALED_BYTES[kind] + 1), kind=kind) == "size"
    assert reason(bytes(SEALED_BYTES[kind]), kind=kind) == "schema"


def test_sealing_refuses_what_could_not_be_opened() -> None:
    overhead = len(seal(AUTHOR, SWARM, Kind.ROLLOUT, bytes(70_000))) - 70_000
    largest = seal(AUTHOR, SWARM, Kind.ROLLOUT, bytes(MAX_SEALED_BYTES - overhead))
    assert isinstance(open_sealed(largest, SWARM, Kind.ROLLOUT), Opened)
    with pytest.raises(ValueError, match="not fit"):
        seal(AUTHOR, SWARM, Kind.ROLLOUT, bytes(MAX_SEALED_BYTES - overhead + 1))
    with pytest.raises(ValueError, match="32 bytes"):
        seal(AUTHOR, b"short", Kind.ROLLOUT, b"")


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xc1",
        b"\x91" * 100_000,
        b"\x94" + b"\x91" * 100_000,
        b"\xdd\xff\xff\xff\xff",
        b"\x94\xdb\xff\xff\xff\xff",
        b"\x94\xd9\x02\xff\xfe",
        msgpack.packb({"type": "a"}),
        msgpack.packb([1, 2, 3, 4]),
        msgpack.packb([None] * 4),
        msgpack.packb(["a", b"", b"k" * 32, b"s" * 64, b"more"]),
        msgpack.packb(["a", msgpack.ExtType(5, b"x"), b"k" * 32, b"s" * 64]),
    ],
)
def test_malformed_bytes_are_a_value_not_an_exception(data: bytes) -> None:
    assert reason(data, kind=Kind.ROLLOUT) == "schema"
