"""The probe over real links: who sees whom where, and what a member finds at which port."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import hashlib
import os
import random
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from light_nodes import LightNode
from swarm_keys import Swarm

from swarm_node.clock import SYSTEM_CLOCK
from swarm_node.errors import Rejected
from swarm_node.p2p import wire
from swarm_node.p2p.addresses import split_endpoint
from swarm_node.p2p.hivemind.transport import HivemindTransport
from swarm_node.p2p.identity import Identity
from swarm_node.p2p.reach.knock import Handshake, knock
from swarm_node.p2p.reach.probe import PROBE, ProbeReply, ProbeRequest
from swarm_node.p2p.reach.verdict import Outcome

GREETING = b"\x13/multistream/1.0.0\n"
NOISE = b"\x07/noise\n"
#: Of a knock that must not end by its limit, however busy the machine is.
PATIENT = 30.0


def transport(place: Path, announce: Sequence[str] = ()) -> HivemindTransport:
    identity = Identity.generate()
    return HivemindTransport(
        identity,
        swarm_id=bytes(32),
        secret=b"secret" * 6,
        listen=["/ip4/127.0.0.1/tcp/0"],
        announce=announce,
        state_dir=place / identity.peer_id,
        rng=random.Random(0),
    )


@contextlib.asynccontextmanager
async def running(*transports: HivemindTransport) -> AsyncGenerator[None]:
    try:
        for each in transports:
            await each.start()
        yield
    finally:
        for each in transports:
            await each.stop()


@contextlib.asynccontextmanager
async def listener(says: bytes, reads: int = 0) -> AsyncGenerator[int]:
    """The port of a program that says so much to whoever connects, after so many bytes, and then
    waits for the end."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, EOFError):
            writer.write(says)
            await reader.readexactly(reads or 1 << 20)
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        await server.wait_closed()


async def free_port() -> int:
    async with listener(b"") as port:
        return port


def port_of(address: str | None) -> int:
    parsed = split_endpoint((address or "").partition("/p2p/")[0])
    assert parsed is not None
    return parsed[2]


def test_a_node_that_answers_is_told_from_all_else_that_might(tmp_path: Path) -> None:
    async def main() -> None:
        one, other = transport(tmp_path), transport(tmp_path)
        async with running(one, other):
            port = port_of(one.addresses()[0])
            assert await knock("127.0.0.1", port, one.peer_id, PATIENT) == "open"
            # Behind one router, or at the member that dials, another node has the same greeting.
            assert await knock("127.0.0.1", port, other.peer_id, PATIENT) == "other"
        assert await knock("127.0.0.1", port, one.peer_id, PATIENT) == "refused"
        for says, reads, outcome in (
            (b"", 0, "silent"),
            (GREETING[:7], 0, "silent"),
            (GREETING + NOISE, 0, "silent"),
            (b"SSH-2.0-OpenSSH_9.6p1 Ubuntu-3ubuntu13\r\n", 0, "other"),
            (GREETING + b"\x03na\n" + bytes(8), 0, "other"),
            (GREETING + NOISE, 60, "other"),  # it ends within the handshake
        ):
            async with listener(says, reads) as port:
                seconds = 1.5 if outcome == "silent" else PATIENT
                assert await knock("127.0.0.1", port, one.peer_id, seconds) == outcome, says

    asyncio.run(main())


class Responder:
    """The other side of Noise XX, which shows whatever key and signature it is given."""

    def __init__(self, host: Identity, signed: bytes | None = None) -> None:
        self._host = host
        self._signed = signed

    def second(self, first: bytes) -> bytes:
        """The message that answers `first`."""
        ephemeral, static = X25519PrivateKey.generate(), X25519PrivateKey.generate()
        name = b"Noise_XX_25519_ChaChaPoly_SHA256"
        chaining = digest = name
        shown = ephemeral.public_key().public_bytes_raw()
        for part in (b"", first, b"", shown):
            digest = hashlib.sha256(digest + part).digest()
        own = static.public_key().public_bytes_raw()
        signed = self._signed or b"noise-libp2p-static-key:" + own
        identity = b"\x0a\x24" + bytes.fromhex("08011220") + self._host.public_key
        message = shown
        for private, plain in (
            (ephemeral, own),
            (static, identity + b"\x12\x40" + self._host.sign(signed)),
        ):
            shared = private.exchange(X25519PublicKey.from_public_bytes(first))
            derived = HKDF(SHA256(), 64, chaining, b"").derive(shared)
            chaining, key = derived[:32], derived[32:]
            sealed = ChaCha20Poly1305(key).encrypt(bytes(12), plain, digest)
            digest = hashlib.sha256(digest + sealed).digest()
            message += sealed
        return message


def test_only_a_handshake_that_the_nodes_key_signed_proves_it() -> None:
    host, handshake = Identity.generate(), Handshake()
    genuine = Responder(host).second(handshake.first)
    assert handshake.answered(genuine) == host.public_key
    for index in range(len(genuine)):
        fresh = Handshake()
        altered = bytearray(Responder(host).second(fresh.first))
        altered[index] ^= 1
        assert fresh.answered(bytes(altered)) is None, index
    # What was recorded elsewhere, or signs another key, proves nothing.
    assert Handshake().answered(genuine) is None
    for signed in (b"noise-libp2p-static-key:" + bytes(32), bytes(32)):
        fresh = Handshake()
        assert fresh.answered(Responder(host, signed).second(fresh.first)) is None
    for junk in (b"", bytes(32), bytes(96), os.urandom(200)):
        assert Handshake().answered(junk) is None


async def answered(
    answer: Callable[[str, bytes], Awaitable[bytes | Rejected]], peer: str, payload: bytes
) -> bytes:
    """The answer to a caller that has greeted."""
    reply = await answer(peer, payload)
    assert isinstance(reply, bytes)
    return reply


def test_a_member_says_where_it_sees_its_caller_and_what_it_finds_there(tmp_path: Path) -> None:
    async def main() -> None:
        async with listener(b"") as silent, listener(b"HTTP/1.1 400 Bad Request" * 9) as other:
            closed = await free_port()
            named = [f"/ip4/127.0.0.1/tcp/{port}" for port in (closed, silent, other)]
            caller, member = transport(tmp_path, named), transport(tmp_path)
            node = LightNode(tmp_path, SYSTEM_CLOCK, member, Swarm().member(0), knock=knock)
            member.serve(PROBE, functools.partial(answered, node.probes.answer))
            async with running(caller, member):
                known = node.directory.meet(caller.peer_id, 0.0)
                known.addresses = tuple(caller.addresses())
                assert await caller.dial(member.addresses()) == 1
                request = wire.pack(ProbeRequest((closed, silent, other, 1)))
                raw = await caller.request(member.peer_id, PROBE, request)
                reply = wire.unpack(ProbeReply, raw, max_bytes=512)
                assert isinstance(reply, ProbeReply)
                assert reply.seen == await member.seen(caller.peer_id)
                assert abs(reply.wall_ms / 1000 - SYSTEM_CLOCK.wall()) < 60
                found: dict[int, Outcome] = {each.port: each.outcome for each in reply.outcomes}
                assert found == {
                    closed: "refused",
                    silent: "silent",
                    other: "other",
                    1: "untried",
                    # p2pd dials from the port on which it listens, so this is the node itself.
                    port_of(reply.seen): "open",
                }

    asyncio.run(main())
