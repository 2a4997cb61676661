"""The loop that writes a node's history, and its log line."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace

import msgspec
import structlog

from swarm_node.errors import HomeError
from swarm_node.node.loops.node_parts import Parts, Shared
from swarm_node.node.metrics.history import LEAST_SECONDS, MOST_SECONDS, HistoryRow, Totals
from swarm_node.node.metrics.progress import describe_work
from swarm_node.node.metrics.snapshot import SEEN_SECONDS, EvalPoint, Said, Snapshot
from swarm_node.page.event_log import Sight

_TICK_SECONDS = 1.0
_REPORT_SECONDS = 15.0
#: Until the first update a line comes sooner, and the first one very soon.
_FIRST_SECONDS, _EARLY_SECONDS = 5.0, 10.0
_log = structlog.get_logger(__name__)


class Recorder:
    """Writes a row of history after a step or an evaluation, and at intervals without one. The log
    gets the node's metrics at intervals, and its health whenever that has changed."""

    def __init__(
        self, parts: Parts, shared_state: Shared, snapshot: Callable[[], Snapshot]
    ) -> None:
        """`snapshot` returns the figures of this node now."""
        self._snapshot = snapshot
        self._last_health: tuple[str, str] | None = None
        self._parts = parts
        self._shared_state = shared_state
        self._previous_totals, self._previous_batches = self._totals(), self._batches()
        self._last_eval: EvalPoint | None = None
        self._reported_at = parts.clock.now()
        #: When the work before the first update was told, and the seconds to the next time.
        self._work_told_at, self._wait = self._reported_at, _FIRST_SECONDS
        self._told_of_fault = False

    async def step(self) -> None:
        """Write a row if one is due. From time to time log one line on the node's work, and look
        what happened to peers. The caller repeats it."""
        clock = self._parts.clock
        await asyncio.sleep(_TICK_SECONDS)
        if self._due():
            await self._record()
        if clock.now() - self._reported_at >= _REPORT_SECONDS:
            self._reported_at = self._work_told_at = clock.now()
            self._report()
            self._watch()
        elif (
            self._shared_state.tally.updating.count == 0
            and clock.now() >= self._work_told_at + self._wait
        ):
            self._work_told_at, self._wait = clock.now(), _EARLY_SECONDS
            self._report_work()

    def _watch(self) -> None:
        """Log what happened to members since the last look."""
        shared_state, now, wall = (
            self._shared_state,
            self._parts.clock.now(),
            self._parts.clock.wall(),
        )
        live_peers = {peer.peer_id: peer for peer in shared_state.directory.live(now, float("inf"))}
        for peer_id, peer in {**shared_state.former, **live_peers}.items():
            membership = shared_state.members.presented_membership(peer_id)
            if membership is not None:
                is_silent = now - peer.last_seen > SEEN_SECONDS or peer_id not in live_peers
                name, _ = shared_state.members.names(membership[0])
                issuer = membership[0].admitted_by.hex()
                sight = Sight(
                    name, issuer, membership[1], not is_silent, peer.epoch, peer.addresses
                )
                shared_state.tally.events.see(
                    peer_id, replace(sight, rejections=dict(peer.rejected)), wall
                )

    def _batches(self) -> int:
        return self._shared_state.tally.steps + self._shared_state.tally.skipped_batches

    def _due(self) -> bool:
        tally, elapsed = (
            self._shared_state.tally,
            self._parts.clock.now() - self._previous_totals.seconds,
        )
        if tally.evals and tally.evals[-1] is not self._last_eval:
            return True
        return elapsed >= (
            LEAST_SECONDS if self._batches() > self._previous_batches else MOST_SECONDS
        )

    async def _record(self) -> None:
        parts = self._parts
        memory = 0 if parts.memory is None else await asyncio.to_thread(parts.memory)
        row = self._row(memory)
        parts.history.add(row)
        if parts.metrics is None:
            return
        try:
            await asyncio.to_thread(parts.metrics.append, row)
        except HomeError as error:
            self._shared_state.tally.faults["metrics"] += 1
            if not self._told_of_fault:
                self._told_of_fault = True
                _log.warning("metrics.jsonl cannot be written (logged once)", error=str(error))

    def _row(self, memory: int) -> HistoryRow:
        tally, clock = self._shared_state.tally, self._parts.clock
        previous_totals, self._previous_totals, self._previous_batches = (
            self._previous_totals,
            self._totals(),
            self._batches(),
        )
        point = tally.evals[-1] if tally.evals else None
        point, self._last_eval = None if point is self._last_eval else point, point
        peers = self._shared_state.directory.live(clock.now(), SEEN_SECONDS)
        return HistoryRow.of(
            *(previous_totals, self._previous_totals, tally.groups, tally.last_applied),
            time=clock.wall(),
            version=self._parts.trainer.version,
            steps=tally.steps,
            rejected=tally.rejected.total() - tally.rejected["unreachable"],
            rerun_mismatch=tally.rejected["rerun_mismatch"],
            peers=len(peers),
            memory=memory,
            eval_reward=point.families if point else None,
            best_of_k=point.best_of_k if point else None,
            k=point.k if point else None,
            eval_reward_train=point.train if point else None,
            split_version=point.split_version if point else None,
        )

    def _totals(self) -> Totals:
        tally, buffer = self._shared_state.tally, self._shared_state.buffer.stats()
        return replace(
            tally.sums,
            seconds=self._parts.clock.now(),
            steps=tally.steps,
            local=tally.groups.trained_local,
            external=tally.groups.trained_external,
            sampled=buffer.local_admitted,
            mixed_rewards=buffer.local_mixed_rewards,
            completions=tally.groups.completions,
            truncated=tally.groups.truncated,
            sampling=tally.drawing.seconds,
            updating=tally.updating.seconds,
        )

    def _report_work(self) -> None:
        shot = self._snapshot()
        if shot.work is not None and (sentence := ", ".join(describe_work(shot.work, shot.steps))):
            _log.info("work", **msgspec.structs.asdict(shot.work), sentence=sentence)

    def _report(self) -> None:
        shot = self._snapshot()
        first = shot.findings[0]
        if (first.kind, first.level) != self._last_health:
            self._last_health = first.kind, first.level
            log = _log.warning if first.level == "bad" else _log.info
            sentence = " → ".join(filter(None, (first.text, first.remedy)))
            log("health", kind=first.kind, text=first.text, remedy=first.remedy, sentence=sentence)
        self._report_progress(first, shot)

    def _report_progress(self, first: Said, shot: Snapshot) -> None:
        tally, row = self._shared_state.tally, self._parts.history.latest
        peers = len(self._shared_state.directory.live(self._parts.clock.now(), SEEN_SECONDS))
        point = tally.evals[-1] if tally.evals else None
        reward = round(point.reward, 3) if point else None
        train = round(point.train, 3) if point and point.train is not None else None
        groups, rate = tally.groups, row.steps_per_second if row else 0.0
        _log.info(
            "progress",
            version=self._parts.trainer.version,
            eval_reward=reward,
            eval_reward_train=train,
            peers=peers,
            sampled=groups.sampled,
            announced=groups.announced,
            sent=groups.sent,
            accepted=groups.accepted,
            trained_local=groups.trained_local,
            trained_external=groups.trained_external,
            rejected=tally.rejected.total(),
            health=first.kind,
            health_level=first.level,
            **({} if shot.work is None else msgspec.structs.asdict(shot.work)),
            sentence=f"version {self._parts.trainer.version}, "
            f"eval reward {_format_optional(reward)}, "
            f"on training prompts {_format_optional(train)}, "
            f"{rate:.1f} steps/s, peers {peers}, sent {groups.sent}, accepted {groups.accepted}, "
            f"trained on {groups.trained_local} local and {groups.trained_external} external, "
            + "".join(
                f"{part}, " for part in (describe_work(shot.work, shot.steps) if shot.work else ())
            )
            + f"health {first.kind} ({first.level})",
        )


def _format_optional(value: float | None) -> str:
    return "-" if value is None else f"{value}"
