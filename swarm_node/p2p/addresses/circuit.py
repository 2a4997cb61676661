"""Circuit addresses: how to reach a peer through a relay. Pure.

`/ip4/HOST/tcp/PORT/p2p/RELAY/p2p-circuit` means: dial RELAY there, and ask it to forward. The
notation is libp2p's. A heartbeat and a greeting leave out the target's id, because it is the
author's. Where addresses of several peers stand together, `/p2p/TARGET` follows.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable
from dataclasses import dataclass

from swarm_node.p2p.addresses.addresses import is_peer_id
from swarm_node.p2p.wire.wire import MAX_ADDRESS_CHARS, MAX_HEARTBEAT_ADDRESS_CHARS

_CIRCUIT = "/p2p-circuit"
_PEER = "/p2p/"
_MAX_CHARS = 512


@dataclass(frozen=True, slots=True)
class Circuit:
    """The `address` of `relay`, ending in the relay's id, and the `target`'s id, "" if left out."""

    address: str
    relay: str
    target: str

    def __str__(self) -> str:
        return self.address + _CIRCUIT + (_PEER + self.target if self.target else "")


def parse(text: str) -> Circuit | None:
    """Parse a circuit address. Return None for anything else. The caller that dials the relay
    checks the host in its address."""
    address, _, target = text[:_MAX_CHARS].partition(_CIRCUIT)
    endpoint, _, relay = address.rpartition(_PEER)
    circuit = Circuit(address, relay, target.removeprefix(_PEER))
    if str(circuit) != text or not endpoint.startswith("/") or _PEER in endpoint:
        return None
    has_peer_ids = is_peer_id(relay) and (not circuit.target or is_peer_id(circuit.target))
    return circuit if has_peer_ids and relay != circuit.target else None


def complete_circuits(addresses: Iterable[str], peer_id: str) -> list[str]:
    """Return the addresses that a peer states of itself, with its id appended to each circuit."""
    pairs = ((text, parse(text)) for text in addresses)
    return [str(Circuit(c.address, c.relay, peer_id)) if c else text for text, c in pairs]


def advertised_addresses(addresses: Iterable[str]) -> list[str]:
    """Return a node's addresses as it states them: circuits first, without its id."""
    pairs = [(text, parse(text)) for text in addresses]
    circuits = [str(Circuit(c.address, c.relay, "")) for _, c in pairs if c]
    return circuits + [text for text, c in pairs if not c]


def fit_heartbeat(addresses: Iterable[str]) -> tuple[str, ...]:
    """Return the first of a node's addresses that fit into a heartbeat: two circuits and two
    others."""
    selection: list[str] = []
    left = MAX_HEARTBEAT_ADDRESS_CHARS
    room = {True: 2, False: 2}
    for address in advertised_addresses(addresses):
        kind = address.endswith(_CIRCUIT)
        if room[kind] and len(address) <= min(left, MAX_ADDRESS_CHARS):
            selection.append(address)
            left -= len(address)
            room[kind] -= 1
    return tuple(selection)


def dialable_addresses(addresses: Iterable[str]) -> list[str]:
    """Return the addresses to dial: for a circuit, that of its relay."""
    pairs = ((text, parse(text)) for text in addresses)
    return [circuit.address if circuit else text for text, circuit in pairs]


def reachable_first(addresses: Iterable[str]) -> list[str]:
    """Return the direct addresses, those of the Internet before those of private networks."""
    return sorted((text for text in addresses if not parse(text)), key=is_private)


def host_of(address: str) -> str:
    """The host in a multiaddr, "" if it has none."""
    parts = address.split("/")
    return parts[2] if len(parts) > 4 else ""


def is_private(address: str) -> bool:
    """Check that the host in a multiaddr is not an address of the Internet. A name may be one."""
    try:
        return not ipaddress.ip_address(host_of(address)).is_global
    except ValueError:
        return False  # a name
