"""Peers' offences in checkpoints, and alarms about peers."""

from __future__ import annotations

from collections.abc import Sequence

from swarm_node.clock import Clock
from swarm_node.node.loops.node_parts import Shared
from swarm_node.node.metrics.snapshot import DroppedRow
from swarm_node.p2p.peers.liveness import OFFENCE
from swarm_node.p2p.peers.peers import Directory, Peer
from swarm_node.p2p.peers.standing import Standing

#: The latest drops that a checkpoint keeps.
_KEPT = 1024
#: Lately refused groups from which the owner is alarmed, and authors among which one can be too
#: large.
_MANY_REFUSALS = 10.0
_FEW_AUTHORS = 3
_LARGE_SHARE = 0.5
_ENOUGH_TRAINED = 64


def suspended_rows(directory: Directory, clock: Clock) -> list[DroppedRow]:
    """Return the standings of dropped peers, their times in Unix seconds."""
    offset = clock.wall() - clock.now()
    return [
        DroppedRow(
            peer_id, standing.offences, standing.off_until + offset, standing.cut_until + offset
        )
        for peer_id, standing in list(directory.suspended_standings().items())[-_KEPT:]
    ]


def recall(directory: Directory, rows: Sequence[DroppedRow], clock: Clock) -> None:
    """Restore the standings that an earlier run stored. Times are bounded, so a clock that was set
    back prolongs none without end."""
    now, wall = clock.now(), clock.wall()
    for row in rows:
        off_until, cut_until = (
            now + min(OFFENCE.ceiling, end - wall) for end in (row.off_until, row.cut_until)
        )
        standing = Standing(
            offences=row.offences, left_until=off_until, off_until=off_until, cut_until=cut_until
        )
        directory.recall(row.peer_id, standing)


def watch(shared_state: Shared, own_id: str, now: float) -> None:
    """Set or clear the alarms about peers."""
    peers = shared_state.directory.live(now, float("inf"))
    suspects = {
        "scoring": next((p for p in peers if shared_state.effort.exceeds(p.peer_id, now)), None),
        "author": _largest(shared_state, peers, own_id),
        "refusals": max(
            (
                peer
                for peer in peers
                if _MANY_REFUSALS <= peer.standing.useless_count > peer.standing.useful_count
                # The verdict names both environments.
                and max(peer.rejected, key=peer.rejected.__getitem__, default="") != "environment"
            ),
            key=lambda peer: peer.standing.useless_count,
            default=None,
        ),
    }
    for kind, peer in suspects.items():
        shared_state.tally.alarms.pop(kind, None)
        if peer is not None:
            shared_state.tally.alarms[kind] = f"{peer.peer_id} {_sentence(kind, peer)}"


def _largest(shared_state: Shared, peers: Sequence[Peer], own_id: str) -> Peer | None:
    """Return the author of most of the peers' groups that were trained on lately, None without
    one."""
    counts = {author: n for author, n in shared_state.tally.trained_by.items() if author != own_id}
    total = sum(counts.values())
    large_authors = (p for p in peers if counts.get(p.peer_id, 0) > _LARGE_SHARE * total)
    return (
        next(large_authors, None)
        if len(counts) >= _FEW_AUTHORS and total >= _ENOUGH_TRAINED
        else None
    )


def _sentence(kind: str, peer: Peer) -> str:
    if kind == "scoring":
        return "costs much time for scoring: its groups wait, see `swarm-node peers`"
    if kind == "author":
        return "wrote most of the peers' groups that are trained on, see `swarm-node peers`"
    reasons = ", ".join(reason for reason, _ in peer.rejected.most_common(2))
    return f"sends groups that are refused ({reasons}): it is asked for less"
