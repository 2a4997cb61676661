"""The bytes between a parent and its child. Pure.

A frame is a length (4 bytes, big-endian), a number (8 bytes, big-endian) and a body of that length.
A reply has the number of its request. A body is one tagged msgspec Struct as MessagePack.
"""

from __future__ import annotations

import struct

import msgspec

HEAD = struct.Struct(">IQ")
MAX_BODY_BYTES = 1 << 30


class Failed(msgspec.Struct, frozen=True, tag=True, forbid_unknown_fields=True):
    """A reply: the request raised an exception of type `kind`, and the child lives on."""

    kind: str
    reason: str


class Cut(msgspec.Struct, frozen=True, tag=True, forbid_unknown_fields=True):
    """Answer the request that has this frame's number now, with what there is of the answer."""


class Drop(msgspec.Struct, frozen=True, tag=True, forbid_unknown_fields=True):
    """Stop the work on the request that has this frame's number, and do not answer it."""


def make_frame(number: int, body: bytes) -> bytes:
    """One frame.

    Raises:
        ValueError: the body is larger than MAX_BODY_BYTES.
    """
    return HEAD.pack(_check_length(len(body), MAX_BODY_BYTES), number) + body


def read_head(head: bytes, max_bytes: int = MAX_BODY_BYTES) -> tuple[int, int]:
    """The length of a frame's body, and the frame's number.

    Raises:
        ValueError: the body is larger than `max_bytes`.
    """
    length, number = HEAD.unpack(head)
    return _check_length(length, max_bytes), number


def take_frame(buffer: bytearray) -> tuple[int, bytes] | None:
    """Remove the first frame from `buffer`: its number and its body. None while it is incomplete.

    Raises:
        ValueError: as from `read_head`.
    """
    if len(buffer) < HEAD.size:
        return None
    length, number = read_head(bytes(buffer[: HEAD.size]))
    end = HEAD.size + length
    if len(buffer) < end:
        return None
    body = bytes(buffer[HEAD.size : end])
    del buffer[:end]
    return number, body


def _check_length(length: int, max_bytes: int) -> int:
    if length > max_bytes:
        raise ValueError(f"a frame of {length} bytes is over the limit of {max_bytes}")
    return length
