"""Who holds a SYN for whom. That SYNs then meet is shown in tests/sites/test_punch.py."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import socket
from collections.abc import Awaitable, Callable, Sequence

import msgpack
import pytest

from swarm_node.clock import Clock
from swarm_node.errors import Rejected
from swarm_node.p2p.reach import punch
from swarm_node.p2p.reach.punch import _SPLICED as SPLICED
from swarm_node.p2p.reach.punch import Place, Punch, Puncher, hold, place_of, splice
from swarm_node.p2p.reach.punch import _Hold as Hold
from swarm_node.p2p.reach.reachability import Nat, Outcome, Probed, Reach
from swarm_node.p2p.wire import wire

HERE = "/ip4/11.0.1.1/tcp/4001"
THERE = "/ip4/11.0.2.1/tcp/4002"


class Sides:
    """A puncher, and what it asked and dialled."""

    def __init__(
        self, nat: Nat | None, own_id: str = "a", reply: bytes | None = b"", ip: str = "11.0.1.1"
    ) -> None:
        self.asked: list[str] = []
        self.dialled: list[str] = []
        self.reply = reply
        self.now = 0.0
        place = None if nat is None else Place(nat, ip, 4001, 31000)
        self.puncher = Puncher(
            own_id,
            lambda: place,
            ask=self._ask,
            dial=self._dial,
            issuer=lambda peer: peer.partition("/")[0],
            clock=Clock(now=lambda: self.now, wall=lambda: 0.0),
        )

    async def _ask(self, peer: str, payload: bytes) -> bytes | None:
        self.asked.append(wire.unpack(Punch, payload, max_bytes=256).address)  # type: ignore[union-attr]
        return self.reply

    async def _dial(self, addresses: Sequence[str], patience: float) -> int:
        self.dialled += addresses
        return 1

    def answer(self, address: str = THERE, caller: str = "b") -> bytes | Rejected:
        return asyncio.run(self.puncher.answer(caller, msgpack.packb([address])))


def test_who_is_asked_is_dialled_where_it_says() -> None:
    sides = Sides("restricted", reply=wire.pack(Punch(THERE)))
    assert asyncio.run(sides.puncher.punch("b")) is True
    assert sides.asked == [HERE]
    assert sides.dialled == [f"{THERE}/p2p/b"]


@pytest.mark.parametrize(
    ("reply", "ends"),
    [
        (None, None),  # it may not know yet where it is
        (b"", None),
        (b"junk", False),
        (wire.pack(Punch("/ip4/10.0.0.1/tcp/1")), False),
    ],
)
def test_a_peer_that_does_not_help_is_not_dialled(reply: bytes | None, ends: bool | None) -> None:
    sides = Sides("restricted", reply=reply)
    assert asyncio.run(sides.puncher.punch("b")) is ends
    assert sides.dialled == []


def test_who_can_only_answer_or_not_be_met_asks_nobody() -> None:
    for nat, own, asks in (
        ("restricted", "a", True),
        ("restricted", "c", False),  # the other one asks: its id is lower
        ("address", "c", False),
        ("reject", "c", True),  # nobody could hold a SYN for the other
        ("symmetric", "a", False),
        ("none", "a", False),
    ):
        sides = Sides(nat, own)  # type: ignore[arg-type]
        assert asyncio.run(sides.puncher.punch("b")) is (None if asks else False)
        assert bool(sides.asked) is asks, (nat, own)
    for unknown in (None, "unknown"):
        sides = Sides(unknown)  # type: ignore[arg-type]
        assert asyncio.run(sides.puncher.punch("b")) is None
        assert not sides.asked


@pytest.mark.parametrize("nat", ["restricted", "address"])
def test_a_syn_is_held_behind_a_router_that_drops_what_is_unasked(nat: Nat) -> None:
    reply = Sides(nat).answer()
    assert reply == wire.pack(Punch(HERE))


@pytest.mark.parametrize("nat", ["reject", "symmetric", "none", "open", "unknown", None])
def test_no_syn_is_held_where_it_would_not_help(nat: Nat | None) -> None:
    assert Sides(nat).answer() == b""


@pytest.mark.parametrize(
    "address",
    [
        *("/ip4/192.168.1.5/tcp/80", "/ip4/127.0.0.1/tcp/80", "/ip4/224.0.0.1/tcp/80"),
        *("/ip4/0.0.0.0/tcp/80", "/ip4/169.254.169.254/tcp/80", "/ip4/11.0.2.1/tcp/0"),
        *("/ip6/fd00::1/tcp/80", "/ip6/fe80::1/tcp/80", "/ip6/::1/tcp/80"),
        *("/ip6/::ffff:11.0.2.1/tcp/80", "/ip6/2002:b00:201::1/tcp/80", "/dns4/example.org/tcp/80"),
        *("/ip4/11.0.2.1/tcp/99999", "/ip4/999.0.2.1/tcp/80", "/ip4/11.0.2.01/tcp/80"),
    ],
)
def test_only_ports_of_public_hosts_get_a_syn(address: str) -> None:
    refused = Sides("restricted").answer(address)
    assert isinstance(refused, Rejected)


def test_junk_is_refused() -> None:
    sides = Sides("restricted")
    for junk in (b"", b"\x91", b"\x91\xa0", wire.pack(Punch(THERE)) + b"x", b"x" * 257):
        assert isinstance(asyncio.run(sides.puncher.answer("b", junk)), Rejected)


def test_what_one_asker_and_all_together_may_cause_is_bounded() -> None:
    sides = Sides("restricted")
    by_one = [sides.answer(f"/ip4/11.0.3.{n}/tcp/1") for n in range(1, 9)]
    assert sum(map(bool, by_one)) == 2
    sides = Sides("restricted")
    at_one = [sides.answer(caller=f"caller {n}") for n in range(8)]
    assert sum(map(bool, at_one)) == 3
    sides = Sides("restricted")
    in_all = [sides.answer(f"/ip4/11.0.4.{n}/tcp/1", f"caller {n}") for n in range(1, 60)]
    assert sum(map(bool, in_all)) == 8  # nobody takes them off the queue here


def probed(number: int, ip: str, port: int) -> Probed:
    return Probed(
        f"peer {number}", "n", f"11.0.9.{number}", ip, port, False, {port: "timeout"}, 0.0
    )


def test_a_node_is_where_most_members_of_the_internet_see_it() -> None:
    reach = Reach()
    assert place_of(reach) is None
    reach.probes = tuple(itertools.starmap(probed, [(1, "11.0.1.1", 5), (2, "11.0.1.1", 5)]))
    assert place_of(reach) is None  # it does not know its own port
    reach.ports = (5,)
    assert place_of(reach) == Place("restricted", "11.0.1.1", 5, 5)
    reach.probes = (probed(1, "192.168.1.1", 5),)
    assert place_of(reach) is None


@pytest.mark.parametrize(
    ("outcome", "nat"), [("timeout", "restricted"), ("refused", "reject"), ("open", "none")]
)
def test_a_firewall_lets_in_what_a_router_of_that_kind_does(outcome: Outcome, nat: Nat) -> None:
    reach = Reach()
    ip, reach.ports = "2a01:9::1", (5,)
    reach.probes = tuple(
        Probed(f"peer {n}", "n", f"2a01:{n}::1", ip, 5, True, {5: outcome}, 0.0) for n in (1, 2)
    )
    assert place_of(reach) == Place(nat, ip, 5, 5)
    assert str(place_of(reach)) == f"/ip6/{ip}/tcp/5"
    reach.ports = (6,)  # it dials from any port
    assert place_of(reach) == Place("none", ip, 5, 6)


def test_a_syn_goes_to_an_address_of_the_own_kind() -> None:
    other = "/ip6/2a01:9::1/tcp/5"
    assert Sides("restricted").answer(other) == b""
    assert Sides("restricted", ip="2a01:8::1").answer(other) == wire.pack(
        Punch("/ip6/2a01:8::1/tcp/4001")
    )
    assert Sides("restricted", ip="2a01:8::1").answer() == b""


@pytest.mark.slow(reason="waits until it is given up")
async def test_a_syn_that_meets_nobody_is_given_up() -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))  # nobody listens: the host refuses
        with socket.socket() as own:
            own.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            own.bind(("0.0.0.0", 0))
            port = own.getsockname()[1]
            assert await hold(port, "127.0.0.1", other.getsockname()[1], 0.6) is None
        with socket.socket() as own:  # a port that is not shared
            own.bind(("0.0.0.0", 0))
            assert await hold(own.getsockname()[1], "127.0.0.1", 9) is None


async def test_a_connection_is_passed_on_both_ways_until_either_end_closes() -> None:
    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(1 << 16):
            writer.write(data)
            await writer.drain()
        writer.close()

    server = await asyncio.start_server(echo, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    near, far = socket.socketpair()
    near.setblocking(False)
    async with asyncio.TaskGroup() as group:
        group.create_task(splice(near, port))
        reader, writer = await asyncio.open_connection(sock=far)
        payload = bytes(range(256)) * 8192
        group.create_task(_send(writer, payload))
        assert await reader.readexactly(len(payload)) == payload
        writer.close()
    server.close()
    await server.wait_closed()
    # Nobody listens there.
    near, far = socket.socketpair()
    near.setblocking(False)
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        await splice(near, closed.getsockname()[1])
    with contextlib.suppress(OSError):
        assert await asyncio.to_thread(far.recv, 1) == b""
    far.close()


async def _send(writer: asyncio.StreamWriter, payload: bytes) -> None:
    writer.write(payload)
    await writer.drain()


@pytest.mark.slow(reason="waits until it is given up")
async def test_a_router_that_resets_a_syn_gets_few(monkeypatch: pytest.MonkeyPatch) -> None:
    sent, met = [], punch._open_punch_socket

    async def counted(listens: int, ip: str, port: int) -> socket.socket:
        sent.append(port)
        return await met(listens, ip, port)

    monkeypatch.setattr(punch, "_open_punch_socket", counted)
    with socket.socket() as own, socket.socket() as closed:
        for each in (own, closed):
            each.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            each.bind(("127.0.0.1", 0))
        ports = own.getsockname()[1], closed.getsockname()[1]
        assert await hold(ports[0], "127.0.0.1", ports[1], 1.0) is None
    assert 1 <= len(sent) <= 3  # at 0, 0.25 and 0.75 s


async def forever(step: Callable[[], Awaitable[None]]) -> None:
    while True:
        await step()


def test_who_keeps_connections_open_leaves_as_many_to_others() -> None:
    async def main(own: socket.socket, evil: socket.socket) -> None:
        listens, port = (each.getsockname()[1] for each in (own, evil))
        puncher = Sides("restricted").puncher
        running = asyncio.create_task(puncher.run(forever))
        async with asyncio.timeout(60):
            for number in range(SPLICED // 2):
                await puncher._requests.put(Hold(listens, f"127.0.1.{number}", port, "bad"))
            while True:
                if puncher._free == SPLICED // 2:
                    break
                await asyncio.sleep(0.01)
        request = wire.pack(Punch(THERE))
        assert await puncher.answer("bad/9", request) == b""
        assert await puncher.answer("good/1", request) != b""
        running.cancel()
        await asyncio.wait([running])
        for _ in range(3):
            await asyncio.sleep(0)  # their connections close

    with socket.socket() as own, socket.socket() as evil:
        own.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        for each, host in ((own, "127.0.0.1"), (evil, "0.0.0.0")):
            each.bind((host, 0))
            each.listen(SPLICED)
        asyncio.run(main(own, evil))
