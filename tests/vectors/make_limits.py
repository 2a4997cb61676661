"""Writes limits.json next to this file: messages at and beyond every bound of docs/protocol.md, and
cases of rules that no other vector has. Run it only when the protocol changes on purpose.

    python tests/vectors/make_limits.py

It knows the page and no code of the program. A message is stored as the change of one field of its
type's sample: where, and the packed value, with long runs as {"hex", "times"} parts.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import struct
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgpack
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

import ed25519  # noqa: E402 - it lies beside this file
import reader  # noqa: E402

Sample = tuple[str, Any, str]
KEYS = [Ed25519PrivateKey.from_private_bytes(bytes([seed]) * 32) for seed in range(1, 9)]
ROOT, ISSUER, NODE, OTHER, DELEGATE = (KEYS[index] for index in (0, 1, 2, 3, 5))
MEMBERSHIP = json.loads((HERE / "membership.json").read_text())
SWARM_ID = bytes.fromhex(MEMBERSHIP["swarm_id"])
T0, DAY = 1_800_000_000, 86_400


def public(key: Ed25519PrivateKey) -> bytes:
    return key.public_key().public_bytes_raw()


def seal(key: Ed25519PrivateKey, kind: str, body: list[Any] | bytes) -> bytes:
    raw = body if isinstance(body, bytes) else msgpack.packb(body)
    signature = key.sign(reader.pae(kind, SWARM_ID, raw))
    packed: bytes = msgpack.packb([kind, raw, public(key), signature])
    return packed


# Samples of one field: a name, a value, and the verdict on the message with it.


def integers(least: int, most: int) -> list[Sample]:
    return [
        ("least", least, "ok"),
        ("most", most, "ok"),
        ("below", least - 1, "schema"),
        ("above", most + 1, "schema"),
        ("as a float", float(least), "schema"),
        ("as a boolean", bool(least), "schema"),
        ("as a text", str(least), "schema"),
        ("nil", None, "schema"),
    ]


COUNTER, SEQUENCE = integers(0, 2**62 - 1), integers(1, 2**62 - 1)
MS, SECONDS = integers(0, 2**53 - 1), integers(0, 253402300799)
VERSION = [("2", 2, "schema"), ("0", 0, "schema"), ("a float", 1.0, "schema"),
           ("true", True, "schema")]  # fmt: skip
FLAG = [("true", True, "ok"), ("false", False, "ok"), ("1", 1, "schema"), ("nil", None, "schema")]


def binaries(least: int, most: int) -> list[Sample]:
    short = [("a byte short", bytes(least - 1), "schema")] if least else []
    return [
        ("least", bytes(least), "ok"),
        ("most", bytes(most), "ok"),
        ("a byte more", bytes(most + 1), "schema"),
        ("as a text", "a" * least, "schema"),
        ("as an array", [0] * least, "schema"),
        *short,
    ]


def texts(least: int, most: int, characters: str, strange: str) -> list[Sample]:
    """`characters` are allowed, all of `strange` are not."""
    short = [("too short", characters[0] * (least - 1), "schema")] if least else []
    return [
        ("least", characters[-1] * least, "ok"),
        ("most", (characters * most)[:most], "ok"),
        ("all characters", characters[:most], "ok"),
        ("too long", characters[0] * (most + 1), "schema"),
        ("as bin", characters[:most].encode(), "schema"),
        *((f"with {ord(c):#x}", characters[0] + c, "schema") for c in strange),
        *short,
    ]


LETTERS = "azAZ09 _."
LABEL = texts(1, 64, LETTERS + ":+@=,-", '\n/"\u00e9\0')
NAME, AGENT = texts(1, 32, LETTERS + "-", "\n/:+"), texts(0, 24, LETTERS + "/+-", "\n:@")
DIGEST, NONCE, ID = binaries(32, 32), binaries(16, 16), binaries(34, 34)
CERTIFICATE = binaries(0, 320)
OUTCOME = [
    *((name, name, "ok") for name in ("open", "refused", "timeout", "silent", "other", "untried")),
    *((f"{name!r}", name, "schema") for name in ("Open", "", "closed", b"open")),
]
PEER = "/ip4/192.0.2.1/tcp/4001/p2p/" + reader.peer_id(public(NODE))
ADDRESS = [
    ("a circuit", PEER + "/p2p-circuit", "ok"),
    ("shortest", "/a", "ok"),
    ("longest", "/" + "a" * 159, "ok"),
    ("too long", "/" + "a" * 160, "schema"),
    ("a slash alone", "/", "schema"),
    ("no slash first", "ip4/192.0.2.1", "schema"),
    ("a blank", "/ip4/192.0.2.1 ", "schema"),
    ("a line end", "/ip4\n", "schema"),
]


def arrays(value: Any, least: int, most: int) -> list[Sample]:
    short = [("too few", [value] * (least - 1), "schema")] if least else []
    return [
        ("fewest", [value] * least, "ok"),
        ("most", [value] * most, "ok"),
        ("too many", [value] * (most + 1), "schema"),
        ("with nil", [None], "schema"),
        ("a map", {}, "schema"),
        *short,
    ]


DIGESTS = [index.to_bytes(32, "big") for index in range(3)]
SPAN = [7, 0, 1]
TURN = ["4", struct.pack("<I", 9), struct.pack("<f", -1), "stop"]


def number(value: float) -> bytes:
    return struct.pack("<f", value)


def turn(ids: bytes = TURN[1], **changes: Any) -> list[Any]:
    """A turn with other ids and as many log-probs, but for changes."""
    of = {"text": "4", "ids": ids, "logp": number(-1) * (len(ids) // 4), "finish": "stop"}
    return list((of | changes).values())


def completion(*turns: list[Any], **changes: Any) -> list[Any]:
    """A completion of these turns, with a span for each but for changes."""
    spans, end = [], 0
    for said in turns:
        spans.append([7, end, end + len(said[1]) // 4])
        end = spans[-1][2]
    return [list(turns), changes.get("spans", spans)]


def turns() -> Iterator[Sample]:
    """The only turn of a completion."""
    yield "cut", turn(finish="length"), "ok"
    yield "another finish", turn(finish="end"), "schema"
    yield "the longest text", turn(text="a" * 65536), "ok"
    yield "a longer text", turn(text="a" * 65537), "schema"
    yield "a text of more bytes than characters", turn(text="\u00e9" * 32769), "content"
    yield "as many bytes as a text may have", turn(text="\u00e9" * 32768), "ok"
    yield "a text of control characters", turn(text="\0\n\x7f"), "ok"
    yield "ids without a text", turn(text=""), "ok"
    yield "a text without ids", turn(b""), "schema"
    yield "a cut id", turn(bytes(5), logp=bytes(5)), "content"
    yield "fewer log-probs than ids", turn(bytes(8), logp=bytes(4)), "content"
    yield "a log-prob of 0", turn(logp=number(0)), "ok"
    yield "the greatest log-prob", turn(logp=number(1e-4)), "ok"
    yield "a greater log-prob", turn(logp=number(1.01e-4)), "content"
    yield "the least log-prob", turn(logp=number(-3.4e38)), "ok"
    for value in ("inf", "-inf", "nan"):
        yield f"a log-prob of {value}", turn(logp=number(float(value))), "content"
    yield "a turn with a field more", [*TURN, None], "schema"
    yield "a turn with a field less", TURN[:3], "schema"


def completions() -> Iterator[Sample]:
    """One completion of a group."""
    for name, said, expect in turns():
        yield name, completion(said), expect
    two, many = turn(bytes(8)), [[7, at, at + 1] for at in range(257)]
    yield "32,768 tokens", completion(turn(bytes(131072))), "ok"
    yield "32,769 tokens", completion(turn(bytes(131076))), "schema"
    yield "256 spans", completion(turn(bytes(1024)), spans=many[:256]), "ok"
    yield "257 spans", completion(turn(bytes(1028)), spans=many), "schema"
    yield "no span", completion(TURN, spans=[]), "schema"
    yield "a gap", completion(turn(bytes(12)), spans=[[7, 0, 1], [7, 2, 3]]), "content"
    yield "an overlap", completion(turn(bytes(12)), spans=[[7, 0, 2], [7, 1, 3]]), "content"
    yield "an empty span", completion(TURN, spans=[[7, 0, 0], [7, 0, 1]]), "content"
    yield "a span backwards", completion(two, spans=[[7, 2, 0]]), "content"
    yield "spans that end early", completion(two, spans=[[7, 0, 1]]), "content"
    yield "spans that end late", completion(TURN, spans=[[7, 0, 2]]), "content"
    yield "spans of falling versions", completion(two, spans=[[7, 0, 1], [6, 1, 2]]), "ok"
    yield "a span beyond every text", completion(TURN, spans=[[7, 0, 32769]]), "schema"
    yield "a version below 0", completion(TURN, spans=[[-1, 0, 1]]), "schema"
    yield "a field more", [*completion(TURN), None], "schema"
    yield "a field less", completion(TURN)[:1], "schema"
    yield "a turn in place of turns", [TURN, [SPAN]], "schema"


def dialogues() -> Iterator[Sample]:
    """One completion of several turns."""
    yield "two turns", completion(TURN, TURN), "ok"
    yield "16 turns", completion(*[TURN] * 16), "ok"
    yield "17 turns", completion(*[TURN] * 17), "schema"
    yield "no turn", [[], [SPAN]], "schema"
    yield "cut in its last turn", completion(TURN, turn(finish="length")), "ok"
    yield "cut in an earlier turn", completion(turn(finish="length"), TURN), "content"
    yield "the longest texts", completion(*[turn(text="a" * 65536)] * 2), "ok"
    yield "a longer text in the last turn", completion(TURN, turn(text="a" * 65537)), "schema"
    yield "a last turn without ids", completion(TURN, turn(b""), spans=[SPAN]), "schema"
    yield "32,768 tokens in two turns", completion(turn(bytes(131068)), TURN), "ok"
    yield "32,769 tokens in two turns", completion(turn(bytes(131072)), TURN), "schema"
    yield "a greater log-prob in the last turn", completion(TURN, turn(logp=number(1))), "content"
    nan = turn(logp=number(float("nan")))
    yield "a log-prob of nan in the first turn", completion(nan, TURN), "content"
    yield "a span across turns", completion(TURN, TURN, spans=[[7, 0, 2]]), "content"
    odd = [[7, 0, 1], [7, 1, 3]]
    yield "a span across the last two of three", completion(*[TURN] * 3, spans=odd), "content"
    yield "spans of the first turn alone", completion(TURN, TURN, spans=[SPAN]), "content"
    gap = [[7, 0, 1], [7, 2, 3]]
    yield "a gap behind the first turn", completion(TURN, turn(bytes(8)), spans=gap), "content"
    yield "with replies", [[TURN, TURN], [[7, 0, 1], [7, 1, 2]], ["higher"]], "schema"


def claims() -> Iterator[Sample]:
    yield "another claim", number(-7.5), "ok"
    yield "a claim too many", bytes(8), "content"
    yield "a cut claim", bytes(5), "content"
    yield "no claim", b"", "schema"
    yield "65 claims", bytes(260), "schema"
    for value in ("inf", "nan"):
        yield f"a claim of {value}", number(float(value)), "content"


def listed_keys() -> Iterator[Sample]:
    yield "none", [], "ok"
    yield "ascending", DIGESTS, "ok"
    yield "descending", DIGESTS[1::-1], "schema"
    yield "one twice", DIGESTS[:1] * 2, "schema"
    yield "a short one", [bytes(31)], "schema"


def rewards() -> Iterator[Sample]:
    for value in (0.0, 1.0, 0, 1, -0.0):
        yield f"a reward of {value!r}", [["gcd", value]], "ok"
    for odd in (-0.01, 1.01, 2, float("nan"), float("inf"), True, "1", None):
        yield f"a reward of {odd!r}", [["gcd", odd]], "schema"
    yield from arrays(["gcd", 0.5], 0, 64)


def figures() -> Iterator[Sample]:
    key, reasons = bytes(32), [["too_long", 1]]
    yield "twelve reasons", [[key, 0, reasons * 12]], "ok"
    yield "thirteen reasons", [[key, 0, reasons * 13]], "schema"
    yield "a count below 0", [[key, -1, []]], "schema"
    yield from arrays([key, 12, reasons], 0, 64)


def protocols() -> Iterator[Sample]:
    for middle, verdict in (("a", "ok"), ("z" * 24, "ok"), ("a" * 25, "schema"), ("", "schema"),
                            ("probe-for", "schema"), ("Pull", "schema")):  # fmt: skip
        yield f"for {middle!r}", f"/swarm-node/{middle}/1", verdict
    for number_, verdict in (("999", "ok"), ("1000", "schema"), ("", "schema"), ("1\n", "schema")):
        yield f"of version {number_!r}", f"/swarm-node/pull/{number_}", verdict


def endpoints() -> Iterator[Sample]:
    yield "IPv6", "/ip6/2001:db8::1/tcp/65535", "ok"
    for odd in ("/dns4/example.org/tcp/1", PEER, "/ip4/11.0.0.1/udp/1", "/ip4/11.0.0.1/tcp/",
                "/ip4/11.0.0.1/tcp/123456"):  # fmt: skip
        yield odd, odd, "schema"


def beats() -> Iterator[Sample]:
    """Addresses of a heartbeat."""
    long = "/" + "a" * 159
    yield "none", [], "ok"
    yield "four", [PEER] * 4, "ok"
    yield "five", ["/a"] * 5, "schema"
    yield "480 characters", [long] * 3, "ok"
    yield "481 characters", [long, long, "/" + "a" * 157, "/aa"], "schema"
    yield "with nil", [None], "schema"


METHODS = [("three letters", "PUT", "ok"), ("seven", "OPTIONS", "ok"), ("two", "GO", "schema"),
           ("eight", "OPTIONSS", "schema"), ("small", "get", "schema")]  # fmt: skip
TARGETS = [("one character", "/", "ok"), ("256", "/" * 256, "ok"), ("257", "/" * 257, "schema"),
           ("none", "", "schema"), ("any characters", "/\u00e9 ?", "ok")]  # fmt: skip
GROUP = [1, 5, 6, T0 * 1000, ["gcd", "1", "gcd", 42], [bytes(32), bytes(32), 7],
         [completion(TURN)], number(1)]  # fmt: skip

#: Of each type: a good message, and samples of its fields.
Fields = dict[tuple[int, ...], Any]
MESSAGES: dict[str, tuple[Any, Fields]] = {
    "rollout": (
        GROUP,
        {(0,): VERSION, (1,): COUNTER, (2,): SEQUENCE, (3,): MS, (4, 0): LABEL, (4, 1): LABEL,
         (4, 2): LABEL, (4, 3): COUNTER, (5, 0): DIGEST, (5, 1): DIGEST, (5, 2): COUNTER,
         (6, 0): [*completions(), *dialogues()], (7,): claims(),
         (6,): [("no completion", [], "schema"), ("65", [completion(TURN)] * 65, "schema")]},
    ),
    "record": (
        [1, 5, 6, bytes(34), 359, "gcd", "1", "gcd", bytes(32), bytes(32), 7, 2, True, 1],
        {(0,): VERSION, (1,): COUNTER, (2,): SEQUENCE, (3,): ID, (4,): integers(1, 4 << 20),
         (5,): LABEL, (6,): LABEL, (7,): LABEL, (8,): DIGEST, (9,): DIGEST, (10,): COUNTER,
         (11,): integers(1, 64), (12,): FLAG, (13,): integers(1, 16)},
    ),
    "head": (
        [1, [PEER], 7, 5, 6, T0 * 1000, "swarm-node", 3, 1, False, True],
        {(0,): VERSION, (1,): beats(), (1, 0): ADDRESS, (2,): COUNTER, (3,): COUNTER,
         (4,): COUNTER, (5,): MS, (6,): AGENT, (7,): COUNTER, (8,): COUNTER, (9,): FLAG,
         (10,): FLAG},
    ),
    "issuer": (
        [1, public(ISSUER), "Anna", T0, T0 + DAY, 30 * DAY, False, 0],
        {(0,): VERSION, (1,): DIGEST, (2,): NAME, (3,): SECONDS, (4,): SECONDS,
         (5,): integers(1, 316224000), (6,): FLAG, (7,): integers(0, 1000)},
    ),
    "cert": (
        [1, public(NODE), T0, T0 + DAY, "Anna", public(ISSUER)],
        {(0,): VERSION, (1,): DIGEST, (2,): SECONDS, (3,): SECONDS, (4,): NAME, (5,): DIGEST},
    ),
    "revoke": (
        [1, 1, T0, T0 + 1, [bytes(32)]],
        {(0,): VERSION, (1,): SEQUENCE, (4,): listed_keys(),
         (2,): [("0", 0, "ok"), ("-1", -1, "schema"), ("as it ends", T0 + 1, "schema")],
         (3,): [("last", 253402300799, "ok"), ("later", 253402300800, "schema")]},
    ),
    "secret": (
        [1, 1, T0, bytes(32)],
        {(0,): VERSION, (1,): SEQUENCE, (2,): SECONDS, (3,): DIGEST},
    ),
    "statement": ([b"", b"sealed"], {(0,): CERTIFICATE, (1,): binaries(0, 36 << 10)}),
    "relay": (
        [1, public(OTHER), "/swarm-node/pull/1", bytes(16), T0 * 1000, 4096, b"asked"],
        {(0,): VERSION, (1,): DIGEST, (2,): protocols(), (3,): NONCE, (4,): MS,
         (5,): integers(0, 8 << 20), (6,): binaries(0, 65024)},
    ),
    "reply": (
        [1, bytes(16), False, 5, bytes(32)],
        {(0,): VERSION, (1,): NONCE, (2,): FLAG, (3,): integers(0, 8 << 20), (4,): DIGEST},
    ),
    "call": (
        [1, "GET", "/v1/history", T0 * 1000, bytes(16), bytes(32)],
        {(0,): VERSION, (1,): METHODS, (2,): TARGETS, (3,): MS, (4,): NONCE, (5,): DIGEST},
    ),
    "report": (
        [1, T0 * 1000, "a", "tiny", "open", *range(7), [["gcd", 0.5]], [[bytes(32), 1, []]]],
        {(0,): VERSION, (1,): MS, (2,): AGENT, (3,): LABEL, (4,): LABEL,
         **{(index,): COUNTER for index in range(5, 12)}, (12,): rewards(), (12, 0, 0): LABEL,
         (13,): figures(), (13, 0, 0): DIGEST},
    ),
    "batch": (
        [1, 1, bytes(32), bytes(32), T0 * 1000],
        {(0,): VERSION, (1,): SEQUENCE, (2,): DIGEST, (3,): DIGEST, (4,): MS},
    ),
    "presence": (
        [b"head", b"issuer", b"member"],
        {(0,): binaries(0, 716), (1,): CERTIFICATE, (2,): CERTIFICATE},
    ),
    "shown": (
        [b"call", b"issuer", b"member"],
        {(0,): binaries(0, 576), (1,): CERTIFICATE, (2,): CERTIFICATE},
    ),
    "hello": (
        [[b"issuer", b"member"], "swarm-node", [PEER], 3, 1],
        {(0,): arrays(b"certificate", 0, 2), (0, 0): CERTIFICATE, (1,): AGENT,
         (2,): arrays(PEER, 0, 8), (2, 0): ADDRESS, (3,): COUNTER, (4,): COUNTER},
    ),
    "list": ([5, 6, 128], {(0,): COUNTER, (1,): COUNTER, (2,): integers(1, 1000)}),
    "listed": (
        [5, 6, 0, [b"record"]],
        {(0,): COUNTER, (1,): COUNTER, (2,): COUNTER, (3,): arrays(b"", 0, 1000),
         (3, 0): binaries(0, 768)},
    ),
    "pull": ([bytes(34)], {(0,): ID}),
    "peers": ([8], {(0,): integers(1, 100)}),
    "presences": ([[b"presence"]], {(0,): arrays(b"", 0, 100), (0, 0): binaries(0, 1366)}),
    "renewed": ([b"issuer", b"member"], {(0,): CERTIFICATE, (1,): CERTIFICATE}),
    "claims": ([bytes(32)], {(0,): DIGEST}),
    "claimed": (
        [[[bytes(32), [b"issuer", b"member"], T0 * 1000]]],
        {(0,): arrays([bytes(32), [], 0], 0, 8), (0, 0, 0): DIGEST, (0, 0, 2): MS,
         (0, 0, 1): arrays(b"", 0, 2)},
    ),
    "probe": ([[4001, 443]], {(0,): arrays(1, 0, 4), (0, 0): integers(1, 65535)}),
    "probed": (
        ["/ip4/11.0.0.1/tcp/4001", [[4001, "open"]], "timeout", T0 * 1000],
        {(0,): [("empty", "", "ok"), ("longest", "a" * 160, "ok"), ("longer", "a" * 161, "schema")],
         (1,): arrays([1, "open"], 0, 5), (1, 0, 0): integers(1, 65535), (1, 0, 1): OUTCOME,
         (2,): OUTCOME, (3,): MS},
    ),
    "probe-for": (
        [reader.peer_id(public(NODE)), "/ip4/11.0.0.1/tcp/4001"],
        {(0,): [("longest", "a" * 64, "ok"), ("longer", "a" * 65, "schema")], (1,): ADDRESS},
    ),
    "outcome": (["open"], {(0,): OUTCOME}),
    "punch": (["/ip4/11.0.0.1/tcp/4001"], {(0,): endpoints()}),
}  # fmt: skip


def parts(data: bytes) -> list[dict[str, Any]]:
    """`data` in hex, with its longest run of one piece given as a count when it is long."""
    for piece in (b"\0", b"a", b"/", "\u00e9".encode(), number(-1)):
        run = piece * 128
        start = data.find(run)
        if start >= 0:
            end = start
            while data[end : end + len(piece)] == piece:
                end += len(piece)
            times = {"hex": piece.hex(), "times": (end - start) // len(piece)}
            return [{"hex": data[:start].hex()}, times, *parts(data[end:])]
    return [{"hex": data.hex()}] if data else []


def encodings(base: list[Any]) -> Iterator[tuple[str, bytes, str]]:
    """A good message in other encodings, and what is around its array."""
    packed = msgpack.packb(base)
    rest = packed[1:] if packed[0] < 0xA0 else packed[3:]
    yield "as it is", packed, "ok"
    yield "array 16", b"\xdc" + struct.pack(">H", len(base)) + rest, "ok"
    yield "array 32", b"\xdd" + struct.pack(">I", len(base)) + rest, "ok"
    yield "a byte more", packed + b"\0", "schema"
    yield "a byte less", packed[:-1], "schema"
    yield "a field more", msgpack.packb([*base, 0]), "schema"
    yield "a field less", msgpack.packb(base[:-1]), "schema"
    yield "a map", msgpack.packb({str(index): field for index, field in enumerate(base)}), "schema"
    yield "nothing", b"", "schema"
    yield "in an array", msgpack.packb([base]), "schema"


def messages() -> list[dict[str, Any]]:
    made = []
    for kind, (base, changes) in MESSAGES.items():
        cases = [
            {"name": name, "at": list(at), "value": parts(msgpack.packb(value)), "expect": expect}
            for at, samples in changes.items()
            for name, value, expect in samples
        ]
        whole = [
            {"name": name, "whole": parts(data), "expect": expect}
            for name, data, expect in [*encodings(base), *special(kind, base)]
        ]
        sample = msgpack.packb(base).hex()
        made.append({"type": kind, "sample": sample, "cases": [*cases, *whole]})
    return made


def special(kind: str, base: list[Any]) -> Iterator[tuple[str, bytes, str]]:
    """What no change of a field makes."""
    if kind == "list":
        yield (
            "integers of 64 bits",
            b"\x93" + b"".join(b"\xcf" + struct.pack(">Q", value) for value in base),
            "ok",
        )
        yield (
            "signed integers",
            b"\x93" + b"".join(b"\xd3" + struct.pack(">q", value) for value in base),
            "ok",
        )
        yield "a request that is too long", msgpack.packb(base) + bytes(65536), "size"
    if kind == "pull":
        yield "bin 32", b"\x91\xc6" + struct.pack(">I", 34) + bytes(34), "ok"
        yield "an extension", b"\x91\xc7\x22\x01" + bytes(34), "schema"
    if kind == "report":
        packed = msgpack.packb(base, use_single_float=True)
        yield "a reward of 32 bits", packed, "ok"
    if kind == "outcome":
        yield "str 8", b"\x91\xd9\x04open", "ok"
        yield "str 32", b"\x91\xdb\0\0\0\x04open", "ok"
        yield "513 bytes", b"\x91\xdb\0\0\0\x04open" + bytes(503), "size"
    if kind == "rollout":
        good = msgpack.packb(base)
        for name, odd in (("no UTF-8", b"\xa1\xff"), ("a surrogate", b"\xa3\xed\xa0\x80"),
                          ("an overlong form", b"\xa2\xc0\x80")):  # fmt: skip
            yield name, good.replace(b"\xa14\xc4\x04", odd + b"\xc4\x04"), "schema"
        most = [*base[:6], [completion(TURN)] * 64, bytes(256)]
        yield "64 completions", msgpack.packb(most), "ok"
        yield "more than a body", good + bytes(4 << 20), "size"


# Cases of rules.


def signatures() -> list[dict[str, Any]]:
    """RECORDs under keys and signatures that implementations judge differently."""
    scalar = int.from_bytes(hashlib.sha256(b"scalar").digest(), "little") % ed25519.L
    once = int.from_bytes(hashlib.sha256(b"once").digest(), "little") % ed25519.L
    sound = ed25519.times(scalar, ed25519.BASE)
    eighth = ed25519.decoded(bytes.fromhex(SMALL))
    assert eighth is not None
    mixed, random = ed25519.added(sound, eighth), ed25519.times(once, ed25519.BASE)

    def entry(name: str, key: bytes, r: bytes, body: bytes, nonce: int, expect: str) -> Any:
        message = reader.pae(reader.RECORD, SWARM_ID, body)
        k = ed25519.challenge(r, key, message)
        s = (nonce + k * scalar) % ed25519.L
        sealed = msgpack.packb([reader.RECORD, body, key, r + s.to_bytes(32, "little")])
        return {"name": name, "sealed": sealed.hex(), "expect": expect}

    def bodies(key: bytes, r: bytes, reduced: bool, whole: bool) -> bytes:
        """A body whose k is a multiple of 8 or not, reduced modulo L and before that."""
        for number_ in range(10_000):
            body = b"%d" % number_
            k = ed25519.challenge(r, key, reader.pae(reader.RECORD, SWARM_ID, body))
            if (k % ed25519.L % 8 == 0, k % 8 == 0) == (reduced, whole):
                return body
        raise AssertionError("no such body")

    key, r = ed25519.encoded(sound), ed25519.encoded(random)
    strange, neutral = ed25519.encoded(mixed), (1).to_bytes(32, "little")
    made = [
        entry("by a key of prime order", key, r, b"body", once, "ok"),
        entry("R with a part of small order", key, ed25519.encoded(ed25519.added(random, eighth)),
              b"body", once, "signature"),
        entry("R is the neutral element", key, neutral, b"body", 0, "ok"),
        entry("R is the neutral element, y = p + 1", key,
              (ed25519.P + 1).to_bytes(32, "little"), b"body", 0, "signature"),
        entry("R is the neutral element, x negative", key, neutral[:-1] + b"\x80", b"body", 0,
              "signature"),
        entry("a key of mixed order", strange, r, bodies(strange, r, False, False), once,
              "signature"),
        entry("a key of mixed order, k modulo L is a multiple of 8", strange, r,
              bodies(strange, r, True, False), once, "ok"),
        entry("a key of mixed order, only k itself is a multiple of 8", strange, r,
              bodies(strange, r, False, True), once, "signature"),
    ]  # fmt: skip
    for length, expect in ((64, "kind"), (65, "schema")):
        kind = msgpack.packb(["k" * length, b"body", key, bytes(64)])
        name = f"another kind of {length} characters"
        made.append({"name": name, "sealed": kind.hex(), "expect": expect})
    for name, odd in (("a key that is no point", (2).to_bytes(32, "little")),
                      ("y = p", ed25519.P.to_bytes(32, "little"))):  # fmt: skip
        made.append(
            entry(name, odd, r, b"body", once, "signature" if "no point" in name else "key")
        )
    return made


SMALL = "26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc05"


def windows() -> list[dict[str, Any]]:
    """Groups of one author in the order in which they come: [epoch, seq, verdict]."""
    return [
        {"name": "in order", "steps": [[5, 1, "ok"], [5, 2, "ok"], [5, 2, "duplicate"]]},
        {"name": "the first may be any", "steps": [[5, 2**61, "ok"], [5, 2**61 - 1, "ok"]]},
        {
            "name": "1,024 up to the newest",
            "steps": [[5, 2000, "ok"], [5, 977, "ok"], [5, 976, "too_old"], [5, 977, "duplicate"]],
        },
        {
            "name": "a jump",
            "steps": [
                *([5, 1, "ok"], [5, 1_000_002, "sequence"], [5, 1_000_001, "ok"]),
                *([5, 1, "too_old"], [6, 5_000_000, "ok"]),
            ],
        },
        {
            "name": "epochs",
            "steps": [
                *([5, 9, "ok"], [6, 9, "ok"], [5, 10, "too_old"], [5, 9, "too_old"]),
                *([6, 8, "ok"], [6, 9, "duplicate"], [7, 9, "ok"]),
            ],
        },
    ]


def frames() -> list[dict[str, Any]]:
    """Bytes of a stream, for a reader that takes so many of payload."""

    def reply(payload: bytes, status: int = 0, digest: bytes | None = None) -> bytes:
        digest = hashlib.sha256(payload).digest() if digest is None else digest
        return bytes([status]) + struct.pack(">Q", len(payload)) + payload + digest

    def entry(name: str, what: str, raw: bytes, expect: str, limit: int = 300) -> dict[str, Any]:
        found = {"name": name, "what": what, "bytes": raw.hex(), "limit": limit, "expect": expect}
        return found | {"ack": expect in ("done", "refused") and what == "reply"}

    return [
        entry("a request", "request", struct.pack(">Q", 5) + b"asked", "done"),
        entry("an empty request", "request", bytes(8), "done"),
        entry("the longest request", "request", struct.pack(">Q", 300) + bytes(300), "done"),
        entry("a longer request", "request", struct.pack(">Q", 301), "size"),
        entry("a huge request", "request", b"\xff" * 8, "size"),
        entry("a cut request", "request", struct.pack(">Q", 5) + b"aske", "failed"),
        entry("a cut length", "request", bytes(7), "failed"),
        entry("a reply", "reply", reply(b"replied"), "done"),
        entry("an empty reply", "reply", reply(b""), "done"),
        entry("the longest reply", "reply", reply(bytes(300)), "done"),
        entry("a longer reply", "reply", b"\0" + struct.pack(">Q", 301), "size"),
        entry("a refusal", "reply", reply(b"say hello first", 1), "refused"),
        entry("the longest refusal", "reply", reply(bytes(256), 1), "refused"),
        entry("a longer refusal", "reply", b"\1" + struct.pack(">Q", 257), "size"),
        entry("a refusal of what takes no payload", "reply", reply(b"no relay now", 1),
              "refused", 0),
        entry("another status", "reply", reply(b"replied", 2), "failed"),
        entry("a wrong hash", "reply", reply(b"replied", 0, bytes(32)), "failed"),
        entry("a cut hash", "reply", reply(b"replied")[:-1], "failed"),
    ]  # fmt: skip


def refusals() -> list[dict[str, Any]]:
    """Texts of refused replies: what they say, "" for no text of the table."""
    texts_ = {
        "say hello first": "say hello first",
        "not here (any more)": "not here (any more)",
        "no member of this swarm: expired": "no member of this swarm",
        "no member of this swarm: expired 7200": "no member of this swarm",
        "no member of this swarm: expired 999999999": "no member of this swarm",
        "no member of this swarm: expired 1000000000": "",
        "no member of this swarm: expired -1": "",
        "no member of this swarm:expired": "",
        "no member of this swarm": "",
        "bad request: schema": "bad request",
        "bad request: schema 7": "",
        "bad request: " + "a" * 25: "",
        "bad request: Schema": "",
        "refused: route": "refused",
        "refused: not_delegate 7": "",
        "the peer does not serve /swarm-node/pull/1": "the peer does not serve",
        "the peer does not serve it": "",
        "too many requests; slow down": "too many requests; slow down",
        "you broke the protocol: ask again later": "you broke the protocol: ask again later",
        "say hello first ": "",
        "Say hello first": "",
        "please: say hello first": "",
        "": "",
    }
    return [{"text": text_, "says": says} for text_, says in texts_.items()]


def issuer(
    key: Ed25519PrivateKey = ISSUER, *, uses: int = 0, delegate: bool = False, by: Any = ROOT
) -> bytes:
    name = "owner" if delegate else "Anna"
    body = [1, public(key), name, T0, T0 + DAY, 30 * DAY, delegate, uses]
    return seal(by, reader.ISSUER, body)


def member(
    key: Ed25519PrivateKey = NODE, begin: int = T0, end: int = T0 + 30 * DAY,
    by: Ed25519PrivateKey = ISSUER, name: str = "Anna", first: Ed25519PrivateKey | None = None,
) -> bytes:  # fmt: skip
    return seal(by, reader.CERT, [1, public(key), begin, end, name, public(first or by)])


def chains() -> list[dict[str, Any]]:
    """Two reasons at once: the first rule wins. `listed` are keys of the list in force, `blocked`
    of this node's own blocks, `met` are subjects of the issuer in the order of their meeting."""

    def entry(name: str, expect: str, chain: list[bytes], now: int = T0 + 10, **more: Any) -> Any:
        lists = {"listed": [], "blocked": [], "met": []} | more
        shown = {field: [public(key).hex() for key in keys] for field, keys in lists.items()}
        found = {"name": name, "chain": [raw.hex() for raw in chain], "now": now, "expect": expect}
        return {**found, "subject_key": public(NODE).hex(), **shown}

    good, late = [issuer(), member()], T0 + 31 * DAY
    delegate = [issuer(DELEGATE, delegate=True), member(by=DELEGATE, first=ISSUER)]
    pair, long = issuer(uses=1), member(end=T0 + 31 * DAY)
    outside = member(begin=T0 + 2 * DAY, end=T0 + 33 * DAY)
    return [
        entry("a member that is listed", "revoked", good, listed=[NODE]),
        entry("whose issuer is listed", "revoked", good, listed=[ISSUER]),
        entry("renewed, and whose first issuer is listed", "revoked", delegate, listed=[ISSUER]),
        entry("renewed by a listed delegate", "revoked", delegate, listed=[DELEGATE]),
        entry("a list of others", "ok", good, listed=[OTHER, DELEGATE, ROOT]),
        entry("listed and blocked", "revoked", good, listed=[NODE], blocked=[NODE]),
        entry("blocked and expired", "blocked", good, late, blocked=[NODE]),
        entry("whose issuer is blocked", "blocked", delegate, blocked=[ISSUER]),
        entry("renewed by a blocked delegate", "ok", delegate, blocked=[DELEGATE]),
        entry("listed and of another key", "wrong_subject", [issuer(), member(OTHER)],
              listed=[OTHER]),
        entry("listed and by no delegate", "not_delegate", [issuer(), member(first=OTHER)],
              listed=[NODE]),
        entry("listed and expired", "revoked", good, late, listed=[NODE]),
        entry("outside and too long", "outside_issuer", [issuer(), outside]),
        entry("too long and expired", "outside_issuer", [issuer(), long], late + DAY),
        entry("of another's name and key", "wrong_subject", [issuer(), member(OTHER, name="B")]),
        entry("by another and of another kind", "kind", [issuer(), issuer(OTHER, by=OTHER)]),
        entry("another kind than that of an issuer, not by the root", "kind",
              [member(by=OTHER), member()]),
        entry("an issuer by another, and a damaged certificate", "wrong_root",
              [issuer(by=OTHER), member()[:-1]]),
        entry("no certificate", "schema", []),
        entry("one certificate", "schema", [issuer()]),
        entry("a certificate that is too long", "size", [issuer(), bytes(321)]),
        entry("the first of a ticket for one", "ok", [pair, member()]),
        entry("the second of it", "used_up", [pair, member()], met=[OTHER]),
        entry("the second of it, and expired", "expired", [pair, member()], late, met=[OTHER]),
        entry("the second of it, and listed", "revoked", [pair, member()], met=[OTHER],
              listed=[NODE]),
    ]  # fmt: skip


def presences() -> list[dict[str, Any]]:
    """Two reasons at once: the HEAD, the chain to its key, its clock, then the other rules."""

    def head(at: int, **more: Any) -> bytes:
        body = [1, [], 7, 1, 5, at * 1000, "swarm-node", 0, 0, False, False]
        return seal(more.get("by", NODE), reader.HEAD, body)

    def entry(name: str, expect: str, fields: list[bytes], now: int) -> dict[str, Any]:
        raw = msgpack.packb(fields)
        return {"name": name, "presence": raw.hex(), "now": now, "expect": expect}

    good, short = [issuer(), member()], member(end=T0 + 2000)
    outside = member(begin=T0 + 2 * DAY, end=T0 + 3 * DAY)
    now = T0 + 5000
    return [
        entry("now, by an ended member", "expired", [head(now), issuer(), short], now),
        entry("old, by an ended member", "outdated", [head(now - 901), issuer(), short], now),
        entry("ahead, by a member that begins later", "not_yet_valid",
              [head(now + 301), issuer(), member(begin=now + 400)], now),
        entry("ahead of this clock, by a member that begins later", "not_yet_valid",
              [head(now + 300), issuer(), member(begin=now + 400)], now),
        entry("old, from outside its issuer", "outdated", [head(T0), issuer(), outside], now),
        entry("from outside its issuer", "outside_issuer", [head(now), issuer(), outside], now),
        entry("old, with another's chain", "wrong_subject", [head(T0, by=OTHER), *good], now),
        entry("a body that is no HEAD, with another's chain", "schema",
              [seal(OTHER, reader.HEAD, [1]), *good], now),
    ]  # fmt: skip


def relayed() -> list[dict[str, Any]]:
    """A reply of OTHER to a request of NODE that takes 100 bytes."""
    nonce = bytes(range(16))

    def entry(
        name: str, expect: str, payload: bytes, *, refused: bool = False, size: int | None = None,
        follows: bytes | None = None,
    ) -> dict[str, Any]:  # fmt: skip
        size = len(payload) if size is None else size
        head = [1, nonce, refused, size, hashlib.sha256(payload).digest()]
        sealed = seal(OTHER, reader.REPLY, head)
        follows = payload if follows is None else follows
        raw = struct.pack(">H", len(sealed)) + sealed + follows
        return {"name": name, "reply": raw.hex(), "expect": expect}

    body = [1, public(OTHER), "/swarm-node/pull/1", nonce, T0 * 1000, 100, b"asked"]
    cases = [
        entry("as much as the asker takes", "ok", bytes(100)),
        entry("nothing", "ok", b""),
        entry("a byte more, which does not follow", "size", bytes(101), follows=b""),
        entry("a byte more, which follows", "size", bytes(101)),
        entry("a refusal of more than the asker takes", "refused", bytes(256), refused=True),
        entry("a longer refusal", "size", bytes(257), refused=True, follows=b""),
        entry("another size", "altered", bytes(5), size=6),
        entry("nothing follows", "altered", bytes(5), follows=b""),
        {"name": "no head", "reply": "", "expect": "altered"},
        {"name": "a length alone", "reply": "0001", "expect": "altered"},
    ]
    return [{"request": seal(NODE, reader.RELAY, body).hex(), **case} for case in cases]


def tickets() -> list[dict[str, Any]]:
    """Texts of tickets at a time, "ok" or "refused"."""
    good = MEMBERSHIP["ticket"]["text"]
    encoded = good.removeprefix("swarmjoin1.")
    raw = base64.urlsafe_b64decode(encoded + "=" * (-len(encoded) % 4))
    body, expires = msgpack.unpackb(raw[2:-8]), MEMBERSHIP["ticket"]["expires"]

    def text_(packed: bytes, checksum: bytes | None = None, more: bytes = b"") -> str:
        digest = hashlib.sha256(b"swarm-node/ticket/v1" + packed).digest()[:8]
        data = struct.pack(">H", len(packed)) + packed + (checksum or digest) + more
        return "swarmjoin1." + base64.urlsafe_b64encode(data).decode().rstrip("=")

    def changed(at: int, value: Any) -> str:
        return text_(msgpack.packb([*body[:at], value, *body[at + 1 :]]))

    def entry(name: str, expect: str, ticket: str, now: int = T0) -> dict[str, Any]:
        return {"name": name, "text": ticket, "now": now, "expect": expect}

    wrong = [1, public(ISSUER), "Anna", T0, expires, DAY, False, 0]
    return [
        entry("at its begin", "ok", good),
        entry("300 s before", "ok", good, T0 - 300),
        entry("301 s before", "refused", good, T0 - 301),
        entry("at its end", "ok", good, expires),
        entry("a second later", "refused", good, expires + 1),
        entry("with white space", "ok", f" {good[:7]}\n\t{good[7:99]} \u00a0{good[99:]}\r\n"),
        entry("with too much of it", "refused", good + " " * (4097 - len(good))),
        entry("with as much as there may be", "ok", good + " " * (4096 - len(good))),
        entry("cut", "refused", good[:-4]),
        entry("a character more, alone", "ok" if len(encoded) % 4 == 0 else "refused", good + "A"),
        entry("bytes after the checksum", "refused", text_(raw[2:-8], more=b"\0\0\0")),
        entry("another checksum", "refused", text_(raw[2:-8], bytes(8))),
        entry("another alphabet", "refused", good[:-1] + "+"),
        entry("padded", "refused", good + "="),
        entry("another prefix", "refused", good.replace("swarmjoin1", "swarmjoin2")),
        entry("made again", "ok", text_(raw[2:-8])),
        entry("version 2", "refused", changed(0, 2)),
        entry("another name", "refused", changed(1, "another")),
        entry("another swarm id", "refused", changed(2, bytes(32))),
        entry("another root", "refused", changed(3, public(OTHER))),
        entry("a root key of small order", "refused", changed(3, bytes(32))),
        entry("another secret", "ok", changed(4, bytes(32))),
        entry("no address", "ok", changed(5, [])),
        entry("nine addresses", "refused", changed(5, [PEER] * 9)),
        entry("another end", "refused", changed(6, expires + 1)),
        entry("a certificate by another", "refused", changed(7, seal(OTHER, reader.ISSUER, wrong))),
        entry("another seed", "refused", changed(8, bytes(32))),
        entry("another number of the secret", "ok", changed(9, 2**61)),
    ]


def claimed() -> dict[str, Any]:
    """Meetings [subject, ms] of an issuer that admits two, who stays of them, and the digest of
    its claims."""
    subjects = [public(key) for key in KEYS]
    key = public(ISSUER)
    met = [[subjects[2], 50], [subjects[0], 70], [subjects[4], 60], [subjects[3], 60]]
    order = sorted(met, key=lambda row: (row[1], hashlib.sha256(key + row[0]).digest()))
    told = b"".join(sorted(key + subject for subject, _ in met))
    return {
        "issuer": key.hex(),
        "uses": 2,
        "met": [[subject.hex(), at] for subject, at in met],
        "stay": sorted(subject.hex() for subject, _ in order[:2]),
        "digest": hashlib.sha256(told).hexdigest(),
    }


def nonces() -> list[dict[str, Any]]:
    """Relayed requests of one asker as they come: [issued_ms, number of the nonce, Unix ms of the
    target, verdict]."""
    now = T0 * 1000
    many = [[now + number_, number_, now + 500, "ok"] for number_ in range(257)]
    return [
        {
            "name": "clocks",
            "steps": [
                *([now - 300_000, 1, now, "ok"], [now - 300_001, 2, now, "outdated"]),
                *([now + 300_000, 3, now, "ok"], [now + 300_001, 4, now, "not_yet_valid"]),
                *([now - 300_001, 1, now, "outdated"], [now, 2, now, "ok"]),
            ],
        },
        {
            "name": "a second time",
            "steps": [[now, 1, now, "ok"], [now, 1, now, "duplicate"], [now, 2, now, "ok"],
                      [now + 9, 1, now, "duplicate"]],
        },
        {
            "name": "after 256 others",
            "steps": [
                *many,
                *([now, 0, now + 500, "outdated"], [now, 1000, now + 500, "outdated"]),
                *([now + 1, 1, now + 500, "duplicate"], [now + 1, 1001, now + 500, "ok"]),
                *([now + 1, 1, now + 500, "outdated"], [now + 2, 1002, now + 500, "ok"]),
            ],
        },
        {
            "name": "the last to come are kept, whatever their times",
            "steps": [
                [now + 9000, 1000, now, "ok"],
                *[[now + number_, number_, now, "ok"] for number_ in range(256)],
                *([now + 9000, 1001, now, "outdated"], [now + 9001, 1002, now, "ok"]),
            ],
        },
    ]  # fmt: skip


def addresses() -> list[dict[str, str]]:
    """Addresses that members state: "direct", "circuit", or "none" for what is passed over."""
    peer, relay = (reader.peer_id(public(key)) for key in (NODE, OTHER))
    on = f"/ip4/192.0.2.1/tcp/4001/p2p/{relay}"
    texts_ = {
        f"/ip4/192.0.2.1/tcp/4001/p2p/{peer}": "direct",
        f"/ip6/2001:db8::1/tcp/1/p2p/{peer}": "direct",
        f"/dns4/a.example.org/tcp/65535/p2p/{peer}": "direct",
        f"/dns6/example/tcp/4001/p2p/{peer}": "direct",
        f"/dns/example.org/tcp/4001/p2p/{peer}": "none",
        f"/ip4/192.0.2.1/udp/4001/p2p/{peer}": "none",
        f"/ip4/192.0.2.1/tcp/4001/ws/p2p/{peer}": "none",
        f"/ip4/192.0.2.1/tcp/0/p2p/{peer}": "none",
        f"/ip4/192.0.2.1/tcp/65536/p2p/{peer}": "none",
        f"/ip4/192.0.2.256/tcp/4001/p2p/{peer}": "none",
        f"/ip4/192.0.2.01/tcp/4001/p2p/{peer}": "none",
        f"/ip4/2001:db8::1/tcp/4001/p2p/{peer}": "none",
        f"/ip6/fe80::1%eth0/tcp/4001/p2p/{peer}": "none",
        "/ip4/192.0.2.1/tcp/4001": "none",
        f"/ip4/192.0.2.1/tcp/4001/p2p/{peer[:-1]}": "none",
        "/ip4/192.0.2.1/tcp/4001/p2p/QmYwAPJzv5CZsnA625s3Xf2nemtYgPpHdWEz79ojWnPbdG": "none",
        f"{on}/p2p-circuit": "circuit",
        f"{on}/p2p-circuit/p2p/{peer}": "circuit",
        f"{on}/p2p-circuit/p2p/{relay}": "none",
        f"{on}/p2p-circuit/p2p/{peer}/p2p-circuit": "none",
        f"{on}/p2p-circuit/": "none",
        "/ip4/192.0.2.1/tcp/4001/p2p-circuit": "none",
    }
    return [{"name": text_, "expect": kind} for text_, kind in texts_.items()]


def batches() -> list[dict[str, Any]]:
    """Batches in the order in which a coordinator shows them. "fault": the owner is told."""

    def batch(number_: int, before: bytes, key: Any = OTHER, at: int = 0) -> bytes:
        previous = hashlib.sha256(before).digest() if before else bytes(32)
        return seal(key, reader.BATCH, [1, number_, previous, bytes(32), T0 * 1000 + at])

    first = batch(1, b"")
    second = batch(2, first)
    third = batch(3, second)
    shown = {
        "in order": ("ok", [first, second, third]),
        "the newest again": ("ok", [first, second, second, third]),
        "two of one number": ("fault", [first, second, batch(2, first, at=1)]),
        "one that does not continue": ("fault", [first, batch(2, second)]),
        "a lower number": ("fault", [first, second, first]),
        "another key": ("fault", [first, batch(2, first, ROOT)]),
        "one is missing": ("fault", [first, third]),
    }
    return [
        {"name": name, "expect": expect, "batches": [raw.hex() for raw in raws]}
        for name, (expect, raws) in shown.items()
    ]


def tag() -> dict[str, str]:
    """The tag of a message of the distributed table."""
    name, message = "dht.PingRequest", b"a serialized message"
    key = bytes.fromhex(MEMBERSHIP["table"]["tag_key"])
    made = hmac.digest(key, struct.pack(">H", len(name)) + name.encode() + message, "sha256")
    return {"name": name, "message": message.hex(), "tag": made.hex()}


def main() -> None:
    content = {
        "messages": messages(),
        "signatures": signatures(),
        "windows": windows(),
        "frames": frames(),
        "refusals": refusals(),
        "chains": chains(),
        "presences": presences(),
        "relayed": relayed(),
        "tickets": tickets(),
        "nonces": nonces(),
        "addresses": addresses(),
        "batches": batches(),
        "claims": claimed(),
        "tag": tag(),
    }
    text_ = json.dumps(content, indent=None, ensure_ascii=True, separators=(",", ":"))
    text_ = text_.replace('},{"', '},\n{"') + "\n"
    (HERE / "limits.json").write_text(text_)
    print(f"limits.json: {len(text_)} bytes")


if __name__ == "__main__":
    main()
