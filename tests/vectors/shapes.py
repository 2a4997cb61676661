"""Types and bounds of docs/protocol.md, written from its words alone: `refused` judges a message of
a type by its size, its fields and its content. No code of the program."""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Callable
from typing import Any

import msgpack

#: Judges one decoded value.
Shape = Callable[[Any], bool]


def integer(least: int, most: int) -> Shape:
    return lambda value: type(value) is int and least <= value <= most


def number(least: float, most: float) -> Shape:
    return lambda value: type(value) in (int, float) and least <= value <= most


def binary(least: int, most: int | None = None) -> Shape:
    return lambda value: type(value) is bytes and least <= len(value) <= (most or least)


def text(least: int, most: int, characters: str = "") -> Shape:
    allowed = re.compile(f"[{characters}]*") if characters else re.compile("(?s:.*)")
    return lambda value: bool(
        type(value) is str and least <= len(value) <= most and allowed.fullmatch(value)
    )


def form(pattern: str) -> Shape:
    return lambda value: type(value) is str and re.fullmatch(pattern, value) is not None


def array(of: Shape, least: int, most: int) -> Shape:
    return lambda value: type(value) is list and least <= len(value) <= most and all(map(of, value))


def fields(*shapes: Shape) -> Shape:
    return lambda value: (
        type(value) is list
        and len(value) == len(shapes)
        and all(shape(field) for shape, field in zip(shapes, value, strict=True))
    )


def flag(value: Any) -> bool:
    return type(value) is bool


VERSION = integer(1, 1)
COUNTER, SEQUENCE = integer(0, 2**62 - 1), integer(1, 2**62 - 1)
MS, SECONDS = integer(0, 2**53 - 1), integer(0, 253402300799)
DIGEST, NONCE, ID = binary(32), binary(16), binary(34)
LABEL = text(1, 64, "A-Za-z0-9 _.:+@=,-")
ADDRESS = form(r"/[A-Za-z0-9._:/%-]{1,159}")
AGENT, NAME = text(0, 24, "A-Za-z0-9 _./+-"), text(1, 32, "A-Za-z0-9 _.-")
CERTIFICATE = binary(0, 320)
CHAIN = array(CERTIFICATE, 0, 2)
OUTCOME = form("open|refused|timeout|silent|other|untried")
SIZE = integer(0, 8 << 20)
SPAN = fields(COUNTER, integer(0, 32768), integer(0, 32768))
TURN = fields(text(0, 65536), binary(4, 131072), binary(4, 131072), form("stop|length"))
COMPLETION = fields(array(TURN, 1, 16), array(SPAN, 1, 256))
HELLO = fields(CHAIN, AGENT, array(ADDRESS, 0, 8), COUNTER, COUNTER)
_HEAD = fields(
    *(VERSION, array(ADDRESS, 0, 4), COUNTER, COUNTER, COUNTER, MS, AGENT, COUNTER, COUNTER),
    *(flag, flag),
)
_REVOKE = fields(VERSION, SEQUENCE, SECONDS, SECONDS, array(DIGEST, 0, 1000))


def _head(value: Any) -> bool:
    return _HEAD(value) and sum(map(len, value[1])) <= 480


def _revoke(value: Any) -> bool:
    return _REVOKE(value) and value[3] > value[2] and value[4] == sorted(set(value[4]))


#: The most bytes of a message of each type, and the shape of its fields.
TYPES: dict[str, tuple[int, Shape]] = {
    "rollout": (
        (4 << 20) - 1024,
        fields(
            *(VERSION, COUNTER, SEQUENCE, MS, fields(LABEL, LABEL, LABEL, COUNTER)),
            *(fields(DIGEST, DIGEST, COUNTER), array(COMPLETION, 1, 64), binary(4, 256)),
        ),
    ),
    "record": (
        768,
        fields(
            *(VERSION, COUNTER, SEQUENCE, ID, integer(1, 4 << 20), LABEL, LABEL, LABEL),
            *(DIGEST, DIGEST, COUNTER, integer(1, 64), flag, integer(1, 16)),
        ),
    ),
    "head": (716, _head),
    "issuer": (
        320,
        fields(
            *(VERSION, DIGEST, NAME, SECONDS, SECONDS, integer(1, 316224000), flag),
            integer(0, 1000),
        ),
    ),
    "cert": (320, fields(VERSION, DIGEST, SECONDS, SECONDS, NAME, DIGEST)),
    "revoke": (36 << 10, _revoke),
    "secret": (36 << 10, fields(VERSION, SEQUENCE, SECONDS, DIGEST)),
    "statement": (37376, fields(CERTIFICATE, binary(0, 36 << 10))),
    "relay": (
        64 << 10,
        fields(
            *(VERSION, DIGEST, form("/swarm-node/[a-z]{1,24}/[0-9]{1,3}"), NONCE, MS, SIZE),
            binary(0, 65024),
        ),
    ),
    "reply": (512, fields(VERSION, NONCE, flag, SIZE, DIGEST)),
    "call": (576, fields(VERSION, form("[A-Z]{3,7}"), text(1, 256), MS, NONCE, DIGEST)),
    "report": (
        32 << 10,
        fields(
            *(VERSION, MS, AGENT, LABEL, LABEL, *[COUNTER] * 7),
            array(fields(LABEL, number(0, 1)), 0, 64),
            array(fields(DIGEST, COUNTER, array(fields(LABEL, COUNTER), 0, 12)), 0, 64),
        ),
    ),
    "batch": (320, fields(VERSION, SEQUENCE, DIGEST, DIGEST, MS)),
    "ticket": (
        4096,
        fields(
            *(VERSION, NAME, DIGEST, DIGEST, DIGEST, array(ADDRESS, 0, 8), SECONDS, CERTIFICATE),
            *(binary(32), COUNTER),
        ),
    ),
    "presence": (1366, fields(binary(0, 716), CERTIFICATE, CERTIFICATE)),
    "shown": (1226, fields(binary(0, 576), CERTIFICATE, CERTIFICATE)),
    "hello": (64 << 10, HELLO),
    "list": (64 << 10, fields(COUNTER, COUNTER, integer(1, 1000))),
    "listed": (8 << 20, fields(COUNTER, COUNTER, COUNTER, array(binary(0, 768), 0, 1000))),
    "pull": (64 << 10, fields(ID)),
    "peers": (64 << 10, fields(integer(1, 100))),
    "presences": (8 << 20, fields(array(binary(0, 1366), 0, 100))),
    "renewed": (8 << 20, fields(CERTIFICATE, CERTIFICATE)),
    "claims": (64 << 10, fields(DIGEST)),
    "claimed": (8 << 20, fields(array(fields(DIGEST, CHAIN, MS), 0, 8))),
    "probe": (512, fields(array(integer(1, 65535), 0, 4))),
    "probed": (
        512,
        fields(
            *(text(0, 160), array(fields(integer(1, 65535), OUTCOME), 0, 5)),
            *(OUTCOME, MS),
        ),
    ),
    "probe-for": (512, fields(text(0, 64), ADDRESS)),
    "outcome": (512, fields(OUTCOME)),
    "punch": (
        256,
        fields(form(r"/(ip4/[0-9.]{7,15}|ip6/[0-9a-f:.]{2,45})/tcp/[0-9]{1,5}")),
    ),
}


def refused(kind: str, data: bytes) -> str:
    """Return the reason for which a message is refused, "ok" for a good one."""
    most, shape = TYPES[kind]
    if len(data) > most:
        return "size"
    try:
        value = msgpack.unpackb(data, strict_map_key=False)
    except (ValueError, msgpack.UnpackException):
        return "schema"
    if not shape(value):
        return "schema"
    return "content" if kind == "rollout" and contradicts(value[6], value[7]) else "ok"


def contradicts(completions: list[Any], claimed: bytes) -> bool:
    """Check what the fields of a rollout group say together."""
    if len(claimed) != 4 * len(completions) or not all(map(math.isfinite, floats(claimed))):
        return True
    for turns, spans in completions:
        ends = [0]
        for words, ids, logp, _ in turns:
            if len(words.encode()) > 65536 or len(ids) != len(logp) or len(ids) % 4:
                return True
            # NaN, which no comparison holds for, has to fail.
            if not all(-math.inf < value <= 1e-4 for value in floats(logp)):
                return True
            ends.append(ends[-1] + len(ids) // 4)
        if "length" in [finish for *_, finish in turns[:-1]]:
            return True
        reached = [0]
        for _, start, end in spans:
            if start != reached[-1] or end <= start:
                return True
            reached.append(end)
        if reached[-1] != ends[-1] or not set(ends) <= set(reached):
            return True
    return False


def floats(data: bytes) -> list[float]:
    return [value for (value,) in struct.iter_unpack("<f", data)]
