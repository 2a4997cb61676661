"""Makes the snapshot of a node and the report on its network."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import Any

import msgspec

from swarm_node.clock import Clock
from swarm_node.environments.host import EnvironmentInfo
from swarm_node.environments.presets import environment_name
from swarm_node.errors import TransportError
from swarm_node.node.loops.node_parts import Parts, Shared, progress_of
from swarm_node.node.loops.peers.rows import former_rows, of_unmet, peer_rows
from swarm_node.node.metrics.health import findings
from swarm_node.node.metrics.snapshot import (
    SCHEMA,
    SEEN_SECONDS,
    BusyRow,
    LevelRow,
    MembershipRow,
    NetworkReport,
    RelayingRow,
    Snapshot,
    TokensRow,
    TriedRow,
    WorkRow,
)
from swarm_node.p2p.exchange.discovery import Discovery
from swarm_node.p2p.membership.members import Members
from swarm_node.p2p.peers.causes import Cause
from swarm_node.p2p.reach.reachability import Relay
from swarm_node.p2p.reach.transport import ReachingTransport
from swarm_node.p2p.wire.identity import short_id

_EXAMPLES = 3
_SHOWN_CAUSES = 32


def take_snapshot(
    parts: Parts,
    shared_state: Shared,
    reaching: ReachingTransport,
    discovery: Discovery | None,
    *,
    model: str,
    limit: int,
    levels: list[LevelRow],
    state: str,
    started_at: float,
    running_since: float | None,
    info: EnvironmentInfo | None,
    own_families: tuple[str, ...],
    home: Path | None,
) -> Snapshot:
    """Make the snapshot of a node now. `started_at` and `running_since` are of its clock. `limit`
    is the number of its last update, 0 for none. `home` is for `findings`. `discovery` is None
    before the node runs."""
    tally, now = shared_state.tally, parts.clock.now()
    identity, swarm = shared_state.local.identity, shared_state.local.swarm
    membership = MembershipRow.of(shared_state.members, identity.peer_id)
    buffer = asdict(shared_state.buffer.stats()).items()
    shot = Snapshot(
        schema=SCHEMA,
        peer_id=identity.peer_id,
        swarm=swarm.name,
        swarm_id=swarm.swarm_id.hex(),
        model=model,
        state=state,
        seconds=now - started_at,
        version=parts.trainer.version,
        steps=tally.steps,
        skipped_batches=tally.skipped_batches,
        trainer_restarts=tally.trainer_restarts,
        groups=tally.groups,
        rejected=dict(tally.rejected),
        faults=dict(tally.faults + Counter(parts.sampler.faults) + parts.storage.faults),
        evals=list(tally.evals),
        families=list(info.families) if info else [],
        local_families=list(own_families),
        peers=peer_rows(shared_state, reaching, now, info, parts.policy),
        buffer={key: value for key, value in buffer if isinstance(value, int)},
        last_step=tally.last_applied or tally.last_update,
        addresses=parts.transport.addresses() if state == "running" else [],
        processes=dict(parts.processes()),
        sandbox=info.sandbox.describe() if info and info.sandbox else "",
        engine=parts.engine(),
        membership=membership,
        former=former_rows(shared_state, reaching, now),
        **of_unmet(shared_state, reaching, discovery, now),
        reach=parts.reach.verdict() if parts.knock is not None else None,
        relaying=RelayingRow.of(reaching),
        alarms=_alarms(shared_state, membership, parts.clock),
        environment=environment_name(info.name, info.version) if info else "",
        levels=levels,
    )
    shot = msgspec.structs.replace(shot, **_course(parts, shared_state, running_since, limit))
    return msgspec.structs.replace(shot, findings=findings(shot, tally.hysteresis, home))


def _course(
    parts: Parts, shared_state: Shared, running_since: float | None, limit: int
) -> dict[str, Any]:
    """Return the snapshot's fields on the progress of the node."""
    tally, failures, now = shared_state.tally, shared_state.directory.failures, parts.clock.now()
    since_update = step_seconds = work = busy_row = None
    if running_since is not None:
        busy_row = BusyRow(tally.drawing.seconds, tally.updating.seconds, now - running_since)
        work = _work(parts, shared_state, limit, running_since)
        since_update = parts.clock.now() - max(running_since, tally.updated_at)
        if tally.updating.count:
            step_seconds = (tally.updated_at - running_since) / tally.updating.count
    return {
        "time": parts.clock.wall(),
        "work": work,
        "busy": busy_row,
        "advice": tally.advice,
        "configured": failures.configured_count,
        "causes": failures.causes(now)[:_SHOWN_CAUSES],
        "refused_callers": failures.recent_refusals(now)[:_SHOWN_CAUSES],
        "mixture": tally.mixture,
        "latest": parts.history.latest,
        "taught": tally.trained_groups.rows(),
        "seconds_since_step": since_update,
        "seconds_between_steps": step_seconds,
        "recent": tally.samples.recent(),
        "coordinator": tally.coordinator,
        "examples": tally.samples.examples(_EXAMPLES),
        "tokens": TokensRow(tally.sums.sampled_tokens, tally.sums.trained_tokens),
    }


def _work(parts: Parts, shared_state: Shared, limit: int, running_since: float) -> WorkRow:
    """Return what sampler and trainer do now."""
    tally, buffer, now = shared_state.tally, shared_state.buffer, parts.clock.now()
    end = None
    step_count = tally.updating.count - tally.skipped_batches
    if limit and step_count > 0:
        step_seconds = (tally.updated_at - running_since) / step_count
        left = limit - tally.steps
        # The update under way may take longer than usual, the others as long.
        end = max(0.0, left * step_seconds - min(step_seconds, now - tally.updated_at))
    missing_groups = 0
    if not tally.updating.count and tally.underway.update_began is None:
        missing_groups = max(0, buffer.mixture.own - buffer.held_own())
    return tally.underway.row(now, progress_of(parts.sampler), missing_groups, end)


def _alarms(shared_state: Shared, membership: MembershipRow | None, clock: Clock) -> list[str]:
    return [
        *(membership.alarms(clock.wall()) if membership else ()),
        *shared_state.tally.alarms.values(),
    ]


def name_of(members: Members, peer_id: str) -> str:
    """Return a peer's name for people: the name in its certificate, or the end of its id."""
    return members.name(peer_id) or short_id(peer_id)


async def take_report(
    parts: Parts, shared_state: Shared, reaching: ReachingTransport
) -> NetworkReport:
    """Make the report on a running node's network. It includes a lookup in the transport's table
    and a round trip to each relay."""
    started_at, heartbeats, fault = parts.clock.now(), 0, ""
    try:
        heartbeats = len(await parts.transport.heartbeats())
    except TransportError as error:
        fault = str(error)
    seconds, probed_at = parts.clock.now() - started_at, parts.clock.now()
    trips = await reaching.relays.round_trips()
    tries, relays = [], []
    for relay, trip in trips.items():
        name, wait_seconds = name_of(shared_state.members, relay), parts.clock.now() - probed_at
        relays.append(Relay(name, trip))
        cause = Cause("no_answer", relay, name, seconds=wait_seconds) if trip is None else None
        tries.append(TriedRow("relay", name, wait_seconds if trip is None else trip, cause))
    return NetworkReport(
        reach=msgspec.structs.replace(parts.reach.verdict(), relays=relays),
        addresses=parts.transport.addresses(),
        peers=len(shared_state.directory.live(parts.clock.now(), SEEN_SECONDS)),
        heartbeats=heartbeats if parts.transport.has_table else None,
        seconds=seconds,
        fault=fault,
        tried=tries,
    )
