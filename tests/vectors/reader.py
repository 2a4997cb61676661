"""A second implementation of docs/protocol.md, to check the vectors with: it shares no code with
the program, only MessagePack, SHA-256, Ed25519 and ChaCha20-Poly1305 from libraries.

    python reader.py DIRECTORY      prints one line per vector, exits 1 if any differs
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import struct
import sys
import unicodedata
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgpack
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import (
    Ed25519PrivateKey,
    Ed25519PublicKey,
)
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

P = 2**255 - 19
D = -121665 * pow(121666, -1, P) % P
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


def doubled(x: int, y: int) -> tuple[int, int]:
    t = D * x * x * y * y % P
    return 2 * x * y * pow(1 + t, -1, P) % P, (y * y + x * x) * pow(1 - t, -1, P) % P


def unsound(key: bytes) -> bool:
    """y >= p, or a point that becomes the neutral element when multiplied by 8."""
    y = int.from_bytes(key, "little") % 2**255
    if y >= P:
        return True
    square = (y * y - 1) * pow(D * y * y + 1, -1, P) % P
    x = pow(square, (P + 3) // 8, P)
    if x * x % P != square:
        x = x * pow(2, (P - 1) // 4, P) % P
    if x * x % P != square:
        return False  # no point at all: the signature cannot hold
    for _ in range(3):
        x, y = doubled(x, y)
    return (x, y) == (0, 1)


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
    if name != kind:
        raise Refused("kind")
    if msgpack.packb(fields) != data:
        raise Refused("encoding")
    if unsound(key):
        raise Refused("key")
    try:
        Ed25519PublicKey.from_public_bytes(key).verify(signature, pae(kind, swarm_id, body))
    except InvalidSignature as error:
        raise Refused("signature") from error
    return key, body


def fields(body: bytes, *types: type) -> list[Any]:
    """The fields of a body of version 1, after the version."""
    values = msgpack.unpackb(body)
    if not isinstance(values, list) or [type(value) for value in values] != [int, *types]:
        raise Refused("schema")
    if values[0] != 1:
        raise Refused("schema")
    return values[1:]


def open_issuer(certificate: bytes, swarm_id: bytes, root: bytes) -> list[Any]:
    author, body = open_envelope(certificate, swarm_id, ISSUER, 320)
    if author != root:
        raise Refused("wrong_root")
    issuer = fields(body, bytes, str, int, int, int, bool, int)
    if unsound(issuer[0]):
        raise Refused("key")
    return issuer


def verify_chain(
    chain: list[bytes], swarm_id: bytes, root: bytes, subject: bytes, now: float
) -> None:
    if len(chain) != 2:
        raise Refused("chain_depth")
    issuer, name, begin, end, allowance, steward, _ = open_issuer(chain[0], swarm_id, root)
    author, body = open_envelope(chain[1], swarm_id, CERT, 320)
    if author != issuer:
        raise Refused("wrong_issuer")
    key, member_begin, member_end, member_name, first = fields(body, bytes, int, int, str, bytes)
    if key != subject or unsound(subject):
        raise Refused("wrong_subject")
    if not steward and (member_name, first) != (name, issuer):
        raise Refused("not_steward")
    if not begin - 300 <= member_begin <= end:
        raise Refused("outside_issuer")
    if not 0 < member_end - member_begin <= allowance:
        raise Refused("too_long_period")
    if now < member_begin - 300:
        raise Refused("not_yet_valid")
    if now > member_end + 300:
        raise Refused("expired")


def statement_fields(kind: str, body: bytes) -> tuple[int, int, float, list[bytes]]:
    """Number, issued, the end and the keys of a list; a secret has no end and no keys."""
    if kind == SECRET:
        number, issued, secret = fields(body, int, int, bytes)
        ends, keys, digests = float("inf"), [], [secret]
    else:
        number, issued, ends, keys = fields(body, int, int, int, list)
        digests = keys
    if any(type(digest) is not bytes or len(digest) != 32 for digest in digests):
        raise Refused("schema")
    if keys != sorted(set(keys)) or len(keys) > 1000 or ends <= issued or not 1 <= number < 2**62:
        raise Refused("schema")
    return number, issued, ends, keys


def verify_statement(data: bytes, kind: str, swarm_id: bytes, root: bytes, now: float) -> list[Any]:
    """The rank: number, whether the root sealed it, content id of the sealed bytes."""
    certificate, sealed = msgpack.unpackb(data)
    author, body = open_envelope(sealed, swarm_id, kind, 36 << 10)
    number, issued, ends, keys = statement_fields(kind, body)
    if certificate:
        steward, _, begin, end, _, may, _ = open_issuer(certificate, swarm_id, root)
        if author != steward:
            raise Refused("wrong_issuer")
        if not may:
            raise Refused("not_steward")
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
    parts = msgpack.unpackb(data)
    if not isinstance(parts, list) or [type(part) for part in parts] != [bytes] * 3:
        raise Refused("schema")
    author, body = open_envelope(parts[0], swarm_id, HEAD, 716)
    issued = fields(body, list, int, int, int, int, str, int, int, bool, bool)[4] / 1000
    verify_chain(parts[1:], swarm_id, root, author, max(now, issued))
    if issued > now + 300:
        raise Refused("future")
    if issued < now - 900:
        raise Refused("outdated")


def joined(parts: list[dict[str, Any]]) -> bytes:
    return b"".join(bytes.fromhex(part["hex"]) * part.get("times", 1) for part in parts)


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
    try:
        Ed25519PublicKey.from_public_bytes(author).verify(signature, signed)
    except InvalidSignature:
        return "signature"
    return "ok" if peer_id(author) == table["peer_id"] else "author"


def read_relayed(case: dict[str, Any], swarm_id: bytes) -> str:
    asker, body = open_envelope(bytes.fromhex(case["request"]), swarm_id, RELAY, 65536)
    target, protocol, nonce, _, most, payload = fields(body, bytes, str, bytes, int, int, bytes)
    if protocol in ("/swarm-node/relay/1", "/swarm-node/relayed/1") or target == asker:
        raise Refused("route")
    stated = [case[name] for name in ("asker", "target", "nonce", "payload")]
    if [peer_id(asker), peer_id(target), nonce.hex(), payload.hex()] != stated:
        raise Refused("fields")
    raw = bytes.fromhex(case["reply"])
    (length,) = struct.unpack_from(">H", raw)
    author, head = open_envelope(raw[2 : 2 + length], swarm_id, REPLY, 512)
    follows = raw[2 + length :]
    again, refused, size, digest = fields(head, bytes, bool, int, bytes)
    same = (target, nonce, len(follows), hashlib.sha256(follows).digest())
    if (author, again, size, digest) != same or size > most:
        raise Refused("altered")
    return "refused" if refused else "ok"


def read_coordination(case: dict[str, Any], swarm_id: bytes) -> str:
    """A call, a report or a batch."""
    raw = bytes.fromhex(case["sealed"])
    limits = {CALL: 576, REPORT: 32 << 10, BATCH: 320}
    author, body = open_envelope(raw, swarm_id, case["kind"], limits[case["kind"]])
    if case["kind"] == CALL:
        method, target, _, nonce, digest = fields(body, str, str, int, bytes, bytes)
        letters = method.isascii() and method.isalpha() and method.isupper()
        sound = letters and 3 <= len(method) <= 7 and 1 <= len(target) <= 256
        sound = sound and (len(nonce), len(digest)) == (16, 32)
    elif case["kind"] == REPORT:
        values = fields(body, *(int, str, str, str), *[int] * 7, list, list)
        sound = min(values[4:11]) >= 0 and all(0 <= reward <= 1 for _, reward in values[11])
        sound = sound and max(len(values[11]), len(values[12])) <= 64
    else:
        number, previous, content, _ = fields(body, int, bytes, bytes, int)
        sound = number >= 1
    if not sound:
        raise Refused("schema")
    if case["kind"] == BATCH:
        reports = b"".join(sorted(bytes.fromhex(digest) for digest in case["reports"]))
        if content != hashlib.sha256(reports).digest():
            return "wrong content"
        if previous.hex() != case.get("after", "00" * 32):
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


def judge_ticket(swarm: dict[str, Any]) -> str:
    """Reads the ticket and makes a member certificate out of it."""
    ticket = swarm["ticket"]
    encoded = ticket["text"].removeprefix("swarmjoin1.")
    raw = base64.urlsafe_b64decode(encoded + "=" * (-len(encoded) % 4))
    (length,) = struct.unpack_from(">H", raw)
    body, checksum = raw[2 : 2 + length], raw[2 + length :]
    if checksum != hashlib.sha256(b"swarm-node/ticket/v1" + body).digest()[:8]:
        return "checksum"
    version, name, swarm_id, root, secret, _, expires, certificate, seed, number = msgpack.unpackb(
        body
    )
    stated = (version, name, swarm_id.hex(), root.hex(), secret.hex(), number, expires, seed.hex())
    if stated != (
        1,
        swarm["name"],
        swarm["swarm_id"],
        swarm["root_key"],
        ticket["secret"],
        ticket["secret_number"],
        ticket["expires"],
        ticket["issuer_seed"],
    ):
        return "fields"
    issuer = Ed25519PrivateKey.from_private_bytes(seed)
    subject, now = bytes([7]) * 32, ticket["valid_at"]
    key = issuer.public_key().public_bytes_raw()
    guest = open_issuer(certificate, swarm_id, root)[1]
    member = msgpack.packb([1, subject, now, now + 60, guest, key])
    sealed = msgpack.packb([CERT, member, key, issuer.sign(pae(CERT, swarm_id, member))])
    try:
        verify_chain([certificate, sealed], swarm_id, root, subject, now)
    except Refused as refused:
        return str(refused)
    return "ok"


def floats(data: bytes) -> list[float]:
    return [value for (value,) in struct.iter_unpack("<f", data)]


def judge_bodies(bodies: dict[str, Any]) -> str:
    want = bodies["rollout"]
    version, epoch, seq, created_ms, task, policy, completions, claimed = msgpack.unpackb(
        bytes.fromhex(want["body"])
    )
    read = {
        "epoch": epoch,
        "seq": seq,
        "created_ms": created_ms,
        "task": task,
        "policy": {"model": policy[0].hex(), "tokenizer": policy[1].hex(), "version": policy[2]},
        "completions": [
            {
                "text": text,
                "token_ids": [value for (value,) in struct.iter_unpack("<I", ids)],
                "logprobs": floats(logprobs),
                "spans": spans,
                "finish": finish,
            }
            for text, ids, logprobs, spans, finish in completions
        ],
        "claimed": floats(claimed),
    }
    if version != 1 or {**read, "body": want["body"]} != want:
        return "rollout differs"
    record = msgpack.unpackb(bytes.fromhex(bodies["record"]["body"]))
    if [record[3].hex(), record[4]] != [bodies["record"]["id"], bodies["record"]["size"]]:
        return "record differs"
    head = msgpack.unpackb(bytes.fromhex(bodies["head"]["body"]))
    return "ok" if head[1] == bodies["head"]["addresses"] else "head differs"


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
        ("bodies", judge_bodies(bodies), "ok"),
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
    for name, found, expected in results:
        print("PASS" if found == expected else "FAIL", name, found, sep="\t")
    assert "swarm_node" not in sys.modules
    return int(any(found != expected for _, found, expected in results))


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
