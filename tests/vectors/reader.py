"""A second implementation of docs/protocol.md, to check the vectors with: it shares no code with
the program, only MessagePack, hashes, ChaCha20-Poly1305 and Ed25519's signing from libraries.
Beside it, ed25519.py verifies signatures, shapes.py has types and bounds of messages,
and stored.py reads bytes as the files store them.

    python reader.py DIRECTORY      prints one line per vector, exits 1 if any differs
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import re
import socket
import string
import struct
import sys
import unicodedata
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgpack
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

sys.path.insert(0, str(Path(__file__).parent))

import shapes
from ed25519 import holds, unsound
from stored import changed, joined

BASE58 = "123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz"
ROLLOUT, RECORD, HEAD, CERT, ISSUER, REVOKE, SECRET, RELAY, REPLY, CALL, REPORT, BATCH = (
    f"application/vnd.swarm.{name}.v1+msgpack"
    for name in (
        *("rollout", "record", "head", "cert", "issuer", "revoke", "secret", "relay", "reply"),
        *("call", "report", "batch"),
    )
)


#: Of the kinds among the cases of envelopes.json, with 4 MiB for groups.
LIMITS = {RECORD: 768, HEAD: 716, CERT: 320}


class Refused(Exception):
    """The reason is the only argument."""


def peer_id(key: bytes) -> str:
    raw = bytes.fromhex("002408011220") + key
    number, text = int.from_bytes(raw, "big"), ""
    while number:
        number, digit = divmod(number, 58)
        text = BASE58[digit] + text
    return "1" * (len(raw) - len(raw.lstrip(b"\x00"))) + text


def pae(kind: str, swarm_id: bytes, body: bytes) -> bytes:
    name = kind.encode()
    if len(body) > 65536:
        name, body = name + b";sha256", hashlib.sha256(body).digest()
    out = b"SWARMNODEv1"
    for field in (name, swarm_id, body):
        out += b" " + str(len(field)).encode() + b" " + field
    return out


def open_envelope(
    data: bytes, swarm_id: bytes, kind: str, limit: int = 4 << 20
) -> tuple[bytes, bytes]:
    """(author key, body)."""
    if len(data) > limit:
        raise Refused("size")
    try:
        fields = msgpack.unpackb(data)
    except (ValueError, msgpack.UnpackException) as error:
        raise Refused("schema") from error
    if not isinstance(fields, list) or [type(f) for f in fields] != [str, bytes, bytes, bytes]:
        raise Refused("schema")
    name, body, key, signature = fields
    if len(key) != 32 or len(signature) != 64:
        raise Refused("schema")
    if len(name) > 64:
        raise Refused("schema")
    if name != kind:
        raise Refused("kind")
    if msgpack.packb(fields) != data:
        raise Refused("encoding")
    if unsound(key):
        raise Refused("key")
    if not holds(key, pae(kind, swarm_id, body), signature):
        raise Refused("signature")
    return key, body


def fields(kind: str, body: bytes) -> list[Any]:
    """The fields of a body, after the version."""
    reason = shapes.refused(kind, body)
    if reason != "ok":
        raise Refused(reason)
    values: list[Any] = msgpack.unpackb(body)
    return values[1:]


def open_issuer(certificate: bytes, swarm_id: bytes, root: bytes) -> list[Any]:
    author, body = open_envelope(certificate, swarm_id, ISSUER, 320)
    if author != root:
        raise Refused("wrong_root")
    issuer = fields("issuer", body)
    if unsound(issuer[0]):
        raise Refused("key")
    return issuer


def open_chain(
    chain: list[bytes], swarm_id: bytes, root: bytes, subject: bytes
) -> tuple[list[Any], list[Any]]:
    """Rules 1 to 4: the fields of both certificates."""
    if len(chain) != 2:
        raise Refused("schema")
    issuer = open_issuer(chain[0], swarm_id, root)
    author, body = open_envelope(chain[1], swarm_id, CERT, 320)
    if author != issuer[0]:
        raise Refused("wrong_issuer")
    member = fields("cert", body)
    key, _, _, name, first = member
    if key != subject or unsound(subject):
        raise Refused("wrong_subject")
    if not issuer[5] and (name, first) != (issuer[1], issuer[0]):
        raise Refused("not_delegate")
    return issuer, member


def check_rules(
    issuer: list[Any], member: list[Any], now: float, case: dict[str, Any] | None = None
) -> None:
    """Rules 5 to 9. A case may have keys that are listed, blocked, and met before here."""
    key, _, begin, end, allowance, _, uses = issuer
    subject, member_begin, member_end, _, first = member
    listed, blocked, met = (
        [bytes.fromhex(each) for each in (case or {}).get(name, [])]
        for name in ("listed", "blocked", "met")
    )
    if {subject, first, key}.intersection(listed):
        raise Refused("revoked")
    if {subject, first}.intersection(blocked):
        raise Refused("blocked")
    if not begin - 300 <= member_begin <= end:
        raise Refused("outside_issuer")
    if not 0 < member_end - member_begin <= allowance:
        raise Refused("outside_issuer")
    if now < member_begin - 300:
        raise Refused("not_yet_valid")
    if now > member_end + 300:
        raise Refused("expired")
    if uses and subject not in [*met, subject][:uses]:
        raise Refused("used_up")


def verify_chain(
    chain: list[bytes], swarm_id: bytes, root: bytes, subject: bytes, now: float,
    case: dict[str, Any] | None = None,
) -> None:  # fmt: skip
    check_rules(*open_chain(chain, swarm_id, root, subject), now, case)


def verify_statement(data: bytes, kind: str, swarm_id: bytes, root: bytes, now: float) -> list[Any]:
    """The rank: number, whether the root sealed it, content id of the sealed bytes."""
    reason = shapes.refused("statement", data)
    if reason != "ok":
        raise Refused(reason)
    certificate, sealed = msgpack.unpackb(data)
    author, body = open_envelope(sealed, swarm_id, kind, 36 << 10)
    if kind == SECRET:
        number, issued, _ = fields("secret", body)
        ends, keys = float("inf"), []
    else:
        number, issued, ends, keys = fields("revoke", body)
    if certificate:
        delegate, _, begin, end, _, may, _ = open_issuer(certificate, swarm_id, root)
        if author != delegate:
            raise Refused("wrong_issuer")
        if not may:
            raise Refused("not_delegate")
        if not begin - 300 <= issued <= end:
            raise Refused("outside_issuer")
    elif author != root:
        raise Refused("wrong_root")
    if root in keys or (certificate and number >= 2**61):
        raise Refused("content")
    if now > ends + 300:
        raise Refused("expired")
    if now < issued - 300:
        raise Refused("not_yet_valid")
    return [number, not certificate, "1220" + hashlib.sha256(sealed).hexdigest()]


def verify_presence(data: bytes, swarm_id: bytes, root: bytes, now: float) -> None:
    reason = shapes.refused("presence", data)
    if reason != "ok":
        raise Refused(reason)
    parts = msgpack.unpackb(data)
    author, body = open_envelope(parts[0], swarm_id, HEAD, 716)
    issued = fields("head", body)[4] / 1000
    chain = open_chain(parts[1:], swarm_id, root, author)
    if issued > now + 300:
        raise Refused("not_yet_valid")
    if issued < now - 900:
        raise Refused("outdated")
    check_rules(*chain, now)


def judge_envelope(case: dict[str, Any], swarm_id: bytes) -> str:
    data = joined(case["sealed"])
    try:
        key, body = open_envelope(data, swarm_id, case["kind"], LIMITS.get(case["kind"], 4 << 20))
    except Refused as refused:
        return str(refused)
    if peer_id(key) != case["author"]:
        return "wrong author"
    if hashlib.sha256(body).hexdigest() != case["body_sha256"]:
        return "wrong body"
    if case.get("expected_author", case["author"]) != case["author"]:
        return "author"
    return "ok" if "1220" + hashlib.sha256(data).hexdigest() == case["id"] else "wrong id"


def judge_golden(golden: dict[str, str], swarm_id: bytes) -> str:
    """Makes the golden envelope anew from its seed."""
    private = Ed25519PrivateKey.from_private_bytes(bytes.fromhex(golden["seed"]))
    key, body = private.public_key().public_bytes_raw(), bytes.fromhex(golden["body"])
    signed = pae(RECORD, swarm_id, body)
    sealed = msgpack.packb([RECORD, body, key, private.sign(signed)])
    made = {
        "public_key": key.hex(),
        "peer_id": peer_id(key),
        "signed_bytes": signed.hex(),
        "sealed": sealed.hex(),
        "id": "1220" + hashlib.sha256(sealed).hexdigest(),
    }
    return "ok" if made.items() <= golden.items() else "differs"


def judge_chain(case: dict[str, Any], swarm: dict[str, Any]) -> str:
    try:
        verify_chain(
            [bytes.fromhex(certificate) for certificate in case["chain"]],
            bytes.fromhex(swarm["swarm_id"]),
            bytes.fromhex(swarm["root_key"]),
            bytes.fromhex(case["subject_key"]),
            case["now"],
            case,
        )
    except Refused as refused:
        return str(refused)
    return "ok"


def judge_statement(case: dict[str, Any], swarm: dict[str, Any]) -> str:
    swarm_id, root = bytes.fromhex(swarm["swarm_id"]), bytes.fromhex(swarm["root_key"])
    try:
        rank = verify_statement(
            bytes.fromhex(case["signed"]), case["kind"], swarm_id, root, case["now"]
        )
    except Refused as refused:
        return str(refused)
    return "ok" if rank == case["rank"] else "wrong rank"


def judge_presence(case: dict[str, Any], swarm: dict[str, Any]) -> str:
    swarm_id, root = bytes.fromhex(swarm["swarm_id"]), bytes.fromhex(swarm["root_key"])
    try:
        verify_presence(bytes.fromhex(case["presence"]), swarm_id, root, case["now"])
    except Refused as refused:
        return str(refused)
    return "ok"


def judge_table(swarm: dict[str, Any]) -> str:
    """The keys of the table, and a record by its owner."""
    table, swarm_id = swarm["table"], bytes.fromhex(swarm["swarm_id"])
    key = hashlib.sha256(b"swarm-node/peers" + swarm_id).hexdigest()
    hashed = hashlib.sha1(msgpack.packb(key)).digest()
    secret = bytes.fromhex(swarm["ticket"]["secret"])
    tag_key = hmac.digest(secret, b"swarm-node/dht/1" + swarm_id, "sha256")
    if (table["key"], table["hashed_key"], table["tag_key"]) != (key, hashed.hex(), tag_key.hex()):
        return "keys"
    record, subkey = bytes.fromhex(table["value"]), msgpack.packb(table["peer_id"])
    signature, value = record[:64], record[64:]
    head = struct.pack(">dHH", table["expiration"], len(hashed), len(subkey))
    signed = b"SWARMNODEv1 dht-record " + head + hashed + subkey + value
    author, _ = open_envelope(msgpack.unpackb(msgpack.unpackb(value))[0], swarm_id, HEAD, 716)
    if not holds(author, signed, signature):
        return "signature"
    return "ok" if peer_id(author) == table["peer_id"] else "author"


def read_relayed(case: dict[str, Any], swarm_id: bytes) -> str:
    asker, body = open_envelope(bytes.fromhex(case["request"]), swarm_id, RELAY, 65536)
    target, protocol, nonce, _, most, payload = fields("relay", body)
    if protocol in ("/swarm-node/relay/1", "/swarm-node/relayed/1") or target == asker:
        raise Refused("route")
    read = {"asker": peer_id(asker), "target": peer_id(target)}
    read |= {"nonce": nonce.hex(), "payload": payload.hex()}
    if {**read, **case} != {**case, **read}:
        raise Refused("fields")
    try:
        return read_reply(bytes.fromhex(case["reply"]), swarm_id, target, nonce, most)
    except struct.error:
        return "altered"


def read_reply(raw: bytes, swarm_id: bytes, target: bytes, nonce: bytes, most: int) -> str:
    (length,) = struct.unpack_from(">H", raw)
    try:
        author, head = open_envelope(raw[2 : 2 + length], swarm_id, REPLY, 512)
        again, refused, size, digest = fields("reply", head)
    except Refused:
        return "altered"
    if (author, again) != (target, nonce):
        return "altered"
    if size > (256 if refused else most):
        return "size"
    follows = raw[2 + length :]
    if (size, digest) != (len(follows), hashlib.sha256(follows).digest()):
        return "altered"
    return "refused" if refused else "ok"


def read_coordination(case: dict[str, Any], swarm_id: bytes) -> str:
    """A call, a report or a batch."""
    raw = bytes.fromhex(case["sealed"])
    limits = {CALL: 576, REPORT: 32 << 10, BATCH: 320}
    author, body = open_envelope(raw, swarm_id, case["kind"], limits[case["kind"]])
    values = fields({CALL: "call", REPORT: "report", BATCH: "batch"}[case["kind"]], body)
    if case["kind"] == BATCH:
        reports = b"".join(sorted(bytes.fromhex(digest) for digest in case["reports"]))
        if values[2] != hashlib.sha256(reports).digest():
            return "wrong content"
        if values[1].hex() != case.get("after", "00" * 32):
            return "wrong previous"
    shown = json.loads(json.dumps(msgpack.unpackb(body), default=bytes.hex))
    same = (peer_id(author), shown) == (case["author"], case["fields"])
    return "ok" if same else "wrong fields"


def judged(
    read: Callable[[dict[str, Any], bytes], str], case: dict[str, Any], swarm_id: bytes
) -> str:
    """What comes of a case: what was read, or why it is refused."""
    try:
        return read(case, swarm_id)
    except Refused as refused:
        return str(refused)


def judge_swarm(swarm: dict[str, Any]) -> str:
    root = bytes.fromhex(swarm["root_key"])
    made = hashlib.sha256(b"swarm-node/swarm/v1" + root + swarm["name"].encode()).hexdigest()
    print_ = hashlib.sha256(root).hexdigest()[:16]
    grouped = " ".join(print_[i : i + 4] for i in range(0, 16, 4))
    return "ok" if (made, grouped) == (swarm["swarm_id"], swarm["fingerprint"]) else "differs"


def read_ticket(text: str, now: float) -> list[Any]:
    """The fields of a ticket."""
    compact = "".join(text.split())
    encoded = compact.removeprefix("swarmjoin1.")
    alphabet = set(string.ascii_letters + string.digits + "-_")
    if len(text) > 4096 or encoded == compact or not set(encoded) <= alphabet:
        raise Refused("text")
    encoded = encoded[:-1] if len(encoded) % 4 == 1 else encoded
    raw = base64.urlsafe_b64decode(encoded + "=" * (-len(encoded) % 4))
    length = int.from_bytes(raw[:2], "big")
    body, checksum = raw[2 : 2 + length], raw[2 + length :]
    if checksum != hashlib.sha256(b"swarm-node/ticket/v1" + body).digest()[:8]:
        raise Refused("checksum")
    if shapes.refused("ticket", body) != "ok":
        raise Refused("schema")
    ticket: list[Any] = msgpack.unpackb(body)
    _, name, swarm_id, root, _, _, expires, certificate, seed, _ = ticket
    if unsound(root) or swarm_id != swarm_of(root, name):
        raise Refused("swarm id")
    key, _, begin, end, *_ = open_issuer(certificate, swarm_id, root)
    if key != Ed25519PrivateKey.from_private_bytes(seed).public_key().public_bytes_raw():
        raise Refused("seed")
    if end != expires or not begin - 300 <= now <= end:
        raise Refused("time")
    return ticket


def swarm_of(root: bytes, name: str) -> bytes:
    return hashlib.sha256(b"swarm-node/swarm/v1" + root + name.encode()).digest()


def judge_ticket(swarm: dict[str, Any]) -> str:
    """Reads the ticket and makes a member certificate out of it."""
    ticket = swarm["ticket"]
    _, name, swarm_id, root, secret, _, expires, certificate, seed, number = read_ticket(
        ticket["text"], ticket["valid_at"]
    )
    stated = (name, swarm_id.hex(), root.hex(), secret.hex(), number, expires, seed.hex())
    published = (
        *(swarm["name"], swarm["swarm_id"], swarm["root_key"], ticket["secret"]),
        *(ticket["secret_number"], ticket["expires"], ticket["issuer_seed"]),
    )
    if stated != published:
        return "fields"
    issuer = Ed25519PrivateKey.from_private_bytes(seed)
    subject, now = bytes([7]) * 32, ticket["valid_at"]
    key = issuer.public_key().public_bytes_raw()
    guest = open_issuer(certificate, swarm_id, root)[1]
    member = msgpack.packb([1, subject, now, now + 60, guest, key])
    sealed = msgpack.packb([CERT, member, key, issuer.sign(pae(CERT, swarm_id, member))])
    verify_chain([certificate, sealed], swarm_id, root, subject, now)
    return "ok"


def floats(data: bytes) -> list[float]:
    return [value for (value,) in struct.iter_unpack("<f", data)]


def judge_head(case: dict[str, Any]) -> str:
    body = bytes.fromhex(case["body"])
    return "ok" if fields("head", body)[0] == case["addresses"] else "differs"


def judge_group(case: dict[str, Any]) -> str:
    """A group and its announcement."""
    want, record = case["rollout"], case["record"]
    epoch, seq, created_ms, task, policy, completions, claimed = fields(
        "rollout", bytes.fromhex(want["body"])
    )
    read = {
        "body": want["body"],
        "epoch": epoch,
        "seq": seq,
        "created_ms": created_ms,
        "task": task,
        "policy": {"model": policy[0].hex(), "tokenizer": policy[1].hex(), "version": policy[2]},
        "completions": [
            {
                "turns": [
                    {
                        "text": text,
                        "token_ids": [value for (value,) in struct.iter_unpack("<I", ids)],
                        "logprobs": floats(logprobs),
                        "finish": finish,
                    }
                    for text, ids, logprobs, finish in turns
                ],
                "spans": spans,
            }
            for turns, spans in completions
        ],
        "claimed": floats(claimed),
    }
    if read != want:
        return "rollout differs"
    said = fields("record", bytes.fromhex(record["body"]))
    same = [said[2].hex(), said[3], said[12]] == [record[name] for name in ("id", "size", "turns")]
    return "ok" if same else "record differs"


def judge_reach(cases: list[dict[str, Any]]) -> str:
    """Small bodies have one form: the shortest."""
    for case in cases:
        if msgpack.packb(case["fields"]).hex() != case["body"]:
            return f"{case['name']} differs"
    return "ok"


def judge_datagram(case: dict[str, Any], swarm_id: bytes) -> str:
    extracted = hmac.digest(bytes(32), bytes.fromhex(case["secret"]), "sha256")
    key = hmac.digest(extracted, b"swarm-node/lan/1" + swarm_id + b"\x01", "sha256")
    raw = bytes.fromhex(case["datagram"])
    body = ChaCha20Poly1305(key).decrypt(raw[:12], raw[12:], None)
    (length,) = struct.unpack_from(">H", body, 32)
    said = [body[:32].hex(), body[34 : 34 + length].hex(), body[34 + length :].strip(b"\0")]
    same = said == [case["public_key"], case["presence"], b""]
    return "ok" if same and len(raw) == 1428 else "differs"


WHITE_SPACE = {
    *(chr(code) for code in (*range(0x09, 0x0E), *range(0x1C, 0x21), *range(0x2000, 0x200B))),
    *"\x85\xa0\u1680\u2028\u2029\u202f\u205f\u3000",
}


def canonical(question: str) -> str:
    words = [""]
    for character in unicodedata.normalize("NFC", question):
        if character in WHITE_SPACE:
            words.append("")
        else:
            words[-1] += character
    return " ".join(word for word in words if word)


def next_seed(family: str, seed: int, draw: int) -> int:
    held_out = seed >= 2**61
    hashed = b"swarm-node/held-out-seed/1" if held_out else b"swarm-node/task-seed/1"
    for tag, part in ((b"s", "split"), (b"i", 1), (b"s", family), (b"i", seed), (b"i", draw)):
        raw = str(part).encode()
        hashed += tag + struct.pack(">Q", len(raw)) + raw
    number = int.from_bytes(hashlib.sha256(hashed).digest()[:16], "big") % 2**61
    return number + held_out * 2**61


def judge_split(split: dict[str, Any]) -> str:
    for case in split["texts"]:
        text = canonical(case["question"])
        digest = hashlib.sha256(b"swarm-node/split/1\0" + text.encode()).digest()
        position = int.from_bytes(digest[:8], "big")
        found = {"canonical": text, "position": str(position), "held_out": position < 2**61}
        if {**case, **found} != case:
            return f"{case['question']!r} differs"
    for case in split["moving_on"]:
        family, seed = case["family"], int(case["seed"])
        if [str(next_seed(family, seed, draw)) for draw in (1, 2, 3)] != case["next"]:
            return f"{family} {seed} differs"
    return "ok"


def judge_messages(kinds: list[dict[str, Any]]) -> list[tuple[str, str, str]]:
    results = []
    for of in kinds:
        for case in of["cases"]:
            if "whole" in case:
                data = joined(case["whole"])
            else:
                data = changed(bytes.fromhex(of["sample"]), case["at"], joined(case["value"]))
            name = f"{of['type']} {case.get('at', '')} {case['name']!a}"
            results.append((name, shapes.refused(of["type"], data), case["expect"]))
    return results


def judge_signature(case: dict[str, Any], swarm_id: bytes) -> str:
    open_envelope(bytes.fromhex(case["sealed"]), swarm_id, RECORD, 768)
    return "ok"


def judge_window(case: dict[str, Any], swarm_id: bytes) -> str:
    """One author's groups. What is taken is noted."""
    epoch, taken = -1, set[int]()
    for at, seq, expected in case["steps"]:
        newest = max(taken) if at == epoch and taken else 0
        if at < epoch or seq <= newest - 1024:
            found = "too_old"
        elif newest and seq > newest + 1_000_000:
            found = "sequence"
        elif at == epoch and seq in taken:
            found = "duplicate"
        else:
            found, taken = "ok", {seq} if at > epoch else taken | {seq}
            epoch = at
        if found != expected:
            return f"{at} {seq}: {found}"
    return "ok"


def judge_frame(case: dict[str, Any], swarm_id: bytes) -> str:
    """A request, or a reply with its acknowledgement."""
    found = read_frame(bytes.fromhex(case["bytes"]), case["what"] == "reply", case["limit"])
    ack = case["what"] == "reply" and found in ("done", "refused")
    return found if ack == case["ack"] else "ack"


def read_frame(raw: bytes, reply: bool, limit: int) -> str:
    status, raw = (raw[0], raw[1:]) if reply else (0, raw)
    if status > 1 or len(raw) < 8:
        return "failed"
    length, rest = int.from_bytes(raw[:8], "big"), raw[8:]
    if length > (256 if status else limit):
        return "size"
    digest = hashlib.sha256(rest[:length]).digest() if reply else b""
    if len(rest) < length or rest[length:] != digest:
        return "failed"
    return "refused" if status else "done"


#: Texts of refusals that name nothing, those that name a reason, and the one with seconds.
PLAIN = {
    *("say hello first", "not here (any more)", "too many requests; slow down", "no relay now"),
    *("you broke the protocol: ask again later", "busy: ask again later", "internal error"),
    *("too many of your requests at once: slow down", "not connected to that member"),
    "the other peer did not answer in time",
}
NAMING = re.compile(
    "(?:(bad request|refused): [a-z_]{1,24}"
    "|(no member of this swarm): [a-z_]{1,24}(?: [0-9]{1,9})?"
    "|(the peer does not serve) /swarm-node/[a-z]{1,24}/[0-9]{1,3})"
)


def judge_refusal(case: dict[str, Any], swarm_id: bytes) -> str:
    named = NAMING.fullmatch(case["text"])
    says = case["text"] if case["text"] in PLAIN else ""
    return next(filter(None, named.groups())) if named else says


def judge_offer(case: dict[str, Any], swarm_id: bytes) -> str:
    """A ticket: why it is refused is for people only."""
    try:
        read_ticket(case["text"], case["now"])
    except Refused:
        return "refused"
    return "ok"


def judge_nonces(case: dict[str, Any], swarm_id: bytes) -> str:
    """Relayed requests of one asker."""
    kept: list[tuple[int, int]] = []
    forgotten = -1
    for issued, nonce, now, expected in case["steps"]:
        if issued - now > 300_000:
            found = "not_yet_valid"
        elif now - issued > 300_000:
            found = "outdated"
        elif nonce in [each for each, _ in kept]:
            found = "duplicate"
        elif issued <= forgotten:
            found = "outdated"
        else:
            found, kept = "ok", [*kept, (nonce, issued)]
            if len(kept) > 256:
                forgotten = max(forgotten, kept.pop(0)[1])
        if found != expected:
            return f"{issued} {nonce}: {found}"
    return "ok"


def judge_address(case: dict[str, Any], swarm_id: bytes) -> str:
    text, circuit, target = case["name"].partition("/p2p-circuit")
    found = re.fullmatch("/(ip4|ip6|dns4|dns6)/([^/]+)/tcp/([0-9]{1,5})/p2p/([^/]+)", text)
    if not found or not 0 < int(found[3]) < 65536 or not is_peer(found[4]):
        return "none"
    if not is_host(found[1], found[2]):
        return "none"
    of = target.removeprefix("/p2p/")
    if target and (of == target or of == found[4] or not is_peer(of)):
        return "none"
    return "circuit" if circuit else "direct"


def is_peer(text: str) -> bool:
    """Check for the peer id of an Ed25519 key."""
    if not text or not set(text) <= set(BASE58):
        return False
    number = 0
    for character in text:
        number = number * 58 + BASE58.index(character)
    raw = number.to_bytes(64, "big").lstrip(b"\0")
    return raw[:5] == bytes.fromhex("2408011220") and peer_id(raw[5:].rjust(32, b"\0")) == text


def is_host(kind: str, host: str) -> bool:
    """Check for an IP address in its usual form, or a name."""
    if kind in ("dns4", "dns6"):
        return re.fullmatch(r"[A-Za-z0-9-]{1,63}(\.[A-Za-z0-9-]{1,63})*", host) is not None
    family = socket.AF_INET if kind == "ip4" else socket.AF_INET6
    try:
        packed = socket.inet_pton(family, host)
    except OSError:
        return False
    return kind == "ip6" or socket.inet_ntop(family, packed) == host


def judge_batches(case: dict[str, Any], swarm_id: bytes) -> str:
    held: tuple[bytes, int, bytes] | None = None
    for text in case["batches"]:
        raw = bytes.fromhex(text)
        author, body = open_envelope(raw, swarm_id, BATCH, 320)
        number, previous, _, _ = fields("batch", body)
        digest = hashlib.sha256(raw).digest()
        if held is not None:
            same = number == held[1] and digest == held[2]
            follows = number == held[1] + 1 and previous == held[2]
            if author != held[0] or not (same or follows):
                return "fault"
        held = author, number, digest
    return "ok"


def judge_claims(of: dict[str, Any]) -> str:
    issuer = bytes.fromhex(of["issuer"])
    met = [(at, bytes.fromhex(subject)) for subject, at in of["met"]]
    order = sorted(met, key=lambda row: (row[0], hashlib.sha256(issuer + row[1]).digest()))
    stay = sorted(subject.hex() for _, subject in order[: of["uses"]])
    digest = hashlib.sha256(b"".join(sorted(issuer + subject for _, subject in met))).hexdigest()
    return "ok" if (stay, digest) == (of["stay"], of["digest"]) else "differs"


def judge_tag(of: dict[str, str], key: bytes) -> str:
    name = of["name"].encode()
    message = struct.pack(">H", len(name)) + name + bytes.fromhex(of["message"])
    return "ok" if hmac.digest(key, message, "sha256").hex() == of["tag"] else "differs"


def judge_limits(limits: dict[str, Any], swarm: dict[str, Any]) -> list[tuple[str, str, str]]:
    swarm_id, tag_key = map(bytes.fromhex, (swarm["swarm_id"], swarm["table"]["tag_key"]))
    results = judge_messages(limits["messages"])
    results += [
        ("claims", judge_claims(limits["claims"]), "ok"),
        ("tag", judge_tag(limits["tag"], tag_key), "ok"),
    ]
    for section, judge in (
        *(("signatures", judge_signature), ("frames", judge_frame), ("tickets", judge_offer)),
        *(("relayed", read_relayed), ("windows", judge_window), ("nonces", judge_nonces)),
        *(("addresses", judge_address), ("batches", judge_batches)),
    ):
        for case in limits[section]:
            verdict = judged(judge, case, swarm_id)
            results.append((f"{section} {case['name']}", verdict, case.get("expect", "ok")))
    for case in limits["refusals"]:
        results.append((f"refusal {case['text']!a}", judge_refusal(case, swarm_id), case["says"]))
    for case in limits["chains"]:
        results.append((f"chain {case['name']}", judge_chain(case, swarm), case["expect"]))
    for case in limits["presences"]:
        results.append((f"presence {case['name']}", judge_presence(case, swarm), case["expect"]))
    return results


def main(directory: Path) -> int:
    envelopes, bodies, swarm, split = (
        json.loads((directory / f"{name}.json").read_text())
        for name in ("envelopes", "bodies", "membership", "split")
    )
    swarm_id = bytes.fromhex(envelopes["swarm_id"])
    results = [
        ("golden", judge_golden(envelopes["golden"], swarm_id), "ok"),
        ("swarm", judge_swarm(swarm), "ok"),
        ("ticket", judge_ticket(swarm), "ok"),
        ("table", judge_table(swarm), "ok"),
        ("head", judge_head(bodies["head"]), "ok"),
        *(("group", judge_group(case), "ok") for case in bodies["groups"]),
        ("split", judge_split(split), "ok"),
        ("reach", judge_reach(bodies["reach"]), "ok"),
        ("datagram", judge_datagram(bodies["datagram"], swarm_id), "ok"),
    ]
    for case in envelopes["cases"]:
        results.append((case["name"], judge_envelope(case, swarm_id), case["expect"]))
    for case in bodies["relayed"]:
        results.append((case["name"], judged(read_relayed, case, swarm_id), case["expect"]))
    for case in bodies["coordinator"]:
        results.append((case["name"], judged(read_coordination, case, swarm_id), case["expect"]))
    for case in swarm["cases"]:
        results.append((case["name"], judge_chain(case, swarm), case["expect"]))
    for case in swarm["statements"]:
        results.append((case["name"], judge_statement(case, swarm), case["expect"]))
    for case in swarm["presences"]:
        results.append((case["name"], judge_presence(case, swarm), case["expect"]))
    results += judge_limits(json.loads((directory / "limits.json").read_text()), swarm)
    for name, found, expected in results:
        print("PASS" if found == expected else "FAIL", name, found, sep="\t")
    assert "swarm_node" not in sys.modules
    return int(any(found != expected for _, found, expected in results))


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
