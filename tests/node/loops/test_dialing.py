"""The causes for which an address of a ticket leads to nobody, over real sockets."""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
from collections.abc import AsyncGenerator, Sequence
from functools import partial
from pathlib import Path

import pytest
from coordinator_runs import Hand, coordinator
from light_nodes import LightNode, SilentNetwork, SilentTransport, virtual
from noise_responder import Responder
from swarm_keys import Swarm
from virtual import virtual_time

from swarm_node.clock import Clock
from swarm_node.node.loops.peers import coordinator_client
from swarm_node.node.loops.peers.coordinator_client import try_coordinator
from swarm_node.node.loops.peers.dialing import DialCheck, try_peers
from swarm_node.p2p.membership.local_node import LocalNode
from swarm_node.p2p.peers.causes import OF_OUTCOME, text_here
from swarm_node.p2p.reach.address_check import knock
from swarm_node.p2p.reach.connect_attempts import DialAttempt
from swarm_node.p2p.reach.reachability import Outcome
from swarm_node.p2p.wire.identity import Identity
from swarm_node.p2p.wire.protocols import PEERS
from swarm_node.simulation.seeded import EPOCH, Seeded
from swarm_node.simulation.virtual_time import VirtualTimeLoop

PEER = Identity.from_seed(bytes(32)).peer_id


class Scene:
    """A node that was told some addresses, with a clock that the test moves."""

    def __init__(self, addresses: Sequence[str], up: bool = True) -> None:
        self.now = 0.0
        clock = Clock(lambda: self.now, lambda: EPOCH + self.now)
        swarm = Swarm()
        local = LocalNode.of(swarm.member(1).identity, swarm.info, clock)
        self.directory = local.directory
        self.dials = DialCheck(local, addresses, partial(knock, seconds=0.5), link_up=lambda: up)

    def check(self, times: int = 1) -> list[str]:
        async def checks() -> None:
            for _ in range(times):
                await self.dials.check()

        asyncio.run(checks())
        return self.told()

    def told(self) -> list[str]:
        return [text_here(cause) for cause in self.directory.failures.causes(self.now)]


@contextlib.asynccontextmanager
async def serving(answers: bool, identity: Identity) -> AsyncGenerator[str]:
    """A server with this key, or one that accepts connections and says nothing."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if answers:
            for _ in range(2):
                size = (await reader.readexactly(1))[0]
                writer.write(bytes([size]) + await reader.readexactly(size))
            length = int.from_bytes(await reader.readexactly(2), "big")
            message = Responder(identity).second(await reader.readexactly(length))
            writer.write(len(message).to_bytes(2, "big") + message)
        with contextlib.suppress(ConnectionError):
            await reader.read()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield f"/ip4/127.0.0.1/tcp/{server.sockets[0].getsockname()[1]}/p2p/{PEER}"


def test_a_closed_port_is_said_with_the_tries() -> None:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))  # bound, and listens to nobody
        port = held.getsockname()[1]
        scene = Scene([f"/ip4/127.0.0.1/tcp/{port}/p2p/{PEER}"])
        assert scene.check() == [f"127.0.0.1:{port} refuses connections"]
        told = scene.check(2)[0]
        assert f"127.0.0.1:{port} " in told
        assert "(3 tries" in told
        assert scene.directory.failures.configured_count == 1


@pytest.mark.slow(reason="waits for servers that answer in another way")
@pytest.mark.parametrize(
    ("answers", "key", "told"),
    [
        (False, bytes(32), "accepts connections and says nothing"),
        (True, bytes([1] * 32), f"is another node than …{PEER[-8:]}"),
    ],
)
async def test_somebody_else_is_at_the_address(answers: bool, key: bytes, told: str) -> None:
    async with serving(answers, Identity.from_seed(key)) as address:
        scene = Scene([address])
        await scene.dials.check()
        (said,) = scene.told()
    assert told in said


async def test_the_node_itself_is_no_cause_until_it_goes_on_without_a_greeting() -> None:
    async with serving(True, Identity.from_seed(bytes(32))) as address:
        scene = Scene([address])
        for _ in range(3):
            await scene.dials.check()
        assert scene.told() == []
        await scene.dials.check()
        assert "a greeting" in scene.told()[0]


def test_an_address_without_an_id_and_a_link_that_is_down() -> None:
    scene = Scene(["/ip4/127.0.0.1/tcp/1"], up=False)
    told = scene.check()
    assert "network interface" in told[0]
    assert told[1].startswith("/ip4/127.0.0.1/tcp/1 ")


def test_a_peer_that_answers_is_left_alone() -> None:
    scene = Scene([f"/ip4/127.0.0.1/tcp/1/p2p/{PEER}"])
    scene.directory.meet(PEER, 0.0).is_greeted = True
    assert scene.check() == []
    scene.now = 61.0
    assert scene.check() == ["127.0.0.1:1 refuses connections"]


async def _saying(words: bytes, url: str = "") -> str:
    """Try something that is no coordinator: a server that says `words`, or nothing."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(words)
        await reader.read()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        row = await try_coordinator(url.format(port=port) or f"http://127.0.0.1:{port}")
    return "" if row.cause is None else text_here(row.cause)


@pytest.mark.slow(reason="waits for servers that do not answer")
async def test_a_coordinator_answers_only_as_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(coordinator_client, "PEER_SECONDS", 1.0)
    async with coordinator(tmp_path, Swarm(), Hand()) as running:
        assert (await try_coordinator(running.url)).cause is None
    closed = (await try_coordinator(running.url)).cause
    assert text_here(closed).endswith("refuses connections")
    assert (await _saying(b"")).endswith("not answer")
    for words in (b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi", b"SSH-2.0\r\n"):
        assert (await _saying(words)).endswith("this version")
    nameless = await _saying(b"", "http://nobody.invalid:{port}")
    assert nameless.startswith("http://nobody.invalid:")
    assert "no address" in nameless


@virtual_time
async def test_who_is_at_an_open_address_is_asked_too_and_each_peer_once(
    tmp_path: Path, loop: VirtualTimeLoop
) -> None:
    network, members = SilentNetwork(random.Random(0)), Seeded(0).memberships(4)
    own, known = (
        LightNode(tmp_path, virtual(loop), SilentTransport(network, each.identity), each)
        for each in members[:2]
    )
    for node in (own, known):
        await node.transport.start()
    own.directory.meet(known.peer_id, own.clock.now())
    outcomes: tuple[Outcome, ...] = ("open", "open", "refused")
    tried = [
        DialAttempt(f"/ip4/127.0.0.1/tcp/1/p2p/{each.identity.peer_id}", outcome)
        for each, outcome in zip(members[1:], outcomes, strict=True)
    ]
    rows = await try_peers(own.local, own.exchange.asker, tried)
    assert [(row.kind, row.cause and row.cause.code) for row in rows] == [
        ("address", None),
        ("address", "no_greeting"),  # open, and silent when it is asked
        ("address", OF_OUTCOME["refused"]),
        ("peer", None),
    ]
    assert own.transport.reached[PEERS] == 1
    for node in (own, known):
        await node.transport.stop()
        node.storage.close()
