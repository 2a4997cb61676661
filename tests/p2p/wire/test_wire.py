"""Message bodies: what round-trips, and what is refused. The bounds of each field are in the
published vectors (test_published_limits.py)."""

import dataclasses

import msgpack
import msgspec
import numpy as np
import pytest
from msgspec.structs import replace

from swarm_node.errors import Rejected
from swarm_node.p2p.wire import wire
from swarm_node.p2p.wire.envelope import Kind, seal
from swarm_node.p2p.wire.identity import Identity
from swarm_node.rollout import (
    SEED_LIMIT,
    Completion,
    EarlierTurn,
    Finish,
    PolicyRef,
    RolloutGroup,
    TaskRef,
    VersionSpan,
)

DIGEST = bytes(range(32))
BIG = (1 << 62) - 1


def completion(tokens: int = 3, text: str = "forty-two") -> Completion:
    return Completion(
        text=text,
        token_ids=np.arange(tokens, dtype=np.uint32) + 7,
        logprobs=np.arange(1, tokens + 1, dtype=np.float32) * np.float32(-0.25),
        spans=(VersionSpan(4, 0, 1), VersionSpan(5, 1, tokens)),
        finish=Finish.STOP,
    )


def group(completions: int = 2, seed: int = 11) -> RolloutGroup:
    return RolloutGroup(
        task=TaskRef("reasoning_gym", "0.1.25-2f8a", "chain_sum", seed),
        policy=PolicyRef(DIGEST, DIGEST[::-1], 5),
        completions=tuple(completion(3 + i) for i in range(completions)),
        claimed=tuple(i / 2 for i in range(completions)),
    )


def fields() -> list[object]:
    """A valid group body as plain MessagePack values, for tests to damage."""
    body = wire.pack_group(group(), epoch=9, seq=3, created_ms=1_700_000_000_000)
    unpacked = msgpack.unpackb(body)
    assert isinstance(unpacked, list)
    return unpacked


def refusal(values: object) -> Rejected:
    result = wire.unpack_group(msgpack.packb(values))
    assert isinstance(result, Rejected)
    return result


def f32(*values: float) -> bytes:
    return np.asarray(values, dtype="<f4").tobytes()


def test_a_group_comes_back_as_it_was() -> None:
    sent = group()
    result = wire.unpack_group(wire.pack_group(sent, epoch=9, seq=3, created_ms=17))
    assert not isinstance(result, Rejected)
    header, received = result
    assert header == wire.GroupHeader(epoch=9, seq=3, created_ms=17)
    assert (received.task, received.policy, received.claimed) == (
        sent.task,
        sent.policy,
        sent.claimed,
    )
    for mine, theirs in zip(sent.completions, received.completions, strict=True):
        assert (mine.text, mine.spans, mine.finish) == (theirs.text, theirs.spans, theirs.finish)
        np.testing.assert_array_equal(mine.token_ids, theirs.token_ids)
        np.testing.assert_array_equal(mine.logprobs, theirs.logprobs)
        assert theirs.token_ids.dtype == np.dtype(np.uint32)
        assert theirs.logprobs.dtype == np.dtype(np.float32)
        assert theirs.token_ids.flags.writeable
        assert theirs.logprobs.flags.writeable


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *((1, ids) for ids in (b"", bytes(4 * wire.MAX_TOKENS + 4))),
        *((2, logp) for logp in (b"", bytes(4 * wire.MAX_TOKENS + 4))),
        *((3, [span]) for span in ([1, -1, 1], [1, wire.MAX_TOKENS + 1, 1], [1, 0, -1])),
    ],
)
def test_each_field_of_a_completion_has_bounds_of_its_own(field: int, value: object) -> None:
    """In the vectors two of them are out of bounds together."""
    values = fields()
    values[6][0][field] = value  # type: ignore[index]
    assert refusal(values).reason == "schema"


def test_a_log_prob_that_rounded_above_zero_is_kept_as_it_is() -> None:
    values = fields()
    values[6][0][2] = f32(0, 3e-6, -1)  # type: ignore[index]
    result = wire.unpack_group(msgpack.packb(values))
    assert not isinstance(result, Rejected)
    assert result[1].completions[0].logprobs[1] == np.float32(3e-6)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xc1",
        b"\x91" * 100_000,
        b"\x98\x01" + b"\x91" * 100_000,
        b"\xdd\xff\xff\xff\xff",
        b"\x98\x01\x01\x01\x01\x94\xa2\xff\xfe",
        b"\x98\x01\x01\x01\x01\x94\xdb\xff\xff\xff\xff",
    ],
)
def test_malformed_bytes_are_a_value_not_an_exception(data: bytes) -> None:
    result = wire.unpack_group(data)
    assert result.reason == "schema"


def test_a_refusal_never_repeats_control_characters() -> None:
    values = fields()
    values[6][0][4] = "\x1b[31m\u202e"  # type: ignore[index]
    detail = refusal(values).detail
    assert detail.isascii()
    assert detail.isprintable()
    assert len(wire.printable("a" * 1000)) == 160


def test_size_is_checked_before_decoding() -> None:
    result = wire.unpack_group(b"\xc1" * (wire.MAX_GROUP_BYTES + 1))
    assert result.reason == "size"


def test_the_largest_group_fits_a_sealed_envelope() -> None:
    identity = Identity.from_seed(bytes(32))
    assert len(seal(identity, DIGEST, Kind.ROLLOUT, bytes(wire.MAX_GROUP_BYTES))) <= (
        wire.MAX_SEALED_BYTES
    )


@pytest.mark.parametrize(
    "bad",
    [
        group(seed=SEED_LIMIT),
        group(completions=65),
        RolloutGroup(group().task, group().policy, (completion(text="\ud800"),), (0.0,)),
        RolloutGroup(group().task, group().policy, (completion(text="x" * 70_000),), (0.0,)),
        RolloutGroup(group().task, group().policy, (completion(),), (float("nan"),)),
        RolloutGroup(TaskRef("<script>", "1", "f", 1), group().policy, (completion(),), (0.0,)),
    ],
)
def test_a_node_cannot_pack_what_its_peers_would_refuse(bad: RolloutGroup) -> None:
    with pytest.raises(ValueError, match=r"outside|encoded"):
        wire.pack_group(bad, epoch=1, seq=1, created_ms=0)


def test_a_group_over_the_total_limit_cannot_be_packed() -> None:
    long = completion(tokens=20_000, text="x")
    large = RolloutGroup(group().task, group().policy, (long,) * 30, (0.0,) * 30)
    with pytest.raises(wire.OversizeGroupError, match="the limits"):
        wire.pack_group(large, epoch=1, seq=1, created_ms=0)


def announcement() -> wire.Announcement:
    return wire.Announcement(
        v=1,
        epoch=BIG,
        seq=BIG,
        id=b"\x12\x20" + DIGEST,
        size=wire.MAX_SEALED_BYTES,
        environment="e" * 64,
        version="v" * 64,
        family="f" * 64,
        model=DIGEST,
        tokenizer=DIGEST,
        policy_version=BIG,
        completions=64,
        mixed=True,
    )


def heartbeat(addresses: tuple[str, ...]) -> wire.Heartbeat:
    return wire.Heartbeat(
        v=1,
        addresses=addresses,
        policy_version=BIG,
        epoch=BIG,
        head=BIG,
        issued_ms=(1 << 53) - 1,
        agent="a" * 24,
        revoked=BIG,
        secret=BIG,
        steward=True,
        relays=True,
    )


BODIES = [
    announcement(),
    heartbeat(("/ip4/127.0.0.1/tcp/4001",)),
    wire.HelloRequest((b"issuer", b"member"), "swarm-node/0.1", ("/ip4/10.0.0.1/tcp/1",), 3, 1),
    wire.HelloReply((), "", (), 0, 0),
    wire.ListRequest(1, 0, 1000),
    wire.ListReply(1, 2, 0, (b"x" * 768,) * 1000),
    wire.PullRequest(b"\x12\x20" + DIGEST),
    wire.PeersRequest(100),
    wire.PeersReply((b"x" * wire.MAX_PRESENCE_BYTES,) * 100),
    wire.Presence(b"h" * 716, b"i" * 320, b"m" * 320),
]


@pytest.mark.parametrize("body", BODIES, ids=lambda body: type(body).__name__)
def test_every_body_round_trips_and_is_a_plain_array(body: wire.Body) -> None:
    data = wire.pack(body)
    assert wire.unpack(type(body), data, max_bytes=len(data)) == body
    assert msgpack.unpackb(data) == [
        list(value) if isinstance(value, tuple) else value
        for value in msgspec.structs.astuple(body)
    ]
    refused = wire.unpack(type(body), data, max_bytes=len(data) - 1)
    assert refused.reason == "size"


@pytest.mark.parametrize(
    "body",
    [
        wire.ListRequest(1, 0, 1001),
        wire.ListReply(1, 2, 0, (b"x",) * 1001),
        wire.PullRequest(DIGEST),
        wire.Presence(b"h" * 717, b"", b""),
        wire.HelloRequest((), "", ("/ip4/1.2.3.4/tcp/1\x1b[0m",), 0, 0),
        heartbeat(("/a",) * 5),
        replace(announcement(), completions=65),
    ],
)
def test_a_body_outside_its_bounds_cannot_be_packed(body: wire.Body) -> None:
    with pytest.raises(ValueError, match="its bounds"):
        wire.pack(body)


def test_a_heartbeat_of_addresses_that_are_too_long_together_is_not_made() -> None:
    with pytest.raises(ValueError, match="heartbeat"):
        heartbeat(tuple("/" + letter * 155 for letter in "uxyz"))


def test_the_longest_legal_heartbeat_fits_its_limit_sealed() -> None:
    addresses = ("/" + "x" * 159, "/" + "y" * 119, *("/" + "z" * 99,) * 2)
    assert sum(map(len, addresses)) == wire.MAX_HEARTBEAT_ADDRESS_CHARS
    identity = Identity.from_seed(bytes(32))
    sealed = seal(identity, DIGEST, Kind.HEAD, wire.pack(heartbeat(addresses)))
    assert len(sealed) == 715  # as docs/protocol.md says
    assert len(sealed) <= wire.MAX_HEAD_BYTES


def test_the_longest_legal_presence_fits_its_limit() -> None:
    longest = wire.pack(wire.Presence(b"h" * 716, b"i" * 320, b"m" * 320))
    assert len(longest) == wire.MAX_PRESENCE_BYTES


def test_the_longest_legal_announcement_fits_its_limit_sealed() -> None:
    identity = Identity.from_seed(bytes(32))
    sealed = seal(identity, DIGEST, Kind.RECORD, wire.pack(announcement()))
    assert len(sealed) <= wire.MAX_ANNOUNCEMENT_BYTES


def test_a_dialogue_is_not_packed_as_its_last_turn() -> None:
    whole = group()
    talk = dataclasses.replace(whole.completions[0], earlier=(EarlierTurn("forty", 1),))
    said = dataclasses.replace(whole, completions=(talk, whole.completions[1]))
    with pytest.raises(ValueError, match="as dialogues"):
        wire.pack_group(said, epoch=1, seq=1, created_ms=0)
