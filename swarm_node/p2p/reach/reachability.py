"""A node's reachability, derived from the findings of members that dialled it. Pure.

The proof depends on the member's position. A probe from another public address proves Internet
reachability, one from the LAN proves LAN reachability, one from this machine proves only loopback.
A member may lie, so the majority counts, and one member alone never makes a node count as dialable.
docs/networking.md explains the verdicts.
"""

from __future__ import annotations

import ipaddress
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Literal

import msgspec

from swarm_node.p2p.addresses.internet import is_internet, site

#: open: this very node answered. silent: something accepted the connection and sent nothing. other:
#: another program or node answered. untried: the member did not dial.
Outcome = Literal["open", "refused", "timeout", "silent", "other", "untried"]
#: direct: over the Internet. local: only members of the own network or machine were asked.
Kind = Literal["direct", "local", "relayed", "unreachable", "unknown"]
#: The translation between this node and those that dial it. none: its address is this machine's
#: own. Else NAT: open lets connections in; address lets in hosts to which this node has sent;
#: restricted drops connections; reject refuses them; symmetric takes another port for every
#: destination, so no address holds for all.
Nat = Literal["none", "open", "address", "restricted", "reject", "symmetric", "unknown"]

NATS: dict[Nat, str] = {
    "none": "none, the address that members see is this machine's own",
    "open": "translated, and new connections arrive",
    "address": "translated, and only addresses that this node has sent to may connect",
    "restricted": "translated, new connections are dropped",
    "reject": "translated, new connections are refused",
    "symmetric": "translated, with another port for every destination (symmetric)",
    "unknown": "not known",
}
#: Members that must agree before a node counts as dialable.
_AGREEING = 2
_FOUND: dict[Outcome, str] = {
    "refused": "connections to {} are refused",
    "timeout": "nothing answers at {}",
    "silent": "something accepts connections to {} and says nothing",
    "other": "another program answers at {}",
    "open": "only members that it has a link to can connect to {}",
}


class Probed(msgspec.Struct, frozen=True):
    """The findings of one member. `at` is its IP address as this node sees it. It sees this node at
    `seen_ip` and `seen_port`, which is an address of this machine if `here`. `outcomes` are by
    port. `stranger` is the outcome for a member without a link to this node. Its clock is `ahead`
    of this node's, in seconds; negative if behind."""

    peer_id: str
    name: str
    at: str
    seen_ip: str
    seen_port: int
    here: bool
    outcomes: dict[int, Outcome]
    ahead: float
    stranger: Outcome = "untried"

    @property
    def is_open(self) -> bool | None:
        """True if the member found a port open, and a stranger that tried did too. None if the
        member tried no port."""
        outcomes = [outcome for outcome in self.outcomes.values() if outcome != "untried"]
        return "open" in outcomes and not self.is_open_only_to_acquaintances if outcomes else None

    @property
    def is_open_only_to_acquaintances(self) -> bool:
        """True if the member could connect, and a stranger could not."""
        return "open" in self.outcomes.values() and self.stranger not in ("open", "untried")

    @property
    def abroad(self) -> bool:
        """True if the member dialled over the Internet."""
        return self.elsewhere and is_public(self.at) and is_public(self.seen_ip)

    @property
    def elsewhere(self) -> bool:
        """True if the member is neither at the address of this node nor behind it."""
        return site(self.at) != site(self.seen_ip)


class Relay(msgspec.Struct, frozen=True):
    """A member that forwards requests to this node, and the round trip in seconds, if known."""

    name: str
    seconds: float | None = None

    def __str__(self) -> str:
        return self.name if self.seconds is None else f"{self.name} ({self.seconds * 1e3:.0f} ms)"


class Reachability(msgspec.Struct, frozen=True):
    """A node's reachability in a sentence, and a `remedy` if there is one."""

    kind: Kind
    text: str
    remedy: str = ""
    nat: Nat = "unknown"
    probes: list[Probed] = []
    relays: list[Relay] = []


class Reach:
    """This node's current reachability. The probe sets `probes`, `asked_count`, the number of
    members that it asked last, and the `ports` on which the node listens. `relays` names the
    members that hold a link for it."""

    def __init__(self) -> None:
        self.probes: tuple[Probed, ...] = ()
        self.asked_count = 0
        self.ports: tuple[int, ...] = ()
        self.relays: Callable[[], Sequence[Relay]] = tuple

    def dialable(self) -> bool | None:
        """True if members at other addresses can open connections to this node. None if unknown."""
        return dialable(self.probes)

    def reachable_addresses(self) -> list[str]:
        """Addresses, without peer id, at which members reach this node."""
        return majority_addresses(self.probes)

    def nat(self) -> Nat:
        """The kind of NAT between this node and the Internet."""
        return nat_kind(self.probes, self.ports)

    def observed_endpoint(self) -> tuple[str, int] | None:
        """IP address and port at which most members on the Internet see this node."""
        counts = Counter((p.seen_ip, p.seen_port) for p in self.probes if p.abroad)
        return counts.most_common(1)[0][0] if counts else None

    def verdict(self) -> Reachability:
        """The verdict, for people and programs."""
        return assess(self.probes, self.ports, tuple(self.relays()), self.asked_count)


def is_public(ip: str) -> bool:
    """Check that `ip` is an address of the Internet."""
    return is_internet(ipaddress.ip_address(ip))


def dialable(probes: Iterable[Probed]) -> bool | None:
    """Take the majority vote of the members that dialled from elsewhere: True if most opened a
    connection, None if nobody dialled or only one member says so. A tie is False: otherwise one
    liar of two members would keep the node from using relays."""
    votes = [bool(probe.is_open) for probe in _evidence(probes)]
    open_votes = sum(votes)
    if 2 * open_votes > len(votes):
        return True if open_votes >= _AGREEING else None
    return False if votes else None


def majority_addresses(probes: Iterable[Probed]) -> list[str]:
    """Select the addresses that the majority of the members that dialled from elsewhere found
    open."""
    evidence = _evidence(probes)
    places = Counter(
        (probe.seen_ip, port)
        for probe in evidence
        for port, outcome in probe.outcomes.items()
        if outcome == "open" and probe.is_open
    )
    return [
        f"/ip{ipaddress.ip_address(ip).version}/{ip}/tcp/{port}"
        for (ip, port), count in places.most_common()
        if count >= _AGREEING and 2 * count > len(evidence)
    ]


def nat_kind(probes: Iterable[Probed], ports: Sequence[int]) -> Nat:
    """Classify the NAT between this node, which listens on `ports`, and the members that dialled it
    from elsewhere. p2pd dials from its listening port. So another port seen by a member means NAT,
    or that the listening port was in use. Symmetric therefore needs two members."""
    evidence = _evidence(probes)
    if not evidence:
        return "unknown"
    if any(probe.here for probe in evidence):
        return "none"
    votes = [bool(probe.is_open) for probe in evidence]
    if 2 * sum(votes) >= len(votes):
        return "open" if all(votes) else "unknown"
    if any(probe.is_open_only_to_acquaintances for probe in evidence):
        return "address"
    seen_ports = {site(probe.at): probe.seen_port for probe in evidence}
    kept_ports = set(seen_ports.values()) & set(ports)
    if not kept_ports and len(seen_ports) > 1 and len(set(seen_ports.values())) == len(seen_ports):
        return "symmetric"
    is_rejecting = any("refused" in probe.outcomes.values() for probe in evidence)
    return "reject" if is_rejecting else "restricted"


def assess(
    probes: Sequence[Probed],
    ports: Sequence[int],
    relays: Sequence[Relay] = (),
    member_count: int = 0,
) -> Reachability:
    """Check a node that listens on `ports`, for which `relays` hold a link. It last asked
    `member_count` members."""
    evidence = _evidence(probes) or [p for p in probes if p.is_open is not None]
    nat = nat_kind(probes, ports)
    successes = [probe for probe in evidence if probe.is_open]
    failures = [probe for probe in evidence if not probe.is_open]
    kind: Kind = "unknown"
    text, remedy = f"not probed yet: {_unable(member_count)}", ""
    if evidence:
        kind, text, remedy = _direct(evidence, successes, failures, ports, nat)
    if relays and dialable(probes) is not True:
        kind, text = "relayed", f"via relay {join_items(relays)}; {text}"
        remedy = remedy and f"nothing; for direct connections, {remedy}"
    return Reachability(kind, text, remedy, nat, list(probes), list(relays))


def _unable(member_count: int) -> str:
    """Reason why nothing is known."""
    if not member_count:
        return "no member to ask"
    message = "the only member asked could not tell"
    return message if member_count == 1 else f"none of {member_count} members asked could tell"


def _direct(
    evidence: list[Probed],
    successes: list[Probed],
    failures: list[Probed],
    ports: Sequence[int],
    nat: Nat,
) -> tuple[Kind, str, str]:
    """Kind, text and remedy of a verdict without relays."""
    if len(successes) == len(failures):
        summary = (
            f"{_names(successes)} opened a connection to this node, {_names(failures)} could not"
        )
        return "unknown", f"members disagree: {summary}", ""
    is_abroad = all(probe.abroad for probe in evidence)
    if len(successes) > len(failures):
        if not is_abroad:
            witness = f"seen by {successes[0].name} at {_places(successes[:1], 'open')}"
            return "local", f"direct on this network ({witness})", ""
        suffix = ", the only member asked" if len(evidence) == 1 else ""
        return (
            "direct",
            f"direct at {_places(successes, 'open')}, by {_names(successes)}{suffix}",
            "",
        )
    counts = Counter(outcome for probe in failures for outcome in probe.outcomes.values())
    del counts["untried"]
    outcome = counts.most_common(1)[0][0]
    reason = _FOUND[outcome].format(_places(failures, outcome))
    scope = "" if is_abroad else " on this network"
    text = f"unreachable{scope}, because {reason} (asked: {_names(failures)})"
    return "unreachable", text, _remedy(outcome, nat, ports)


def _remedy(outcome: Outcome, nat: Nat, ports: Sequence[int]) -> str:
    port = f"TCP port {ports[0]}" if ports else "the TCP port that it listens on"
    if nat == "none":
        return f"open {port} in the firewall of this machine or of its provider"
    if outcome == "other":
        return (
            "forward a port of the router that no other machine has to this one, and name it with "
            "`--advertise /ip4/ADDRESS/tcp/PORT`"
        )
    return f"forward {port} of the router to this machine"


def _evidence(probes: Iterable[Probed]) -> list[Probed]:
    """Select the probes that count: those over the Internet, or without any, those from other
    addresses of this network."""
    candidates = [probe for probe in probes if probe.is_open is not None and probe.elsewhere]
    return [probe for probe in candidates if probe.abroad] or candidates


def place(ip: str, port: int) -> str:
    """Format an address as people write it."""
    return f"[{ip}]:{port}" if ":" in ip else f"{ip}:{port}"


def join_items(items: Iterable[object]) -> str:
    """Join the items for a sentence. There is at least one."""
    *first, last = map(str, items)
    return f"{', '.join(first)} and {last}" if first else last


def _places(probes: Sequence[Probed], outcome: Outcome) -> str:
    """List at most two places at which these members had this outcome."""
    places = dict.fromkeys(
        place(probe.seen_ip, port)
        for probe in probes
        for port, found in probe.outcomes.items()
        if found == outcome
    )
    return join_items(list(places)[:2])


def _names(probes: Sequence[Probed]) -> str:
    return join_items(dict.fromkeys(probe.name for probe in probes))
