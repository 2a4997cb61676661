"""Sealed bytes: what the published vectors (tests/p2p/test_vectors.py) do not have of them."""

import hashlib

import msgpack
import pytest

from swarm_node.errors import Rejected
from swarm_node.p2p.wire.envelope import (
    DIGEST_ABOVE_BYTES,
    SEALED_BYTES,
    Kind,
    Opened,
    is_sound_key,
    open_sealed,
    seal,
)
from swarm_node.p2p.wire.identity import Identity
from swarm_node.p2p.wire.wire import MAX_SEALED_BYTES

AUTHOR = Identity.from_seed(bytes(range(32)))
SWARM = hashlib.sha256(b"a swarm").digest()
GOLDEN = seal(AUTHOR, SWARM, Kind.RECORD, b"what was said")

P = 2**255 - 19
D = -121665 * pow(121666, -1, P) % P
Point = tuple[int, int]
NEUTRAL: Point = (0, 1)


def reason(data: bytes, kind: Kind = Kind.RECORD) -> str:
    result = open_sealed(data, SWARM, kind)
    assert isinstance(result, Rejected)
    return result.reason


def add(a: Point, b: Point) -> Point:
    """The affine addition law of edwards25519 (RFC 8032, 5.1.4), slow and complete."""
    t = D * a[0] * b[0] * a[1] * b[1] % P
    x = (a[0] * b[1] + b[0] * a[1]) * pow(1 + t, -1, P) % P
    y = (a[1] * b[1] + a[0] * b[0]) * pow(1 - t, -1, P) % P
    return x, y


def times(n: int, point: Point) -> Point:
    result = NEUTRAL
    for bit in bin(n)[2:]:
        result = add(result, result)
        if bit == "1":
            result = add(result, point)
    return result


def encode(point: Point) -> bytes:
    return (point[1] | (point[0] & 1) << 255).to_bytes(32, "little")


def torsion() -> set[Point]:
    """The eight points whose order divides 8, found by clearing the prime-order part of points
    until one of order 8 turns up."""
    order = 2**252 + 27742317777372353535851937790883648493
    for y in range(2, 200):
        square = (y * y - 1) * pow(D * y * y + 1, -1, P) % P
        x = pow(square, (P + 3) // 8, P)
        if x * x % P != square:
            x = x * pow(2, (P - 1) // 4, P) % P
        if x * x % P != square:
            continue
        candidate = times(order, (x, y))
        multiples = {times(n, candidate) for n in range(1, 9)}
        if len(multiples) == 8:
            return multiples
    raise AssertionError("no point of order 8 found")


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


def test_a_digest_cannot_pass_for_a_body() -> None:
    large = bytes(DIGEST_ABOVE_BYTES + 1)
    fields = msgpack.unpackb(seal(AUTHOR, SWARM, Kind.ROLLOUT, large))
    fields[1] = hashlib.sha256(large).digest()
    assert reason(msgpack.packb(fields), kind=Kind.ROLLOUT) == "signature"
    fields[0] += ";sha256"
    assert reason(msgpack.packb(fields), kind=Kind.ROLLOUT) == "kind"


def test_all_points_of_small_order_are_unsound_keys() -> None:
    points = torsion()
    assert times(8, next(iter(points))) == NEUTRAL
    assert len({encode(point) for point in points}) == 8
    for point in points:
        canonical = encode(point)
        assert not is_sound_key(canonical)
        if point[0] == 0:  # x = 0 has a second encoding, with the sign bit set
            assert not is_sound_key(canonical[:31] + bytes([canonical[31] | 0x80]))


@pytest.mark.parametrize("sign", [0, 1 << 255])
def test_keys_with_y_at_or_above_the_prime_are_unsound(sign: int) -> None:
    for y in range(P, 2**255):
        assert not is_sound_key((y | sign).to_bytes(32, "little"))
    assert is_sound_key((P - 2 | sign).to_bytes(32, "little"))


def test_keys_of_another_length_are_unsound() -> None:
    assert not is_sound_key(AUTHOR.public_key[:31])
    assert not is_sound_key(AUTHOR.public_key + b"\x00")
    assert is_sound_key(AUTHOR.public_key)


def test_size_is_checked_before_anything_is_decoded() -> None:
    opened = open_sealed(GOLDEN, SWARM, Kind.RECORD, max_bytes=len(GOLDEN))
    assert isinstance(opened, Opened)
    refused = open_sealed(b"\xc1" * 100, SWARM, Kind.RECORD, max_bytes=99)
    assert isinstance(refused, Rejected)
    assert refused.reason == "size"


@pytest.mark.parametrize("kind", Kind)
def test_every_kind_has_a_limit_of_its_own(kind: Kind) -> None:
    assert reason(bytes(SEALED_BYTES[kind] + 1), kind=kind) == "size"
    assert reason(bytes(SEALED_BYTES[kind]), kind=kind) == "schema"


def test_sealing_refuses_what_could_not_be_opened() -> None:
    overhead = len(seal(AUTHOR, SWARM, Kind.ROLLOUT, bytes(70_000))) - 70_000
    largest = seal(AUTHOR, SWARM, Kind.ROLLOUT, bytes(MAX_SEALED_BYTES - overhead))
    assert isinstance(open_sealed(largest, SWARM, Kind.ROLLOUT), Opened)
    with pytest.raises(ValueError, match="does not fit"):
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
