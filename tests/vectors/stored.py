"""Bytes of the vectors as their files store them."""

from __future__ import annotations

from typing import Any

import msgpack


def joined(parts: list[dict[str, Any]]) -> bytes:
    """Bytes that are stored as parts, some of them repeated."""
    return b"".join(bytes.fromhex(part["hex"]) * part.get("times", 1) for part in parts)


def changed(sample: bytes, at: list[int], value: bytes) -> bytes:
    """The sample with another value of one field."""
    message = msgpack.unpackb(sample)
    part = message
    for index in at[:-1]:
        part = part[index]
    part[at[-1]] = msgpack.unpackb(value)
    packed: bytes = msgpack.packb(message)
    return packed
