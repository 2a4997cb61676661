"""Peers' offences in checkpoints, alarms about peers, and the rows of peers in a snapshot."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from swarm_node.clock import Clock
from swarm_node.environments.host import EnvironmentInfo
from swarm_node.environments.presets import environment_name
from swarm_node.node.figures.snapshot import DroppedRow, PeerRow
from swarm_node.node.loops.parts import Shared
from swarm_node.p2p.peers.conduct import Standing
from swarm_node.p2p.peers.liveness import OFFENCE
from swarm_node.p2p.peers.peers import Directory, Peer
from swarm_node.rollout import PolicyRef

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


def peer_rows(
    shared: Shared,
    now: float,
    via: Mapping[str, str],
    info: EnvironmentInfo | None,
    policy: PolicyRef,
) -> list[PeerRow]:
    """Return the rows of peers for a snapshot, the most recently seen first. `via` has the relay of
    each that answered lately, "" for a direct link. `policy` is this node's."""
    by, total = shared.tally.trained_by, shared.tally.trained_by.total() or 1
    known = sorted(shared.directory.live(now, float("inf")), key=lambda peer: now - peer.last_seen)
    return [
        PeerRow.of(
            peer,
            now,
            shared.members,
            by[peer.peer_id] / total,
            via.get(peer.peer_id),
            _other_environment(peer, info),
            _other_model(peer, policy),
        )
        for peer in known
    ]


def _other_environment(peer: Peer, info: EnvironmentInfo | None) -> str:
    theirs = peer.environment
    if info is None or theirs is None or theirs == (info.name, info.version):
        return ""
    return environment_name(*theirs)


def _other_model(peer: Peer, policy: PolicyRef) -> str:
    if peer.policy is None or peer.policy == (policy.model, policy.tokenizer):
        return ""
    return peer.policy[0].hex()[:8]


def former_rows(shared: Shared, now: float) -> list[PeerRow]:
    """Return the rows of former members, and of members banned here, for a snapshot."""
    gone = (peer for key, peer in shared.former.items() if shared.directory.get(key) is None)
    return [PeerRow.of(peer, now, shared.members) for peer in gone]


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
