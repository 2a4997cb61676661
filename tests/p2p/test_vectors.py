"""The published test vectors: this program and an independent reader must judge all of them alike,
and the worked example in docs/protocol.md must be the golden vector."""

import hashlib
import json
import re
import subprocess
import sys
from types import SimpleNamespace
from typing import Any, TypeVar

import msgpack
import numpy as np
import pytest
from builders import ROOT
from published import VECTORS, load
from swarm_keys import verify_chain
from vectors.stored import joined

from swarm_node.clock import SYSTEM_CLOCK
from swarm_node.errors import Rejected
from swarm_node.p2p.coordinator.coordination import (
    Shown,
    SignedBatch,
    SignedCall,
    SignedReport,
    content_digest,
    open_batch,
    open_call,
    open_report,
)
from swarm_node.p2p.membership.members import Members
from swarm_node.p2p.membership.membership import MemberBody, SwarmInfo
from swarm_node.p2p.membership.statements import Statement, verify_revocations, verify_secret
from swarm_node.p2p.membership.ticket import parse_ticket
from swarm_node.p2p.reach.lan import Lan
from swarm_node.p2p.reach.probe import ProbeForReply, ProbeForRequest, ProbeReply, ProbeRequest
from swarm_node.p2p.reach.punch import Punch
from swarm_node.p2p.reach.relayed import open_reply, open_request
from swarm_node.p2p.transports.hivemind.records import HeartbeatRecords, heartbeat_key
from swarm_node.p2p.wire import wire
from swarm_node.p2p.wire.envelope import (
    SEALED_BYTES,
    Kind,
    content_id,
    open_sealed,
    seal,
    signed_bytes,
)
from swarm_node.p2p.wire.groups import GroupHeader, pack_group, unpack_group
from swarm_node.p2p.wire.identity import Identity, peer_id_of

PROTOCOL = ROOT / "docs" / "protocol.md"


ENVELOPES, BODIES, MEMBERSHIP = load("envelopes"), load("bodies"), load("membership")
SWARM_ID = bytes.fromhex(ENVELOPES["swarm_id"])
INFO = SwarmInfo(MEMBERSHIP["name"], bytes.fromhex(MEMBERSHIP["root_key"]), bytes(32))
Body = TypeVar("Body", bound=wire.Body)


def test_no_envelope_that_is_taken_is_over_the_limit_of_its_kind() -> None:
    taken = [case for case in ENVELOPES["cases"] if case["expect"] != "size"]
    assert len(taken) == len(ENVELOPES["cases"]) - 1
    over = [c["name"] for c in taken if len(joined(c["sealed"])) > SEALED_BYTES[Kind(c["kind"])]]
    assert over == []


@pytest.mark.parametrize("case", ENVELOPES["cases"], ids=lambda case: case["name"])
def test_an_envelope_is_judged_as_published(case: dict[str, Any]) -> None:
    data = joined(case["sealed"])
    result = open_sealed(data, SWARM_ID, Kind(case["kind"]))
    if isinstance(result, Rejected):
        assert result.reason == case["expect"]
        return
    assert result.id == content_id(data)
    assert result.author == case["author"]
    assert hashlib.sha256(result.body).hexdigest() == case["body_sha256"]
    stranger = result.author != case.get("expected_author", result.author)
    assert case["expect"] == ("author" if stranger else "ok")


def test_the_golden_envelope_is_made_byte_for_byte() -> None:
    golden = ENVELOPES["golden"]
    identity, body = Identity.from_seed(bytes.fromhex(golden["seed"])), golden["body"]
    assert identity.peer_id == golden["peer_id"]
    signed = signed_bytes(SWARM_ID, Kind.RECORD, bytes.fromhex(body))
    assert signed.hex() == golden["signed_bytes"]
    sealed = seal(identity, SWARM_ID, Kind.RECORD, bytes.fromhex(body))
    assert sealed.hex() == golden["sealed"]
    assert content_id(sealed).hex() == golden["id"]


@pytest.mark.parametrize("case", MEMBERSHIP["cases"], ids=lambda case: case["name"])
def test_a_chain_is_judged_as_published(case: dict[str, Any]) -> None:
    assert INFO.swarm_id.hex() == MEMBERSHIP["swarm_id"]
    assert INFO.fingerprint == MEMBERSHIP["fingerprint"]
    chain = tuple(bytes.fromhex(certificate) for certificate in case["chain"])
    result = verify_chain(chain, INFO, bytes.fromhex(case["subject_key"]), case["now"])
    assert (result.reason if isinstance(result, Rejected) else "ok") == case["expect"]
    assert isinstance(result, MemberBody) == (case["expect"] == "ok")


@pytest.mark.parametrize("case", MEMBERSHIP["statements"], ids=lambda case: case["name"])
def test_a_statement_is_judged_as_published(case: dict[str, Any]) -> None:
    verify = verify_revocations if case["kind"] == Kind.REVOKE else verify_secret
    result = verify(bytes.fromhex(case["signed"]), INFO, case["now"])
    assert (result.reason if isinstance(result, Rejected) else "ok") == case["expect"]
    if isinstance(result, Statement):
        number, by_root, identifier = result.rank
        assert [number, by_root, identifier.hex()] == case["rank"]
        assert result.raw.hex() == case["signed"]


@pytest.mark.parametrize("case", MEMBERSHIP["presences"], ids=lambda case: case["name"])
def test_a_presence_is_judged_as_published(case: dict[str, Any]) -> None:
    result = Members(INFO, lambda: case["now"]).read_presence(bytes.fromhex(case["presence"]))
    assert (result.reason if isinstance(result, Rejected) else "ok") == case["expect"]


@pytest.mark.parametrize("case", BODIES["relayed"], ids=lambda case: case["name"])
def test_what_passes_a_relay_is_judged_as_published(case: dict[str, Any]) -> None:
    asked = open_request(bytes.fromhex(case["request"]), SWARM_ID)
    if isinstance(asked, Rejected):
        assert asked.reason == case["expect"]
        return
    assert [asked.asker, asked.target] == [case["asker"], case["target"]]
    assert [asked.body.nonce.hex(), asked.body.payload.hex()] == [case["nonce"], case["payload"]]
    reply = open_reply(bytes.fromhex(case["reply"]), SWARM_ID, asked.target, asked.body)
    if isinstance(reply, Rejected):
        assert reply.reason == case["expect"]
        return
    assert case["expect"] == ("refused" if reply.is_refusal else "ok")


def test_the_published_record_of_the_table_is_accepted_and_no_other() -> None:
    table = MEMBERSHIP["table"]
    key = heartbeat_key(SWARM_ID)
    assert key == table["key"]
    now = table["expiration"] - 60

    def accepted(expiration: float, value: bytes) -> bool:
        record = SimpleNamespace(
            key=bytes.fromhex(table["hashed_key"]),
            subkey=msgpack.packb(table["peer_id"]),
            value=value,
            expiration_time=expiration,
        )
        proves_membership = Members(INFO, lambda: now).proves_membership
        records = HeartbeatRecords(Identity.generate(), record.key, lambda: now, proves_membership)
        return records.validate(record)

    value = bytes.fromhex(table["value"])
    assert accepted(table["expiration"], value)
    assert not accepted(table["expiration"] + 1, value)
    assert not accepted(table["expiration"], value[:-1] + bytes([value[-1] ^ 1]))


def test_the_published_ticket_is_read() -> None:
    published = MEMBERSHIP["ticket"]
    ticket = parse_ticket(published["text"], published["valid_at"])
    assert ticket.expires == published["expires"]
    assert ticket.info.secret.hex() == published["secret"]
    assert ticket.info.secret_number == published["secret_number"]
    assert ticket.issuer_seed.hex() == published["issuer_seed"]
    assert ticket.info.swarm_id.hex() == MEMBERSHIP["swarm_id"]


@pytest.mark.parametrize("case", BODIES["groups"], ids=["answers", "multi-turn"])
def test_a_published_group_is_read_and_written_byte_for_byte(case: dict[str, Any]) -> None:
    want, record = case["rollout"], case["record"]
    result = unpack_group(bytes.fromhex(want["body"]))
    assert not isinstance(result, Rejected)
    header, group = result
    place = {name: want[name] for name in ("epoch", "seq", "created_ms")}
    assert header == GroupHeader(**place)
    for each, said in zip(group.completions, want["completions"], strict=True):
        turns = said["turns"]
        assert each.turn_texts == tuple(turn["text"] for turn in turns)
        assert each.token_ids.tolist() == [token for turn in turns for token in turn["token_ids"]]
        assert each.logprobs.tolist() == [logp for turn in turns for logp in turn["logprobs"]]
        assert np.diff((0, *each.ends)).tolist() == [len(turn["logprobs"]) for turn in turns]
        assert each.finish == turns[-1]["finish"]
    assert pack_group(group, **place).hex() == want["body"]
    body = read_body(wire.Announcement, record["body"])
    assert (body.id.hex(), body.size, body.turns) == (record["id"], record["size"], record["turns"])


def test_the_published_heartbeat_is_read_and_written_byte_for_byte() -> None:
    head = read_body(wire.Heartbeat, BODIES["head"]["body"])
    assert list(head.addresses) == BODIES["head"]["addresses"]


def read_body(kind: type[Body], published: str) -> Body:
    """A published body, which is written as it was read."""
    data = bytes.fromhex(published)
    body = wire.unpack(kind, data, max_bytes=len(data))
    assert not isinstance(body, Rejected)
    assert wire.pack(body) == data
    return body


KINDS = (ProbeRequest, ProbeReply, ProbeForRequest, ProbeForReply, Punch)


@pytest.mark.parametrize("case", BODIES["reach"], ids=lambda case: case["name"])
def test_what_members_say_of_their_reach_is_read_as_published(case: dict[str, Any]) -> None:
    (kind,) = (kind for kind in KINDS if kind.__name__ == case["name"])
    raw = bytes.fromhex(case["body"])
    body = wire.unpack(kind, raw, max_bytes=512)
    assert not isinstance(body, Rejected)
    assert wire.pack(body) == raw
    assert msgpack.unpackb(raw) == case["fields"]


@pytest.mark.parametrize("case", BODIES["coordinator"], ids=lambda case: case["name"])
def test_what_members_and_a_coordinator_sign_is_read_as_published(case: dict[str, Any]) -> None:
    raw = bytes.fromhex(case["sealed"])
    opened: SignedCall | SignedReport | SignedBatch | Rejected
    if case["kind"] == Kind.CALL:
        opened = open_call(wire.pack(Shown(raw, b"", b"")), SWARM_ID)
    else:
        opened = (open_report if case["kind"] == Kind.REPORT else open_batch)(raw, SWARM_ID)
    if isinstance(opened, Rejected):
        assert opened.reason == case["expect"]
        return
    assert (opened.author, case["expect"]) == (case["author"], "ok")
    packed = msgpack.unpackb(wire.pack(opened.body))
    assert json.loads(json.dumps(packed, default=bytes.hex)) == case["fields"]
    if isinstance(opened, SignedBatch):
        content = content_digest([bytes.fromhex(digest) for digest in case["reports"]])
        assert opened.body.content == content
        assert opened.body.previous.hex() == case.get("after", "00" * 32)


def test_a_datagram_is_read_as_published() -> None:
    case = BODIES["datagram"]
    raw, secret = bytes.fromhex(case["datagram"]), bytes.fromhex(case["secret"])
    lan = Lan(Identity.generate(), SWARM_ID, secret, SYSTEM_CLOCK)
    lan.datagram_received(raw[:-1] + bytes([raw[-1] ^ 1]), None)
    assert lan.heard_presences(60.0) == {}
    lan.datagram_received(raw, None)
    peer = peer_id_of(bytes.fromhex(case["public_key"]))
    assert lan.heard_presences(60.0) == {peer: bytes.fromhex(case["presence"])}


@pytest.mark.slow(reason="a process of its own reads all vectors")
def test_an_independent_reader_agrees_on_every_vector() -> None:
    run = subprocess.run(
        [sys.executable, "-I", str(VECTORS / "reader.py"), str(VECTORS)],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert run.returncode == 0, run.stdout + run.stderr
    verdicts = [line.split("\t")[0] for line in run.stdout.splitlines()]
    limits = load("limits")
    assert verdicts == ["PASS"] * (
        8
        + len(ENVELOPES["cases"])
        + len(BODIES["groups"])
        + len(BODIES["relayed"])
        + len(BODIES["coordinator"])
        + sum(len(MEMBERSHIP[kind]) for kind in ("cases", "statements", "presences"))
        + sum(len(of["cases"]) for of in limits.pop("messages"))
        + 2
        + sum(len(cases) for cases in limits.values() if isinstance(cases, list))
    )


def test_the_worked_example_in_the_documentation_is_the_golden_vector() -> None:
    blocks = re.findall(r"```hex\n(.*?)```", PROTOCOL.read_text(), re.DOTALL)
    shown = {"".join(block.split()) for block in blocks}
    golden = ENVELOPES["golden"]
    for name in ("seed", "public_key", "body", "signed_bytes", "signature", "sealed", "id"):
        assert golden[name] in shown, name
    assert ENVELOPES["swarm_id"] in shown
