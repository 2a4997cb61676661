"""The probe over real links: who sees whom where, and what a member finds at which port."""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections.abc import AsyncGenerator, Awaitable, Callable
from pathlib import Path

from light_nodes import LightNode
from swarm_keys import Swarm
from transports import PATIENT, hivemind, running

from swarm_node.clock import SYSTEM_CLOCK
from swarm_node.errors import Rejected
from swarm_node.p2p.addresses.addresses import split_endpoint
from swarm_node.p2p.reach.address_check import knock
from swarm_node.p2p.reach.probe import ProbeReply, ProbeRequest
from swarm_node.p2p.reach.reachability import Outcome
from swarm_node.p2p.wire import wire
from swarm_node.p2p.wire.protocols import PROBE

GREETING = b"\x13/multistream/1.0.0\n"
NOISE = b"\x07/noise\n"


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
    return parsed[2]


async def test_a_node_that_answers_is_told_from_all_else_that_might(tmp_path: Path) -> None:
    one, other = hivemind(tmp_path), hivemind(tmp_path)
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


async def answered(
    answer: Callable[[str, bytes], Awaitable[bytes | Rejected]], peer: str, payload: bytes
) -> bytes:
    """The answer to a caller that has greeted."""
    reply = await answer(peer, payload)
    assert isinstance(reply, bytes)
    return reply


async def test_a_member_says_where_it_sees_its_caller_and_what_it_finds_there(
    tmp_path: Path,
) -> None:
    async with listener(b"") as silent, listener(b"HTTP/1.1 400 Bad Request" * 9) as other:
        closed = await free_port()
        named = [f"/ip4/127.0.0.1/tcp/{port}" for port in (closed, silent, other)]
        caller, member = hivemind(tmp_path, announce=named), hivemind(tmp_path)
        node = LightNode(tmp_path, SYSTEM_CLOCK, member, Swarm().member(0), knock=knock)
        member.serve(PROBE, functools.partial(answered, node.probes.answer))
        async with running(caller, member):
            known = node.directory.meet(caller.peer_id, 0.0)
            known.addresses = tuple(caller.addresses())
            assert await caller.dial(member.addresses(), PATIENT) == 1
            request = wire.pack(ProbeRequest((closed, silent, other, 1)))
            raw = await caller.request(member.peer_id, PROBE, request)
            reply = wire.unpack(ProbeReply, raw, max_bytes=512)
            assert isinstance(reply, ProbeReply)
            assert reply.seen == await member.observed_address(caller.peer_id)
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
