"""The contract of `Transport`, which every network stack passes."""

from __future__ import annotations

import asyncio
import contextlib
import random
import signal
from collections.abc import AsyncGenerator, Awaitable, Callable
from pathlib import Path

import psutil
import pytest
from transports import ECHO, PATIENT, SIZED, echo, hivemind, running, sized
from transports import until as holds

from swarm_node.errors import NotServedError, TransportError
from swarm_node.p2p.addresses.addresses import split_endpoint
from swarm_node.p2p.transports.libp2p.transport import Libp2pTransport
from swarm_node.p2p.transports.memory import MemoryNetwork, MemoryTransport
from swarm_node.p2p.transports.streams import StreamTransport
from swarm_node.p2p.wire.identity import Identity
from swarm_node.p2p.wire.protocols import RELAY
from swarm_node.p2p.wire.transport import MAX_REPLY_BYTES, MAX_REQUEST_BYTES, Onward, Transport
from swarm_node.p2p.wire.wire import MAX_PRESENCE_BYTES

WHO = "/swarm-node/who/1"
REFUSE = "/swarm-node/refuse/1"
BROKEN = "/swarm-node/broken/1"
SLOW = "/swarm-node/slow/1"

Factory = Callable[[Identity], Transport]


async def who(peer: str, payload: bytes) -> bytes:
    return peer.encode()


async def refuse(peer: str, payload: bytes) -> bytes:
    raise TransportError("not a member of this swarm")


async def broken(peer: str, payload: bytes) -> bytes:
    raise KeyError("a bug")


async def slow(peer: str, payload: bytes) -> bytes:
    await asyncio.sleep(30)
    return b""


@pytest.fixture(params=["memory", "hivemind", "libp2p"])
def make(request: pytest.FixtureRequest, tmp_path: Path) -> Factory:
    """Makes transports that share one network."""
    if request.param == "memory":
        network = MemoryNetwork(random.Random(0))
        return lambda identity: MemoryTransport(network, identity)
    if request.param == "libp2p":
        pytest.importorskip("trio", reason="py-libp2p is not installed")
        return lambda identity: Libp2pTransport(
            identity, listen=["/ip4/127.0.0.1/tcp/0"], rng=random.Random(0)
        )
    return lambda identity: hivemind(tmp_path, identity)


def prepared(make: Factory, identity: Identity | None = None) -> Transport:
    transport = make(identity or Identity.generate())
    for protocol, handler in (
        (ECHO, echo),
        (SIZED, sized),
        (WHO, who),
        (REFUSE, refuse),
        (BROKEN, broken),
        (SLOW, slow),
    ):
        transport.serve(protocol, handler)
    return transport


@contextlib.asynccontextmanager
async def swarm(make: Factory, count: int) -> AsyncGenerator[list[Transport]]:
    """`count` running transports; each has dialled all that started before it."""
    transports = [prepared(make) for _ in range(count)]
    async with running(*transports), asyncio.timeout(60):
        for index, transport in enumerate(transports):
            before = [other.addresses()[0] for other in transports[:index]]
            assert await transport.dial(before, PATIENT) == index
        yield transports


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    """Wait for what spreads in the background; the swarm's own timeout ends a wait in vain."""
    while True:
        if await condition():
            return
        await asyncio.sleep(0.05)


async def test_peers_answer_requests_of_every_size_also_many_at_once(make: Factory) -> None:
    async with swarm(make, 2) as (one, other):
        assert await one.heal(other.addresses()) == "ok"
        assert await other.heal([]) == "ok"
        for size in (0, 10_000, MAX_REQUEST_BYTES):
            payload = random.Random(size).randbytes(size)
            assert await one.request(other.peer_id, ECHO, payload) == payload
            assert await other.request(one.peer_id, ECHO, payload) == payload
        assert await one.request(other.peer_id, SIZED, b"3000000") == bytes(3_000_000)
        payloads = [random.Random(i).randbytes(5000) for i in range(50)]
        replies = await asyncio.gather(
            *(one.request(other.peer_id, ECHO, payload) for payload in payloads)
        )
        assert replies == payloads


async def test_what_fails_is_an_error_and_the_link_goes_on(make: Factory) -> None:
    async with swarm(make, 2) as (one, other):
        with pytest.raises(TransportError, match="the limit"):
            await one.request(other.peer_id, ECHO, bytes(MAX_REQUEST_BYTES + 1))
        assert await one.request(other.peer_id, ECHO, b"next") == b"next"
        with pytest.raises(TransportError, match="the limit"):
            await one.request(other.peer_id, SIZED, b"1001", max_reply=1000)
        assert len(await one.request(other.peer_id, SIZED, b"1000", max_reply=1000)) == 1000
        with pytest.raises(TransportError, match="the limit"):
            await one.request(other.peer_id, SIZED, b"%d" % (MAX_REPLY_BYTES + 1))
        assert await one.request(other.peer_id, ECHO, b"last") == b"last"
        with pytest.raises(TransportError, match="a member"):
            await one.request(other.peer_id, REFUSE, b"")
        with pytest.raises(TransportError, match="internal error"):
            await one.request(other.peer_id, BROKEN, b"")
        assert await one.request(other.peer_id, ECHO, b"next") == b"next"
        for _ in range(5):
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.1):
                    await one.request(other.peer_id, SLOW, b"")
        assert await one.request(other.peer_id, ECHO, b"next") == b"next"
        for _ in range(2):
            with pytest.raises(NotServedError):
                await one.request(other.peer_id, "/swarm-node/nothing/1", b"")
        assert await one.request(other.peer_id, ECHO, b"still linked") == b"still linked"
        for peer in (Identity.generate().peer_id, one.peer_id, "", "nonsense"):
            with pytest.raises(TransportError):
                await one.request(peer, ECHO, b"")
        await other.stop()
        with pytest.raises(TransportError):
            await one.request(other.peer_id, ECHO, b"")


async def test_a_peer_is_known_by_its_id_and_its_address_while_a_link_is_open(
    make: Factory,
) -> None:
    async with swarm(make, 3) as transports:
        for one in transports:
            for other in transports:
                if one is not other:
                    told = await one.request(other.peer_id, WHO, b"")
                    assert told.decode() == one.peer_id
        one, two, three = transports
        for observer, seen in ((one, two), (two, one)):
            address = await observer.observed_address(seen.peer_id)
            assert address is not None
            kind, host, port = split_endpoint(address) or ("", "", 0)
            assert (kind, host) == ("ip4", "127.0.0.1")
            assert port > 0
            assert observer.links()[seen.peer_id] == address, "as it was when it was last seen"
            assert all(map(observer.connects_to, seen.addresses()))
        assert not one.connects_to(f"/ip4/192.0.2.2/tcp/1/p2p/{two.peer_id}")
        assert not one.connects_to("nonsense")
        assert await one.observed_address(Identity.generate().peer_id) is None
        await three.stop()

        async def gone() -> bool:
            return await one.observed_address(three.peer_id) is None

        await until(gone)
        assert three.peer_id not in one.links()


@pytest.mark.parametrize("make", ["memory", "hivemind"], indirect=True)
async def test_heartbeats_are_found_replaced_and_forgotten(make: Factory) -> None:
    async with swarm(make, 4) as transports:

        async def seen(what: bytes, publishers: list[Transport]) -> bool:
            """Whether everybody finds exactly the others' heartbeats that start with `what`."""
            for reader in transports:
                others = [t.peer_id for t in publishers if t is not reader]
                if await reader.heartbeats() != {p: what + p.encode() for p in others}:
                    return False
            return True

        for transport in transports:
            await transport.publish_heartbeat(b"1" + transport.peer_id.encode(), ttl=2.0)
        await until(lambda: seen(b"1", transports))
        for transport in transports:
            await transport.publish_heartbeat(b"2" + transport.peer_id.encode(), ttl=2.0)
        await until(lambda: seen(b"2", transports))
        await until(lambda: seen(b"", []))


async def test_what_comes_too_late_or_is_too_large_is_refused_at_once(make: Factory) -> None:
    async with swarm(make, 1) as (lonely,):
        assert lonely.addresses()
        assert all(address.endswith("/p2p/" + lonely.peer_id) for address in lonely.addresses())
        with pytest.raises(RuntimeError, match="before start"):
            lonely.serve("/swarm-node/late/1", echo)
        with pytest.raises(RuntimeError, match="before start"):
            lonely.forward(RELAY, Relay(make)._route)
        with pytest.raises(TransportError, match="the limit"):
            await lonely.publish_heartbeat(bytes(MAX_PRESENCE_BYTES + 1), ttl=60)
        await lonely.publish_heartbeat(bytes(MAX_PRESENCE_BYTES), ttl=60)
        assert not await lonely.heartbeats()


async def test_dialling_nobody_returns_zero(make: Factory) -> None:
    async with swarm(make, 2) as (one, other):
        gone = other.addresses()
        await other.stop()
        bad = [
            "",
            "/",
            "nonsense",
            "/ip4/999.1.1.1/tcp/1",
            "/ip4/127.0.0.1/tcp/1/p2p/x",
            "é" * 999,
        ]
        stranger = f"/ip4/127.0.0.1/tcp/1/p2p/{Identity.generate().peer_id}"
        assert await one.dial([]) == 0
        assert await one.dial([*bad, stranger, *gone, *one.addresses()], patience=1.0) == 0
        assert await one.heal([stranger]) == "alone"


async def test_stop_is_idempotent_and_final(make: Factory) -> None:
    never_started = prepared(make)
    await never_started.stop()
    async with swarm(make, 2) as (one, other):
        await one.stop()
        await one.stop()
        for call in (
            one.request(other.peer_id, ECHO, b""),
            one.heartbeats(),
            one.publish_heartbeat(b"", ttl=60),
            one.dial(other.addresses()),
            one.heal(other.addresses()),
        ):
            with pytest.raises(TransportError, match="not running"):
                await call


async def test_a_restarted_peer_is_reachable_again(make: Factory) -> None:
    identity = Identity.generate()
    async with swarm(make, 2) as (one, other):
        before = prepared(make, identity)
        await before.start()
        assert await before.dial(one.addresses(), PATIENT) == 1
        assert await one.request(identity.peer_id, ECHO, b"x") == b"x"
        await before.stop()
        after = prepared(make, identity)
        await after.start()
        try:
            assert await after.dial([one.addresses()[0], other.addresses()[0]], PATIENT) == 2
            for transport in (one, other):
                assert await transport.request(identity.peer_id, ECHO, b"y") == b"y"
                assert await after.request(transport.peer_id, ECHO, b"z") == b"z"
        finally:
            await after.stop()


@pytest.mark.parametrize("blow", [signal.SIGKILL, signal.SIGSTOP])
@pytest.mark.parametrize("make", ["hivemind", "libp2p"], indirect=True)
async def test_a_dead_or_stuck_daemon_is_replaced(make: Factory, blow: signal.Signals) -> None:
    one, other = prepared(make), prepared(make)
    assert isinstance(other, StreamTransport)
    async with running(one, other):
        assert await other.dial(one.addresses(), PATIENT) == 1
        await other.publish_heartbeat(b"before", ttl=60)
        addresses, daemon = other.addresses(), psutil.Process(other.daemon_pid)
        daemon.send_signal(blow)
        if blow == signal.SIGSTOP:
            await holds(lambda: daemon.status() == psutil.STATUS_STOPPED)
        else:
            await holds(lambda: other.daemon_pid is None)
            with pytest.raises(TransportError, match="daemon died"):
                await other.request(one.peer_id, ECHO, b"x")
        assert await other.heal(one.addresses()) == "restarted"
        assert not daemon.is_running()
        assert other.addresses() == addresses
        assert await other.heal(one.addresses()) == "ok"
        assert await other.request(one.peer_id, ECHO, b"x") == b"x"
        assert await one.request(other.peer_id, ECHO, b"y") == b"y"
        assert await one.heartbeats() == ({other.peer_id: b"before"} if one.has_table else {})


async def test_a_severed_peer_is_not_served_and_others_are(make: Factory) -> None:
    async with swarm(make, 3) as (one, junk, other):
        assert await junk.request(one.peer_id, ECHO, b"before") == b"before"
        one.sever(junk.peer_id, 60.0)
        for _ in range(3):
            with pytest.raises(TransportError):
                await junk.request(one.peer_id, ECHO, b"x")
        assert await other.request(one.peer_id, ECHO, b"other") == b"other"
        one.sever(junk.peer_id, 0.0)  # its time is over

        async def served() -> bool:
            with contextlib.suppress(TransportError):
                await junk.dial(one.addresses())
                return await junk.request(one.peer_id, ECHO, b"after") == b"after"
            return False

        await until(served)


class Relay:
    """A transport that answers RELAY with what `protocol` of `target` replies. It counts what it
    passed on, and the requests that ended."""

    def __init__(self, make: Factory) -> None:
        self.transport = prepared(make)
        self.transport.forward(RELAY, self._route)
        self.target = ""
        self.protocol = ECHO
        self.max_reply = MAX_REPLY_BYTES
        self.callers: list[str] = []
        self.passed: list[int] = []
        self.ended = 0

    async def _route(self, caller: str, payload: bytes) -> Onward:
        self.callers.append(caller)
        if payload == b"no":
            raise TransportError("not for you")
        if payload == b"bug":
            raise KeyError("a bug")
        return Onward(
            self.target, self.protocol, payload, self.max_reply, self.passed.append, self._end
        )

    def _end(self) -> None:
        self.ended += 1


@contextlib.asynccontextmanager
async def relayed(make: Factory) -> AsyncGenerator[tuple[Transport, Relay, Transport]]:
    """An asker and a target that are both connected to a relay."""
    relay, asker, target = Relay(make), prepared(make), prepared(make)
    relay.target = target.peer_id
    async with running(relay.transport, asker, target), asyncio.timeout(60):
        for each in (asker, target):
            assert await each.dial(relay.transport.addresses(), PATIENT) == 1
        yield asker, relay, target


async def test_a_request_is_forwarded_and_its_reply_copied(make: Factory) -> None:
    async with relayed(make) as (asker, relay, target):
        by = relay.transport.peer_id
        for size in (0, 10_000, MAX_REQUEST_BYTES):
            payload = random.Random(size).randbytes(size)
            assert await asker.request(by, RELAY, payload) == payload
        relay.protocol = SIZED
        assert await asker.request(by, RELAY, b"3000000") == bytes(3_000_000)
        assert sum(relay.passed) >= 3_000_000
        relay.protocol = WHO  # the target sees whom its link leads to
        assert await asker.request(by, RELAY, b"") == by.encode()
        assert set(relay.callers) == {asker.peer_id}
        # Requests run both ways over a link, whoever opened it.
        relay.target = asker.peer_id
        assert await target.request(by, RELAY, b"") == by.encode()
        await until(lambda: ended(relay, 6))


async def ended(relay: Relay, count: int) -> bool:
    return relay.ended == count


async def test_what_is_not_forwarded_is_refused_and_every_request_ends_once(make: Factory) -> None:
    async with relayed(make) as (asker, relay, target):
        by = relay.transport.peer_id
        for payload, why in ((b"no", "not for you"), (b"bug", "internal error")):
            with pytest.raises(TransportError, match=why):
                await asker.request(by, RELAY, payload)
        assert relay.ended == 0
        relay.protocol = REFUSE
        with pytest.raises(TransportError, match="a member"):
            await asker.request(by, RELAY, b"")
        relay.protocol, relay.max_reply = SIZED, 1000
        with pytest.raises(TransportError, match="the limit"):
            await asker.request(by, RELAY, b"1001")
        assert len(await asker.request(by, RELAY, b"1000")) == 1000
        relay.protocol = SLOW
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.3):
                await asker.request(by, RELAY, b"")
        await target.stop()
        relay.protocol = ECHO
        with pytest.raises(TransportError):
            await asker.request(by, RELAY, b"")
        assert await asker.request(by, ECHO, b"on") == b"on"
        await until(lambda: ended(relay, 5))
