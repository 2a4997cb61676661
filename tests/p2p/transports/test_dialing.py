"""Which addresses that peers name are dialled, and how often."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
import threading

import pytest

from swarm_node.p2p.addresses import addresses
from swarm_node.p2p.addresses.addresses import Address, resolve
from swarm_node.p2p.transports.dialing import DIALS_PER_HOST, Dialing
from swarm_node.p2p.wire.identity import Identity

PEER = Identity.from_seed(b"a" * 32).peer_id
LOOPBACK = ["/ip4/127.0.0.1/tcp/4001"]
LAN = [*LOOPBACK, "/ip4/192.168.1.5/tcp/4001"]
PUBLIC = [*LOOPBACK, "/ip4/93.184.216.34/tcp/4001"]


def _address(host: str, port: int = 4001) -> Address:
    return Address(f"/{'ip6' if ':' in host else 'ip4'}/{host}/tcp/{port}", PEER)


def _taken(host: str, own: list[str], configured: tuple[str, ...] = ()) -> bool:
    return Dialing(configured).take(_address(host), [f"{a}/p2p/{PEER}" for a in own], 0.0)


def _connects(host: str, own: list[str], configured: tuple[str, ...] = ()) -> bool:
    return Dialing(configured).connects_to(_address(host), [f"{a}/p2p/{PEER}" for a in own])


@pytest.mark.parametrize("host", ["8.8.8.8", "2a00:1450:4001:830::200e"])
def test_hosts_of_the_internet_are_dialled(host: str) -> None:
    assert _taken(host, PUBLIC)
    assert _connects(host, PUBLIC)


@pytest.mark.parametrize(
    "host",
    [
        *("224.0.0.1", "239.1.2.3", "ff02::1", "ff0e::1"),  # multicast, global for Python
        *("0.0.0.0", "::", "255.255.255.255", "240.0.0.1", "192.0.2.1", "198.18.0.1"),
        *("2002:7f00:1::", "2002:808:808::1", "192.88.99.1"),  # 6to4 and its relays
        *("64:ff9b::7f00:1", "64:ff9b::808:808", "64:ff9b:1::a00:1"),  # NAT64
        "2001:0:808:808::1",  # Teredo
        *("::ffff:127.0.0.1", "::ffff:8.8.8.8", "::8.8.8.8"),  # IPv4 in IPv6
        *("fec0::1", "4000::1", "5f00::1"),  # once site-local, unassigned, segment routing
        *("169.254.169.254", "fe80::1"),  # a cloud's metadata; this node uses no such network
    ],
)
@pytest.mark.parametrize("own", [LOOPBACK, LAN, PUBLIC])
def test_hosts_that_lead_elsewhere_are_refused(host: str, own: list[str]) -> None:
    assert not _taken(host, own)
    assert not _connects(host, own)


@pytest.mark.parametrize(
    ("host", "own", "dialled"),
    [
        ("127.0.0.1", LOOPBACK, True),  # several nodes on a machine without a network
        ("::1", LOOPBACK, True),
        ("127.0.0.1", LAN, False),
        ("127.0.0.1", PUBLIC, False),
        ("127.0.0.1", ["/dns4/node.example.org/tcp/4001"], False),  # announced by name only
        ("192.168.7.7", LAN, True),
        ("10.0.0.1", LAN, False),
        ("192.168.7.7", PUBLIC, False),
        ("fd00::1", ["/ip6/fd12:3456::1/tcp/1"], True),
        ("100.64.0.9", ["/ip4/100.100.1.1/tcp/1"], True),  # an overlay network
    ],
)
def test_private_networks_are_those_that_the_node_uses(
    host: str, own: list[str], dialled: bool
) -> None:
    assert _taken(host, own) is dialled
    assert _connects(host, own) is dialled


def test_a_network_that_the_ticket_names_is_used() -> None:
    assert _taken("10.1.2.3", LOOPBACK, (f"/ip4/10.0.0.1/tcp/1/p2p/{PEER}",))
    assert not _taken("127.0.0.2", LAN, (f"/ip4/127.0.0.1/tcp/1/p2p/{PEER}",))


def test_one_host_is_dialled_a_few_times_a_minute_whatever_the_port() -> None:
    dialing = Dialing(())
    for host in ("8.8.8.8", "2a00:1450:4001:830::200e"):
        taken = [dialing.take(_address(host, 1 + i), PUBLIC, i / 10) for i in range(100)]
        assert sum(taken) == DIALS_PER_HOST
    # A host has a whole /64 of addresses.
    assert not dialing.take(_address("2a00:1450:4001:830::1"), PUBLIC, 10.0)
    assert dialing.take(_address("8.8.8.8"), PUBLIC, 10.0 + 60.0 / DIALS_PER_HOST)


def test_all_hosts_together_are_dialled_about_once_a_second() -> None:
    dialing = Dialing(())
    taken = sum(
        dialing.take(_address(f"8.8.{second % 250}.{index}"), PUBLIC, float(second))
        for second in range(100)
        for index in range(10)
    )
    assert 100 <= taken <= 140


def test_an_address_at_which_a_member_answered_costs_nothing() -> None:
    dialing = Dialing(())
    for _ in range(DIALS_PER_HOST):
        assert dialing.take(_address("8.8.8.8"), PUBLIC, 0.0)
    assert not dialing.take(_address("8.8.8.8"), PUBLIC, 0.0)
    dialing.record_answer(_address("8.8.8.8"))
    assert dialing.take(_address("8.8.8.8"), PUBLIC, 0.0)
    assert not dialing.take(_address("8.8.8.8", 22), PUBLIC, 0.0)


def test_known_is_what_is_configured_and_where_a_member_answered() -> None:
    text = f"/ip4/10.0.0.1/tcp/1/p2p/{PEER}"
    dialing = Dialing([text])
    assert dialing.is_known(_address("10.0.0.1", 1))
    assert not dialing.is_known(_address("8.8.8.8"))
    dialing.record_answer(_address("8.8.8.8"))
    assert dialing.is_known(_address("8.8.8.8"))
    assert not dialing.is_known(_address("8.8.8.8", 22))


def test_a_name_that_was_not_resolved_is_not_dialled() -> None:
    assert not Dialing(()).take(Address("/dns4/node.example.org/tcp/1", PEER), PUBLIC, 0.0)


def test_a_name_is_resolved_before_it_is_checked() -> None:
    found = asyncio.run(resolve(Address("/dns4/localhost/tcp/4001", PEER)))
    assert found == [_address("127.0.0.1")]
    assert asyncio.run(resolve(_address("8.8.8.8"))) == [_address("8.8.8.8")]
    assert asyncio.run(resolve(Address("/dns4/nobody.invalid/tcp/1", PEER))) == []


async def test_names_that_are_slow_to_resolve_delay_nothing_else(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    slow = threading.Event()
    monkeypatch.setattr(addresses, "_RESOLVE_SECONDS", 0.05)
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_: slow.wait(20.0) and [])

    names = [Address(f"/dns4/slow{index}.example/tcp/1", PEER) for index in range(64)]
    assert await asyncio.gather(*map(resolve, names)) == [[]] * 64
    try:
        assert await asyncio.wait_for(asyncio.to_thread(lambda: "stored"), 5.0) == "stored"
    finally:
        slow.set()


def test_an_address_of_a_kind_that_this_machine_has_no_sockets_for_is_elsewhere() -> None:
    """A member names the address at which it sees a node. It must not end it."""
    program = (
        "import resource; from swarm_node.p2p.addresses.addresses import is_here; "
        "resource.setrlimit(resource.RLIMIT_NOFILE, (3, 3)); "  # a socket more is an OSError
        "assert not is_here('/ip6/2001:db8::1/tcp/1')"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
