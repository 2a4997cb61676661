"""Takes the snapshot of a node."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict

from swarm_node.environments.host import EnvironmentInfo
from swarm_node.node.consequences import former_rows, peer_rows, refusals
from swarm_node.node.home import Membership
from swarm_node.node.parts import Parts, Shared
from swarm_node.node.snapshot import SCHEMA, BusyRow, MembershipRow, RelayingRow, Snapshot
from swarm_node.p2p.reach.transport import ReachingTransport

_SHOWN_EVALS = 2000
_SHOWN_PEERS = 200


def take_snapshot(
    membership: Membership,
    parts: Parts,
    shared: Shared,
    reaching: ReachingTransport,
    *,
    model: str,
    state: str,
    started: float,
    running_since: float | None,
    info: EnvironmentInfo | None,
    own_families: tuple[str, ...],
) -> Snapshot:
    """Everything worth showing of a node now. `started` and `running_since` are of its clock."""
    tally, now = shared.tally, parts.clock.now()
    identity, swarm = membership.identity, membership.swarm
    own = MembershipRow.of(shared.members, identity.peer_id)
    buffer = asdict(shared.buffer.stats()).items()
    busy = None
    if running_since is not None:
        busy = BusyRow(tally.drawing.seconds, tally.updating.seconds, now - running_since)
    return Snapshot(
        schema=SCHEMA,
        peer_id=identity.peer_id,
        swarm=swarm.name,
        swarm_id=swarm.swarm_id.hex(),
        model=model,
        state=state,
        seconds=now - started,
        version=parts.trainer.version,
        updates=tally.updates,
        skipped_updates=tally.skipped_updates,
        trainer_restarts=tally.trainer_restarts,
        groups=tally.groups,
        rejected=dict(tally.rejected),
        faults=dict(tally.faults + Counter(parts.sampler.faults) + parts.storage.faults),
        evals=tally.evals[-_SHOWN_EVALS:],
        families=list(info.families) if info else [],
        own_families=list(own_families),
        peers=peer_rows(shared, now, reaching.usage.via)[:_SHOWN_PEERS],
        buffer={key: value for key, value in buffer if isinstance(value, int)},
        update=tally.last_update,
        addresses=parts.transport.addresses() if state == "running" else [],
        processes=dict(parts.processes()),
        mixture=tally.mixture,
        busy=busy,
        sandbox=info.sandbox.described() if info and info.sandbox else "",
        engine=parts.engine(),
        membership=own,
        former=former_rows(shared, now),
        relaying=RelayingRow.of(reaching),
        alarms=[
            *(own.alarms(parts.clock.wall()) if own else ()),
            *refusals(shared.directory.live(now, float("inf"))),
            *tally.alarms.values(),
        ],
    )
