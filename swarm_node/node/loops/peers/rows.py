"""The rows of peers in a snapshot: the link to each, or why there is none."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final

import msgspec

from swarm_node.environments.host import EnvironmentInfo
from swarm_node.environments.presets import environment_name
from swarm_node.node.loops.node_parts import Shared
from swarm_node.node.metrics.progress import span
from swarm_node.node.metrics.snapshot import PeerRow, Said, UnmetRow
from swarm_node.p2p.addresses import circuit
from swarm_node.p2p.addresses.addresses import endpoint_of, host_and_port
from swarm_node.p2p.exchange.discovery import Discovery
from swarm_node.p2p.membership.members import Members
from swarm_node.p2p.peers.causes import CAUSES, Cause, advice, text_here
from swarm_node.p2p.peers.peers import Peer
from swarm_node.p2p.reach.transport import ReachingTransport
from swarm_node.p2p.wire.identity import short_id
from swarm_node.rollout import PolicyRef

#: The most members in a snapshot that this node only heard of.
MAX_UNMET: Final = 64
#: The least seconds of a suspension that is told. A useless group costs its author less.
_TOLD_SECONDS = 5.0
_ENDED: Final = {
    "revoked": ("the owner of the swarm revoked its membership", "`swarm-node invite`"),
    "expired": ("its membership ended", "`swarm-node invite`"),
    "used_up": ("its ticket had admitted as many nodes as it may", "`swarm-node invite`"),
    "blocked": ("blocked on this node", "`swarm-node unblock`"),
    "not_yet_valid": ("its membership has not begun by this clock", "compare both clocks"),
}


def peer_rows(
    shared_state: Shared,
    reaching: ReachingTransport,
    now: float,
    info: EnvironmentInfo | None,
    policy: PolicyRef,
) -> list[PeerRow]:
    """Return the rows of the peers that this node works with, the most recently seen first.
    `policy` is this node's."""
    trained_counts, total = (
        shared_state.tally.trained_by,
        shared_state.tally.trained_by.total() or 1,
    )
    known_peers = sorted(
        shared_state.directory.live(now, math.inf), key=lambda peer: now - peer.last_seen
    )
    links, causes = reaching.links(), shared_state.directory.failures.causes(now)
    rows = []
    for peer in known_peers:
        row = PeerRow.of(
            peer,
            now,
            shared_state.members,
            trained_counts[peer.peer_id] / total,
            reaching.usage.relay_ids.get(peer.peer_id),
            _other_environment(peer, info),
            _other_model(peer, policy),
        )
        address = links.get(peer.peer_id, "")
        reason = _why(peer, row, shared_state, reaching, causes, now, is_linked=bool(address))
        row = msgspec.structs.replace(row, address=address, reason=reason)
        rows.append(msgspec.structs.replace(row, **_traffic(reaching, peer.peer_id, now)))
    return rows


def former_rows(shared_state: Shared, reaching: ReachingTransport, now: float) -> list[PeerRow]:
    """Return the rows of former members, and of members blocked here, for a snapshot."""
    former_peers = (
        peer for key, peer in shared_state.former.items() if shared_state.directory.get(key) is None
    )
    rows = []
    for peer in former_peers:
        reason, traffic = (
            membership_end(shared_state.members, peer.peer_id),
            _traffic(reaching, peer.peer_id, now),
        )
        row = PeerRow.of(peer, now, shared_state.members)
        rows.append(msgspec.structs.replace(row, reason=reason, **traffic))
    return rows


def of_unmet(
    shared_state: Shared, reaching: ReachingTransport, discovery: Discovery | None, now: float
) -> dict[str, Any]:
    """Return the fields of a snapshot on members that this node heard of and has not met: the rows
    of MAX_UNMET at most, and the number of all. Before the node runs there is no `discovery`."""
    if discovery is None:
        return {}
    members, causes = shared_state.members, shared_state.directory.failures.causes(now)
    unmet_peers, total = discovery.unmet(MAX_UNMET)
    rows = []
    for peer in unmet_peers:
        left = None if peer.next_at is None else max(0.0, peer.next_at - now)
        peer_id, addresses = peer.peer_id, list(peer.addresses)
        reason = membership_end(members, peer_id) or absent(
            peer_id, addresses, reaching, causes, peer.tries, left
        )
        name, issuer = members.name(peer_id), members.issuer(peer_id)
        rows.append(UnmetRow(peer_id, name, issuer, addresses, reason))
    return {"unmet": rows, "unmet_total": total}


def membership_end(members: Members, peer_id: str) -> Said | None:
    """Return why a peer is a member no more, None for a member and a stranger."""
    membership = members.presented_membership(peer_id)
    if membership is None or membership[1] == "member":
        return None
    text, remedy = _ENDED.get(membership[1], (f"no member: {membership[1]}", "`swarm-node invite`"))
    return Said(membership[1], "warning", text, remedy)


def absent(
    peer_id: str,
    addresses: Sequence[str],
    reaching: ReachingTransport,
    causes: Sequence[Cause],
    tries: int,
    left: float | None = None,
    *,
    has_answered: bool = False,
) -> Said:
    """Return why a member with these `addresses` is not connected. The last `tries` tries failed,
    and the next is in `left` seconds, if that is known. `causes` are those that this node found. It
    answered before (`has_answered`), or never."""
    cause = next((cause for cause in causes if cause.peer == peer_id), None)
    if cause is None:
        full_addresses = circuit.complete_circuits(addresses, peer_id)
        if full_addresses and not any(map(reaching.connects_to, full_addresses)):
            cause = Cause("out_of_range", peer_id, where=_where(addresses, port=False))
        elif not tries:
            return Said("untried", "good", "not tried yet: this node tries one after the other")
        else:
            cause = Cause("no_answer", peer_id, where=_where(addresses, port=True))
    text = text_here(cause)
    remedy = advice(cause)
    if cause.code == "no_answer" and has_answered:
        remedy = "it answered before: its node may have stopped, or its machine may be off"
    if cause.code == "no_answer" and left is not None:
        text += f" ({tries} {'try' if tries == 1 else 'tries'}, the next in {span(left)})"
    return Said(cause.code, CAUSES[cause.code].level, text, remedy)


def _where(addresses: Sequence[str], *, port: bool) -> str:
    """Name the first place where a peer says that it is, and the number of others. Its own loopback
    addresses come last."""
    places = dict[str, None]()
    for text in addresses:
        way, endpoint = circuit.parse(text), endpoint_of(text)
        if way is not None:
            places[f"relay {short_id(way.relay)}"] = None
        elif endpoint is not None:
            _, host, number = endpoint
            places[host_and_port(host, number) if port else host] = None
    if not places:
        return "no valid address"
    first = min(places, key=lambda place: place.startswith(("127.", "::1", "[::1]")))
    return first if len(places) == 1 else f"{first} (and {len(places) - 1} more)"


def _why(
    peer: Peer,
    row: PeerRow,
    shared_state: Shared,
    reaching: ReachingTransport,
    causes: Sequence[Cause],
    now: float,
    *,
    is_linked: bool,
) -> Said | None:
    """Return why a known peer is not connected, or is asked for nothing; None for one that is."""
    if finding := membership_end(shared_state.members, peer.peer_id):
        return finding
    if row.suspended_seconds >= _TOLD_SECONDS:
        is_disconnected = now < peer.standing.cut_until
        state = "disconnected" if is_disconnected else "suspended"
        remedy = "nothing: it is asked again then; docs/rejections.md explains each reason"
        return Said(state, "warning", f"{state} for {span(row.suspended_seconds)} more", remedy)
    if not peer.retry.silent and (is_linked or row.via is not None):
        return None
    tries, due_at = peer.retry.failures, peer.retry.due_at
    left = max(0.0, due_at - now) if math.isfinite(due_at) else None
    return absent(peer.peer_id, peer.addresses, reaching, causes, tries, left, has_answered=True)


def _traffic(reaching: ReachingTransport, peer_id: str, now: float) -> dict[str, Any]:
    traffic = reaching.usage.traffic(peer_id)
    if traffic is None:
        return {}
    trip = traffic.round_trip(now)
    return {"bytes_in": traffic.bytes_in, "bytes_out": traffic.bytes_out, "round_trip": trip}


def _other_environment(peer: Peer, info: EnvironmentInfo | None) -> str:
    environment = peer.environment
    if info is None or environment is None or environment == (info.name, info.version):
        return ""
    return environment_name(*environment)


def _other_model(peer: Peer, policy: PolicyRef) -> str:
    if peer.policy is None or peer.policy == (policy.model, policy.tokenizer):
        return ""
    return peer.policy[0].hex()[:8]
