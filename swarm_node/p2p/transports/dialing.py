"""Limits for dialling addresses that peers name: which ones, and how often. Pure, no I/O.

A heartbeat can name any host. So a node dials only hosts of the Internet and of networks that it
uses itself. It dials each host a few times a minute, and all together once a second. Addresses from
the settings or the ticket are dialled without limits.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable
from typing import Final

from swarm_node.p2p.addresses.addresses import Address, endpoint_of, split_endpoint
from swarm_node.p2p.addresses.internet import IpAddress, is_internet, site
from swarm_node.p2p.limits.gates import PeerGates, TokenBucket
from swarm_node.recent import Recent

#: Dials per minute to one host of the Internet at which no member has answered.
DIALS_PER_HOST: Final = 3
_DIALS_PER_SECOND, _DIALS_AT_ONCE = 1.0, 32.0
_MAX_PROVEN = 2048
#: Private networks. A node dials into those that it uses itself.
_SITE = tuple(
    map(
        ipaddress.ip_network,
        (
            *("10.0.0.0/8", "100.64.0.0/10", "172.16.0.0/12", "192.168.0.0/16"),
            *("169.254.0.0/16", "fc00::/7", "fe80::/10"),
        ),
    )
)


class Dialing:
    """The dial limits of one node. `configured` are the addresses of its settings and its
    ticket."""

    def __init__(self, bootstrap: Iterable[str]) -> None:
        self._bootstraps = frozenset(bootstrap)
        self._hosts = PeerGates(DIALS_PER_HOST / 60, DIALS_PER_HOST, capacity=4096)
        self._total_bucket = TokenBucket(_DIALS_PER_SECOND, _DIALS_AT_ONCE)
        self._proven: Recent[Address, None] = Recent(_MAX_PROVEN)

    def is_configured(self, text: str) -> bool:
        return text in self._bootstraps

    def is_known(self, address: Address) -> bool:
        """Check that an address is configured, or that a member has answered there."""
        text = f"{address.multiaddr}/p2p/{address.peer_id}"
        return address in self._proven or self.is_configured(text)

    def take(self, address: Address, own_addresses: Iterable[str], now: float) -> bool:
        """Admit and count a dial to an address that a peer named. An address with a name in place
        of an IP address is refused. `own_addresses` are the addresses that this node listens on."""
        host = _host(split_endpoint(address.multiaddr))
        if host is None or not self._within_reach(host, list(own_addresses)):
            return False
        if address in self._proven:
            return True
        key = address.multiaddr  # hosts of the own site may run many nodes
        if host.is_global:
            key = site(str(host))
        return self._hosts.take(key, now) and self._total_bucket.take(now)

    def connects_to(self, address: Address, own_addresses: Iterable[str]) -> bool:
        """Check that an address is in a range that this node dials. A name may lead to one.
        `own_addresses` is as in `take`."""
        host = _host(split_endpoint(address.multiaddr))
        return (
            host is None or self.is_known(address) or self._within_reach(host, list(own_addresses))
        )

    def record_answer(self, address: Address) -> None:
        """Record that a member answered at this address. It is no longer limited."""
        self._proven[address] = None

    def _within_reach(self, host: IpAddress, own_addresses: list[str]) -> bool:
        if host.is_loopback:  # a name is an address of its own, too
            return all(ip is not None and ip.is_loopback for ip in _hosts(own_addresses))
        for network in _SITE:
            if host in network:
                local_hosts = _hosts([*own_addresses, *self._bootstraps])
                return any(ip is not None and ip in network for ip in local_hosts)
        return is_internet(host)


def _hosts(addresses: Iterable[str]) -> list[IpAddress | None]:
    """The IP address in each, None for a name."""
    return [_host(endpoint_of(text)) for text in addresses]


def _host(endpoint: tuple[str, str, int] | None) -> IpAddress | None:
    """The IP address of an endpoint, None for a name or no endpoint."""
    kind, host, _ = endpoint or ("", "", 0)
    return ipaddress.ip_address(host) if kind in ("ip4", "ip6") else None
