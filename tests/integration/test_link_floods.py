"""Links and streams that a peer opens without end cost others nothing, on both stacks. The sockets
are real, and the attacker's end is neither stack."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from transports import ECHO, PATIENT, echo, hivemind, running, until

from swarm_node.errors import Rejected, TransportError
from swarm_node.p2p.addresses.addresses import split_endpoint
from swarm_node.p2p.limits.links import (
    ARRIVALS,
    LINKS,
    LINKS_PER_PEER,
    P2PD_LINKS_PER_PEER,
    RETURNS,
    STREAMS_PER_PEER,
)
from swarm_node.p2p.transports.hivemind import transport as hivemind_transport
from swarm_node.p2p.transports.hivemind.transport import HivemindTransport
from swarm_node.p2p.transports.libp2p.transport import Libp2pTransport
from swarm_node.p2p.transports.streams import StreamTransport
from swarm_node.p2p.wire.identity import Identity
from swarm_node.p2p.wire.protocols import LIST

pytest.importorskip("noise", reason="py-libp2p is not installed")
from link_flooder import BATCH, Link

#: An address of loopback that no honest peer here has.
ELSEWHERE = "127.0.0.2"
Make = Callable[[], StreamTransport[Any]]


class Counts:
    """A gate that counts what is over a limit."""

    def __init__(self) -> None:
        self.refused_of: Counter[str] = Counter()

    def over(self, reason: str, count: int) -> None:
        self.refused_of[reason] += count

    def asks(self, caller: str) -> bool:
        return True

    def charge_reply(self, caller: str, size: int) -> None: ...

    def count_refusal(self, caller: str) -> None: ...

    def broke(self, caller: str, rejection: Rejected) -> None: ...


def made(stack: str, place: Path) -> StreamTransport[Any]:
    transport: StreamTransport[Any] = hivemind(place)
    if stack == "libp2p":
        pytest.importorskip("trio", reason="py-libp2p is not installed")
        listen = ["/ip4/127.0.0.1/tcp/0"]
        transport = Libp2pTransport(Identity.generate(), listen=listen, rng=random.Random(0))
    for protocol in (ECHO, LIST):
        transport.serve(protocol, echo)
    return transport


@pytest.fixture(params=["hivemind", "libp2p"])
def make(request: pytest.FixtureRequest, tmp_path: Path) -> Make:
    """Makes transports of one stack."""
    return lambda: made(request.param, tmp_path)


def counted(one: StreamTransport[Any], strangers: Sequence[str] = ()) -> Counts:
    """Give a transport a gate that counts. All are members but `strangers`."""
    counts = Counts()
    one.screen(lambda presence, peer: True, lambda peer: peer not in strangers, str, gate=counts)
    return counts


def port_of(one: StreamTransport[Any]) -> int:
    return (split_endpoint(one.addresses()[0].rpartition("/p2p/")[0]) or ("", "", 0))[2]


async def linked(
    one: StreamTransport[Any], identity: Identity, source: str = ELSEWHERE
) -> tuple[Link, asyncio.Task[None]]:
    """A link of the attacker, and the task that ends when the node closes it."""
    link = await Link.open("127.0.0.1", port_of(one), source, identity)

    async def served() -> None:
        try:
            with contextlib.suppress(OSError, EOFError):
                await link.serve()
        finally:
            link.writer.transport.abort()

    return link, asyncio.create_task(served())


@contextlib.asynccontextmanager
async def honest(one: StreamTransport[Any], other: StreamTransport[Any]) -> AsyncGenerator[None]:
    """Run both, which ask each other before and after, over the link that they had all the time."""
    async with running(one, other):
        assert await other.dial(one.addresses(), PATIENT) == 1
        for asks, asked in ((one, other), (other, one)):
            assert await asks.request(asked.peer_id, ECHO, b"before") == b"before"
        at = await one.observed_address(other.peer_id)
        yield
        assert await one.observed_address(other.peer_id) == at
        for asks, asked in ((one, other), (other, one)):
            assert await asks.request(asked.peer_id, ECHO, b"after") == b"after"


async def links_of(one: StreamTransport[Any]) -> dict[str, list[str]]:
    found = await one._running().connections(30.0)
    assert found is not None
    return dict(found)


async def ended(served: Sequence[asyncio.Task[None]]) -> None:
    """Wait until the node closed all of these links; the test's limit ends a wait in vain."""
    if served:
        await asyncio.wait(served)


async def stop(served: Sequence[asyncio.Task[None]]) -> None:
    for task in served:
        task.cancel()
    await asyncio.gather(*served, return_exceptions=True)


async def test_who_opens_more_links_than_a_peer_may_loses_its_own(make: Make) -> None:
    one, other, attacker = make(), make(), Identity.generate()
    counts = counted(one)
    async with honest(one, other):
        links = [await linked(one, attacker) for _ in range(P2PD_LINKS_PER_PEER + 1)]
        served = [task for _, task in links]
        kept = LINKS_PER_PEER if isinstance(one, Libp2pTransport) else 0
        if not kept:  # p2pd closes only all of them, when the node looks
            while len((await links_of(one)).get(attacker.peer_id, ())) <= P2PD_LINKS_PER_PEER:
                pass
            assert await one.heal([]) == "ok"
        await ended(served[: len(served) - kept])
        assert len((await links_of(one)).get(attacker.peer_id, ())) == kept
        assert counts.refused_of["links"] == P2PD_LINKS_PER_PEER + 1 - kept
        assert not any(task.done() for task in served[len(served) - kept :])
        await stop(served)


async def test_streams_whose_request_never_ends_are_bounded_and_cut_their_peer_off(
    make: Make,
) -> None:
    one, other, attacker = make(), make(), Identity.generate()
    counts = counted(one)
    async with honest(one, other):
        link, served = await linked(one, attacker)
        with contextlib.suppress(OSError):
            for _ in range(STREAMS_PER_PEER // BATCH + 8):
                await link.open_streams()
                assert await other.request(one.peer_id, ECHO, b"x") == b"x"
        await ended([served])
        await links_of(one)  # which tells what the daemon refused
        assert counts.refused_of["streams"] >= 1
        again, served = await linked(one, attacker)
        with contextlib.suppress(OSError):
            await again.open_streams()
        await ended([served])


async def test_who_returns_again_and_again_gets_no_link_for_a_while(tmp_path: Path) -> None:
    """Each handshake costs a process in Python ten milliseconds."""

    one, other = made("libp2p", tmp_path), made("libp2p", tmp_path)
    attacker = Identity.generate()
    counts = counted(one)
    async with honest(one, other):
        served = []
        while not counts.refused_of["links"] > RETURNS[1]:
            served.append((await linked(one, attacker, f"127.0.1.{len(served) % 16}"))[1])
            await links_of(one)
        assert attacker.peer_id in await links_of(one)  # what it had before stays
        _, refused = await linked(one, attacker)
        await ended([refused])
        await stop(served)


async def test_connections_of_one_address_have_a_rate_and_another_address_gets_a_link(
    tmp_path: Path,
) -> None:
    one, other = made("libp2p", tmp_path), made("libp2p", tmp_path)
    counts = counted(one)
    async with running(one, other):
        writers = []
        while not counts.refused_of["links"] > ARRIVALS[1]:
            place = (ELSEWHERE, 0)
            _, writer = await asyncio.open_connection("127.0.0.1", port_of(one), local_addr=place)
            writers.append(writer)
            await links_of(one)
        assert await other.dial(one.addresses(), PATIENT) == 1
        assert await other.request(one.peer_id, ECHO, b"x") == b"x"
        for writer in writers:
            writer.close()


async def test_keys_of_one_site_leave_streams_to_others(tmp_path: Path) -> None:
    """They name no protocol, so only the process of py-libp2p knows of them."""

    one, other = made("libp2p", tmp_path), made("libp2p", tmp_path)
    counts = counted(one)
    async with honest(one, other):
        served = []
        while not counts.refused_of["streams"]:
            link, task = await linked(one, Identity.generate())
            served.append(task)
            for _ in range((STREAMS_PER_PEER - 1) // BATCH):
                await link.open_silent()
            await links_of(one)
        assert not any(task.done() for task in served)
        await stop(served)


@pytest.mark.slow(reason="over 512 handshakes in Python, on both ends")
async def test_a_full_table_of_links_keeps_the_peers_that_the_node_asks(tmp_path: Path) -> None:
    one, other = made("libp2p", tmp_path), made("libp2p", tmp_path)
    counts = counted(one)
    async with honest(one, other):
        served = []
        for number in range(LINKS + 8):  # each under a new key, from as few addresses as can
            source = f"127.0.2.{1 + number // int(ARRIVALS[1])}"
            served.append((await linked(one, Identity.generate(), source))[1])
        while not counts.refused_of["links"]:
            assert len(await links_of(one)) <= LINKS
        assert other.peer_id in await links_of(one)
        await stop(served)


async def test_a_full_table_of_p2pd_loses_strangers_first_and_peers_that_the_node_asks_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hivemind_transport, "LINKS", 4)

    one, other = made("hivemind", tmp_path), made("hivemind", tmp_path)
    assert isinstance(one, HivemindTransport)
    keys = [Identity.generate() for _ in range(8)]
    counts = counted(one, [key.peer_id for key in keys[:6]])
    async with honest(one, other):
        links = [await linked(one, key) for key in keys]
        while len(await links_of(one)) < len(keys) + 1:
            pass
        # A repair begins with this. Its pings then cut the links, which answer none.
        left = await one._thin(one._running(), await links_of(one))
        served = [task for _, task in links]
        await until(lambda: sum(task.done() for task in served) == len(keys) + 1 - 4)
        assert left == await links_of(one)
        assert len(left) == 4
        assert {other.peer_id, keys[6].peer_id, keys[7].peer_id} < set(left)
        assert counts.refused_of["links"] == len(keys) + 1 - 4
        await stop(served)


async def test_the_links_of_a_peer_that_is_cut_off_are_cut_whether_it_asks_or_not(
    tmp_path: Path,
) -> None:
    one, other = made("hivemind", tmp_path), made("hivemind", tmp_path)
    attacker = Identity.generate()
    async with honest(one, other):
        _, served = await linked(one, attacker)
        while attacker.peer_id not in await links_of(one):
            pass
        one.sever(attacker.peer_id, 60.0)
        await one.heal([])
        await ended([served])
        with pytest.raises(TransportError):
            await one.request(attacker.peer_id, ECHO, b"x")
