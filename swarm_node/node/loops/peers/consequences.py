"""Peers' offences in checkpoints, and alarms about peers."""

from __future__ import annotations

from collections.abc import Sequence

from swarm_node.clock import Clock
from swarm_node.node.figures.snapshot import DroppedRow
from swarm_node.node.loops.parts import Shared
from swarm_node.p2p.peers.conduct import Standing
from swarm_node.p2p.peers.liveness import OFFENCE
from swarm_node.p2p.peers.peers import Directory, Peer

#: The latest drops that a checkpoint keeps.
_KEPT = 1024
#: Lately refused groups from which the owner is alarmed, and authors among which one can be too
#: large.
_MANY_REFUSALS = 10.0
_FEW_AUTHORS = 3
_LARGE_SHARE = 0.5
_ENOUGH_TRAINED = 64


def kept(directory: Directory, clock: Clock) -> list[DroppedRow]:
    """Return the standings of dropped peers, their times in Unix seconds."""
    ahead = clock.wall() - clock.now()
    return [
        DroppedRow(peer_id, said.offences, said.off_until + ahead, said.cut_until + ahead)
        for peer_id, said in list(directory.dropped().items())[-_KEPT:]
    ]


def recall(directory: Directory, rows: Sequence[DroppedRow], clock: Clock) -> None:
    """Restore the standings that an earlier run stored. Times are bounded, so a clock that was set
    back prolongs none without end."""
    now, wall = clock.now(), clock.wall()
    for row in rows:
        off, cut = (
            now + min(OFFENCE.longest, until - wall) for until in (row.off_until, row.cut_until)
        )
        standing = Standing(offences=row.offences, left_until=off, off_until=off, cut_until=cut)
        directory.recall(row.peer_id, standing)


def watch(shared: Shared, own_id: str, now: float) -> None:
    """Set or clear the alarms about peers."""
    peers = shared.directory.live(now, float("inf"))
    found = {
        "judging": next((p for p in peers if shared.effort.exceeds(p.peer_id, now)), None),
        "author": _largest(shared, peers, own_id),
        "refusals": max(
            (
                peer
                for peer in peers
                if _MANY_REFUSALS <= peer.standing.useless > peer.standing.useful
                # The verdict names both environments.
                and max(peer.rejected, key=peer.rejected.__getitem__, default="") != "environment"
            ),
            key=lambda peer: peer.standing.useless,
            default=None,
        ),
    }
    for kind, peer in found.items():
        shared.tally.alarms.pop(kind, None)
        if peer is not None:
            shared.tally.alarms[kind] = f"{peer.peer_id} {_sentence(kind, peer)}"


def _largest(shared: Shared, peers: Sequence[Peer], own_id: str) -> Peer | None:
    """Return the author of most of the peers' groups that were trained on lately, None without
    one."""
    counts = {author: n for author, n in shared.tally.trained_by.items() if author != own_id}
    total = sum(counts.values())
    large = (p for p in peers if counts.get(p.peer_id, 0) > _LARGE_SHARE * total)
    return next(large, None) if len(counts) >= _FEW_AUTHORS and total >= _ENOUGH_TRAINED else None


def _sentence(kind: str, peer: Peer) -> str:
    if kind == "judging":
        return "costs much time for judging: its groups wait, see `swarm-node peers`"
    if kind == "author":
        return "wrote most of the peers' groups that are trained on, see `swarm-node peers`"
    why = ", ".join(reason for reason, _ in peer.rejected.most_common(2))
    return f"sends groups that are refused ({why}): it is asked for less"
