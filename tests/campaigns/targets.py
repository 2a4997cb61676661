"""Readers of bytes of others: one target per reader, with inputs to start from.

`run` returns whether the input was accepted. It raises nothing but `Defect`: an exception that is
not the reader's refusal passes through, and is a defect, too.
"""

from __future__ import annotations

import asyncio
import ipaddress
import itertools
import json
import math
import re
from collections.abc import Callable, Iterator
from copy import copy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgpack
import msgspec
import numpy as np
from noise_responder import Responder
from swarm_keys import verify_chain

from swarm_node.clock import Clock
from swarm_node.environments.workers.scoring_worker import Reply as JudgeReply
from swarm_node.errors import Rejected, SwarmNodeError, TicketError, TransportError
from swarm_node.node.control.control import ControlClient
from swarm_node.node.metrics.snapshot import EvalPoint, Snapshot
from swarm_node.p2p.addresses import circuit
from swarm_node.p2p.addresses.addresses import is_here, split_endpoint
from swarm_node.p2p.coordinator import coordination
from swarm_node.p2p.membership import membership, statements, ticket
from swarm_node.p2p.membership.members import Members
from swarm_node.p2p.membership.membership import SwarmInfo
from swarm_node.p2p.reach import address_check, probe, punch, reachability, relayed
from swarm_node.p2p.reach.lan import Lan
from swarm_node.p2p.transports.hivemind.records import HeartbeatRecords
from swarm_node.p2p.wire import frames, groups, wire
from swarm_node.p2p.wire.envelope import Kind, Opened, open_sealed, seal
from swarm_node.p2p.wire.groups import MAX_GROUP_BYTES, pack_group, unpack_group
from swarm_node.p2p.wire.identity import Identity
from swarm_node.page.entrance import decode_answer
from swarm_node.process import frames as pipes
from swarm_node.rollout import (
    Completion,
    EarlierTurn,
    Finish,
    PolicyRef,
    RolloutGroup,
    TaskRef,
    VersionSpan,
)

ROOT_KEY, ISSUER, NODE = (Identity.from_seed(bytes([n]) * 32) for n in (1, 2, 3))
SWARM = SwarmInfo("fuzz", ROOT_KEY.public_key, bytes(32))
NOW = 1_800_000_000
DIGEST = bytes(range(32))
ADDRESS = "/ip4/10.0.0.1/tcp/4001/p2p/12D3KooWGRTeqVVEbQDrFeS5RjhCkJmvQtBczyZcDgHCYTbEo5VA"


class Defect(AssertionError):
    """A reader did what it must not do."""


@dataclass(frozen=True)
class FuzzTarget:
    """`structured` inputs are MessagePack; `signed` ones are read unchanged or not at all."""

    name: str
    seeds: list[bytes]
    run: Callable[[bytes], bool]
    structured: bool = False
    signed: bool = False
    #: Inputs of this target per input of another.
    weight: float = 1.0
    #: The attacker's change of an input before it is sent; its time does not count.
    wrap: Callable[[bytes], bytes] = bytes


def made_group(
    completions: int = 2, tokens: int = 5, earlier: tuple[EarlierTurn, ...] = ()
) -> RolloutGroup:
    """A group of answers, or of dialogues with `earlier` turns."""
    made = tuple(
        Completion(
            text="forty-two é",
            token_ids=np.arange(tokens + n, dtype=np.uint32),
            logprobs=np.full(tokens + n, -0.5, dtype=np.float32),
            spans=(VersionSpan(4, 0, 2), VersionSpan(5, 2, tokens + n)),
            finish=Finish.STOP,
            earlier_turns=earlier,
        )
        for n in range(completions)
    )
    task = TaskRef("reasoning_gym", "0.1.25-2f8a", "chain_sum", 11)
    claimed = tuple(float(n) for n in range(completions))
    return RolloutGroup(task, PolicyRef(DIGEST, DIGEST[::-1], 5), made, claimed)


def group_body(completions: int = 2, tokens: int = 5) -> bytes:
    """The body of a sealed group."""
    made = made_group(completions, tokens)
    return pack_group(made, epoch=9, seq=3, created_ms=1_700_000_000_000)


def dialogues_body(completions: int = 2, tokens: int = 5) -> bytes:
    """The body of a sealed group of dialogues."""
    made = made_group(completions, tokens, (EarlierTurn("forty?", 2),))
    return pack_group(made, epoch=9, seq=3, created_ms=1_700_000_000_000)


ISSUER_CERTIFICATE = membership.issue_issuer(
    ROOT_KEY,
    SWARM,
    ISSUER.public_key,
    name="issuer",
    not_before=NOW,
    not_after=NOW + 86_400,
    member_seconds=3600,
)
MEMBER_CERTIFICATE = membership.issue_member(
    ISSUER, SWARM, NODE.public_key, name="issuer", not_before=NOW, not_after=NOW + 3600
)
CHAIN = (ISSUER_CERTIFICATE, MEMBER_CERTIFICATE)
HEAD = wire.pack(wire.Heartbeat(1, (ADDRESS,), 5, 9, 3, NOW * 1000, "fuzz", 0, 0, False, False))


def presence(head: bytes = HEAD) -> bytes:
    """The presence of NODE, as the DHT carries it."""
    return wire.pack(wire.Presence(seal(NODE, SWARM.swarm_id, Kind.HEAD, head), *CHAIN))


def members() -> Members:
    """A reader that has met nobody."""
    return Members(SWARM, lambda: float(NOW))


#: The body type of each kind of envelope. `_Group` has checks that its type cannot express.
CARRIED: dict[Kind, type[wire.Body]] = {
    Kind.ROLLOUT: groups._Group,
    Kind.RECORD: wire.Announcement,
    Kind.HEAD: wire.Heartbeat,
    Kind.ISSUER: membership.IssuerBody,
    Kind.CERT: membership.MemberBody,
    Kind.REVOKE: statements.Revocations,
    Kind.SECRET: statements.NewSecret,
    Kind.RELAY: relayed.Request,
    Kind.REPLY: relayed.ReplyHead,
    Kind.CALL: coordination.Call,
    Kind.REPORT: coordination.Report,
    Kind.BATCH: coordination.ReportBatch,
}


def bodies(of: type[wire.Body] = wire.Body) -> list[type[wire.Body]]:
    """Every type of body that the program reads."""
    return [each for kind in of.__subclasses__() for each in (kind, *bodies(kind))]


def example(kind: type[msgspec.Struct]) -> bytes:
    """A body of this type, as MessagePack."""
    if kind is groups._Group:
        return dialogues_body()
    return msgspec.msgpack.encode(_example(msgspec.inspect.type_info(kind), itertools.count(7)))


def _example(kind: Any, numbers: Iterator[int]) -> Any:
    """Plain values of a type; numbers ascend."""
    inspect = msgspec.inspect
    kind = getattr(kind, "type", kind)  # within a figure's annotation
    match kind:
        case inspect.StructType():
            values = {each.encode_name: _example(each.type, numbers) for each in kind.fields}
            return list(values.values()) if kind.array_like else values
        case inspect.ListType() | inspect.VarTupleType():
            return [_example(kind.item_type, numbers)]
        case inspect.DictType():
            key = "gcd" if isinstance(kind.key_type, inspect.StrType) else "1"
            return {key: _example(kind.value_type, numbers)}
        case inspect.UnionType():
            return _example(kind.types[0], numbers)
        case inspect.LiteralType():
            return kind.values[0]
        case inspect.EnumType():
            return next(iter(kind.cls)).value
        case inspect.IntType():
            return min(next(numbers), kind.le or 1 << 30)
        case inspect.FloatType():
            return 0.5
        case inspect.BoolType():
            return True
        case inspect.BytesType():
            return bytes(range(kind.min_length or 5))
        case inspect.StrType():
            examples = ("a", ADDRESS, "/swarm-node/pull/1")
            return next(text for text in examples if re.search(kind.pattern or "", text))
    return None


def targets() -> list[FuzzTarget]:
    """Every reader of bytes of others."""
    return [
        *map(_envelope, Kind),
        *map(_resigned, Kind),
        *map(_plain, bodies()),
        _group(),
        _statement(),
        _chain(),
        _forged_chain(),
        _ticket(),
        _altered_ticket(),
        _dht(),
        _forged_dht(),
        _presence(),
        _forged_presence(),
        _request(),
        _reply(),
        _relayed_request(),
        _hostile_asker(),
        _relayed_reply(),
        _datagram(),
        _hostile_datagram(),
        _probe_reply(),
        _punch(),
        _circuit(),
        _handshake(),
        _hostile_handshake(),
        _pipe(),
        _judge(),
        *_control(),
    ]


def _taken(read: Callable[[bytes], object]) -> Callable[[bytes], bool]:
    """Whether a reader that refuses with a value takes an input."""
    return lambda data: not isinstance(read(data), Rejected)


_ASKED = relayed.request_to(
    ISSUER.peer_id, "/swarm-node/pull/1", b"p" * 40, 1000, nonce=bytes(16), wall=NOW
)


def _relayed_request() -> FuzzTarget:
    """A relay alters what it passes on."""
    run = _taken(lambda data: relayed.open_request(data, SWARM.swarm_id))
    sealed = relayed.seal_request(NODE, SWARM.swarm_id, _ASKED)
    return FuzzTarget("relayed request", [sealed], run, structured=True, signed=True)


def _hostile_asker() -> FuzzTarget:
    """A member asks for anything, under a good signature."""

    def run(body: bytes) -> bool:
        sealed = seal(NODE, SWARM.swarm_id, Kind.RELAY, body[: relayed.MAX_PAYLOAD_BYTES])
        asked = relayed.open_request(sealed, SWARM.swarm_id)
        if isinstance(asked, Rejected):
            return False
        if asked.asker != NODE.peer_id or asked.asker == asked.target:
            raise Defect(f"a request of nobody: {asked}")
        return True

    return FuzzTarget("request of a hostile asker", [wire.pack(_ASKED)], run, structured=True)


def _relayed_reply() -> FuzzTarget:
    """A relay alters what the other end replied."""

    def run(data: bytes) -> bool:
        try:
            opened = relayed.open_reply(data, SWARM.swarm_id, ISSUER.peer_id, _ASKED)
        except TransportError:
            raise Defect("an altered reply has the seal of its author") from None
        return not isinstance(opened, Rejected)

    replied = relayed.seal_reply(ISSUER, SWARM.swarm_id, _ASKED, frames.Reply(b"r" * 300))
    return FuzzTarget("relayed reply", [replied], run, signed=True)


def _lan() -> tuple[Lan, Callable[[bytes], bool]]:
    """An end on the own network, and a function that gives it a datagram and checks if it keeps
    what it heard."""
    seconds = itertools.count()
    lan = Lan(ISSUER, SWARM.swarm_id, SWARM.secret, Clock(now=lambda: next(seconds), wall=float))
    reader = members()

    def issued(presence: bytes, peer: str) -> int:
        heard = reader.read_presence(presence, peer)
        return -1 if isinstance(heard, Rejected) else heard.head.issued_ms

    def hears(datagram: bytes) -> bool:
        lan.datagram_received(datagram, None)
        found, now = dict(lan._presences), dict.fromkeys(lan._presences)
        lan._presences.clear()
        if now and (set(now) != {NODE.peer_id} or found[NODE.peer_id][0] != presence()):
            raise Defect(f"a presence that NODE did not publish: {found}")
        return bool(found)

    lan.screen(issued)
    return lan, hears


_SAID = NODE.public_key + len(presence()).to_bytes(2, "big") + presence()


def _announced(body: bytes) -> bytes:
    """A datagram of somebody who knows the secret."""
    sealed = _lan()[0]._ciphers[0].encrypt(bytes(12), body[:1400].ljust(1400, b"\0"), None)
    return bytes(12) + sealed


def _datagram() -> FuzzTarget:
    """A host of the own network alters what it recorded."""
    return FuzzTarget("datagram", [_announced(_SAID)], _lan()[1], signed=True)


def _hostile_datagram() -> FuzzTarget:
    return FuzzTarget("datagram of a member", [_SAID], _lan()[1], wrap=_announced)


def _probe_reply() -> FuzzTarget:
    """Replies of members are read, and two of them are judged."""
    outcomes = (probe.PortOutcome(4001, "timeout"), probe.PortOutcome(7, "open"))
    seed = probe.ProbeReply("/ip4/11.0.0.1/tcp/4001", outcomes, "untried", NOW * 1000)
    v6 = probe.ProbeReply("/ip6/2a01::1/tcp/4001", outcomes[:1], "open", NOW * 1000)

    def run(data: bytes) -> bool:
        reply = wire.unpack(probe.ProbeReply, data, max_bytes=512)
        place = None if isinstance(reply, Rejected) else probe._place(reply.seen)
        if isinstance(reply, Rejected) or place is None:
            return False
        found = {each.port: each.outcome for each in reply.outcomes}
        said = [
            reachability.Probed(
                peer, "n", at, *place, is_here(place[0]), found, 0.0, reply.stranger
            )
            for peer, at in (("a", "11.0.0.2"), ("b", "2a01:2::1"), ("c", "192.168.1.2"))
        ]
        reachability.majority_addresses(said)
        for count in (1, 2, 3):
            judged = reachability.assess(said[:count], (4001,))
            if not (judged.text + judged.remedy).isprintable():
                raise Defect(f"a verdict shows what a peer chose: {judged.text!r}")
        return True

    return FuzzTarget("probe reply", [wire.pack(seed), wire.pack(v6)], run, structured=True)


def _punch() -> FuzzTarget:
    def run(data: bytes) -> bool:
        asked = punch._open(data)
        if isinstance(asked, Rejected):
            return False
        _, host, port = split_endpoint(asked.address) or ("", "", 0)
        if not (ipaddress.IPv4Address(host).is_global and 0 < port < 65_536):
            raise Defect(f"a SYN goes to {asked.address}")
        return True

    seeds = [f"/ip4/{host}/tcp/4001" for host in ("11.0.0.1", "127.0.0.1", "192.168.1.1")]
    return FuzzTarget("punch", [msgpack.packb([text]) for text in seeds], run, structured=True)


def _circuit() -> FuzzTarget:
    """Addresses that a peer states of itself."""
    there = ADDRESS + "/p2p-circuit"

    def run(data: bytes) -> bool:
        text = data[:1024].decode("utf-8", "replace")  # an address has 160 characters
        found = circuit.parse(text)
        if found is not None and str(found) != text:
            raise Defect(f"{text!r} is read as {found}")
        completed = circuit.complete_circuits([text], ISSUER.peer_id)
        circuit.dialable_addresses(completed)
        circuit.reachable_first(completed)
        if sum(map(len, circuit.fit_heartbeat([text] * 9))) > wire.MAX_HEARTBEAT_ADDRESS_CHARS:
            raise Defect("a heartbeat that is too long")
        return found is not None

    seeds = [there, f"{there}/p2p/{NODE.peer_id}"]
    return FuzzTarget("circuit", [text.encode() for text in seeds], run)


def _handshake() -> FuzzTarget:
    """Somebody alters what a node answers when it is dialled."""
    dialled = address_check.Handshake()
    genuine = Responder(NODE).second(dialled.first)

    def run(data: bytes) -> bool:
        return copy(dialled).verify_key(data) is not None

    return FuzzTarget("handshake", [genuine], run, signed=True)


def _hostile_handshake() -> FuzzTarget:
    """The other end is hostile: any payload, well encrypted."""
    dialled = address_check.Handshake()

    class Hostile(Responder):
        says = b""

        def payload(self) -> bytes:
            return self.says

    hostile = Hostile(NODE)
    hostile.says = Responder.payload(hostile)

    def wrap(body: bytes) -> bytes:
        hostile.says = body[:4000]
        return hostile.second(dialled.first)

    def run(data: bytes) -> bool:
        return copy(dialled).verify_key(data) is not None

    return FuzzTarget("handshake of a hostile end", [hostile.says], run, wrap=wrap)


def _envelope(kind: Kind) -> FuzzTarget:
    seeds = [seal(NODE, SWARM.swarm_id, kind, body) for body in (b"", b"x" * 300, group_body())]
    most = wire.MAX_SEALED_BYTES
    run = _taken(lambda data: open_sealed(data, SWARM.swarm_id, kind, max_bytes=most))
    return FuzzTarget(f"envelope {kind.name}", seeds, run, structured=True, signed=True)


def _resigned(kind: Kind) -> FuzzTarget:
    """The author itself is hostile: any body behind a good signature."""
    carried = CARRIED[kind]

    def wrap(body: bytes) -> bytes:
        return seal(NODE, SWARM.swarm_id, kind, body[:MAX_GROUP_BYTES])

    def run(sealed: bytes) -> bool:
        opened = open_sealed(sealed, SWARM.swarm_id, kind, max_bytes=wire.MAX_SEALED_BYTES)
        if isinstance(opened, Rejected):
            raise Defect(f"a sealed body was refused: {opened}")
        if kind is Kind.ROLLOUT:
            return _reads_group(opened.body)
        return _reads(carried, opened.body)

    name, seeds = f"re-signed {kind.name}", [example(carried)]
    return FuzzTarget(name, seeds, run, structured=True, weight=0.8, wrap=wrap)


def _plain(kind: type[wire.Body]) -> FuzzTarget:
    return FuzzTarget(kind.__name__, [example(kind)], lambda data: _reads(kind, data), True)


def _group() -> FuzzTarget:
    sizes = ((2, 5), (1, 3), (8, 40))
    seeds = [make(*size) for make in (group_body, dialogues_body) for size in sizes]
    return FuzzTarget("group body", seeds, _reads_group, structured=True, weight=8)


def _reads(kind: Any, data: bytes) -> bool:
    body = wire.unpack(kind, data, max_bytes=wire.MAX_SEALED_BYTES)
    if isinstance(body, Rejected):
        return False
    wire.pack(body)  # what was accepted can be sent on
    return True


def _reads_group(data: bytes) -> bool:
    read = unpack_group(data)
    if isinstance(read, Rejected):
        return False
    header, group = read
    pack_group(group, epoch=header.epoch, seq=header.seq, created_ms=header.created_ms)
    for each in group.completions:
        if not np.isfinite(each.logprobs).all() or len(each.token_ids) != each.spans[-1].end:
            raise Defect("a group with log-probs or spans out of bounds")
    if not all(map(math.isfinite, group.claimed)):
        raise Defect("a claimed reward is not finite")
    return True


def _statement() -> FuzzTarget:
    """A revocation list of the root."""
    listed = statements.revocations(3, NOW, NOW + 3600, [DIGEST])
    sealed = statements.state(ROOT_KEY, b"", SWARM, listed)
    run = _taken(lambda data: statements.verify_revocations(data, SWARM, NOW))
    return FuzzTarget("revocations", [sealed], run, structured=True, signed=True)


def _chain() -> FuzzTarget:
    def read(data: bytes) -> object:
        chain = (data[:split], data[split:])
        return verify_chain(chain, SWARM, NODE.public_key, NOW + 1)

    split = len(ISSUER_CERTIFICATE)
    return FuzzTarget("chain", [b"".join(CHAIN)], _taken(read), signed=True)


def _forged_chain() -> FuzzTarget:
    """A hostile issuer: any body, well signed by it, under a good issuer certificate."""

    def run(body: bytes) -> bool:
        certificate = seal(ISSUER, SWARM.swarm_id, Kind.CERT, body[:2000])
        now = NOW + 10
        chain = (ISSUER_CERTIFICATE, certificate)
        member = verify_chain(chain, SWARM, NODE.public_key, now)
        if isinstance(member, Rejected):
            return False
        if member.subject != NODE.public_key or member.not_after - member.not_before > 3600:
            raise Defect(f"a chain admits more than its issuer may: {member}")
        return True

    opened = open_sealed(MEMBER_CERTIFICATE, SWARM.swarm_id, Kind.CERT)
    assert isinstance(opened, Opened)
    return FuzzTarget("chain of a hostile issuer", [opened.body], run, structured=True)


_TICKET = ticket.make_ticket(
    ROOT_KEY, SWARM, [ADDRESS], now=NOW, valid_seconds=600, member_seconds=600, issuer=ISSUER
)


def _ticket() -> FuzzTarget:
    good = ticket.parse_ticket(_TICKET, NOW)

    def run(data: bytes) -> bool:
        try:
            read = ticket.parse_ticket(data.decode("utf-8", "replace"), NOW)
        except TicketError:
            return False
        if read != good:
            raise Defect("an altered ticket was read as another one")
        return True

    return FuzzTarget("ticket", [_TICKET.encode()], run)


def _altered_ticket() -> FuzzTarget:
    """Somebody who alters a ticket puts its checksum right."""
    import base64

    raw = base64.urlsafe_b64decode(_TICKET.removeprefix(ticket.PREFIX) + "==")
    good = ticket.parse_ticket(_TICKET, NOW)

    def run(body: bytes) -> bool:
        if len(body) > 2000:
            return False
        framed = ticket._LENGTH.pack(len(body)) + body + ticket._checksum(body)
        text = ticket.PREFIX + base64.urlsafe_b64encode(framed).decode().rstrip("=")
        try:
            read = ticket.parse_ticket(text, NOW)
        except TicketError:
            return False
        if (read.info.swarm_id, read.issuer) != (good.info.swarm_id, good.issuer):
            raise Defect("an altered ticket admits to another swarm, or for longer")
        return True

    return FuzzTarget("altered ticket", [raw[2:-8]], run, structured=True)


@dataclass
class _Record:
    key: bytes
    subkey: bytes
    value: bytes
    expiration_time: Any


def _dht() -> FuzzTarget:
    records = HeartbeatRecords(NODE, b"k" * 20, lambda: float(NOW), members().proves_membership)
    record = _Record(b"k" * 20, msgpack.packb(NODE.peer_id), msgpack.packb(presence()), NOW + 60.0)
    record.value = records.sign_value(record)
    fields = [record.key, record.subkey, record.value, record.expiration_time]

    def run(data: bytes) -> bool:
        try:
            values = msgpack.unpackb(data[:8192], strict_map_key=False)
            key, subkey, value, expires = values
        except (ValueError, TypeError, msgpack.UnpackException):
            return False
        if not all(isinstance(each, bytes) for each in (key, subkey, value)):
            return False  # hivemind's messages have these types
        # A reader that has verified nothing yet: what it remembers is no part of the verdict.
        records._verified_digests.clear()
        accepted = records.validate(_Record(key, subkey, value, expires))
        if accepted and values != fields:
            raise Defect(f"an altered record is accepted: {values}")
        return accepted

    return FuzzTarget("DHT record", [msgpack.packb(fields)], run, structured=True)


def _forged_dht() -> FuzzTarget:
    """A member publishes any value under its own name."""
    records = HeartbeatRecords(NODE, b"k" * 20, lambda: float(NOW), members().proves_membership)
    subkey = msgpack.packb(NODE.peer_id)

    def run(value: bytes) -> bool:
        record = _Record(b"k" * 20, subkey, value, NOW + 60.0)
        record.value = records.sign_value(record)
        return records.validate(record)

    return FuzzTarget("re-signed DHT record", [msgpack.packb(presence())], run, structured=True)


def _presence() -> FuzzTarget:
    run = _taken(lambda data: members().read_presence(data))
    return FuzzTarget("presence", [presence()], run, structured=True)


def _forged_presence() -> FuzzTarget:
    """A member says anything in its heartbeat."""

    def read(head: bytes) -> object:
        sealed = seal(NODE, SWARM.swarm_id, Kind.HEAD, head[:MAX_GROUP_BYTES])
        return members().read_presence(msgpack.packb([sealed, *CHAIN]))

    return FuzzTarget("re-signed presence", [HEAD], _taken(read), structured=True)


class _Sink:
    """The acknowledgement of a reply goes nowhere."""

    def write(self, data: bytes) -> None:
        pass

    async def drain(self) -> None:
        pass


_LOOP = asyncio.new_event_loop()


def _drive(coroutine: Any) -> Any:
    """The result of a coroutine whose stream has all bytes already, so that it never waits."""
    try:
        coroutine.send(None)
    except StopIteration as done:
        return done.value
    coroutine.close()
    raise Defect("a reader waits for more than the stream has")


def _stream(data: bytes) -> asyncio.StreamReader:
    reader = asyncio.StreamReader(loop=_LOOP)
    reader.feed_data(data)
    reader.feed_eof()
    return reader


def _request() -> FuzzTarget:
    def run(data: bytes) -> bool:
        try:
            payload = _drive(frames.read_request(_stream(data), 4096))
        except TransportError:
            return False
        return len(payload) <= 4096

    return FuzzTarget("stream request", [frames._LENGTH.pack(40) + b"p" * 40], run)


def _reply() -> FuzzTarget:
    import hashlib

    def run(data: bytes) -> bool:
        try:
            payload = _drive(frames.read_reply(_stream(data), _Sink(), 4096))  # type: ignore[arg-type]
        except TransportError as error:
            if not str(error).isprintable():
                raise Defect(f"an error shows what a peer chose: {error!r}") from error
            return False
        return len(payload) <= 4096

    seeds = [
        bytes([status]) + frames._LENGTH.pack(len(text)) + text + hashlib.sha256(text).digest()
        for status, text in ((0, b"p" * 40), (1, "no such group \x1b[2Jé".encode()))
    ]
    return FuzzTarget("stream reply", seeds, run)


def _pipe() -> FuzzTarget:
    decoder = msgspec.msgpack.Decoder(pipes.Failed | pipes.Cut | pipes.Drop)

    def run(data: bytes) -> bool:
        try:
            taken = pipes.take_frame(bytearray(data))
            if taken is None:
                return False
            decoder.decode(taken[1])
        except ValueError:
            return False
        return True

    seeds = [
        pipes.make_frame(7, msgspec.msgpack.encode(body))
        for body in (pipes.Failed("ValueError", "why"), pipes.Cut(), pipes.Drop())
    ]
    return FuzzTarget("pipe", seeds, run)


def _judge() -> FuzzTarget:
    """A judge that a hostile text took over answers anything."""
    from swarm_node.environments.workers.scoring_worker import Derived, Scored, TextVerdict, Unknown

    decoder = msgspec.msgpack.Decoder(JudgeReply)
    refusals = (ValueError, UnicodeDecodeError, RecursionError, MemoryError)

    def run(data: bytes) -> bool:
        try:
            decoder.decode(data)
        except refusals:
            return False
        return True

    replies = (Derived(["question"], True, True), Scored([TextVerdict(1.0)]), Unknown("why"))
    return FuzzTarget("judge's reply", [msgspec.msgpack.encode(each) for each in replies], run)


def _control() -> list[FuzzTarget]:
    """Another program took the port of a node that died, or wrote its address file."""
    point = EvalPoint(1.0, 3, 0.5, 0.5, None, {"gcd": 0.5})
    encoded = msgspec.json.encode(point)
    status = msgspec.json.encode(_example(msgspec.inspect.type_info(Snapshot), itertools.count()))

    def run(kind: Any) -> Callable[[bytes], bool]:
        def reads(data: bytes) -> bool:
            try:
                decode_answer(data, kind)
            except SwarmNodeError:
                return False
            return True

        return reads

    directory = Path("/dev/shm") if Path("/dev/shm").is_dir() else Path(".")
    file = directory / "swarm-node-fuzz-control.json"
    client = ControlClient(file)

    def address(data: bytes) -> bool:
        file.write_bytes(data)
        try:
            client.pid()
        except SwarmNodeError:
            return False
        finally:
            file.unlink()
        return True

    seed = json.dumps({"port": 4000, "token": "t" * 43, "pid": 17}).encode()
    return [
        FuzzTarget("control: status", [status], run(Snapshot)),
        FuzzTarget("control: evaluation", [encoded], run(EvalPoint)),
        FuzzTarget("control: address file", [seed], address, weight=0.2),
    ]
