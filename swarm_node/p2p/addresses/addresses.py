"""Parses multiaddrs to dial or to listen on. Imports no hivemind.

Addresses come from tickets and from other peers. Only /ip4|ip6|dns4|dns6/<host>/tcp/<port> is
accepted; an address to dial must end in /p2p/<peer id>.
"""

from __future__ import annotations

import asyncio
import errno
import functools
import ipaddress
import random
import re
import socket
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from urllib.parse import urlsplit

from swarm_node.errors import TransportError
from swarm_node.p2p.wire.identity import public_key_of

_MAX_ADDRESS_CHARS = 256
_RESOLVE_SECONDS = 3.0
#: Peers choose the names, and a lookup may block its thread longer than the caller waits. So
#: lookups have threads of their own, and slow names delay only other lookups.
_LOOKUPS = ThreadPoolExecutor(4, "lookup")
#: Ports that no system gives away unasked: outgoing connections get theirs from 32768 (Linux) or
#: 49152 (RFC 6335) up, Kubernetes' services from 30000.
_LISTEN_PORTS = range(20_000, 30_000)
_HOST_NAME = re.compile(r"(?=.{1,253}\Z)[A-Za-z0-9-]{1,63}(\.[A-Za-z0-9-]{1,63})*\Z")
#: A coordinator's URL, and the multiaddr under which a ticket carries it.
COORDINATOR_URL = r"https?://([A-Za-z0-9.-]{1,120}|\[[0-9A-Fa-f:.]{2,45}\])(:[0-9]{1,5})?/?"
_COORDINATOR = re.compile(r"/(ip4|ip6|dns)/([A-Za-z0-9.:-]{1,120})/tcp/([0-9]{1,5})/(https?)")


@dataclass(frozen=True, slots=True)
class Address:
    """A dialable address: multiaddr text without its peer id, and the peer id (base58)."""

    multiaddr: str
    peer_id: str


def parse_address(text: str) -> Address | None:
    """Parse a dialable multiaddr that ends in an Ed25519 peer id. Return None for anything else.

    The only form is /ip4|ip6|dns4|dns6/<host>/tcp/<port>/p2p/<peer id>: no relays and no other
    transports. Port 0 and the unspecified address are refused, because only this machine itself
    would answer there.
    """
    endpoint, _, peer_id = text[: _MAX_ADDRESS_CHARS + 1].rpartition("/p2p/")
    if len(text) > _MAX_ADDRESS_CHARS or not is_peer_id(peer_id):
        return None
    parts = split_endpoint(endpoint)
    if parts is None or parts[2] == 0 or _is_unspecified(parts[1]):
        return None
    return Address(endpoint, peer_id)


async def resolve(address: Address) -> list[Address]:
    """Return `address` with the IP addresses of its name, at most two, or unchanged if it has no
    name. The IP address that is checked is then the one that is dialled."""
    kind, host, port = split_endpoint(address.multiaddr) or ("", "", 0)
    if kind not in ("dns4", "dns6"):
        return [address]
    family = socket.AF_INET if kind == "dns4" else socket.AF_INET6
    look_up = functools.partial(socket.getaddrinfo, host, port, family, socket.SOCK_STREAM)
    try:
        async with asyncio.timeout(_RESOLVE_SECONDS):
            records = await asyncio.get_running_loop().run_in_executor(_LOOKUPS, look_up)
    except (OSError, UnicodeError, TimeoutError):
        return []
    ips = list(dict.fromkeys(str(item[4][0]) for item in records))[:2]
    return [Address(f"/ip{kind[3]}/{ip}/tcp/{port}", address.peer_id) for ip in ips]


async def accepts(address: Address, patience: float) -> bool:
    """Check that a TCP connection to the address is accepted within `patience` seconds."""
    _, host, port = split_endpoint(address.multiaddr) or ("", "", 0)
    try:
        async with asyncio.timeout(patience):
            _, writer = await asyncio.open_connection(host, port)
    except (OSError, UnicodeError, TimeoutError):
        return False
    writer.transport.abort()
    return True


def is_here(text: str) -> bool:
    """Check that an IP address, or that of a multiaddr, belongs to this machine."""
    _, ip, _ = split_endpoint(text) or ("", text, 0)
    try:
        with socket.socket(socket.AF_INET6 if ":" in ip else socket.AF_INET) as probe:
            probe.bind((ip, 0))
    except OSError:  # this machine may have no IPv6 at all
        return False
    return True


def pin_ports(listen: Iterable[str], bound_addresses: Iterable[str]) -> list[str]:
    """Return `listen` with its ports 0 replaced. Port 0 of a kind (ip4 or ip6) becomes the port of
    the addresses of this kind in `bound_addresses`, if these have exactly one port."""
    ports: dict[str, set[int]] = {}
    for text in bound_addresses:
        endpoint = endpoint_of(text)
        if endpoint is not None:
            ports.setdefault(endpoint[0], set()).add(endpoint[2])
    addresses = []
    for text in listen:
        kind, host, port = split_endpoint(text) or ("", "", 1)
        kind_ports = ports.get(kind, set())
        is_pinnable = port == 0 and len(kind_ports) == 1
        addresses.append(f"/{kind}/{host}/tcp/{min(kind_ports)}" if is_pinnable else text)
    return addresses


def is_endpoint(text: str) -> bool:
    """Check that `text` is a TCP multiaddr without a peer id. Port 0 means any port."""
    return split_endpoint(text) is not None


def require_endpoints(texts: Iterable[str]) -> None:
    """Refuse texts that are no addresses to listen on, or to tell peers.

    Raises:
        TransportError: one is none.
    """
    for text in texts:
        if not is_endpoint(text):
            raise TransportError(f"{text!r} is not an address like /ip4/0.0.0.0/tcp/31330")


def split_endpoint(text: str) -> tuple[str, str, int] | None:
    """(ip4|ip6|dns4|dns6, host, port) of a TCP multiaddr without a peer id."""
    parts = text.split("/")
    if len(parts) != 5 or parts[0] or parts[3] != "tcp":
        return None
    _, kind, host, _, port = parts
    if not re.fullmatch(r"[0-9]{1,5}", port, re.ASCII) or int(port) > 65535:
        return None
    return (kind, host, int(port)) if _is_host(kind, host) else None


def _is_unspecified(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_unspecified
    except ValueError:  # a name
        return False


def endpoint_of(address: str) -> tuple[str, str, int] | None:
    """`split_endpoint` of an address that ends in a peer id."""
    return split_endpoint(address.rpartition("/p2p/")[0])


def host_and_port(host: str, port: int) -> str:
    """HOST:PORT, with an IPv6 address in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def endpoint_text(raw: bytes) -> str | None:
    """The text of a binary multiaddr of an IP address and a TCP port, None for any other."""
    for code, size in ((4, 4), (41, 16)):
        if len(raw) == size + 4 and raw[0] == code and raw[-3] == 6:
            ip, port = ipaddress.ip_address(raw[1:-3]), int.from_bytes(raw[-2:], "big")
            return f"/ip{ip.version}/{ip}/tcp/{port}"
    return None


def coordinator_address(url: str) -> str:
    """The multiaddr of a coordinator's URL (COORDINATOR_URL).

    Raises:
        ValueError: it has no usable host or port.
    """
    parts = urlsplit(url)
    host, scheme = parts.hostname or "", parts.scheme
    if not re.fullmatch(COORDINATOR_URL, url):
        raise ValueError("a coordinator's URL is like https://HOST or https://HOST:PORT")
    kind = next((k for k in ("ip4", "ip6") if _is_host(k, host)), "dns")
    if kind == "dns" and not _is_host("dns4", host):
        raise ValueError(f"{host!r} is no host")
    return f"/{kind}/{host}/tcp/{parts.port or (443 if scheme == 'https' else 80)}/{scheme}"


def coordinator_url(address: str) -> str | None:
    """The URL of a coordinator's multiaddr, None for any other address."""
    match = _COORDINATOR.fullmatch(address)
    if match is None or not 0 < int(match[3]) < 65_536:
        return None
    host = f"[{match[2]}]" if match[1] == "ip6" else match[2]
    return f"{match[4]}://{host}:{match[3]}"


def unused_port(host: str = "") -> int:
    """Choose a TCP port to listen on, at this IPv4 address or at all. Unlike one that the system
    gives for port 0, no outgoing connection gets it before it is used.

    Raises:
        OSError: a hundred are in use, or the address is not of this machine.
    """
    for port in random.SystemRandom().sample(_LISTEN_PORTS, 100):
        with socket.socket() as probe:
            try:
                probe.bind((host, port))
            except OSError as error:
                if error.errno in (errno.EADDRINUSE, errno.EACCES):  # EACCES: Windows reserved it
                    continue
                raise
            return port
    raise OSError(errno.EADDRINUSE, "no unused port found")


def require_free_ports(listen: Iterable[str]) -> None:
    """
    Raises:
        TransportError: an address is not of this machine, or another process listens there. p2pd
            would share it (SO_REUSEPORT), and each of two nodes would get connections meant for the
            other.
    """
    for text in listen:
        kind, host, port = split_endpoint(text) or ("", "", 0)
        if kind not in ("ip4", "ip6"):
            continue
        family = socket.AF_INET if kind == "ip4" else socket.AF_INET6
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # TIME_WAIT is no listener
            try:
                probe.bind((host, port))
            except OSError as error:
                reason = f"{error.strerror}; choose another address or port"
                raise TransportError(f"cannot listen on {text}: {reason}") from error


def _is_host(kind: str, host: str) -> bool:
    try:
        if kind == "ip4":
            return str(ipaddress.IPv4Address(host)) == host
        if kind == "ip6":
            return ipaddress.IPv6Address(host).scope_id is None
    except ValueError:
        return False
    return kind in ("dns4", "dns6") and _HOST_NAME.match(host) is not None


def is_peer_id(text: str) -> bool:
    """Check that `text` is the base58 peer id of an Ed25519 key."""
    try:
        public_key_of(text)
    except ValueError:
        return False
    return True
