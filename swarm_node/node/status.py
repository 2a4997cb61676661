"""A node's snapshot, taken from its parts."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict

from swarm_node.node.node import Node
from swarm_node.node.snapshot import SCHEMA, BusyRow, PeerRow, Snapshot

_SHOWN_EVALS = 2000
_SHOWN_PEERS = 200


def take_snapshot(node: Node) -> Snapshot:
    """Everything worth showing of `node` now."""
    now = node.parts.clock.now()
    swarm = node.membership.swarm
    return Snapshot(
        schema=SCHEMA,
        peer_id=node.membership.identity.peer_id,
        swarm=swarm.name,
        swarm_id=swarm.swarm_id.hex(),
        model=node.settings.model,
        state=node.state,
        seconds=now - node.started,
        version=node.parts.trainer.version,
        updates=node.tally.updates,
        skipped_updates=node.tally.skipped_updates,
        trainer_restarts=node.tally.trainer_restarts,
        groups=node.tally.groups,
        rejected=dict(node.tally.rejected),
        faults=dict(node.tally.faults + Counter(node.parts.sampler.faults)),
        evals=node.tally.evals[-_SHOWN_EVALS:],
        families=list(node.info.families) if node.info else [],
        own_families=list(node.own_families),
        peers=_peers(node, now),
        buffer={
            key: value
            for key, value in asdict(node.buffer.stats()).items()
            if isinstance(value, int)
        },
        update=node.tally.last_update,
        addresses=node.parts.transport.addresses() if node.state == "running" else [],
        processes=dict(node.parts.processes()),
        mixture=node.tally.mixture,
        busy=_busy(node, now),
        sandbox=node.info.sandbox.described() if node.info and node.info.sandbox else "",
    )


def _busy(node: Node, now: float) -> BusyRow | None:
    if node.running_since is None:
        return None
    tally = node.tally
    return BusyRow(tally.drawing.seconds, tally.updating.seconds, now - node.running_since)


def _peers(node: Node, now: float) -> list[PeerRow]:
    known = node.directory.live(now, float("inf"))
    known.sort(key=lambda peer: now - peer.last_seen)
    return [
        PeerRow(
            peer_id=peer.peer_id,
            version=peer.version,
            seconds_since_seen=now - peer.last_seen,
            published=peer.head,
            received=peer.received,
            rejected=peer.rejected.total(),
            addresses=list(peer.addresses),
        )
        for peer in known[:_SHOWN_PEERS]
    ]
