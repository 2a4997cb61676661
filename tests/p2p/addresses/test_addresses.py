"""Which texts are addresses, and on which a node can listen."""

from __future__ import annotations

import socket

import pytest

from swarm_node.errors import TransportError
from swarm_node.p2p.addresses.addresses import (
    Address,
    is_endpoint,
    parse_address,
    require_free_ports,
    split_endpoint,
)
from swarm_node.p2p.wire.identity import Identity

PEER = Identity.from_seed(b"a" * 32).peer_id
LONG = ".".join(["a" * 63] * 3)


@pytest.mark.parametrize(
    ("endpoint", "parts"),
    [
        ("/ip4/11.0.0.1/tcp/443", ("ip4", "11.0.0.1", 443)),
        ("/ip6/2a00:11::1/tcp/65535", ("ip6", "2a00:11::1", 65535)),
        ("/dns4/node.example.org/tcp/1", ("dns4", "node.example.org", 1)),
        ("/dns6/a/tcp/1", ("dns6", "a", 1)),
    ],
)
def test_an_address_is_a_host_a_port_and_a_peer(endpoint: str, parts: tuple[str, str, int]) -> None:
    assert split_endpoint(endpoint) == parts
    assert parse_address(f"{endpoint}/p2p/{PEER}") == Address(endpoint, PEER)


def test_a_port_of_nought_is_any_to_listen_on_and_none_to_dial() -> None:
    assert is_endpoint("/ip4/0.0.0.0/tcp/0")
    assert parse_address(f"/ip4/11.0.0.1/tcp/0/p2p/{PEER}") is None


@pytest.mark.parametrize(
    "endpoint",
    [
        "",
        "/ip4/11.0.0.1",
        "/ip4/11.0.0.1/tcp/1/ws",
        "ip4/11.0.0.1/tcp/1/",
        "x/ip4/11.0.0.1/tcp/1",
        "x/ip4/11.0.0.1/tcp",
        "./ip4/11.0.0.1/tcp/1",
        "./ip4/11.0.0.1/1",
        "x/ip4/11.0.0.1/tcp/",
        "/ip4/11.0.0.1/udp/1",
        "/ip4/11.0.0.1/tcp/",
        "/ip4/11.0.0.1/tcp/-1",
        "/ip4/11.0.0.1/tcp/+1",
        "/ip4/11.0.0.1/tcp/ 1",
        "/ip4/11.0.0.1/tcp/1\n",
        "/ip4/11.0.0.1/tcp/1_0",
        "/ip4/11.0.0.1/tcp/\uff11",
        "/ip4/11.0.0.1/tcp/000001",
        "/ip4/11.0.0.1/tcp/65536",
        "/ip4/011.0.0.1/tcp/1",
        "/ip4/11.0.1/tcp/1",
        "/ip4/2a00:11::1/tcp/1",
        "/ip6/11.0.0.1/tcp/1",
        "/ip6/fe80::1%lo/tcp/1",
        "/dns/node.example.org/tcp/1",
        "/dnsaddr/node.example.org/tcp/1",
        "/unix/node/tcp/1",
        "/dns4//tcp/1",
        "/dns4/a..b/tcp/1",
        "/dns4/a b/tcp/1",
        f"/dns4/{'a' * 64}/tcp/1",
    ],
)
def test_all_else_is_no_endpoint(endpoint: str) -> None:
    assert split_endpoint(endpoint) is None
    assert not is_endpoint(endpoint)
    assert parse_address(f"{endpoint}/p2p/{PEER}") is None


@pytest.mark.parametrize(
    "text",
    [
        "/ip4/11.0.0.1/tcp/1",
        PEER,
        f"/ip4/11.0.0.1/tcp/1/{PEER}",
        "/ip4/11.0.0.1/tcp/1/p2p/",
        "/ip4/11.0.0.1/tcp/1/p2p/nobody",
        f"/ip4/11.0.0.1/tcp/1/p2p/{PEER}/",
        f"/ip4/11.0.0.1/tcp/1/p2p/{PEER}/p2p-circuit",
        f"/ip4/11.0.0.1/tcp/1/p2p/{PEER}/p2p/{PEER}",
        f"/dns4/{LONG}/tcp/1/p2p/{PEER}",
    ],
    ids=lambda text: text.replace(PEER, "PEER")[:40],
)
def test_an_address_to_dial_ends_in_one_peer_and_is_not_long(text: str) -> None:
    assert parse_address(text) is None


def test_a_host_as_long_as_fits_is_one() -> None:
    most = 256 - len(f"/dns4//tcp/1/p2p/{PEER}")
    host = LONG[:most]
    assert split_endpoint(f"/dns4/{LONG}/tcp/1") is not None
    assert parse_address(f"/dns4/{host}/tcp/1/p2p/{PEER}") is not None
    assert parse_address(f"/dns4/{host}b/tcp/1/p2p/{PEER}") is None


def test_a_port_that_another_listens_on_is_refused() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        text = f"/ip4/127.0.0.1/tcp/{taken.getsockname()[1]}"
        with pytest.raises(TransportError, match="in use"):
            require_free_ports(["/ip4/127.0.0.1/tcp/0", text])
    require_free_ports([text, "/dns4/node.invalid/tcp/1", "no address"])


def test_an_address_of_another_machine_is_refused() -> None:
    with pytest.raises(TransportError, match=r"/ip4/192\.0\.2\.1/tcp/0:.*assign"):
        require_free_ports(["/ip4/192.0.2.1/tcp/0"])
