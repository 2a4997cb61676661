"""Ed25519 as docs/protocol.md wants it verified, with no library: RFC 8032 without the factor 8."""

from __future__ import annotations

import hashlib

P = 2**255 - 19
L = 2**252 + 27742317777372353535851937790883648493
D = -121665 * pow(121666, -1, P) % P
#: A point in extended coordinates: X, Y, Z, T with x = X/Z, y = Y/Z, xy = T/Z.
Point = tuple[int, int, int, int]
NEUTRAL: Point = (0, 1, 1, 0)


def added(a: Point, b: Point) -> Point:
    """RFC 8032, 5.1.4. It also doubles."""
    x, y = (a[1] - a[0]) * (b[1] - b[0]), (a[1] + a[0]) * (b[1] + b[0])
    t, z = 2 * D * a[3] * b[3], 2 * a[2] * b[2]
    e, f, g, h = y - x, z - t, z + t, y + x
    return e * f % P, g * h % P, f * g % P, e * h % P


def times(factor: int, point: Point) -> Point:
    total = NEUTRAL
    while factor:
        if factor & 1:
            total = added(total, point)
        point, factor = added(point, point), factor >> 1
    return total


def encoded(point: Point) -> bytes:
    inverse = pow(point[2], -1, P)
    x, y = point[0] * inverse % P, point[1] * inverse % P
    return (y | (x & 1) << 255).to_bytes(32, "little")


def decoded(key: bytes) -> Point | None:
    """The point of 32 bytes with y below P, None without one."""
    number = int.from_bytes(key, "little")
    y, odd = number % 2**255, number >> 255
    square = (y * y - 1) * pow(D * y * y + 1, -1, P) % P
    x = pow(square, (P + 3) // 8, P)
    if x * x % P != square:
        x = x * pow(2, (P - 1) // 4, P) % P
    if y >= P or x * x % P != square or (x == 0 and odd):
        return None
    x = P - x if x % 2 != odd else x
    return x, y, 1, x * y % P


_BASE = decoded(bytes.fromhex("58" + "66" * 31))
assert _BASE is not None
BASE: Point = _BASE


def unsound(key: bytes) -> bool:
    """y >= P, or a point that becomes the neutral element when multiplied by 8. The sign of x is
    no matter, so that the neutral element with a negative x is unsound, too."""
    y = int.from_bytes(key, "little") % 2**255
    point = decoded(y.to_bytes(32, "little"))
    return y >= P or (point is not None and encoded(times(8, point)) == encoded(NEUTRAL))


def challenge(r: bytes, key: bytes, message: bytes) -> int:
    return int.from_bytes(hashlib.sha512(r + key + message).digest(), "little")


def holds(key: bytes, message: bytes, signature: bytes) -> bool:
    """Check a signature of 64 bytes under a sound key."""
    point, s = decoded(key), int.from_bytes(signature[32:], "little")
    if point is None or s >= L:
        return False
    k = challenge(signature[:32], key, message) % L
    minus = (P - point[0], point[1], 1, P - point[3])
    return encoded(added(times(s, BASE), times(k, minus))) == signature[:32]
