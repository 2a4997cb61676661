"""Writes the test vectors next to this file. Run it only when the protocol changes on purpose.

    python tests/vectors/make_vectors.py

Keys come from fixed seeds, so the same code writes the same bytes. Long runs of one byte are stored
as {"hex", "times"} parts, to keep the files small.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgpack
import numpy as np
from msgspec import structs, to_builtins

from swarm_node.clock import SYSTEM_CLOCK
from swarm_node.environments.splits.split import (
    HELD_OUT_SHARE,
    SPLIT,
    canonical,
    is_held_out,
    next_seed,
    position,
)
from swarm_node.p2p.coordinator.coordination import (
    Call,
    PeerCounts,
    Report,
    SignedBatch,
    next_batch,
    open_batch,
)
from swarm_node.p2p.membership.membership import (
    IssuerBody,
    MemberBody,
    create_swarm,
    issue_issuer,
    issue_member,
)
from swarm_node.p2p.membership.ticket import make_ticket
from swarm_node.p2p.reach.lan import Lan
from swarm_node.p2p.reach.probe import (
    PortOutcome,
    ProbeForReply,
    ProbeForRequest,
    ProbeReply,
    ProbeRequest,
)
from swarm_node.p2p.reach.punch import Punch
from swarm_node.p2p.reach.relayed import Request, request_to, seal_reply, seal_request
from swarm_node.p2p.transports.hivemind.records import (
    HeartbeatRecords,
    SwarmAuthorizer,
    heartbeat_key,
)
from swarm_node.p2p.wire.envelope import Kind, content_id, seal, signed_bytes
from swarm_node.p2p.wire.frames import Reply
from swarm_node.p2p.wire.groups import pack_group
from swarm_node.p2p.wire.identity import Identity, peer_id_of
from swarm_node.p2p.wire.wire import Announcement, Body, Heartbeat, Presence, pack
from swarm_node.rollout import (
    HELD_OUT_SEED,
    SEED_LIMIT,
    Completion,
    EarlierTurn,
    Finish,
    PolicyRef,
    RolloutGroup,
    TaskRef,
    VersionSpan,
)

HERE = Path(__file__).parent
ROOT = Identity.from_seed(bytes([1]) * 32)
ISSUER = Identity.from_seed(bytes([2]) * 32)
NODE = Identity.from_seed(bytes([3]) * 32)
OTHER = Identity.from_seed(bytes([4]) * 32)
SWARM = create_swarm("vectors", ROOT, bytes([5]) * 32)
T0, HOUR, DAY = 1_800_000_000, 3600, 86_400
DELEGATE = Identity.from_seed(bytes([6]) * 32)
DELEGATE_CERTIFICATE = issue_issuer(
    ROOT, SWARM, DELEGATE.public_key,
    name="owner", not_before=T0, not_after=T0 + 365 * DAY, member_seconds=90 * DAY, delegate=True,
)  # fmt: skip
GOLDEN = seal(NODE, SWARM.swarm_id, Kind.RECORD, b"hello, swarm")


def parts(data: bytes) -> list[dict[str, Any]]:
    """`data` in hex, with its longest run of zeros given as a count when it is long."""
    run = b"\x00" * 1024
    start = data.find(run)
    if start < 0:
        return [{"hex": data.hex()}]
    end = start
    while end < len(data) and data[end] == 0:
        end += 1
    return [
        {"hex": data[:start].hex()},
        {"hex": "00", "times": end - start},
        {"hex": data[end:].hex()},
    ]


def case(
    name: str, data: bytes, expect: str, kind: Kind = Kind.RECORD, **more: Any
) -> dict[str, Any]:
    vector = {"name": name, "kind": kind.value, "sealed": parts(data), "expect": expect, **more}
    if expect == "ok":
        vector["id"] = content_id(data).hex()
    return vector


def relaid(**changes: Any) -> bytes:
    """The golden envelope with fields replaced, encoded canonically again."""
    names = ("type", "body", "key", "signature")
    fields = dict(zip(names, msgpack.unpackb(GOLDEN), strict=True)) | changes
    packed: bytes = msgpack.packb([fields[name] for name in names])
    return packed


def opened(name: str, author: Identity, kind: Kind, body: bytes) -> dict[str, Any]:
    return case(
        name,
        seal(author, SWARM.swarm_id, kind, body),
        "ok",
        kind,
        author=author.peer_id,
        body_sha256=hashlib.sha256(body).hexdigest(),
    )


def other_form(length: int) -> bytes:
    """A body signed in the form that is not for its length."""
    body, name = bytes(length), Kind.ROLLOUT.encode()
    payload = body
    if length <= 65536:
        name, payload = name + b";sha256", hashlib.sha256(body).digest()
    message = b"SWARMNODEv1 %d %b 32 %b %d %b" % (
        len(name),
        name,
        SWARM.swarm_id,
        len(payload),
        payload,
    )
    packed: bytes = msgpack.packb([Kind.ROLLOUT.value, body, NODE.public_key, NODE.sign(message)])
    return packed


def valid() -> list[dict[str, Any]]:
    stranger = opened("valid, but not by the author expected", OTHER, Kind.RECORD, b"hello, swarm")
    return [
        opened("golden", NODE, Kind.RECORD, b"hello, swarm"),
        opened("empty body", NODE, Kind.HEAD, b""),
        opened("body of 255 bytes", NODE, Kind.RECORD, bytes(255)),
        opened("body of 256 bytes", NODE, Kind.RECORD, bytes(256)),
        opened("64 KiB, signed whole", NODE, Kind.ROLLOUT, bytes(65536)),
        opened("64 KiB + 1, signed by digest", NODE, Kind.ROLLOUT, bytes(65537)),
        stranger | {"expected_author": NODE.peer_id, "expect": "author"},
    ]


def forged() -> list[dict[str, Any]]:
    signature = msgpack.unpackb(GOLDEN)[3]
    order = 2**252 + 27742317777372353535851937790883648493
    high_s = (int.from_bytes(signature[32:], "little") + order).to_bytes(32, "little")
    flipped = bytearray(GOLDEN)
    flipped[GOLDEN.index(b"hello")] ^= 1
    other_swarm = create_swarm("other", ROOT, bytes(32)).swarm_id
    return [
        case("tampered body", bytes(flipped), "signature"),
        case("tampered signature", GOLDEN[:-1] + bytes([GOLDEN[-1] ^ 1]), "signature"),
        case("another swarm", seal(NODE, other_swarm, Kind.RECORD, b"hello, swarm"), "signature"),
        case("another kind than asked for", GOLDEN, "kind", Kind.HEAD),
        case("relabelled as another kind", relaid(type=Kind.HEAD.value), "signature", Kind.HEAD),
        case("another key on the signature", relaid(key=OTHER.public_key), "signature"),
        case("S + L", relaid(signature=signature[:32] + high_s), "signature"),
        case("64 KiB, signed by digest", other_form(65536), "signature", Kind.ROLLOUT),
        case("64 KiB + 1, signed whole", other_form(65537), "signature", Kind.ROLLOUT),
    ]


def unsound_keys() -> list[dict[str, Any]]:
    universal = {"key": b"\x01" + bytes(31), "signature": b"\x01" + bytes(63)}
    keys = {
        "small order 2": "ec" + "ff" * 30 + "7f",
        "small order 4": "00" * 32,
        "small order 8": "26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc05",
        "small order 1, x negative": "01" + "00" * 30 + "80",
        "y = p + 1": "ee" + "ff" * 30 + "7f",
        "y = p + 3": "f0" + "ff" * 30 + "7f",
    }
    return [
        case("small order, universal signature", relaid(**universal), "key"),
        *(case(name, relaid(key=bytes.fromhex(key)), "key") for name, key in keys.items()),
    ]


def misencoded() -> list[dict[str, Any]]:
    kind, body, key, signature = msgpack.unpackb(GOLDEN)
    name = kind.encode()
    head = b"\x94\xd9" + bytes([len(name)]) + name
    tail = b"\xc4\x20" + key + b"\xc4\x40" + signature
    bin8 = b"\xc4" + bytes([len(body)]) + body
    return [
        case("array 16", b"\xdc\x00\x04" + head[1:] + bin8 + tail, "encoding"),
        case("str 16", b"\x94\xda\x00" + bytes([len(name)]) + name + bin8 + tail, "encoding"),
        case("body as bin 16", head + b"\xc5\x00\x0c" + body + tail, "encoding"),
        case("body as bin 32", head + b"\xc6\x00\x00\x00\x0c" + body + tail, "encoding"),
        case("key as bin 16", head + bin8 + b"\xc5\x00\x20" + tail[2:], "encoding"),
        case("body as str", head + b"\xac" + body + tail, "schema"),
        case("one byte short", GOLDEN[:-1], "schema"),
        case("one byte more", GOLDEN + b"\x00", "schema"),
        case("a fifth field", b"\x95" + GOLDEN[1:] + b"\xc0", "schema"),
        case("key of 31 bytes", relaid(key=key[:31]), "schema"),
        case("nothing", b"", "schema"),
        case("4 MiB + 1", bytes(4 * 1024 * 1024 + 1), "size", Kind.ROLLOUT),
    ]


def envelopes() -> dict[str, Any]:
    body, signature = b"hello, swarm", msgpack.unpackb(GOLDEN)[3]
    return {
        "swarm_id": SWARM.swarm_id.hex(),
        "golden": {
            "seed": NODE.seed().hex(),
            "public_key": NODE.public_key.hex(),
            "peer_id": NODE.peer_id,
            "body": body.hex(),
            "signed_bytes": signed_bytes(SWARM.swarm_id, Kind.RECORD, body).hex(),
            "signature": signature.hex(),
            "sealed": GOLDEN.hex(),
            "id": content_id(GOLDEN).hex(),
        },
        "cases": [*valid(), *forged(), *unsound_keys(), *misencoded()],
    }


def bodies() -> dict[str, Any]:
    answer = Completion(
        text="4 + 3 = 7",
        token_ids=np.array([19, 1, 70000], dtype=np.uint32),
        logprobs=np.array([-0.5, -0.25, 0], dtype=np.float32),
        spans=(VersionSpan(6, 0, 2), VersionSpan(7, 2, 3)),
        finish=Finish.STOP,
    )
    cut = Completion(
        text="",
        token_ids=np.array([0], dtype=np.uint32),
        logprobs=np.array([-1.5], dtype=np.float32),
        spans=(VersionSpan(7, 0, 1),),
        finish=Finish.LENGTH,
    )
    over = dialogue([("what is 6*7?", [19, 1, 2]), ("42", [70000, 2])], Finish.STOP)
    long = dialogue([("", [2]), ("a", [5, 2]), ("b", [6])], Finish.LENGTH)
    head = Heartbeat(
        1, ("/ip4/192.0.2.1/tcp/4001/p2p/" + NODE.peer_id,), 7, 1_800_000_000_000, 5,
        1_800_000_123_456, "swarm-node/0.1.0", 3, 1, False, True,
    )  # fmt: skip
    return {
        "groups": [
            published(TaskRef("reasoning_gym", "0.1.25", "chain_sum", 42), (answer, cut), 1),
            published(TaskRef("games", "1-2 split 1, swarm-node 0.2", "calc", 42), (over, long), 3),
        ],
        "head": {"body": pack(head).hex(), "addresses": list(head.addresses)},
        "relayed": relayed(),
        "reach": [reach(body) for body in probes()],
        "datagram": datagram(),
        "coordinator": coordinator(),
    }


def published(task: TaskRef, completions: tuple[Completion, ...], turns: int) -> dict[str, Any]:
    """A group, and its announcement in an environment of so many turns."""
    model, tokenizer = bytes(range(32)), bytes(range(32, 64))
    group = RolloutGroup(task, PolicyRef(model, tokenizer, 7), completions, (1.0, 0.0))
    place = {"epoch": 1_800_000_000_000, "seq": 5}
    body = pack_group(group, **place, created_ms=1_800_000_123_456)
    sealed = seal(NODE, SWARM.swarm_id, Kind.ROLLOUT, body)
    record = Announcement(
        1, *place.values(), content_id(sealed), len(sealed), task.environment, task.version,
        task.family, model, tokenizer, 7, len(completions), True, turns,
    )  # fmt: skip
    return {
        "rollout": {
            "body": body.hex(),
            **place,
            "created_ms": 1_800_000_123_456,
            "task": [task.environment, task.version, task.family, task.seed],
            "policy": {"model": model.hex(), "tokenizer": tokenizer.hex(), "version": 7},
            "completions": [
                {
                    "turns": [
                        {
                            "text": text,
                            "token_ids": each.token_ids[begin:end].tolist(),
                            "logprobs": each.logprobs[begin:end].tolist(),
                            "finish": "stop" if end < each.ends[-1] else each.finish.value,
                        }
                        for text, begin, end in zip(
                            each.turn_texts, (0, *each.ends[:-1]), each.ends, strict=True
                        )
                    ],
                    "spans": [[s.version, s.start, s.end] for s in each.spans],
                }
                for each in completions
            ],
            "claimed": list(group.claimed),
        },
        "record": {
            "body": pack(record).hex(),
            "id": content_id(sealed).hex(),
            "size": len(sealed),
            "turns": turns,
        },
    }


def dialogue(turns: list[tuple[str, list[int]]], finish: Finish) -> Completion:
    """What a policy said in these turns, each by a newer version than the one before."""
    ids = [token for _, said in turns for token in said]
    ends = np.cumsum([len(said) for _, said in turns]).tolist()
    return Completion(
        text=turns[-1][0],
        token_ids=np.array(ids, dtype=np.uint32),
        logprobs=-np.arange(len(ids), dtype=np.float32) / 4,
        spans=tuple(
            VersionSpan(5 + index, begin, end)
            for index, (begin, end) in enumerate(zip((0, *ends), ends, strict=False))
        ),
        finish=finish,
        earlier_turns=tuple(
            EarlierTurn(text, end) for (text, _), end in zip(turns, ends[:-1], strict=False)
        ),
    )


def coordinator() -> list[dict[str, Any]]:
    """What members and a coordinator (OTHER) sign. A batch has digests of its reports beside it."""
    empty, ms = hashlib.sha256(b"").digest(), 1_800_000_000_000
    call = Call(1, "GET", "/v1/history?since=0&limit=9", ms, bytes(range(16)), empty)
    report = Report(
        1, ms, "swarm-node 0.1.0", "tiny", "open", 7, 8, 90, 30, 40, 50, 20,
        (("chain_sum", 0.5), ("gcd", 1.0)),
        (PeerCounts(ROOT.public_key, 12, (("implausible", 3), ("too_long", 1))),),
    )  # fmt: skip
    sealed = seal(NODE, SWARM.swarm_id, Kind.REPORT, pack(report))
    reports = [hashlib.sha256(raw).digest() for raw in (sealed, GOLDEN)]
    first = next_batch(OTHER, SWARM.swarm_id, None, reports, ms)
    held = open_batch(first, SWARM.swarm_id)
    assert isinstance(held, SignedBatch)
    later = next_batch(OTHER, SWARM.swarm_id, held, [], ms + 60_000)

    def entry(name: str, kind: Kind, raw: bytes, expect: str = "ok") -> dict[str, Any]:
        body = msgpack.unpackb(msgpack.unpackb(raw)[1])
        fields = json.loads(json.dumps(body, default=bytes.hex))
        vector = {"name": name, "kind": kind.value, "sealed": raw.hex(), "expect": expect}
        return {**vector, "author": peer_id_of(msgpack.unpackb(raw)[2]), "fields": fields}

    def other(kind: Kind, body: Body, at: int, value: Any) -> bytes:
        """The same with another value in one field, which no node sends."""
        fields = list(msgpack.unpackb(pack(body)))
        fields[at] = value
        return seal(NODE, SWARM.swarm_id, kind, msgpack.packb(fields))

    return [
        entry("a call", Kind.CALL, seal(NODE, SWARM.swarm_id, Kind.CALL, pack(call))),
        entry("a call of version 2", Kind.CALL, other(Kind.CALL, call, 0, 2), "schema"),
        entry("a method in small letters", Kind.CALL, other(Kind.CALL, call, 1, "get"), "schema"),
        entry("a short nonce", Kind.CALL, other(Kind.CALL, call, 4, bytes(15)), "schema"),
        entry("a report", Kind.REPORT, sealed),
        entry("of nothing", Kind.REPORT, other(Kind.REPORT, report, 13, [])),
        entry("a report of version 2", Kind.REPORT, other(Kind.REPORT, report, 0, 2), "schema"),
        entry("a reward above 1", Kind.REPORT,
              other(Kind.REPORT, report, 12, [["gcd", 1.5]]), "schema"),
        entry("a count below 0", Kind.REPORT, other(Kind.REPORT, report, 7, -1), "schema"),
        entry("the first batch", Kind.BATCH, first) | {"reports": [raw.hex() for raw in reports]},
        entry("the one after it", Kind.BATCH, later)
        | {"reports": [], "after": hashlib.sha256(first).hexdigest()},
        entry("a batch without a number", Kind.BATCH, other(Kind.BATCH, held.body, 1, 0), "schema"),
        entry("a report in its place", Kind.BATCH, sealed, "kind"),
    ]  # fmt: skip


def probes() -> list[Body]:
    """What members say of how they reach each other."""
    at = "/ip4/11.0.0.1/tcp/4001"
    outcomes = (PortOutcome(4001, "open"), PortOutcome(443, "refused"))
    return [
        ProbeRequest((4001, 443)),
        ProbeReply(at, outcomes, "timeout", 1_800_000_123_456),
        ProbeReply("", (), "untried", 1_800_000_123_456),
        ProbeForRequest(NODE.peer_id, at),
        ProbeForReply("untried"),
        Punch(at),
    ]


def reach(body: Body) -> dict[str, Any]:
    return {"name": type(body).__name__, "body": pack(body).hex(), "fields": to_builtins(body)}


def datagram() -> dict[str, Any]:
    """What NODE says on its own network."""
    said, nonce = b"what the table carries of a member", bytes(range(12))
    lan = Lan(NODE, SWARM.swarm_id, SWARM.secret, SYSTEM_CLOCK)
    return {
        "secret": SWARM.secret.hex(),
        "public_key": NODE.public_key.hex(),
        "presence": said.hex(),
        "datagram": lan.datagram(said, nonce).hex(),
    }


def relayed() -> list[dict[str, Any]]:
    """Requests of NODE to OTHER that a relay passes on, and their replies."""
    body = request_to(
        OTHER.peer_id, "/swarm-node/pull/1", b"what is asked for", 4096,
        nonce=bytes(range(16)), wall=T0,
    )  # fmt: skip
    asked, nonce = seal_request(NODE, SWARM.swarm_id, body), bytes(range(1, 17))
    done = seal_reply(OTHER, SWARM.swarm_id, body, Reply(b"what is replied"))
    onward = structs.replace(body, protocol="/swarm-node/relay/1")

    def entry(name: str, expect: str, asked: bytes = asked, reply: bytes = done) -> dict[str, Any]:
        return {
            "name": name,
            "request": asked.hex(),
            "asker": NODE.peer_id,
            "target": OTHER.peer_id,
            "nonce": body.nonce.hex(),
            "payload": body.payload.hex(),
            "reply": reply.hex(),
            "expect": expect,
        }

    def replied(to: Request = body, by: Identity = OTHER, *, refused: bool = False) -> bytes:
        return seal_reply(by, SWARM.swarm_id, to, Reply(b"what is replied", refused))

    return [
        entry("a request and its reply", "ok"),
        entry("a refusal", "refused", reply=replied(refused=True)),
        entry("an altered request", "signature", asked.replace(b"asked", b"ASKED")),
        entry("for a second relay", "route", seal_request(NODE, SWARM.swarm_id, onward)),
        entry("for its asker", "route", seal_request(OTHER, SWARM.swarm_id, body)),
        entry("an altered reply", "altered", reply=done.replace(b"replied", b"REPLIED")),
        entry("a reply that is cut", "altered", reply=done[:-1]),
        entry("a longer reply", "altered", reply=done + b"x"),
        entry("a reply of the relay", "altered", reply=replied(by=ROOT)),
        entry("to another request", "altered", reply=replied(structs.replace(body, nonce=nonce))),
    ]


def chains() -> list[dict[str, Any]]:
    issuer = issue_issuer(
        ROOT, SWARM, ISSUER.public_key,
        name="Anna", not_before=T0, not_after=T0 + DAY, member_seconds=30 * DAY, uses=5,
    )  # fmt: skip

    def member(
        begin: int = T0, end: int = T0 + 30 * DAY, by: Identity = ISSUER,
        name: str = "Anna", first: Identity | None = None,
    ) -> bytes:  # fmt: skip
        return issue_member(
            by, SWARM, NODE.public_key,
            name=name, not_before=begin, not_after=end,
            admitted_by=None if first is None else first.public_key,
        )  # fmt: skip

    def entry(
        name: str, chain: list[bytes], expect: str, now: int = T0 + 1, key: bytes = b""
    ) -> dict[str, Any]:
        return {
            "name": name,
            "chain": [certificate.hex() for certificate in chain],
            "subject_key": (key or NODE.public_key).hex(),
            "now": now,
            "expect": expect,
        }

    sub = seal(
        ISSUER, SWARM.swarm_id, Kind.ISSUER,
        pack(IssuerBody(1, OTHER.public_key, "sub", T0, T0 + DAY, DAY, False, 0)),
    )  # fmt: skip
    weak = b"\x01" + bytes(31)
    weak_body = MemberBody(1, weak, T0, T0 + DAY, "Anna", ISSUER.public_key)
    weak_member = seal(ISSUER, SWARM.swarm_id, Kind.CERT, pack(weak_body))
    weak_issuer = seal(
        ROOT, SWARM.swarm_id, Kind.ISSUER,
        pack(IssuerBody(1, weak, "Anna", T0, T0 + DAY, 30 * DAY, False, 0)),
    )  # fmt: skip
    bare = seal(
        ISSUER, SWARM.swarm_id, Kind.CERT, msgpack.packb([1, NODE.public_key, T0, T0 + DAY])
    )
    return [
        entry("a member", [issuer, member()], "ok"),
        entry("earliest clock", [issuer, member()], "ok", T0 - 300),
        entry("latest clock", [issuer, member()], "ok", T0 + 30 * DAY + 300),
        entry("not yet", [issuer, member()], "not_yet_valid", T0 - 301),
        entry("no more", [issuer, member()], "expired", T0 + 30 * DAY + 301),
        entry("admitted as the issuer ends", [issuer, member(T0 + DAY)], "ok", T0 + DAY),
        entry("admitted after the issuer ended", [issuer, member(T0 + DAY + 1)],
              "outside_issuer", T0 + DAY + 1),
        entry("admitted before the issuer began", [issuer, member(T0 - 301, T0 + DAY)],
              "outside_issuer"),
        entry("a second too long", [issuer, member(end=T0 + 30 * DAY + 1)], "outside_issuer"),
        entry("another key", [issuer, member()], "wrong_subject", key=OTHER.public_key),
        entry("signed by the root", [issuer, member(by=ROOT)], "wrong_issuer"),
        entry("an issuer's issuer", [sub, member(by=OTHER, name="sub")], "wrong_root"),
        entry("another name than its issuer's", [issuer, member(name="Berta")], "not_delegate"),
        entry("another's guest, renewed by no delegate", [issuer, member(first=OTHER)],
              "not_delegate"),
        entry("renewed by a delegate", [DELEGATE_CERTIFICATE, member(by=DELEGATE, first=ISSUER)],
              "ok"),
        entry("renewed in another name", [DELEGATE_CERTIFICATE, member(by=DELEGATE, name="Berta",
              first=ISSUER)], "ok"),
        entry("without name and first issuer", [issuer, bare], "schema"),
        entry("three certificates", [issuer, member(), member()], "schema"),
        entry("in the wrong order", [member(), issuer], "kind"),
        entry("a small-order subject", [issuer, weak_member], "wrong_subject", key=weak),
        entry("a small-order issuer key", [weak_issuer, member()], "key"),
    ]  # fmt: skip


def statements() -> list[dict[str, Any]]:
    """Lists and secrets, each with the verdict and, if it is good, number and content id."""
    guest = issue_issuer(
        ROOT, SWARM, ISSUER.public_key,
        name="Anna", not_before=T0, not_after=T0 + DAY, member_seconds=30 * DAY,
    )  # fmt: skip
    foreign = seal(
        ISSUER, SWARM.swarm_id, Kind.ISSUER,
        pack(IssuerBody(1, DELEGATE.public_key, "owner", T0, T0 + DAY, DAY, True, 0)),
    )  # fmt: skip
    keys = sorted([NODE.public_key, ISSUER.public_key])
    none: list[bytes] = []

    def entry(
        name: str, expect: str, fields: list[Any], kind: Kind = Kind.REVOKE,
        by: Identity = DELEGATE, certificate: bytes = DELEGATE_CERTIFICATE, now: int = T0 + 10,
    ) -> dict[str, Any]:  # fmt: skip
        sealed = seal(by, SWARM.swarm_id, kind, msgpack.packb(fields))
        vector = {
            "name": name,
            "kind": kind.value,
            "signed": msgpack.packb([certificate, sealed]).hex(),
            "now": now,
            "expect": expect,
        }
        if expect == "ok":
            vector["rank"] = [fields[1], not certificate, content_id(sealed).hex()]
        return vector

    def good(number: int = 1, revoked: list[bytes] = keys, issued: int = T0) -> list[Any]:
        return [1, number, issued, issued + 30 * DAY, revoked]

    def secret(number: int = 1, issued: int = T0) -> list[Any]:
        return [1, number, issued, bytes([9]) * 32]

    return [
        entry("a delegate's list", "ok", good()),
        entry("the root's list", "ok", good(), by=ROOT, certificate=b""),
        entry("an empty list", "ok", good(2, none)),
        entry("a delegate's highest number", "ok", good(2**61 - 1)),
        entry("a number that is the root's alone", "content", good(2**61)),
        entry("the root's own numbers", "ok", good(2**61), by=ROOT, certificate=b""),
        entry("number 0", "schema", good(0)),
        entry("unsorted keys", "schema", good(1, keys[::-1])),
        entry("a key twice", "schema", good(1, [*keys, keys[1]])),
        entry("a key of 31 bytes", "schema", good(1, [bytes(31)])),
        entry("it ends before it begins", "schema", [1, 1, T0, T0, keys]),
        entry("the root revoked", "content", good(1, [ROOT.public_key])),
        entry("by a member, as if it were the root", "wrong_root", good(), by=NODE,
              certificate=b""),
        entry("by a member, beside a delegate's certificate", "wrong_issuer", good(), by=NODE),
        entry("by the root, beside a delegate's certificate", "wrong_issuer", good(), by=ROOT),
        entry("by an issuer that is no delegate", "not_delegate", good(), by=ISSUER,
              certificate=guest),
        entry("beside a certificate that the root did not seal", "wrong_root", good(),
              certificate=foreign),
        entry("before its delegate began", "outside_issuer", good(issued=T0 - 301)),
        entry("after its delegate ended", "outside_issuer", good(issued=T0 + 366 * DAY),
              now=T0 + 366 * DAY),
        entry("a list from the future", "not_yet_valid", good(issued=T0 + 311)),
        entry("a list that ended", "expired", good(), now=T0 + 30 * DAY + 301),
        entry("a secret sealed as a list", "schema", secret()),
        entry("a delegate's secret", "ok", secret(), Kind.SECRET),
        entry("the root's secret", "ok", secret(2**62 - 1), Kind.SECRET, ROOT, b""),
        entry("a secret of 31 bytes", "schema", [1, 1, T0, bytes(31)], Kind.SECRET),
        entry("a secret by a member", "wrong_root", secret(), Kind.SECRET, NODE, b""),
        entry("a secret from the future", "not_yet_valid", secret(issued=T0 + 311), Kind.SECRET),
    ]  # fmt: skip


def guest_chain(subject: Identity = NODE) -> tuple[bytes, bytes]:
    issuer = issue_issuer(
        ROOT, SWARM, ISSUER.public_key,
        name="Anna", not_before=T0, not_after=T0 + DAY, member_seconds=30 * DAY,
    )  # fmt: skip
    member = issue_member(
        ISSUER, SWARM, subject.public_key, name="Anna", not_before=T0, not_after=T0 + DAY
    )
    return issuer, member


def presence(author: Identity = NODE, chain: tuple[bytes, bytes] | None = None) -> bytes:
    head = pack(Heartbeat(1, (), 7, 1, 5, (T0 + 1000) * 1000, "swarm-node", 0, 0, False, False))
    sealed = seal(author, SWARM.swarm_id, Kind.HEAD, head)
    return pack(Presence(sealed, *(chain or guest_chain())))


def presences() -> list[dict[str, Any]]:
    def entry(name: str, data: bytes, expect: str, now: int = T0 + 1000) -> dict[str, Any]:
        return {"name": name, "presence": data.hex(), "now": now, "expect": expect}

    good, head = presence(), T0 + 1000
    return [
        entry("a presence", good, "ok"),
        entry("as far ahead as clocks may differ", good, "ok", head - 300),
        entry("from the future", good, "not_yet_valid", head - 301),
        entry("as old as it may be", good, "ok", head + 900),
        entry("too old", good, "outdated", head + 901),
        entry("with another's chain", presence(OTHER), "wrong_subject"),
        entry("with a damaged heartbeat", good.replace(b"swarm-node", b"swarm-nodf"), "signature"),
        entry("with certificates in the wrong order", presence(chain=guest_chain()[::-1]), "kind"),
        entry("two parts only", msgpack.packb(msgpack.unpackb(good)[:2]), "schema"),
        entry("a heartbeat alone", msgpack.unpackb(good)[0], "schema"),
    ]


@dataclass(frozen=True)
class Record:
    key: bytes
    subkey: bytes
    value: bytes
    expiration_time: float


def table() -> dict[str, Any]:
    """What the distributed table is given: its key, the key of its tags, and one record."""
    key = heartbeat_key(SWARM.swarm_id)
    hashed = hashlib.sha1(msgpack.packb(key), usedforsecurity=False).digest()
    subkey = msgpack.packb(NODE.peer_id)
    record = Record(hashed, subkey, msgpack.packb(presence()), T0 + 1060.5)
    records = HeartbeatRecords(NODE, hashed, lambda: float(T0 + 1000), lambda *_: True)
    return {
        "key": key,
        "hashed_key": hashed.hex(),
        "tag_key": SwarmAuthorizer(SWARM.secret, SWARM.swarm_id, lambda: float(T0))._key.hex(),
        "peer_id": NODE.peer_id,
        "expiration": record.expiration_time,
        "value": records.sign_value(record).hex(),
    }


def membership() -> dict[str, Any]:
    ticket = make_ticket(
        ROOT, SWARM, ["/ip4/192.0.2.1/tcp/4001/p2p/" + ROOT.peer_id],
        now=T0, valid_seconds=HOUR, member_seconds=30 * DAY, name="Anna", uses=2, issuer=ISSUER,
    )  # fmt: skip
    return {
        "name": SWARM.name,
        "root_key": SWARM.root_key.hex(),
        "fingerprint": SWARM.fingerprint,
        "swarm_id": SWARM.swarm_id.hex(),
        "cases": chains(),
        "statements": statements(),
        "presences": presences(),
        "table": table(),
        "ticket": {
            "text": ticket,
            "valid_at": T0,
            "expires": T0 + HOUR,
            "secret": SWARM.secret.hex(),
            "secret_number": SWARM.secret_number,
            "issuer_seed": ISSUER.seed().hex(),
        },
    }


def split() -> dict[str, Any]:
    """Questions with their side, and references with the seeds that they move on to. Numbers are
    texts, because they exceed what JSON keeps."""
    questions = [
        *(
            "",
            "What is 1 + 1?",
            "  What is\t1 +\n1? ",
            "Caf\u00e9",
            "Cafe\u0301",
            "a\u00a0b",
            "a b",
        ),
        *("\ufb01", "\u212b", "\u3000\u4e00", "A", "a"),
        *(f"Calculate {number} + 1." for number in range(8)),
    ]
    texts = [
        {
            "question": question,
            "canonical": canonical(question),
            "position": str(position(question)),
            "held_out": is_held_out(question),
        }
        for question in questions
    ]
    refs = [
        TaskRef("any", "any", family, seed)
        for family in ("gcd", "chain_sum")
        for seed in (0, 7, HELD_OUT_SEED - 1, HELD_OUT_SEED, SEED_LIMIT - 1)
    ]
    moving = [
        {
            "family": ref.family,
            "seed": str(ref.seed),
            "next": [str(next_seed(ref, draw)) for draw in (1, 2, 3)],
        }
        for ref in refs
    ]
    return {"split": SPLIT, "share": HELD_OUT_SHARE, "texts": texts, "moving_on": moving}


def main() -> None:
    for name, content in (
        ("envelopes", envelopes()),
        ("bodies", bodies()),
        ("membership", membership()),
        ("split", split()),
    ):
        text = json.dumps(content, indent=1, ensure_ascii=True) + "\n"
        (HERE / f"{name}.json").write_text(text)
        print(f"{name}.json: {len(text)} bytes")


if __name__ == "__main__":
    main()
