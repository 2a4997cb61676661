"""Message bodies: what round-trips, and what is refused. The bounds of each field are in the
published vectors (test_published_limits.py)."""

import msgpack
import msgspec
import pytest
from msgspec.structs import replace

from swarm_node.p2p.wire import wire
from swarm_node.p2p.wire.envelope import Kind, seal
from swarm_node.p2p.wire.identity import Identity

DIGEST = bytes(range(32))
BIG = (1 << 62) - 1


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
        turns=16,
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
        delegate=True,
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
        replace(announcement(), turns=0),
        replace(announcement(), turns=17),
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
