"""The vectors of limits.json: every bound of docs/protocol.md, and rules that meet. The program
must judge as published; `tests/vectors/reader.py` judges them from the page alone."""

from __future__ import annotations

import asyncio
import socket
from types import SimpleNamespace
from typing import Any

import pytest
from published import load
from vectors.stored import changed, joined

from swarm_node.errors import OversizeError, RefusedError, Rejected, TicketError, TransportError
from swarm_node.p2p.addresses import circuit
from swarm_node.p2p.addresses.addresses import parse_address
from swarm_node.p2p.coordinator.coordination import (
    MAX_CALL_BYTES,
    MAX_REPORT_BYTES,
    MAX_SHOWN_BYTES,
    Call,
    Report,
    ReportBatch,
    Shown,
    SignedBatch,
    follow,
    open_batch,
)
from swarm_node.p2p.limits.gates import Windows
from swarm_node.p2p.membership.members import Members
from swarm_node.p2p.membership.membership import IssuerBody, MemberBody, SwarmInfo, issue_member
from swarm_node.p2p.membership.statements import (
    MAX_STATEMENT_BYTES,
    NewSecret,
    Revocations,
    Signed,
    revocations,
)
from swarm_node.p2p.membership.ticket import parse_ticket
from swarm_node.p2p.membership.ticket_uses import TicketUses, digest
from swarm_node.p2p.reach import probe, punch
from swarm_node.p2p.reach.relayed import (
    Replays,
    ReplyHead,
    Request,
    open_reply,
    open_request,
    request_to,
)
from swarm_node.p2p.transports.hivemind.records import _mac
from swarm_node.p2p.wire import frames, wire
from swarm_node.p2p.wire.envelope import SEALED_BYTES, Kind, open_sealed
from swarm_node.p2p.wire.groups import unpack_group
from swarm_node.p2p.wire.identity import Identity, peer_id_of
from swarm_node.p2p.wire.reasons import REFUSALS, read_refusal
from swarm_node.p2p.wire.transport import MAX_REPLY_BYTES, MAX_REQUEST_BYTES

LIMITS, MEMBERSHIP = load("limits"), load("membership")
SWARM_ID = bytes.fromhex(MEMBERSHIP["swarm_id"])
INFO = SwarmInfo(MEMBERSHIP["name"], bytes.fromhex(MEMBERSHIP["root_key"]), bytes(32))
#: The target of relayed requests; any would do.
TARGET = peer_id_of(INFO.root_key)
#: The body of each type but groups, and its largest size.
BODIES: dict[str, tuple[type[wire.Body], int]] = {
    "record": (wire.Announcement, wire.MAX_ANNOUNCEMENT_BYTES),
    "head": (wire.Heartbeat, wire.MAX_HEAD_BYTES),
    "issuer": (IssuerBody, wire.MAX_CERTIFICATE_BYTES),
    "cert": (MemberBody, wire.MAX_CERTIFICATE_BYTES),
    "revoke": (Revocations, SEALED_BYTES[Kind.REVOKE]),
    "secret": (NewSecret, SEALED_BYTES[Kind.SECRET]),
    "statement": (Signed, MAX_STATEMENT_BYTES),
    "relay": (Request, SEALED_BYTES[Kind.RELAY]),
    "reply": (ReplyHead, SEALED_BYTES[Kind.REPLY]),
    "call": (Call, MAX_CALL_BYTES),
    "report": (Report, MAX_REPORT_BYTES),
    "batch": (ReportBatch, SEALED_BYTES[Kind.BATCH]),
    "presence": (wire.Presence, wire.MAX_PRESENCE_BYTES),
    "shown": (Shown, MAX_SHOWN_BYTES),
    "hello": (wire.HelloRequest, MAX_REQUEST_BYTES),
    "list": (wire.ListRequest, MAX_REQUEST_BYTES),
    "listed": (wire.ListReply, MAX_REPLY_BYTES),
    "pull": (wire.PullRequest, MAX_REQUEST_BYTES),
    "peers": (wire.PeersRequest, MAX_REQUEST_BYTES),
    "presences": (wire.PeersReply, MAX_REPLY_BYTES),
    "renewed": (wire.RenewReply, MAX_REPLY_BYTES),
    "claims": (wire.ClaimsRequest, MAX_REQUEST_BYTES),
    "claimed": (wire.ClaimsReply, MAX_REPLY_BYTES),
    "probe": (probe.ProbeRequest, probe._MAX_BODY),
    "probed": (probe.ProbeReply, probe._MAX_BODY),
    "probe-for": (probe.ProbeForRequest, probe._MAX_BODY),
    "outcome": (probe.ProbeForReply, probe._MAX_BODY),
    "punch": (punch.Punch, punch.MAX_BODY),
}


def named(case: dict[str, Any]) -> str:
    return str(case.get("name", case.get("type")))


def verdict(answer: object) -> str:
    return answer.reason if isinstance(answer, Rejected) else "ok"


def read(kind: str, data: bytes) -> str:
    if kind == "rollout":
        return verdict(unpack_group(data))
    body, most = BODIES[kind]
    return verdict(wire.unpack(body, data, max_bytes=most))


@pytest.mark.parametrize("of", LIMITS["messages"], ids=named)
def test_a_message_is_taken_up_to_its_bounds_and_no_further(of: dict[str, Any]) -> None:
    sample, wrong = bytes.fromhex(of["sample"]), []
    for case in of["cases"]:
        data = (
            joined(case["whole"])
            if "whole" in case
            else changed(sample, case["at"], joined(case["value"]))
        )
        found = read(of["type"], data)
        if found != case["expect"]:
            wrong.append((case.get("at"), case["name"], found, case["expect"]))
    assert wrong == []


@pytest.mark.parametrize("case", LIMITS["signatures"], ids=named)
def test_a_signature_holds_as_published(case: dict[str, Any]) -> None:
    sealed = open_sealed(bytes.fromhex(case["sealed"]), SWARM_ID, Kind.RECORD)
    assert verdict(sealed) == case["expect"]


@pytest.mark.parametrize("case", LIMITS["windows"], ids=named)
def test_a_number_is_taken_once_as_published(case: dict[str, Any]) -> None:
    windows, found = Windows(), []
    for epoch, seq, _ in case["steps"]:
        found.append([epoch, seq, verdict(windows.check("author", epoch, seq))])
        if found[-1][2] == "ok":
            windows.mark("author", epoch, seq)
    assert found == case["steps"]


async def streamed(case: dict[str, Any]) -> tuple[str, bytes]:
    """Read a request or a reply from a stream. Return the outcome and what was written back."""
    here, there = socket.socketpair()
    reader, writer = await asyncio.open_connection(sock=here)
    far_reader, far_writer = await asyncio.open_connection(sock=there)
    try:
        far_writer.write(bytes.fromhex(case["bytes"]))
        far_writer.write_eof()
        try:
            if case["what"] == "reply":
                await frames.read_reply(reader, writer, case["limit"])
            else:
                await frames.read_request(reader, case["limit"])
            found = "done"
        except RefusedError:
            found = "refused"
        except OversizeError:
            found = "size"
        except TransportError:
            found = "failed"
        writer.close()
        return found, await far_reader.read()
    finally:
        for end in (writer, far_writer):
            end.close()


@pytest.mark.parametrize("case", LIMITS["frames"], ids=named)
def test_a_stream_is_read_as_published(case: dict[str, Any]) -> None:
    acknowledged = frames.ACK if case["ack"] else b""
    assert asyncio.run(streamed(case)) == (case["expect"], acknowledged)


@pytest.mark.parametrize("case", LIMITS["refusals"], ids=lambda case: case["text"] or "nothing")
def test_the_words_of_a_refusal_are_read_as_published(case: dict[str, Any]) -> None:
    texts = {refusal.code: refusal.text for refusal in REFUSALS}
    code = read_refusal(case["text"].encode()).code
    assert texts.get(code, "") == case["says"]


@pytest.mark.parametrize("case", LIMITS["chains"], ids=named)
def test_of_two_reasons_against_a_chain_the_published_one_counts(case: dict[str, Any]) -> None:
    listed, blocked, met = (
        [bytes.fromhex(key) for key in case[name]] for name in ("listed", "blocked", "met")
    )
    now = 1_800_000_010.0
    blocks = frozenset({peer_id_of(key) for key in blocked} | {key.hex() for key in blocked})
    members = Members(INFO, lambda: now, blocks=lambda: blocks)
    chain = tuple(bytes.fromhex(certificate) for certificate in case["chain"])
    for subject in met:
        before = issue_member(
            *(Identity.from_seed(bytes([2]) * 32), INFO, subject),
            **{"name": "Anna", "not_before": now, "not_after": now + 60},
        )
        assert verdict(members.admit((chain[0], before), peer_id_of(subject))) == "ok"
    members.obey(revocations(1, now, now + 1, listed))
    peer_id = peer_id_of(bytes.fromhex(case["subject_key"]))
    if case["expect"] == "expired" and met:
        # What this node noted while the membership lasted changes nothing.
        assert verdict(members.admit(chain, peer_id)) == "used_up"
    now = case["now"]
    assert verdict(members.admit(chain, peer_id)) == case["expect"]


@pytest.mark.parametrize("case", LIMITS["presences"], ids=named)
def test_of_two_reasons_against_a_presence_the_published_one_counts(case: dict[str, Any]) -> None:
    answer = Members(INFO, lambda: case["now"]).read_presence(bytes.fromhex(case["presence"]))
    assert verdict(answer) == case["expect"]


@pytest.mark.parametrize("case", LIMITS["relayed"], ids=named)
def test_a_relayed_reply_is_bounded_as_published(case: dict[str, Any]) -> None:
    asked = open_request(bytes.fromhex(case["request"]), SWARM_ID)
    assert not isinstance(asked, Rejected)
    try:
        reply = open_reply(bytes.fromhex(case["reply"]), SWARM_ID, asked.target, asked.body)
    except OversizeError:
        assert case["expect"] == "size"
        return
    refused = not isinstance(reply, Rejected) and reply.is_refusal
    assert ("refused" if refused else verdict(reply)) == case["expect"]


@pytest.mark.parametrize("case", LIMITS["nonces"], ids=named)
def test_a_relayed_request_is_answered_once_as_published(case: dict[str, Any]) -> None:
    replays, found = Replays(), []
    for issued, number, now, _ in case["steps"]:
        body = request_to(
            *(TARGET, "/swarm-node/pull/1", b"", 0),
            **{"nonce": number.to_bytes(16, "big"), "wall": issued / 1000},
        )
        assert body.issued_ms == issued
        answer = replays.admit_request("asker", True, body, now / 1000)
        found.append([issued, number, now, "ok" if answer is None else answer.reason])
    assert found == case["steps"]


@pytest.mark.parametrize("case", LIMITS["addresses"], ids=named)
def test_an_address_is_dialled_or_passed_over_as_published(case: dict[str, Any]) -> None:
    through, kind = circuit.parse(case["name"]), "none"
    if through is not None and parse_address(through.address) is not None:
        kind = "circuit"
    elif parse_address(case["name"]) is not None:
        kind = "direct"
    assert kind == case["expect"]


@pytest.mark.parametrize("case", LIMITS["batches"], ids=named)
def test_a_chain_of_batches_is_followed_as_published(case: dict[str, Any]) -> None:
    batches = [open_batch(bytes.fromhex(raw), SWARM_ID) for raw in case["batches"]]
    signed = [batch for batch in batches if isinstance(batch, SignedBatch)]
    assert len(signed) == len(batches)
    _, fault = follow(None, signed)
    assert ("fault" if fault else "ok") == case["expect"]


@pytest.mark.parametrize("case", LIMITS["tickets"], ids=named)
def test_a_ticket_is_taken_as_published(case: dict[str, Any]) -> None:
    try:
        parse_ticket(case["text"], case["now"])
    except TicketError:
        assert case["expect"] == "refused"
    else:
        assert case["expect"] == "ok"


def test_the_published_claims_have_their_order_and_their_digest() -> None:
    of, claims = LIMITS["claims"], TicketUses()
    issuer = bytes.fromhex(of["issuer"])
    for subject, at in of["met"]:
        claims.meet(issuer, of["uses"], bytes.fromhex(subject), at)
    assert sorted(subject.hex() for subject in claims.holders(issuer)) == of["stay"]
    assert digest(claims.since(0)).hex() == of["digest"]


def test_a_message_of_the_table_has_the_published_tag() -> None:
    of = LIMITS["tag"]
    message = SimpleNamespace(
        auth=SimpleNamespace(signature=b"of before"),
        DESCRIPTOR=SimpleNamespace(full_name=of["name"]),
        SerializeToString=lambda deterministic: bytes.fromhex(of["message"]),
    )
    assert _mac(message, bytes.fromhex(MEMBERSHIP["table"]["tag_key"])).hex() == of["tag"]
