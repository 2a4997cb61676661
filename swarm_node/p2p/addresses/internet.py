"""Classes of IP addresses: hosts of the Internet, and addresses of one site. Pure."""

from __future__ import annotations

import ipaddress

IpAddress = ipaddress.IPv4Address | ipaddress.IPv6Address

#: Ranges whose addresses embed an IPv4 address (mapped, NAT64, Teredo, 6to4 and its relays).
#: `is_global` holds for some of them, and for multicast.
_EMBEDDING = tuple(
    map(
        ipaddress.ip_network,
        (
            *("::ffff:0:0/96", "::/96", "64:ff9b::/96", "64:ff9b:1::/48"),
            *("2001::/32", "2002::/16", "192.88.99.0/24"),
        ),
    )
)
#: The global unicast range. `is_global` holds for all that IANA has not assigned, and for the old
#: site-local addresses.
_ASSIGNED = ipaddress.ip_network("2000::/3")


def is_internet(host: IpAddress) -> bool:
    """Check that an address is that of one Internet host and embeds no other address."""
    is_assigned = host.version == 4 or host in _ASSIGNED
    return host.is_global and is_assigned and not host.is_multicast and not is_embedding(host)


def is_embedding(host: IpAddress) -> bool:
    """Check that an IPv6 address embeds an IPv4 address."""
    return any(host in net for net in _EMBEDDING)


def site(ip: str) -> str:
    """Return the key of the site of an address: the IPv4 address, also if it is mapped into IPv6,
    or the first 64 bits of an IPv6 address. The owner of one address in such a prefix owns all of
    them.

    Raises:
        ValueError: `ip` is no IP address.
    """
    address = ipaddress.ip_address(ip)
    if isinstance(address, ipaddress.IPv4Address):
        return str(address)
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(ipaddress.ip_network((int(address) >> 64 << 64, 64)))
