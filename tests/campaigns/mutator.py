"""Changes bytes at random, blindly and along their MessagePack structure. Deterministic by seed."""

from __future__ import annotations

import random
import struct
from typing import Any

import msgpack

_EDGES = (
    *(0, 1, 2, 7, 31, 32, 33, 34, 63, 64, 65, 127, 128, 255, 256, 767, 768, 769, 1000, 1001),
    *(32_767, 32_768, 65_535, 65_536, 131_072, 1 << 20, (1 << 22) - 1024, 1 << 22, (1 << 31) - 1),
    *(1 << 32, (1 << 53) - 1, 1 << 53, (1 << 62) - 1, 1 << 62, (1 << 63) - 1, (1 << 64) - 1),
    *(-1, -128, -129, -(1 << 31), -(1 << 63)),
)
#: Headers of MessagePack that claim much, are no value, or begin an extension or a map.
_HEADS = (
    *(b"\x90", b"\x91", b"\x94", b"\xdc\xff\xff", b"\xdd\xff\xff\xff\xff", b"\xde\xff\xff"),
    *(b"\xdf\xff\xff\xff\xff", b"\x80", b"\x81", b"\xc1", b"\xc0", b"\xc2", b"\xc3", b"\xca"),
    *(b"\xcb\x7f\xf0\0\0\0\0\0\0", b"\xcb\x7f\xf8\0\0\0\0\0\0", b"\xca\xff\xc0\0\0", b"\xc4\xff"),
    *(b"\xc5\xff\xff", b"\xc6\xff\xff\xff\xff", b"\xc7\xff\x05", b"\xc9\xff\xff\xff\xff\x05"),
    *(b"\xd4\0\0", b"\xd8\xff", b"\xd9\xff", b"\xda\xff\xff", b"\xdb\xff\xff\xff\xff", b"\xa1\xff"),
    *(b"\xcf" + b"\xff" * 8, b"\xd3\x80" + bytes(7), b"\xcd\0\0", b"\xcc\0", b"\xd9\0", b"\xa0"),
)
_TEXTS = ("", "a", "/", "\x00", "é" * 33, "\x1b[2J", "../../etc", "\ud7ff", "x" * 65, "🦀" * 20)


class Mutator:
    """Draws from one generator, so a seed and a count give the same inputs again."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)

    def bytes(self, seed: bytes, other: bytes = b"") -> bytes:
        """`seed` after one to four changes; a part of `other` may come in."""
        data = bytearray(seed)
        rng = self.rng
        for _ in range(1 + int(rng.random() * rng.random() * 5)):
            self._change(data, other)
        return bytes(data)

    def structure(self, packed: bytes) -> bytes:
        """The values in `packed` with one to three replaced, doubled, moved or dropped."""
        try:
            values = msgpack.unpackb(packed, strict_map_key=False)
        except (ValueError, msgpack.UnpackException):
            return self.bytes(packed)
        for _ in range(1 + int(self.rng.random() * 3)):
            values = self._replaced(values)
        try:
            return msgpack.packb(values)  # type: ignore[no-any-return]
        except (ValueError, OverflowError, TypeError):
            return self.bytes(packed)

    def value(self) -> Any:
        """A value that a field may not hold, or just so."""
        rng = self.rng
        match int(rng.random() * 9):
            case 0:
                return rng.choice(_EDGES)
            case 1:
                return rng.choice(_TEXTS)
            case 2:
                return rng.randbytes(rng.choice((0, 1, 4, 31, 32, 33, 34, 35, 64, 65, 256)))
            case 3:
                return rng.choice((None, True, False))
            case 4:
                return rng.choice(
                    (0.0, -0.0, 1.5, float("nan"), float("inf"), -float("inf"), 1e308)
                )
            case 5:
                return [self.value() for _ in range(int(rng.random() * 4))]
            case 6:
                return {rng.choice(_TEXTS): 1}
            case 7:
                return int(rng.random() * 4)
            case _:
                return struct.pack("<f", rng.choice((0.0, 1.0, -3.5, float("nan"), float("inf"))))

    def _change(self, data: bytearray, other: bytes) -> None:
        rng = self.rng
        at = int(rng.random() * (len(data) + 1))
        what = int(rng.random() * 10)
        if not data or what == 0:
            data[at:at] = rng.choice(_HEADS)
        elif what <= 2:
            at = min(at, len(data) - 1)
            data[at] ^= 1 << int(rng.random() * 8)
        elif what == 3:
            data[min(at, len(data) - 1)] = int(rng.random() * 256)
        elif what == 4:
            del data[at : at + 1 + int(rng.random() * 16)]
        elif what == 5:
            data[at : at + int(rng.random() * 4)] = rng.choice(_HEADS)
        elif what == 6:
            data[at:at] = data[at : at + int(rng.random() * 64)]
        elif what == 7:
            cut = int(rng.random() * (len(other) + 1))
            data[at : at + 8] = other[cut : cut + int(rng.random() * 32)]
        elif what == 8:
            del data[at:]
        else:
            data[at:at] = rng.randbytes(1 + int(rng.random() * 8))

    def _replaced(self, values: Any) -> Any:
        """`values` with one change at a random depth; lists are changed in place."""
        rng = self.rng
        if not isinstance(values, list) or not values or rng.random() < 0.1:
            return self.value()
        at = int(rng.random() * len(values))
        what = rng.random()
        if isinstance(values[at], list) and what < 0.7:
            values[at] = self._replaced(values[at])
        elif what < 0.75:
            values[at] = self.value()
        elif what < 0.8:
            values.insert(at, self.value())
        elif what < 0.85:
            del values[at]
        elif what < 0.9:
            values.extend(values[at:] * rng.choice((1, 2, 70)))
        elif isinstance(values[at], bytes):
            values[at] = self.bytes(values[at])
        elif isinstance(values[at], str):
            values[at] = self.bytes(values[at].encode()).decode("utf-8", "ignore")
        elif isinstance(values[at], int):
            values[at] += rng.choice((-1, 1, -256, 65_536))
        return values
